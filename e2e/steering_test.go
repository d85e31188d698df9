package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/internal/denied"
)

func TestPickIsObeyed(t *testing.T) {
	w := start(t, 3, nil)
	w.runSightline(extproc.Options{})
	unrouted := w.stat("http.ingress.ext_proc.failure_mode_allowed")
	for name, c := range map[string]*http.Client{"HTTP/1": w.client, "HTTP/2": w.h2} {
		for range 3 {
			for _, addr := range w.addrs() {
				r := w.send(c, "POST", "/v1/chat/completions?x=1", chat(script{Targets: []string{addr}, Reason: "exact"}), nil)
				if r.err != nil || r.status != 200 || r.Worker != addr {
					t.Fatalf("%s: %v, status %d from %q, want %q", name, r.err, r.status, r.Worker, addr)
				}
				if r.Path != "/v1/chat/completions?x=1" || r.id() == "" || r.Headers["X-Target-Worker"] != nil {
					t.Errorf("%s: got %s, %v at the worker; want /v1/chat/completions?x=1, with an id, without x-target-worker",
						name, r.Path, r.Headers)
				}
			}
		}
	}
	if n := w.stat("http.ingress.ext_proc.failure_mode_allowed") - unrouted; n != 0 {
		t.Errorf("%d requests without a decision, want 0", n)
	}
}

// No header or trailer that a client sends has an effect on where its request goes, or reaches a worker under a name that
// steers, in whatever form it is written, with Sightline there, not there, too slow, and dying.
func TestClientCannotSteer(t *testing.T) {
	t.Parallel()
	w := startAsPrinted(t, 2, nil)
	target := w.workers[0].addr
	bait := startWorker(t).addr // no worker of Envoy's: nothing may ever reach it
	spoofs := []struct{ name, value string }{
		{"X-Target-Worker", bait}, {"X-Target-Worker", w.envoy.Admin}, {"X-Target-Worker-2", bait}, {"X-Target-Worker-Anything", bait},
		{"X-Envoy-Original-Dst-Host", bait}, {"X-Envoy-Retry-On", "5xx"}, {"X-Envoy-Upstream-Rq-Timeout-Ms", "1"}, {"X-Envoy-Attempt-Count", "9"},
		{"X-Gateway-Destination-Endpoint", bait}, {"X-Gateway-Destination-Endpoint-Subset", bait},
		{"X-Gateway-Destination-Endpoint-Served", bait},
		{"X-Data-Parallel-Rank", "7"}, {"X-Dynamo-Worker-Instance-Id", "7"}, {"X-Dynamo-Routing-Mode", "direct"}, {"X-Prefill-Instance-Id", "7"},
		{"X-Prefill-Dp-Rank", "1"}, {"X-Override-Bootstrap-Host", bait}, {"X-Override-Routed-Dp-Rank", "1"},
		{"X-Request-Id", "___prefill_addr_" + bait + "___decode_addr_" + bait + "_1"},
		{"X-Sightline-Id", "FORGED"}, {"X-Sightline-Mode", "gateway"}, {"X-Route-Reason", "exact"},
	}
	for _, h := range denied.Headers {
		name := http.CanonicalHeaderKey(h.Name)
		if h.Prefix {
			name += "Anything"
		}
		spoofs = append(spoofs, struct{ name, value string }{name, bait})
	}
	odd := func(name string) string { // x-tArGeT
		b := []byte(strings.ToLower(name))
		for i := 3; i < len(b); i += 2 {
			b[i] = bytes.ToUpper(b[i : i+1])[0]
		}
		return string(b)
	}
	forms := map[string]func(name, v string) http.Header{
		"plain":         func(name, v string) http.Header { return http.Header{name: {v}} },
		"lower case":    func(name, v string) http.Header { return http.Header{strings.ToLower(name): {v}} },
		"odd case":      func(name, v string) http.Header { return http.Header{odd(name): {v}} },
		"twice":         func(name, v string) http.Header { return http.Header{name: {v, v}} },
		"two spellings": func(name, v string) http.Header { return http.Header{name: {v}, odd(name): {v}} },
		"list":          func(name, v string) http.Header { return http.Header{name: {v + ", " + v}} },
		"blanks":        func(name, v string) http.Header { return http.Header{name: {" \t" + v + " \t"}} },
		"empty":         func(name, _ string) http.Header { return http.Header{name: {""}} },
		"trailer":       func(name, v string) http.Header { return http.Header{name: {v}} },
	}
	raw := map[string]string{ // lines that Go's client does not write; Envoy may refuse them
		"blank before the colon": "%s : %s", "line that goes on": "X: 1\r\n %s: %s", "none behind it": "%s:%s",
		"line that begins with a blank": " %s: %s", "tabs": "%s:\t%s\t ",
	}
	type state string
	const up, down, slow, restarting state = "up", "down", "slow", "restarting"
	judge := func(t *testing.T, where string, r reply, is state, asked, mayRefuse bool) {
		if mayRefuse && r.err == nil && r.status == http.StatusBadRequest {
			return
		}
		if r.err != nil || r.status != 200 || r.Worker == bait {
			t.Errorf("%s: got %v, status %d from %q, of Envoy's workers %q, want no error, 200, other than %q",
				where, r.err, r.status, r.Worker, w.addrs(), bait)
			return
		}
		picked := asked && r.id() != ""
		if r.id() == "FORGED" || !asked && r.id() != "" || is == up && asked && !picked || (is == down || is == slow) && picked {
			t.Errorf("%s: decision id %q", where, r.id())
		}
		if picked && r.Worker != target {
			t.Errorf("%s: worker %s, want the pick %s", where, r.Worker, target)
		}
		for k, v := range r.Headers {
			k = strings.ToLower(k)
			steers := slices.ContainsFunc(denied.Headers, func(h denied.Header) bool { return h.Match(k) }) && k != "x-envoy-attempt-count" &&
				!(k == "x-request-id" && !strings.Contains(v[0], bait)) // one of Envoy's
			ours := picked && len(v) == 1 && (k == "x-target-worker-2" && v[0] == target || k == "x-route-reason" &&
				v[0] == "load" || k == "x-sightline-id")
			// Envoy's own count: more than 1 where so many at once overrun a worker. The client sends 9.
			attempts := k == "x-envoy-attempt-count" && len(v) == 1 && len(v[0]) == 1 && v[0] >= "1" && v[0] <= "4"
			if steers && !ours || k == "x-envoy-attempt-count" && !attempts {
				t.Errorf("%s: the worker saw %s: %q", where, k, v)
			}
		}
	}
	var sent atomic.Int64
	check := func(t *testing.T, is state) {
		room := make(chan struct{}, 8) // requests at once
		if is == slow {
			room = make(chan struct{}, 4096) // each takes message_timeout
		}
		var all sync.WaitGroup
		try := func(where, path string, mayRefuse bool, send func(body string) reply) {
			room <- struct{}{}
			all.Go(func() {
				defer func() { <-room }()
				sent.Add(1)
				asked := path != "/v1/embeddings"
				body := chat(script{Targets: []string{target}, Reason: "load", Late: is == slow})
				r := send(body)
				if is == up && asked {
					r = decided(func() reply { return send(body) })
				}
				judge(t, where, r, is, asked, mayRefuse)
			})
		}
		for _, s := range spoofs {
			for form, header := range forms {
				for proto, c := range map[string]*http.Client{"HTTP/1": w.client, "HTTP/2": w.h2} {
					for _, path := range []string{"/v1/chat/completions", "/v1/embeddings"} {
						if path == "/v1/embeddings" && form != "plain" && form != "trailer" {
							continue
						}
						try(fmt.Sprintf("%s, %s, %s %s", s.name, form, proto, path), path, false, func(body string) reply {
							h := header(s.name, s.value)
							if form != "trailer" {
								return w.send(c, "POST", path, body, h)
							}
							req, err := http.NewRequest("POST", w.url+path, strings.NewReader(body))
							if err != nil {
								return reply{err: err}
							}
							req.ContentLength, req.Trailer = -1, h
							return do(c, req)
						})
					}
				}
			}
			for form, line := range raw {
				try(s.name+", "+form, "/v1/chat/completions", true, func(body string) reply {
					return w.sendLine(fmt.Sprintf(line, s.name, s.value), body)
				})
			}
		}
		all.Wait()
	}
	t.Run("Sightline down", func(t *testing.T) { check(t, down) })
	s := w.runSightline(extproc.Options{})
	t.Run("Sightline up", func(t *testing.T) { check(t, up) })
	t.Run("Sightline slow", func(t *testing.T) { check(t, slow) })
	s.stop()
	t.Run("Sightline stopped", func(t *testing.T) { check(t, down) })
	t.Run("Sightline restarting", func(t *testing.T) {
		enough := make(chan struct{})
		var clients sync.WaitGroup
		clients.Go(func() {
			for !closed(enough) {
				check(t, restarting)
			}
		})
		for range 3 {
			kill := w.forkSightline()
			w.waitDecided()
			kill()
		}
		close(enough)
		clients.Wait()
	})
	t.Logf("%d requests tried to steer, 0 did", sent.Load())
}

// Over HTTP/2 a client writes header names and values byte by byte. What no name may have (upper case, blanks, a colon) and
// no value (ends of lines) is an error of the protocol for Envoy, among the headers or behind the body, with Sightline up
// and down: no such request reaches a worker whole.
func TestMalformedHTTP2SteersNothing(t *testing.T) {
	t.Parallel()
	w := start(t, 1, nil)
	bait := w.workers[0].addr
	names := []string{"x-target-worker", "x-target-worker-2", "x-sightline-id", "x-sightline-mode", "x-route-reason",
		"x-data-parallel-rank", "x-gateway-destination-endpoint",
		"x-gateway-destination-endpoint-subset", "x-prefiller-host-port", "x-encoder-hosts-ports", "x-dynamo-worker-instance-id",
		"x-worker-instance-id", "x-bypass-remote-prefill"}
	forms := map[string]func(name string) hpack.HeaderField{
		"upper case": func(n string) hpack.HeaderField { return hpack.HeaderField{Name: strings.ToUpper(n), Value: bait} },
		"canonical case": func(n string) hpack.HeaderField {
			return hpack.HeaderField{Name: http.CanonicalHeaderKey(n), Value: bait}
		},
		"one upper letter": func(n string) hpack.HeaderField {
			return hpack.HeaderField{Name: n[:len(n)-1] + strings.ToUpper(n[len(n)-1:]), Value: bait}
		},
		"blank before":    func(n string) hpack.HeaderField { return hpack.HeaderField{Name: " " + n, Value: bait} },
		"blank behind":    func(n string) hpack.HeaderField { return hpack.HeaderField{Name: n + " ", Value: bait} },
		"colon before":    func(n string) hpack.HeaderField { return hpack.HeaderField{Name: ":" + n, Value: bait} },
		"colon behind":    func(n string) hpack.HeaderField { return hpack.HeaderField{Name: n + ":", Value: bait} },
		"NUL in the name": func(n string) hpack.HeaderField { return hpack.HeaderField{Name: n + "\x00", Value: bait} },
		"value of a line": func(n string) hpack.HeaderField {
			return hpack.HeaderField{Name: "x-mine", Value: "1\r\n" + n + ": " + bait}
		},
		"value with a NUL": func(n string) hpack.HeaderField { return hpack.HeaderField{Name: n, Value: bait + "\x00"} },
	}
	check := func(t *testing.T) {
		before := w.workers[0].served.Load()
		var all sync.WaitGroup
		for _, name := range names {
			for form, field := range forms {
				for _, trailer := range []bool{false, true} {
					if form == "one upper letter" && strings.HasSuffix(name, "-2") {
						continue
					}
					all.Go(func() { // at once: Envoy takes its time to break off
						if status, err := w.sendFields(field(name), trailer); err != nil || status != "" && status != "400" {
							t.Errorf("%s, %s, trailer %t: status %q, %v", name, form, trailer, status, err)
						}
					})
				}
			}
		}
		all.Wait()
		if n := w.workers[0].served.Load() - before; n != 0 {
			t.Errorf("%d requests reached the worker whole, want 0", n)
		}
		if status, err := w.sendFields(hpack.HeaderField{Name: "x-mine", Value: "1"}, true); err != nil || status != "200" ||
			w.workers[0].served.Load() != before+1 {
			t.Errorf("a well-formed one: got status %q, %v, %d served; want 200, %d served", status, err, w.workers[0].served.Load(), before+1)
		}
	}
	t.Run("down", check)
	w.runSightline(extproc.Options{})
	t.Run("up", check)
}

// sendFields posts a chat over a new HTTP/2 connection with one more field as it is given, in the headers or behind the
// body, and gives the status that came back; "": Envoy has broken off the request or the connection.
func (w *world) sendFields(more hpack.HeaderField, trailer bool) (status string, err error) {
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	var out, block bytes.Buffer
	f, enc := http2.NewFramer(&out, conn), hpack.NewEncoder(&block)
	f.AllowIllegalWrites = true
	out.WriteString(http2.ClientPreface)
	_ = f.WriteSettings()
	fields := []hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "x"},
		{Name: ":path", Value: "/v1/chat/completions"}, {Name: "content-type", Value: "application/json"}}
	if !trailer {
		fields = append(fields, more)
	}
	for _, field := range fields {
		_ = enc.WriteField(field)
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true})
	_ = f.WriteData(1, !trailer, []byte(chat(script{Targets: w.addrs()})))
	if trailer {
		block.Reset()
		_ = enc.WriteField(more)
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true})
	}
	if _, err := conn.Write(out.Bytes()); err != nil {
		return "", err
	}
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := f.ReadFrame()
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			return "", err // neither an answer nor an end
		} else if err != nil {
			return "", nil
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status"), nil
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return "", nil
		}
	}
}

// sendLine posts a chat over HTTP/1 with a header line as it is given.
func (w *world) sendLine(line, body string) reply {
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		return reply{err: err}
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\n%s\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s",
		line, len(body), body)
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return reply{err: err}
	}
	return read(res)
}

// Whatever is decided, Envoy dials only the addresses that its own configuration allows.
func TestOnlyAllowedAddressesAreDialled(t *testing.T) {
	w := start(t, 1, nil)
	w.runSightline(extproc.Options{})
	bait := startWorker(t)
	for name, addr := range map[string]string{
		"not a worker":     bait.addr,
		"one port above":   fmt.Sprintf("127.0.0.1:%d", portOf(t, w.workers[0].addr)+1),
		"one port below":   fmt.Sprintf("127.0.0.1:%d", portOf(t, w.workers[0].addr)-1),
		"Envoy's admin":    w.envoy.Admin,
		"another loopback": fmt.Sprintf("127.0.0.2:%d", portOf(t, w.workers[0].addr)),
	} {
		r := w.post(chat(script{Targets: []string{addr, addr}}), nil)
		if r.err != nil || r.status != 403 || !strings.Contains(string(r.body), "RBAC") {
			t.Errorf("%s: %v, status %d, %s; want 403", name, r.err, r.status, r.body)
		}
	}
}

// TestNameLeadsElsewhere: a worker's name resolves to an address that Envoy does not dial. It is left out, and no client gets the 403.
func TestNameLeadsElsewhere(t *testing.T) {
	t.Parallel()
	w := start(t, 2, func(o *envoy.Options) { o.Workers = o.Workers[:1] })
	known, found := w.workers[0].addr, fmt.Sprint("localhost:", portOf(t, w.workers[1].addr))
	w.runProduct(map[string]any{"log_level": "info", "models": []any{map[string]any{"name": "m", "dir": absolute(t, modelDir)}},
		"workers": []any{map[string]any{"name": "a", "addr": known}, map[string]any{"name": "b", "addr": found}},
		"envoy":   map[string]any{"message_timeout": "25s", "worker_networks": []string{fmt.Sprint("127.0.0.1/32:", portOf(t, known))}}})
	eventually(t, "the name's address is found", func() bool {
		return strings.Contains(w.log.after(0), `"addr":"`+w.workers[1].addr)
	})
	for range 8 {
		if r := w.post(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`, nil); r.err != nil || r.status != 200 || r.Worker != known {
			t.Fatalf("%v, status %d from %s, %s, want no error, 200, %q", r.err, r.status, r.Worker, r.body, known)
		}
	}
	if !strings.Contains(w.log.after(0), "is in none of envoy.worker_networks") {
		t.Error("the log does not say why it is left out")
	}
}

func portOf(t *testing.T, addr string) (port int) {
	t.Helper()
	if _, err := fmt.Sscanf(addr[strings.LastIndexByte(addr, ':'):], ":%d", &port); err != nil {
		t.Fatal(err)
	}
	return port
}

func TestRefusalIsJSON(t *testing.T) {
	w := start(t, 1, nil)
	w.runSightline(extproc.Options{})
	for status, retry := range map[int]string{404: "", 429: "1", 503: "1"} {
		r := w.post(chat(script{Refuse: status}), nil)
		var said struct {
			Error struct{ Message, Type string }
		}
		if r.err != nil || r.status != status || json.Unmarshal(r.body, &said) != nil || said.Error.Message != "refused as told" ||
			said.Error.Type == "" {
			t.Errorf("%d: %v, status %d, body %s", status, r.err, r.status, r.body)
		}
		if r.header.Get("content-type") != "application/json" || r.header.Get("retry-after") != retry {
			t.Errorf(`%d: headers %v, want r.header.Get("content-type") == "application/json", r.header.Get("retry-after") == retry`,
				status, r.header)
		}
	}
}

func TestRankReachesItsWorkerOnly(t *testing.T) {
	w := start(t, 3, nil)
	w.runSightline(extproc.Options{})
	a, b := w.workers[0], w.workers[1]
	rank := 3
	s := script{Targets: []string{a.addr, b.addr}, Rank: &rank}
	if r := w.post(chat(s), nil); r.Worker != a.addr || len(r.Headers["X-Data-Parallel-Rank"]) != 1 ||
		r.Headers["X-Data-Parallel-Rank"][0] != "3" {
		t.Errorf("worker %s, rank %q; want rank 3 at the pick", r.Worker, r.Headers["X-Data-Parallel-Rank"])
	}
	a.kill()
	for range 5 {
		if r := w.post(chat(s), nil); r.err != nil || r.Worker != b.addr || r.Headers["X-Data-Parallel-Rank"] != nil {
			t.Errorf("%v, worker %s, rank %q; want the second choice without a rank", r.err, r.Worker, r.Headers["X-Data-Parallel-Rank"])
		}
	}
}

func TestUnixSocketAndTCP(t *testing.T) {
	w := start(t, 1, func(o *envoy.Options) { o.Sightline = freeAddr(t) })
	w.runSightline(extproc.Options{})
	if r := w.post(chat(script{Targets: w.addrs()}), nil); r.status != 200 || r.id() == "" {
		t.Errorf("over TCP: status %d, decision %q, want 200, some", r.status, r.id())
	}
}
