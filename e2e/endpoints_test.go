package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
)

// pooled is an Envoy before two models, one by path and one by header, and the product behind it, with workers that do
// what the handlers say: worker i of model i.
func pooled(t *testing.T, handlers ...http.HandlerFunc) (w *world, stop func()) {
	t.Helper()
	return pooledIn(t, false, handlers...)
}

func pooledIn(t *testing.T, fullDuplex bool, handlers ...http.HandlerFunc) (w *world, stop func()) {
	t.Helper()
	var workers, models []any
	var pools []envoy.Pool
	for i, h := range handlers {
		s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("x-worker", fmt.Sprint(i))
			if r.URL.Path != "/health" && r.URL.Path != "/metrics" { // both are the product's questions
				h(rw, r)
			}
		}))
		t.Cleanup(s.CloseClientConnections)
		addr := strings.TrimPrefix(s.URL, "http://")
		name := fmt.Sprintf("model-%d", i%2)
		workers = append(workers, map[string]any{"addr": addr, "model": name})
		if i < 2 {
			models = append(models, map[string]any{"name": name, "dir": absolute(t, modelDir)})
			pools = append(pools, envoy.Pool{Name: name, Workers: []string{addr}, Path: fmt.Sprint("/m", i)})
		} else {
			pools[i%2].Workers = append(pools[i%2].Workers, addr)
		}
	}
	w = start(t, 0, func(o *envoy.Options) { o.Pools, o.FullDuplex = pools, fullDuplex })
	return w, w.runProduct(map[string]any{"models": models, "workers": workers})
}

// What carries no prompt streams through to its pool, with Sightline up and down: the worker has the first bytes before
// the client has sent the last.
func TestOtherEndpointsStream(t *testing.T) {
	talk := func(rw http.ResponseWriter, r *http.Request) { // answers each line as it comes
		if r.Header.Get("Upgrade") == "websocket" {
			conn, buf, err := rw.(http.Hijacker).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			fmt.Fprintf(buf, "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\nx-worker: %s\r\n\r\n",
				rw.Header().Get("x-worker"))
			_ = buf.Flush()
			_, _ = io.Copy(conn, buf)
			return
		}
		_ = http.NewResponseController(rw).EnableFullDuplex()
		rw.WriteHeader(http.StatusOK)
		for lines := bufio.NewScanner(r.Body); lines.Scan(); {
			fmt.Fprintf(rw, "%s\n", lines.Text())
			rw.(http.Flusher).Flush()
		}
	}
	w, stop := pooled(t, talk, talk)
	check := func(t *testing.T) {
		for i := range 2 {
			for path, kind := range map[string]string{"/v1/embeddings": "application/json",
				"/v1/audio/transcriptions": "multipart/form-data; boundary=x", "/v1/realtime": "websocket", "/": ""} {
				path = fmt.Sprintf("/m%d%s", i, path)
				worker, err := conversation(w.url, path, kind)
				if err != nil || worker != fmt.Sprint(i) {
					t.Errorf("%s: got %v, worker %q, want no error, %q", path, err, worker, fmt.Sprint(i))
				}
			}
		}
	}
	t.Run("up", check)
	stop()
	t.Run("down", check)
}

// conversation sends a body line by line, each after the answer to the one before, and tells who answered.
func conversation(base, path, kind string) (worker string, err error) {
	u, err := url.Parse(base)
	if err != nil {
		return "", err
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	head, want, method := "content-type: "+kind+"\r\ntransfer-encoding: chunked\r\n", 200, "POST"
	if kind == "websocket" {
		head, want,
			method = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n",
			101, "GET"
	}
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nhost: x\r\n%s\r\n", method, path, head)
	say := func(line string) {
		if kind == "websocket" {
			fmt.Fprintf(conn, "%s\n", line)
		} else {
			fmt.Fprintf(conn, "%x\r\n%s\n\r\n", len(line)+1, line)
		}
	}
	say("line 0") // workers answer nothing before the first bytes
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != want {
		return "", fmt.Errorf("%v, %v", err, res)
	}
	body := bufio.NewReader(res.Body)
	if kind == "websocket" {
		body = in
	}
	for i := range 3 {
		line, err := body.ReadString('\n')
		if err != nil || line != fmt.Sprintf("line %d\n", i) {
			return "", fmt.Errorf("line %d: %q, %w", i, line, err)
		}
		say(fmt.Sprint("line ", i+1))
	}
	return res.Header.Get("x-worker"), nil
}

func TestListOfModels(t *testing.T) {
	t.Parallel()
	own := func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, `{"data":[{"id":"own"}]}`) }
	names := func(w *world, path string) (out []string) {
		r := w.send(w.client, "GET", path, "", nil)
		var list struct{ Data []struct{ ID string } }
		if err := json.Unmarshal(r.body, &list); r.status != 200 || err != nil {
			return []string{fmt.Sprintf("status %d %v", r.status, err)}
		}
		for _, m := range list.Data {
			out = append(out, m.ID)
		}
		return out
	}
	w, stop := pooled(t, own, own)
	for path, want := range map[string]string{"/v1/models": "[model-0 model-1]", "/v1/models?limit=9": "[model-0 model-1]",
		"/m0/v1/models": "[own]", "/m1/v1/models": "[own]"} {
		if got := fmt.Sprint(names(w, path)); got != want {
			t.Errorf("%s: %s, want %s", path, got, want)
		}
	}
	stop()
	if got := fmt.Sprint(names(w, "/v1/models")); got != "[status 503 unexpected end of JSON input]" {
		t.Errorf("Sightline away: %s, want 503", got)
	}
	// Two models without pools.
	one := start(t, 2, nil)
	one.runSightline(extproc.Options{Models: []string{"a", "b"}})
	if got := fmt.Sprint(names(one, "/v1/models")); got != "[a b]" {
		t.Errorf("without pools: %s, want both", got)
	}
}

// An engine alone knows its answers: what names one goes to the worker that gave it, also where the id came as the first
// event of a stream that has not ended.
func TestStoredAnswersGoHome(t *testing.T) {
	t.Parallel()
	t.Run("buffered", func(t *testing.T) { storedAnswers(t, false) })
	t.Run("full duplex", func(t *testing.T) { storedAnswers(t, true) })
}

func storedAnswers(t *testing.T, fullDuplex bool) {
	var number atomic.Int64
	finish := make(chan struct{})
	engine := func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.URL.Path != "/v1/responses" {
			return
		}
		id := fmt.Sprintf("resp_%d", number.Add(1))
		if strings.Contains(string(body), `"stream":true`) {
			rw.Header().Set("content-type", "text/event-stream")
			fmt.Fprintf(rw, "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":%q,\"object\":\"response\"}}\n\n",
				id)
			rw.(http.Flusher).Flush()
			<-finish
			fmt.Fprint(rw, "event: response.completed\ndata: {}\n\n")
			return
		}
		rw.Header().Set("content-type", "application/json")
		fmt.Fprintf(rw, `{"id":%q,"object":"response","output":[%q]}`, id, strings.Repeat("x", 200_000))
	}
	w, stop := pooledIn(t, fullDuplex, engine, engine, engine, engine, engine, engine) // three of each model
	ask := func(method, path, body string) reply {
		t.Helper()
		r := w.send(w.client, method, path, body, nil)
		if r.err != nil || r.status != 200 {
			t.Fatalf("%s %s: %v, status %d %.200s", method, path, r.err, r.status, r.body)
		}
		return r
	}
	begin := func(i int, more string) (id, worker string) {
		t.Helper()
		body := fmt.Sprintf(`{"model":"model-%d","instructions":"%d, so that no two prompts begin alike","input":"question"%s}`,
			i%2, number.Load(), more)
		req, err := http.NewRequest("POST", fmt.Sprintf("%s/m%d/v1/responses", w.url, i%2), strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("content-type", "application/json")
		res, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		text := make([]byte, 4096)
		n, err := res.Body.Read(text)
		_, rest, _ := strings.Cut(string(text[:n]), `"id":"`)
		id, _, ok := strings.Cut(rest, `"`)
		if !ok {
			t.Fatalf("%v, status %d, %.200s", err, res.StatusCode, text[:n])
		}
		if more == "" {
			if all, err := io.ReadAll(res.Body); err != nil || n+len(all) < 200_000 {
				t.Fatalf("%v, %d bytes of the answer, want no error, at least 200_000", err, n+len(all))
			}
		}
		return id, res.Header.Get("x-worker")
	}
	follow := func(i int, id, worker string) {
		t.Helper()
		base := fmt.Sprintf("/m%d/v1/responses", i%2)
		for _, r := range []reply{
			ask("POST", base, fmt.Sprintf(`{"model":"model-%d","input":"more","previous_response_id":%q}`, i%2, id)),
			ask("GET", base+"/"+id, ""), ask("GET", base+"/"+id+"/input_items?limit=2", ""),
			ask("POST", base+"/"+id+"/cancel", ""), ask("POST", base+"/"+id+"/cancel", "{}"), ask("DELETE", base+"/"+id, ""),
		} {
			if got := r.header.Get("x-worker"); got != worker {
				t.Errorf("answer %s of worker %s: a request went to %s, want %q", id, worker, got, worker)
			}
		}
	}
	seen := map[string]bool{}
	for i := range 12 {
		id, worker := begin(i, "")
		seen[worker] = true
		follow(i, id, worker)
		id, worker = begin(i, `,"stream":true`)
		seen[worker] = true
		follow(i, id, worker)
	}
	close(finish)
	if len(seen) < 4 {
		t.Errorf("answers of workers %v only: nothing was tried, want at least 4 of them", seen)
	}
	eventually(t, "no stream is open", func() bool {
		return w.stat("http.ingress.ext_proc.streams_started") == w.stat("http.ingress.ext_proc.streams_closed")+
			w.stat("http.ingress.ext_proc.streams_failed")
	})
	if n := w.stat("http.ingress.ext_proc.spurious_msgs_received"); n != 0 {
		t.Errorf("%d messages that Envoy did not expect, want 0", n)
	}
	ask("GET", "/m0/v1/responses/resp_unknown", "")
	stop()
	eventually(t, "Envoy sees that Sightline is away", func() bool { return w.stat("cluster.sightline.membership_healthy") == 0 })
	ask("GET", "/m0/v1/responses/resp_1", "") // anybody answers
	ask("POST", "/m1/v1/responses", `{"model":"model-1","input":"more","previous_response_id":"resp_1"}`)
}
