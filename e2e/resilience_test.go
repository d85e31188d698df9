package e2e

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/lab"
)

// load sends requests at a steady rate, whether or not answers come.
type load struct {
	t       *testing.T
	quit    chan struct{}
	running sync.WaitGroup
	mu      sync.Mutex
	sent    int
	replies []reply
}

func startLoad(t *testing.T, perSecond int, request func(i int) reply) *load {
	l := &load{t: t, quit: make(chan struct{})}
	l.running.Go(func() {
		tick := time.NewTicker(time.Second / time.Duration(perSecond))
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-l.quit:
				return
			case <-tick.C:
			}
			l.mu.Lock()
			l.sent++
			l.mu.Unlock()
			l.running.Go(func() {
				r := request(i)
				l.mu.Lock()
				defer l.mu.Unlock()
				l.replies = append(l.replies, r)
			})
		}
	})
	return l
}

// more waits until n more requests were sent.
func (l *load) more(n int) {
	l.t.Helper()
	sent := func() int { l.mu.Lock(); defer l.mu.Unlock(); return l.sent }
	begin := sent()
	eventually(l.t, fmt.Sprintf("%d more requests", n), func() bool { return sent() >= begin+n })
}

// stop ends the load and returns all replies.
func (l *load) stop() []reply {
	close(l.quit)
	l.running.Wait()
	return l.replies
}

// failures lists what was not answered 200.
func failures(replies []reply) (out []string) {
	for _, r := range replies {
		if r.err != nil || r.status != 200 {
			out = append(out, fmt.Sprintf("status %d, %v, %.100s", r.status, r.err, r.body))
		}
	}
	return out
}

func counts(replies []reply) (decided, undecided int) {
	for _, r := range replies {
		if r.id() != "" {
			decided++
		} else {
			undecided++
		}
	}
	return decided, undecided
}

// Sightline dies and comes back, twice by SIGKILL and once gracefully, under 100 requests a second: none fails.
func TestSightlineDiesUnderLoad(t *testing.T) {
	t.Parallel()
	w := start(t, 3, nil)
	kill := w.forkSightline()
	w.waitDecided()
	addrs := w.addrs()
	l := startLoad(t, 100, func(i int) reply {
		return w.post(chat(script{Targets: []string{addrs[i%3], addrs[(i+1)%3]}}, `"pad":"`+strings.Repeat("x", 4000)+`"`), nil)
	})
	undecided := func() bool { r := w.post(chat(script{}), nil); return r.status == 200 && r.id() == "" }
	for range 2 {
		l.more(60)
		kill()
		eventually(t, "requests pass without a decision", undecided)
		l.more(40)
		kill = w.forkSightline()
		w.waitDecided()
	}
	kill()
	s := w.runSightline(extproc.Options{})
	l.more(60)
	s.stop()
	eventually(t, "requests pass without a decision", undecided)
	l.more(20)
	w.forkSightline()
	w.waitDecided()
	l.more(20)
	replies := l.stop()
	if bad := failures(replies); len(bad) > 0 {
		t.Errorf("%d of %d requests failed, such as: %s, want 0", len(bad), len(replies), bad[0])
	}
	decided, without := counts(replies)
	if decided == 0 || without == 0 {
		t.Errorf("%d requests decided, %d not: want some of both, else nothing was tried", decided, without)
	}
	t.Logf("%d requests, %d without a decision, 0 failed", len(replies), without)
}

// hadBeenSent tells of a failed request that a worker had when it died: it may be what the worker died of, so Envoy does not repeat it.
func hadBeenSent(r reply) bool {
	return r.status == http.StatusServiceUnavailable && bytes.Contains(r.body, []byte("before headers. reset reason: connection termination"))
}

// A worker dies under load: requests that it has are not repeated, all others are answered elsewhere.
func TestWorkerDiesUnderLoad(t *testing.T) {
	t.Parallel()
	w := start(t, 3, nil)
	w.runSightline(extproc.Options{})
	addrs := w.addrs()
	// A third of the requests has its first choice at the victim, a third has no decision; each takes a while there.
	l := startLoad(t, 100, func(i int) reply {
		s := script{Targets: []string{addrs[i%3], addrs[(i+1)%3]}}
		if i%3 == 2 {
			s = script{}
		}
		return w.post(chat(s), http.Header{"X-Hold": {fmt.Sprint("load", i%50)}})
	})
	release := func(x *worker) {
		for i := range 50 {
			if ch := x.hold(fmt.Sprint("load", i)); !closed(ch) {
				close(ch)
			}
		}
	}
	release(w.workers[1])
	release(w.workers[2])
	l.more(60) // of which a third gathers at the victim, without a first byte
	read := int(w.workers[0].waiting.Load())
	w.workers[0].kill()
	l.more(200) // and go on arriving for it
	all := l.stop()
	replies := slices.DeleteFunc(slices.Clone(all), hadBeenSent)
	lost := len(all) - len(replies)
	if read == 0 || lost < read || lost > 2*read { // more may have come before it was gone
		t.Errorf("%d requests were lost with their worker, which had read %d, want some, at least %d, at most %d", lost, read, read, 2*read)
	}
	if bad := failures(replies); len(bad) > 0 {
		t.Errorf("%d of %d requests failed, such as: %s, want 0", len(bad), len(replies), bad[0])
	}
	for _, r := range replies {
		if r.Worker == addrs[0] {
			t.Errorf("answered by the dead worker")
		}
	}
	t.Logf("%d requests, %d lost with their worker, which had read %d", len(all), lost, read)
}

func closed(ch chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}

func TestRetryGoesToTheSecondChoice(t *testing.T) {
	t.Parallel()
	w := start(t, 4, nil)
	w.runSightline(extproc.Options{})
	a, b := w.workers[0], w.workers[1]
	big := `"pad":"` + strings.Repeat("x", 8<<20) + `"`
	a.kill()
	for range 8 {
		r := w.post(chat(script{Targets: []string{a.addr, b.addr}}), nil)
		if r.err != nil || r.Worker != b.addr {
			t.Errorf("%v, status %d from %s, want the second choice %s", r.err, r.status, r.Worker, b.addr)
		}
	}
	if r := w.post(chat(script{Targets: []string{a.addr, b.addr}}, big), nil); r.Worker != b.addr || r.Length < 8<<20 {
		t.Errorf("8 MB: %v, status %d from %s, %d bytes, want %q, at least %d", r.err, r.status, r.Worker, r.Length, b.addr, 8<<20)
	}
	eventually(t, "Envoy's health check sees that the first is dead", func() bool {
		return w.stat("cluster.workers_any.membership_healthy") == 3
	})
	b.kill() // which it has not seen yet
	for range 8 {
		r := w.post(chat(script{Targets: []string{a.addr, b.addr}}), nil)
		if r.err != nil || r.status != 200 || r.Worker == a.addr || r.Worker == b.addr {
			t.Errorf("%v, status %d from %s, want one of the other two", r.err, r.status, r.Worker)
		}
	}
}

// A stream that breaks after its first byte is not sent again, and the client sees that it broke.
func TestCutStreamIsNotRepeated(t *testing.T) {
	t.Parallel()
	w := start(t, 2, nil)
	s := w.runSightline(extproc.Options{})
	r := w.post(chat(script{Targets: []string{w.workers[0].addr, w.workers[1].addr}}), http.Header{"X-Hang-Up": {"1"}})
	if r.status != 200 || r.err == nil || string(r.body) != "half" {
		t.Errorf("%v, status %d, %q; want a 200 that breaks off", r.err, r.status, r.body)
	}
	eventually(t, "the cut stream is reported", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, o := range s.outcomes {
			if o.Addr == w.workers[0].addr && o.Code == 200 {
				return true
			}
		}
		return false
	})
}

func TestPanicInADecision(t *testing.T) {
	w := start(t, 2, nil)
	w.runSightline(extproc.Options{})
	if r := w.post(chat(script{Panic: true, Targets: w.addrs()}), nil); r.err != nil || r.status != 200 {
		t.Errorf("a panic in a decision: got %v, status %d, want no error, 200", r.err, r.status)
	}
	if r := w.post(chat(script{Targets: w.addrs()}), nil); r.id() == "" || r.Worker != w.addrs()[0] {
		t.Errorf("the request after: got decision %q at %s, want some at %s", r.id(), r.Worker, w.addrs()[0])
	}
}

// Envoy closes an idle connection to a worker before the engine's server would (uvicorn: after 5 s), so that no request
// runs into a connection that is being closed.
func TestIdleConnectionsCloseInTime(t *testing.T) {
	t.Parallel()
	w := start(t, 2, nil)
	w.runSightline(extproc.Options{})
	x := w.workers[1]
	r := w.post(chat(script{Targets: []string{x.addr}}), nil)
	if r.Worker != x.addr {
		t.Fatalf("%v, status %d from %q, want %q", r.err, r.status, r.Worker, x.addr)
	}
	name := "cluster.workers_picked.upstream_cx_active"
	if n := w.stat(name); n == 0 {
		t.Fatalf("no connection was kept: got %d, want some", n)
	}
	// The worker's end never closes an idle one. When Envoy does is its configuration's word: a test cannot time it.
	eventually(t, "idle connections are closed", func() bool { return w.stat(name) == 0 })
	if n := w.stat("cluster.workers_picked.upstream_cx_idle_timeout"); n == 0 {
		t.Errorf("connections were closed, none of them for being idle: got %d, want some", n)
	}
	dump, err := w.envoy.Get(t.Context(), "/config_dump")
	if err != nil {
		t.Fatal(err)
	}
	const clusters = `configs.#(@type%"*ClustersConfigDump").static_clusters`
	for _, cluster := range []string{"workers_picked", "workers_second", "workers_any"} {
		options := gjson.Get(dump, clusters+`.#(cluster.name="`+cluster+`").cluster.typed_extension_protocol_options`).Map()
		http := options["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]
		if limit := http.Get("common_http_protocol_options.idle_timeout").Str; limit != "4s" {
			t.Errorf("%s: idle connections are closed after %q, want 4s", cluster, limit)
		}
	}
}

// max_in_flight: a worker at its limit gets no more, and with all at it the client is told to come again.
func TestFullFleet(t *testing.T) {
	w := start(t, 2, nil)
	var workers []any
	for _, addr := range w.addrs() {
		workers = append(workers, map[string]any{"addr": addr})
	}
	w.runProduct(map[string]any{"max_in_flight": 1, "models": []any{map[string]any{"name": lab.ModelName, "dir": absolute(t, modelDir)}},
		"workers": workers})
	body := chatOf(1000, 1) // one prompt: it would stay with one worker
	held := make(chan reply, 2)
	for range cap(held) {
		go func() { held <- w.post(body, http.Header{"X-Hold": {"full"}}) }()
	}
	eventually(t, "two requests are held", func() bool { return w.workers[0].waiting.Load()+w.workers[1].waiting.Load() == 2 })
	var r reply
	eventually(t, "a request is shed", func() bool { r = w.post(body, nil); return r.err == nil && r.status == 429 })
	if r.header.Get("retry-after") != "1" || !strings.Contains(string(r.body), "rate_limit_error") {
		t.Errorf(`with all full: %v, %s, want r.header.Get("retry-after") == "1", strings.Contains(string(r.body), "rate_limit_error")`,
			r.header, r.body)
	}
	for _, x := range w.workers {
		close(x.hold("full"))
	}
	var at []string
	for range cap(held) {
		if r := <-held; r.err != nil || r.status != 200 {
			t.Errorf("%v, status %d, want no error, 200", r.err, r.status)
		} else if r.id() != "" { // on a busy machine one may pass undecided
			at = append(at, r.Worker)
		}
	}
	if len(at) == 0 || len(at) == 2 && at[0] == at[1] {
		t.Errorf("held at %v, want one at each of %v", at, w.addrs())
	}
	eventually(t, "room again", func() bool { return w.post(body, nil).id() != "" })
}
