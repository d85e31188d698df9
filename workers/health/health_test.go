package health

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/workers/fleet"
)

// ward is one worker that is polled, with handlers that a test changes.
type ward struct {
	t      *testing.T
	nurse  *Poller
	fleet  *fleet.Fleet
	worker *fleet.Worker
	reg    *prometheus.Registry
	log    *observer.ObservedLogs
	asked  atomic.Int32 // about its health and load
	mu     sync.Mutex
	answer http.HandlerFunc
	models http.HandlerFunc // to /v1/models
}

func newWard(t *testing.T, o Options, ranks int, answer http.HandlerFunc) *ward {
	return newHastyWard(t, o, ranks, 2*time.Minute, answer) // as long as a busy machine may take
}

// newHastyWard is of a poller that waits for an answer for the given time, for answers that do not come.
func newHastyWard(t *testing.T, o Options, ranks int, patience time.Duration, answer http.HandlerFunc) *ward {
	w := &ward{t: t, reg: prometheus.NewRegistry(), fleet: fleet.New(nil), answer: answer,
		models: func(rw http.ResponseWriter, _ *http.Request) { fmt.Fprint(rw, "{}") }}
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		answer := w.answer
		switch r.URL.Path {
		case "/v1/models":
			answer = w.models
		case "/server_info": // its order of serving, by a beat of its own
		default:
			w.asked.Add(1)
		}
		w.mu.Unlock()
		answer(rw, r)
	}))
	w.worker = fleet.NewWorker("w", netip.MustParseAddrPort(server.Listener.Addr().String()), "m", ranks,
		func(int) indexer.SlotID { return 0 })
	w.fleet.Set([]*fleet.Worker{w.worker})
	core, log := observer.New(zap.InfoLevel)
	o.Fleet, o.Log, o.Metrics, w.log = w.fleet, zap.New(core), w.reg, log
	w.nurse = New(o)
	w.nurse.health.Timeout, w.nurse.load.Timeout = patience, patience
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		w.nurse.Watch(ctx, w.worker, engine.RulesOf("vllm", "0.32.0"), true)
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
		server.CloseClientConnections()
		server.Close()
	})
	return w
}

func (w *ward) answers(a http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = a
}

func (w *ward) until(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("never: %s; out %q, load %+v", what, w.worker.OutReason(time.Now()).String(), w.worker.Slots[0].Load(time.Now()))
		}
	}
}

// hears waits until the worker was polled so many more times, and all but the last were answered.
func (w *ward) hears(n int32) {
	w.t.Helper()
	from := w.asked.Load()
	w.until("it is asked again", func() bool { return w.asked.Load() >= from+n })
}

func (w *ward) failures(why string) (n float64) {
	all, err := w.reg.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if f.GetName() == "sightline_worker_checks_failed_total" && l.GetName() == "why" && l.GetValue() == why {
					n += m.GetCounter().GetValue()
				}
			}
		}
	}
	return n
}

func (w *ward) said(text string) (n int) { return w.log.FilterMessageSnippet(text).Len() }

func status(code int) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(code) }
}

func breakOff(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func hang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

func page(text string) http.HandlerFunc {
	return func(rw http.ResponseWriter, _ *http.Request) { _, _ = rw.Write([]byte(text)) }
}

var often = Options{Health: 2 * time.Millisecond}

// TestHealth checks that a worker, however it fails its checks, is out after three in a row and in with the next good one, and
// that each is logged once.
func TestHealth(t *testing.T) {
	for why, fail := range map[string]http.HandlerFunc{
		"500":        status(500),
		"503":        status(503),
		"unreadable": status(799), // not a status
		"timeout":    hang,
		"broken":     breakOff,
	} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			patience := 2 * time.Minute
			if why == "timeout" {
				patience = time.Second // a busy machine may be late, but not three times in a row
			}
			w := newHastyWard(t, often, 0, patience, status(200))
			w.hears(3)
			if out := w.worker.OutReason(time.Now()).String(); out != "" {
				t.Fatalf("well, and %s, want %q", out, "")
			}
			w.answers(fail)
			w.until("out", func() bool { return strings.Contains(w.worker.OutReason(time.Now()).String(), why) })
			w.hears(4)
			w.answers(status(204))
			w.until("in", func() bool { return w.worker.OutReason(time.Now()) == nil && w.said("healthy again") > 0 }) // logged last
			if w.said("failed its health checks") != 1 || w.said("healthy again") != 1 || w.failures(why) < 3 {
				t.Errorf("said %v; %v failures counted", w.log.All(), w.failures(why))
			}
			w.nurse.Forget("w")
			if n := w.failures(why); n != 0 {
				t.Errorf("%v failures of a worker that is forgotten, want 0", n)
			}
		})
	}
}

// TestNotAvailable checks that a worker that says that it is not available gets nothing from then on.
func TestNotAvailable(t *testing.T) {
	var asked atomic.Int32
	w := newWard(t, Options{Health: time.Minute}, 0, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/health" && asked.Add(1) > 1 {
			hang(rw, r) // so that it is out after one word, or never
		}
		rw.WriteHeader(503)
	})
	w.until("out", func() bool { return w.worker.OutReason(time.Now()) != nil })
}

// TestNotThere checks a refused connection.
func TestNotThere(t *testing.T) {
	w := newWard(t, often, 0, status(200))
	lost := fleet.NewWorker("lost", netip.MustParseAddrPort("127.0.0.1:1"), "m", 0, func(int) indexer.SlotID { return 0 })
	w.fleet.Set([]*fleet.Worker{w.worker, lost})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go w.nurse.Watch(ctx, lost, engine.RulesOf("sglang", ""), false)
	w.until("out", func() bool { return strings.Contains(lost.OutReason(time.Now()).String(), "refused") })
}

// TestHasNone checks that a worker without the path, or with one for others only, is healthy, and that this is logged once. The
// same for its load.
func TestHasNone(t *testing.T) {
	for _, code := range []int{404, 405, 401, 403, 501, 307} {
		w := newWard(t, Options{Health: time.Millisecond, Load: time.Millisecond}, 0, status(code))
		w.until("said", func() bool { return w.said("has no health endpoint") == 1 && w.said("does not report its load") == 1 })
		out, asked, failures := w.worker.OutReason(time.Now()).String(), w.asked.Load(), w.failures(fmt.Sprint(code))
		if out != "" || asked > 2 || failures != 0 {
			t.Errorf("%d: out %q, asked %d times, %v failures, want in, once about each, no failure", code, out, asked, failures)
		}
	}
}

// TestNotAsked checks that a worker that is not ready is not polled, and that nothing is polled if both are off.
func TestNotAsked(t *testing.T) {
	off := newWard(t, Options{}, 0, status(503))
	away := newWard(t, Options{Health: time.Millisecond, Load: time.Millisecond}, 0, status(200))
	away.hears(2)
	away.fleet.Set(nil)
	away.until("nothing is under way", func() bool {
		n := away.asked.Load()
		time.Sleep(20 * time.Millisecond)
		return away.asked.Load() == n
	})
	away.fleet.Set([]*fleet.Worker{away.worker})
	away.hears(2)
	if n := off.asked.Load(); n != 0 {
		t.Errorf("asked %d times, want 0", n)
	}
}

// TestNoRedirects checks that redirects are not followed.
func TestNoRedirects(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	defer other.Close()
	w := newWard(t, Options{Health: time.Millisecond, Load: time.Millisecond}, 0, func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
	})
	w.until("said", func() bool { return w.said("has no health endpoint") == 1 && w.said("does not report its load") == 1 })
	if n := elsewhere.Load(); n != 0 {
		t.Errorf("%d questions went elsewhere, want 0", n)
	}
}

func inflight(s *fleet.Slot) (n int, usage float64) {
	now := time.Now()
	_, usage, _, _ = s.CurrentReport(now)
	return s.Load(now).Inflight, max(0, usage)
}

// TestLoad checks that a worker's report counts for its ranks, that our own requests count once, that the report expires, and
// that it excludes nobody.
func TestLoad(t *testing.T) {
	w := newHastyWard(t, Options{Load: 5 * time.Millisecond}, 2, time.Second, page(vllmPage))
	slots := w.worker.Slots
	w.until("told", func() bool {
		a, usage := inflight(slots[0])
		b, other := inflight(slots[1])
		return a == 3 && slots[0].Load(time.Now()).OtherSenders == 3 && usage == 0.25 && b == 7 && other == 0.5
	})
	slots[0].Charge(fleet.Work{}, time.Now(), time.Now())
	w.until("ours is among them", func() bool { n, _ := inflight(slots[0]); return n == 3 })
	var shown map[string][]float64
	w.until("the metrics", func() bool {
		told, err := w.reg.Gather()
		shown = map[string][]float64{}
		for _, f := range told {
			for _, m := range f.Metric {
				if f.GetName() != "sightline_worker_checks_failed_total" { // of answers that a busy machine delays
					shown[f.GetName()] = append(shown[f.GetName()], m.GetGauge().GetValue()+m.GetCounter().GetValue())
				}
			}
		}
		return err == nil && len(shown) == 6 && slices.Equal(shown["sightline_worker_media_cache_queries_total"], []float64{30}) &&
			slices.Equal(shown["sightline_worker_media_cache_hits_total"], []float64{12}) &&
			slices.Equal(shown["sightline_worker_queued_prefill_seconds"], []float64{0, 0}) &&
			len(shown["sightline_worker_load_age_seconds"]) == 2 &&
			slices.Equal(shown["sightline_worker_kv_cache_usage"], []float64{0.25, 0.5}) &&
			slices.Equal(shown["sightline_worker_requests_in_flight"], []float64{3, 7})
	})
	media := func(queries, hits float64) func() bool {
		return func() bool {
			return testutil.ToFloat64(w.nurse.mediaQueries.WithLabelValues(w.worker.Name)) == queries &&
				testutil.ToFloat64(w.nurse.mediaHits.WithLabelValues(w.worker.Name)) == hits
		}
	}
	w.answers(page("vllm:num_requests_running 1\nvllm:mm_cache_queries_total 34\nvllm:mm_cache_hits_total 15\n"))
	w.until("more media were looked up", media(34, 15))
	w.answers(page("vllm:num_requests_running 1\nvllm:mm_cache_queries_total 2\nvllm:mm_cache_hits_total 1\n"))
	w.until("the media of a new process", media(36, 16))
	for why, a := range map[string]http.HandlerFunc{
		"unreadable": page("vllm:num_requests_running NaN\n"), "500": status(500), "429": status(429), "broken": breakOff,
		"timeout": func(rw http.ResponseWriter, r *http.Request) { // a page without end
			for r.Context().Err() == nil {
				_, _ = rw.Write([]byte("x 1\n"))
				rw.(http.Flusher).Flush()
				time.Sleep(time.Millisecond)
			}
		},
	} {
		w.answers(page(vllmPage))
		w.until("told", func() bool { n, _ := inflight(slots[1]); return n == 7 })
		w.answers(a)
		w.until(why, func() bool { return w.failures(why) > 0 })
	}
	w.until("it is not believed any more", func() bool {
		n, usage := inflight(slots[0])
		other, _ := inflight(slots[1])
		return n == 1 && usage == 0 && other == 0
	})
	if out := w.worker.OutReason(time.Now()).String(); out != "" || w.said("cannot be read") == 0 {
		t.Errorf(`%q, said %v, want out == "", w.said("cannot be read") != 0`, out, w.log.All())
	}
	told, err := w.reg.Gather()
	var left []string
	for _, f := range told {
		left = append(left, strings.TrimPrefix(f.GetName(), "sightline_worker_"))
	}
	if err != nil || !slices.Equal(left, []string{"checks_failed_total", "media_cache_hits_total", "media_cache_queries_total",
		"queued_prefill_seconds", "requests_in_flight"}) {
		t.Errorf("an age is left: %v, %v", left, err)
	}
}

// TestLoadOfAllRanks checks that a worker without configured ranks, but with several of its own, gets the sum of all.
func TestLoadOfAllRanks(t *testing.T) {
	w := newWard(t, Options{Load: time.Millisecond}, 0, page(vllmPage))
	w.until("told", func() bool { n, usage := inflight(w.worker.Slots[0]); return n == 10 && usage == 0.375 })
}

// TestOthersAreFollowedClosely checks that a worker's load is read four times as often while it has requests of other senders, less so in
// a large fleet, and never more often than four times a second for that.
func TestOthersAreFollowedClosely(t *testing.T) {
	w := fleet.NewWorker("w", netip.MustParseAddrPort("10.0.0.1:80"), "m", 0, func(int) indexer.SlotID { return 0 })
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		every          time.Duration
		running, fleet int
		want           time.Duration
	}{{time.Second, 3, 1, 250 * time.Millisecond}, {time.Second, 0, 1, 0}, {4 * time.Second, 3, 1, time.Second},
		{100 * time.Millisecond, 3, 1, 100 * time.Millisecond}, {time.Second, 3, 600, 600 * time.Millisecond}} {
		f := fleet.New(time.Now)
		f.Set(slices.Repeat([]*fleet.Worker{w}, c.fleet))
		l := &loadPoll{Poller: &Poller{o: Options{Load: c.every, Fleet: f}}, worker: w, load: *loadOf("vllm"), last: make([]rankReport, 1)}
		l.applyLoad(map[int]gauges{0: {c.running, 0, 0.5, 0}}, now, now)
		if got := l.sooner(now); got != c.want {
			t.Errorf("%+v: asked again after %v, want %v", c, got, c.want)
		}
	}
}

// TestIdleWorkersAreReadHalfAsOften checks that a worker's load is read half as often once it has had no request for ten seconds, and that
// its report stays valid until then.
func TestIdleWorkersAreReadHalfAsOften(t *testing.T) {
	w := fleet.NewWorker("w", netip.MustParseAddrPort("10.0.0.1:80"), "m", 0, func(int) indexer.SlotID { return 0 })
	l := &loadPoll{Poller: &Poller{o: Options{Load: time.Second}}, worker: w, load: *loadOf("vllm"), last: make([]rankReport, 1)}
	now := time.Unix(1000, 0)
	for i, c := range []struct {
		told gauges
		pass time.Duration
		want time.Duration
	}{
		{gauges{1, 0, 0.5, 0}, time.Minute, 0},
		{gauges{0, 0, 0.25, 0}, time.Second, 0},
		{gauges{0, 0, 0.25, 0}, 9 * time.Second, 0},
		{gauges{0, 0, 0.25, 0}, time.Second, 2 * time.Second},
		{gauges{0, 0, 0, 0}, time.Second, 0}, // it had one meanwhile
	} {
		now = now.Add(c.pass)
		l.applyLoad(map[int]gauges{0: c.told}, now, now)
		if got := l.later(now); got != c.want {
			t.Errorf("step %d: asked again after %v, want %v", i, got, c.want)
		}
		if _, _, _, ok := w.Slots[0].CurrentReport(now.Add(c.want * 11 / 10)); !ok {
			t.Errorf("step %d: the report is not valid until then", i)
		}
	}
}

// TestStandingGauges checks that gauges that do not change while requests run are not taken for other senders' requests for ever,
// and that an idle worker's zeros stay valid. A cache's size stays, whatever the gauges do.
func TestStandingGauges(t *testing.T) {
	w := fleet.NewWorker("w", netip.MustParseAddrPort("10.0.0.1:80"), "m", 0, func(int) indexer.SlotID { return 0 })
	l := &loadPoll{Poller: &Poller{o: Options{Load: time.Second}}, worker: w, load: *loadOf("sglang"), last: make([]rankReport, 1)}
	now := time.Unix(1000, 0)
	for i, c := range []struct {
		told   gauges
		pass   time.Duration
		others int
		tells  bool
	}{
		{gauges{8, 1, 0.5, 4000}, 0, 9, true},
		{gauges{8, 1, 0.5, 4000}, 5 * time.Second, 9, true},
		{gauges{8, 1, 0.5, 4000}, time.Second, 0, false},
		{gauges{8, 1, 0.5, 4000}, time.Second, 0, false},
		{gauges{8, 1, 0.25, 4000}, time.Second, 9, true},
		{gauges{0, 0, 0, 4000}, time.Second, 0, true},
		{gauges{0, 0, 0, 4000}, time.Hour, 0, true},
	} {
		now = now.Add(c.pass)
		l.applyLoad(map[int]gauges{0: c.told}, now, now)
		got := w.Slots[0].Load(now)
		_, usage, _, ok := w.Slots[0].CurrentReport(now)
		if got.OtherSenders != c.others || (ok && usage >= 0) != c.tells {
			t.Errorf("step %d: %+v, usage %v, want %d others, told %v", i, got, usage, c.others, c.tells)
		}
		if got := w.Slots[0].CacheTokens(); got != 4000 {
			t.Errorf("step %d: got a cache of %d tokens, want 4000", i, got)
		}
	}
}

// TestKeepsConnections: health and load are asked over connections that stay open, and over a new one where the worker closed the last.
func TestKeepsConnections(t *testing.T) {
	var mu sync.Mutex
	from, asked, closes := map[string]bool{}, map[string]int{}, false
	answer := func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		from[r.RemoteAddr] = true
		asked[r.URL.Path]++
		if closes {
			rw.Header().Set("Connection", "close")
		}
		if r.URL.Path == "/metrics" {
			fmt.Fprintln(rw, `vllm:num_requests_running{engine="0"} 0`)
		}
	}
	w := newWard(t, Options{Health: 5 * time.Millisecond, Load: 5 * time.Millisecond}, 0, answer)
	w.mu.Lock()
	w.models = answer
	w.mu.Unlock()
	often := func(connections int) func() bool {
		return func() bool {
			mu.Lock()
			defer mu.Unlock()
			return asked["/metrics"] > 30 && asked["/health"] > 30 && len(from) >= connections
		}
	}
	w.until("both were asked often", often(0))
	mu.Lock()
	most := 4 // two at once, and those of the first questions
	for path, n := range asked {
		if path != "/metrics" && path != "/health" {
			most += n // a third question at the same moment opens a connection, which is closed
		}
	}
	if len(from) > most {
		t.Errorf("%d connections for %v, want at most %d", len(from), asked, most)
	}
	clear(from)
	clear(asked)
	closes = true
	mu.Unlock()
	w.until("each is asked over a new connection", often(60))
	if n := testutil.CollectAndCount(w.nurse.failed); n > 0 {
		t.Errorf("%d kinds of failures, want 0", n)
	}
}
