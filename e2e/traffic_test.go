package e2e

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
)

func TestBodiesArriveWhole(t *testing.T) {
	t.Parallel()
	w := start(t, 2, nil)
	w.runSightline(extproc.Options{})
	target := w.workers[1].addr
	for _, size := range []int{0, 100, 17_000, 3 << 20, 20 << 20} {
		body := chat(script{Targets: []string{target}}, `"pad":"`+strings.Repeat("é", size/2)+`"`)
		sum := sha256.Sum256([]byte(body))
		for name, c := range map[string]*http.Client{"HTTP/1": w.client, "HTTP/2": w.h2} {
			r := decided(func() reply { return w.send(c, "POST", "/v1/chat/completions", body, nil) })
			if r.err != nil || r.Worker != target || r.SHA256 != hex.EncodeToString(sum[:]) {
				t.Errorf("%d bytes, %s: got %v, status %d, %d bytes at %s; want all of them, unchanged, at %s",
					size, name, r.err, r.status, r.Length, r.Worker, target)
			}
			if got := r.Headers["Content-Length"]; len(got) != 1 {
				t.Errorf("%d bytes, %s: content-length %q at the worker, want it kept", size, name, got)
			}
		}
	}
}

// upload sends a body of unknown length (chunked), optionally with trailers.
func (w *world) upload(c *http.Client, body string, header, trailer http.Header) reply {
	req, err := http.NewRequest("POST", w.url+"/v1/chat/completions", io.NopCloser(strings.NewReader(body)))
	if err != nil {
		return reply{err: err}
	}
	req.Header, req.Trailer = header.Clone(), trailer
	if req.Header == nil {
		req.Header = http.Header{}
	}
	if req.Header.Get("content-type") == "" {
		req.Header.Set("content-type", "application/json")
	}
	return do(c, req)
}

func TestFormsOfUpload(t *testing.T) {
	w := start(t, 2, nil)
	w.runSightline(extproc.Options{})
	target := w.workers[1].addr
	told := script{Targets: []string{target}}
	body := chat(told)
	for name, c := range map[string]*http.Client{"HTTP/1": w.client, "HTTP/2": w.h2} {
		for form, r := range map[string]reply{
			"chunked":         w.upload(c, body, nil, nil),
			"with trailers":   w.upload(c, body, nil, http.Header{"X-Check": {"1"}}),
			"expect continue": w.upload(c, body, http.Header{"Expect": {"100-continue"}}, nil),
			"no content type": w.upload(c, body, http.Header{"Content-Type": {""}}, nil),
		} {
			if r.err != nil || r.Worker != target || r.Length != len(body) {
				t.Errorf("%s, %s: %v, status %d, %d bytes at %q, want %d at %s", name, form, r.err, r.status, r.Length, r.Worker, len(body), target)
			}
		}
	}
}

// Whatever the body is, the request reaches a worker, which says what it thinks of it, or is refused for its headers (the
// Sightline here decides without reading bodies).
func TestGarbage(t *testing.T) {
	w := start(t, 2, nil)
	w.runSightline(extproc.Options{})
	for name, c := range map[string]struct {
		body   string
		header http.Header
		want   int
	}{
		"empty object":   {`{}`, nil, 200},
		"not JSON":       {`{"model":`, nil, 200},
		"binary":         {"\x00\xff\xfe", nil, 200},
		"deep":           {strings.Repeat("[", 10_000), nil, 200},
		"gzip":           {`{}`, http.Header{"Content-Encoding": {"gzip"}}, 415},
		"wrong type":     {`{}`, http.Header{"Content-Type": {"text/plain"}}, 415},
		"script of 0":    {`{"script":0}`, nil, 200},
		"empty":          {``, nil, 200},
		"empty, encoded": {``, http.Header{"Content-Encoding": {"gzip"}}, 200},
		"one byte":       {` `, nil, 200},
		"long session":   {`{}`, http.Header{"X-Session-Id": {strings.Repeat("s", 10_000)}}, 200},
	} {
		r := w.post(c.body, c.header)
		if r.err != nil || r.status != c.want || r.status == 200 && r.Length != len(c.body) {
			t.Errorf("%s: %v, status %d, want %d, %d bytes at the worker, want %d", name, r.err, r.status, c.want, r.Length, len(c.body))
		}
	}
	if r := w.post(chat(script{Targets: w.addrs()}), nil); r.id() == "" {
		t.Error("no decisions any more")
	}
}

// What is no inference streams through: the worker has the first byte while the client is still writing.
func TestOtherPathsAreNotBuffered(t *testing.T) {
	t.Parallel()
	const limit = 8 << 20
	w := start(t, 1, func(o *envoy.Options) { o.BodyLimit = limit })
	w.runSightline(extproc.Options{MaxBody: limit})
	big := strings.Repeat("x", 5*limit)
	for _, path := range []string{"/v1/audio/transcriptions", "/v1/files", "/"} {
		if r := w.send(w.client, "POST", path, big, http.Header{"Content-Type": {"application/octet-stream"}}); r.status != 200 ||
			r.Length != len(big) || r.id() != "" {
			t.Errorf("%s: %v, status %d, %d bytes, decision %q, want 200, %d, %q", path, r.err, r.status, r.Length, r.id(), len(big), "")
		}
	}
	if r := w.send(w.client, "GET", "/v1/models", "", nil); r.status != 200 || r.Path != "/v1/models" {
		t.Errorf("GET: %v, status %d; got %q, want 200, %q", r.err, r.status, r.Path, "/v1/models")
	}
	// Over the limit nothing of an endpoint's passes: announced it is refused at once, else once it is too much.
	if r := w.post(chat(script{}, `"pad":"`+big+`"`), nil); r.err == nil && r.status != 413 || r.Worker != "" {
		t.Errorf("announced 40 MB: %v, status %d from %q; want 413", r.err, r.status, r.Worker)
	}
	if r := w.upload(w.client, chat(script{}, `"pad":"`+big+`"`), nil, nil); r.err == nil && r.status != 413 {
		t.Errorf("40 MB of unknown length: status %d, want 413", r.status)
	}
}

// Envoy's routes and Sightline's gate know the same endpoints.
func TestEndpointsThatAreDecided(t *testing.T) {
	w := start(t, 1, nil)
	w.runSightline(extproc.Options{})
	for path, want := range map[string]bool{
		"/v1/chat/completions": true, "/v1/completions": true, "/v1/responses": true, "/v1/messages": true, "/v1/chat/completions/batch": true,
		"/v1/completions?a=b": true, "/v1/./chat/../chat/completions": true, "/v1/chat/completions/": true,
		"//v1/completions": true, "/v1%2Fmessages": true,
		"/v1/embeddings": false, "/v1/embeddings/": false, "/v1/models%2Fx": false, "/v1/chat%252Fcompletions": false,
		"/v1/completionsx": false, "/x/v1/completions": false, "/": false,
	} {
		r := w.send(w.client, "POST", path, chat(script{Targets: w.addrs()}), nil)
		if r.err != nil || r.status != 200 || (r.id() != "") != want {
			t.Errorf("%s: %v, status %d, decision %q, want one: %v", path, r.err, r.status, r.id(), want)
		}
	}
}

func TestAnswersStream(t *testing.T) {
	w := start(t, 2, nil)
	w.runSightline(extproc.Options{})
	target := w.workers[1]
	for name, c := range map[string]*http.Client{"HTTP/1": w.client, "HTTP/2": w.h2} {
		req, err := http.NewRequest("POST", w.url+"/v1/chat/completions",
			strings.NewReader(chat(script{Targets: []string{target.addr}}, `"stream":true`)))
		if err != nil {
			t.Fatal(err)
		}
		step := strings.ReplaceAll(name, "/", "")
		req.Header = http.Header{"Content-Type": {"application/json"}, "X-Step": {step}}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		// Each event arrives before the worker writes the next one: it waits for us.
		lines := bufio.NewScanner(res.Body)
		var events []string
		for lines.Scan() {
			if lines.Text() == "" {
				continue
			}
			events = append(events, lines.Text())
			if n := len(events) - 1; n < 5 {
				close(target.hold(step + string(rune('0'+n))))
			}
		}
		res.Body.Close()
		if len(events) != 7 || events[6] != "data: [DONE]" || !strings.Contains(events[3], `"3"`) {
			t.Errorf("%s: events %q, want 7 of them, [6] %q, [3] %q in it", name, events, "data: [DONE]", `"3"`)
		}
	}
	// Nothing of ours hangs on a generation: all ext_proc streams are closed.
	if w.stat("http.ingress.ext_proc.streams_started") == 0 {
		t.Error("no stream was opened")
	}
	eventually(t, "no stream is open", func() bool {
		return w.stat("http.ingress.ext_proc.streams_started") <= w.stat("http.ingress.ext_proc.streams_closed")+
			w.stat("http.ingress.ext_proc.streams_failed")
	})
}

func TestEditedBody(t *testing.T) {
	t.Parallel()
	w := start(t, 2, nil)
	w.runSightline(extproc.Options{})
	target := w.workers[1].addr
	for _, pad := range []int{0, 100_000, 5 << 20} {
		for _, text := range []string{"x", strings.Repeat("longer", 20)} {
			body := chat(script{Targets: []string{target}, Edit: text}, `"uuid":"EDITME","pad":"`+strings.Repeat("p", pad)+`"`)
			want := strings.Replace(body, "EDITME", text, 1)
			sum := sha256.Sum256([]byte(want))
			for name, send := range map[string]func() reply{
				"HTTP/1":         func() reply { return w.post(body, nil) },
				"HTTP/2":         func() reply { return w.send(w.h2, "POST", "/v1/chat/completions", body, nil) },
				"HTTP/1 chunked": func() reply { return w.upload(w.client, body, nil, nil) },
				"HTTP/2 chunked": func() reply { return w.upload(w.h2, body, nil, nil) },
			} {
				r := decided(send)
				if r.err != nil || r.Worker != target || r.SHA256 != hex.EncodeToString(sum[:]) {
					t.Errorf("%s, %d bytes, %q: %v, status %d, %d bytes at %q, want %d", name, len(body), text[:1], r.err, r.status,
						r.Length, r.Worker, len(want))
				}
			}
		}
	}
}

func TestHeadersAtTheWorker(t *testing.T) {
	w := start(t, 2, nil)
	w.runSightline(extproc.Options{})
	r := w.post(chat(script{Targets: w.addrs(), Reason: "affinity"}), http.Header{"Authorization": {"Bearer k"}, "X-Mine": {"1"}})
	var names []string
	for k := range r.Headers {
		names = append(names, strings.ToLower(k))
	}
	slices.Sort(names)
	want := []string{"accept-encoding", "authorization", "content-length", "content-type", "user-agent", "x-envoy-attempt-count",
		"x-forwarded-proto", "x-mine", "x-request-id", "x-route-reason", "x-sightline-id", "x-target-worker-2"}
	if !slices.Equal(names, want) {
		t.Errorf("headers %v, want %v", names, want)
	}
}
