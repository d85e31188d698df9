package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/envoytest"
	"github.com/sightline-router/sightline/lab/sim"
)

// Workers that fail, and an Envoy that dies or does not report: the product must notice by itself.

// serveBefore runs the product before the world's workers, with an admin page, whose address it returns.
func (w *world) serveBefore(keys map[string]any) (admin string) {
	w.t.Helper()
	var workers []any
	for _, addr := range w.addrs() {
		workers = append(workers, map[string]any{"addr": addr})
	}
	admin = freeAddr(w.t)
	all := map[string]any{"admin": admin, "log_level": "warn",
		"models": []any{map[string]any{"name": lab.ModelName, "dir": absolute(w.t, modelDir)}}, "workers": workers}
	for k, v := range keys {
		all[k] = v
	}
	w.runProduct(all)
	return admin
}

// page reads a page of the product's admin server.
func page(t testing.TB, admin, path string) string {
	t.Helper()
	body, err := lab.Get("http://" + admin + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// inFlight is what the product believes to be in flight on all workers.
func inFlight(t testing.TB, admin string) (n int) {
	for _, row := range gjson.Get(page(t, admin, "/workers"), "#.in_flight").Array() {
		n += int(row.Int())
	}
	return n
}

// metricOf sums a counter of the admin page over the labels that contain part.
func metricOf(t testing.TB, admin, name, part string) (sum float64) {
	for line := range strings.Lines(page(t, admin, "/metrics")) {
		var v float64
		if i := strings.LastIndexByte(line, ' '); i > 0 && strings.HasPrefix(line, name) && strings.Contains(line, part) {
			if _, err := fmt.Sscan(line[i+1:], &v); err == nil {
				sum += v
			}
		}
	}
	return sum
}

// A worker that holds a prompt and answers 503 to everything loses its traffic within two seconds, trials included, and
// gets it back once it is well.
func TestFailingHolderIsLeft(t *testing.T) {
	t.Parallel()
	l := startLab(t, nil)
	send := func(i int) reply {
		body := fmt.Sprintf(`{"model":%q,"max_tokens":2,"user":"health-%d","messages":[{"role":"user","content":%q}]}`,
			lab.ModelName, i, strings.Repeat("one prefix for all, ", 60))
		req, _ := http.NewRequest(http.MethodPost, l.URL+"/v1/chat/completions", strings.NewReader(body))
		req.Header.Set("content-type", "application/json")
		return do(http.DefaultClient, req)
	}
	holder := -1
	eventually(t, "one worker holds the prompt", func() bool {
		send(0)
		holder = l.Served("health-0")
		quiet(t, l)
		return holder >= 0 && lastDecision(t, l).Get("reason").Str == "exact"
	})
	l.Sims[holder].SetFault(sim.Refuse)
	n := 0
	shed := func(d time.Duration) (sent, refused int) {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
			n++
			sent++
			if r := send(n); r.status == http.StatusServiceUnavailable {
				refused++
			}
		}
		return sent, refused
	}
	shed(2 * time.Second)
	if sent, refused := shed(8 * time.Second); refused*100 > sent {
		t.Errorf("after two seconds %d of %d requests went to the worker that answers 503, want 1 %% at most", refused, sent)
	} else {
		t.Logf("after two seconds %d of %d requests went to the worker that answers 503", refused, sent)
	}
	rows := page(t, l.Admin, "/workers")
	if h := gjson.Get(rows, fmt.Sprintf("%d.health", holder)).Str; !strings.Contains(h, "503") {
		t.Errorf("the page says %q of it, want what is wrong: %s", h, rows)
	}
	if !strings.Contains(page(t, l.Admin, "/"), "503") {
		t.Error("the page does not show it")
	}
	name := fmt.Sprintf("worker-%d", holder+1)
	if metric(t, l, "sightline_worker_failures_total", name)+metric(t, l, "sightline_worker_checks_failed_total", name) < 3 ||
		metric(t, l, "sightline_workers_out", "") != 1 {
		t.Error("the metrics do not tell")
	}
	l.Sims[holder].SetFault(sim.Healthy)
	eventually(t, "the worker is back", func() bool {
		n++
		return send(n).status == http.StatusOK && metric(t, l, "sightline_workers_out", "") == 0
	})
}

// A worker that fails at once looks idle. Among four it must not draw the cold traffic, in whichever way it fails.
func TestFailingWorkerDrawsNothing(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*worker){
		"503":            func(x *worker) { x.failing.Store(http.StatusServiceUnavailable) },
		"500":            func(x *worker) { x.failing.Store(http.StatusInternalServerError) },
		"breaks off":     func(x *worker) { x.failing.Store(hangUp) },
		"not there":      func(x *worker) { x.kill() },
		"only wrong 400": func(x *worker) { x.failing.Store(http.StatusBadRequest) },
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, 4, nil)
			admin := w.serveBefore(nil)
			eventually(t, "requests are decided", func() bool { return w.post(chatOf(400, 0), nil).id() != "" })
			bad := w.workers[2]
			fail(bad)
			seed := 0
			send := func(d time.Duration) (sent int) {
				tick := time.NewTicker(20 * time.Millisecond)
				defer tick.Stop()
				for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
					seed++
					sent++
					w.post(chatOf(400, seed), nil)
				}
				return sent
			}
			send(2 * time.Second)
			before, failures := bad.served.Load(), metricOf(t, admin, "sightline_worker_failures_total", "")
			sent := send(6 * time.Second)
			at := int(bad.served.Load() - before)
			if name == "only wrong 400" { // a client's own fault
				if at*8 < sent || metricOf(t, admin, "sightline_workers_out", "") != 0 {
					t.Errorf("%d of %d requests at a worker whose clients send nonsense, want a fair share", at, sent)
				}
				return
			}
			at += int(metricOf(t, admin, "sightline_worker_failures_total", "") - failures)
			if at*100 > 2*sent { // each counted twice, but for those that found nobody
				t.Errorf("%d of %d requests at the failing worker after two seconds: got %d, want at most %d", at, sent, at*100, 2*sent)
			}
			if metricOf(t, admin, "sightline_workers_out", "") != 1 {
				t.Errorf("not put aside: %s", page(t, admin, "/workers"))
			}
		})
	}
}

// With all of them failing everyone is still asked: a router that knows no better must not be the outage.
func TestAllWorkersFail(t *testing.T) {
	t.Parallel()
	w := start(t, 2, nil)
	admin := w.serveBefore(nil)
	for _, x := range w.workers {
		x.failing.Store(http.StatusServiceUnavailable)
	}
	for i := range 40 {
		w.post(chatOf(400, i), nil)
	}
	for _, x := range w.workers {
		if x.served.Load() < 5 {
			t.Errorf("%d requests at %s, want at least 5", x.served.Load(), x.addr)
		}
		x.failing.Store(0)
	}
	eventually(t, "both are back", func() bool {
		return w.post(chatOf(400, 1), nil).status == http.StatusOK && metricOf(t, admin, "sightline_workers_out", "") == 0
	})
}

// An Envoy that is killed takes its requests with it: within five seconds their places are free for the next one.
func TestEnvoyDies(t *testing.T) {
	w := start(t, 3, nil)
	admin := w.serveBefore(map[string]any{"max_in_flight": 16})
	eventually(t, "requests are decided", func() bool { return w.post(chatOf(400, 0), nil).id() != "" })
	eventually(t, "nothing is in flight", func() bool { return inFlight(t, admin) == 0 })
	for i := range 47 {
		go w.post(chatOf(400, i), http.Header{"X-Hold": {"for ever"}})
	}
	eventually(t, "47 requests are in flight", func() bool { return inFlight(t, admin) == 47 })
	eventually(t, "all are at their workers", func() bool {
		return w.workers[0].waiting.Load()+w.workers[1].waiting.Load()+w.workers[2].waiting.Load() == 47
	})
	w.envoy.Kill()
	died := time.Now()
	o := envoy.Default()
	o.Listen, o.Admin, o.Sightline, o.Workers = strings.TrimPrefix(w.url, "http://"), freeAddr(t), w.sightline, w.addrs()
	text, err := envoy.Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	next, err := envoytest.Run(t.Context(), binary(t), []byte(withPatience(t, string(text))), o.Admin, w.log, "--concurrency", "2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(next.Stop)
	eventually(t, "the places are free", func() bool { return inFlight(t, admin) == 0 })
	if took := time.Since(died); took > 25*time.Second { // the next Envoy's start among them; silent requests would hold them for 30 s
		t.Errorf("the dead Envoy's requests held their places for %v, want at most %v", took, 25*time.Second)
	} else {
		t.Logf("free after %v", took)
	}
	for i := range 60 {
		if r := w.post(chatOf(400, i), nil); r.status != http.StatusOK {
			t.Fatalf("request %d to an idle fleet: status %d, %v, want %d", i, r.status, r.err, http.StatusOK)
		}
	}
}

// Without its access log nobody tells how requests end. That is said in the log, the metrics and on the page within ten
// seconds, nothing is in flight for long, and a limit that cannot be counted refuses nobody.
func TestAccessLogIsMissing(t *testing.T) {
	t.Parallel()
	w := startEdited(t, 2, nil, func(printed string) string {
		return withPatience(t, strings.ReplaceAll(printed, "name: x-sightline-id, present_match", "name: x-nobody, present_match"))
	})
	admin := w.serveBefore(map[string]any{"max_in_flight": 3})
	eventually(t, "requests are decided", func() bool { return w.post(chatOf(400, 0), nil).id() != "" })
	for i := range 3 {
		w.post(chatOf(400, i), nil)
	}
	begin := time.Now()
	eventually(t, "the missing access log is told", func() bool {
		return metricOf(t, admin, "sightline_access_log_silent", "") == 1 && strings.Contains(page(t, admin, "/"), "access log")
	})
	t.Logf("told after %v", time.Since(begin))
	eventually(t, "the log tells", func() bool { return strings.Contains(w.log.String(), "access log") })
	for i := range 20 {
		if r := w.post(chatOf(400, i), nil); r.status != http.StatusOK {
			t.Fatalf("request %d to an idle fleet: status %d, %s, want %d", i, r.status, r.body, http.StatusOK)
		}
	}
	for end := time.Now().Add(45 * time.Second); inFlight(t, admin) > 0; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d requests in flight after 45 idle seconds", inFlight(t, admin))
		}
	}
	if metricOf(t, admin, "sightline_access_log_silent", "") != 1 {
		t.Error("the warning went away by itself")
	}
}

// The connection manager's access log alone is missing: where requests go is told and not how they end. That is said,
// and they lock nobody out.
func TestEndsAreNotTold(t *testing.T) {
	t.Parallel()
	w := startEdited(t, 2, nil, func(printed string) string {
		return withPatience(t, strings.Replace(printed, "name: x-sightline-id, present_match", "name: x-nobody, present_match", 1))
	})
	for _, one := range w.workers {
		one.running.Store(-1)
	}
	admin := w.serveBefore(map[string]any{"max_in_flight": 3})
	eventually(t, "requests are decided", func() bool { return w.post(chatOf(400, 0), nil).id() != "" })
	for i := range 6 { // as many as they take
		w.post(chatOf(400, i), nil)
	}
	eventually(t, "where they went is told", func() bool {
		return metricOf(t, admin, "sightline_access_log_entries_total", `kind="started"`) > 0
	})
	for end := time.Now().Add(45 * time.Second); metricOf(t, admin, "sightline_access_log_ends_missing",
		"") != 1; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it is not told")
		}
	}
	if metricOf(t, admin, "sightline_access_log_entries_total", `kind="ended"`) > 0 {
		t.Error("ends are told: not the log that was to be missing")
	}
	if metricOf(t, admin, "sightline_access_log_silent", "") != 0 || !strings.Contains(page(t, admin, "/"), "but not their ends") ||
		!strings.Contains(w.log.String(), "but not their ends") {
		t.Error("the page or the log does not say so")
	}
	for i := range 20 {
		if r := w.post(chatOf(400, i), nil); r.status != http.StatusOK {
			t.Fatalf("request %d to an idle fleet: status %d, %s, want %d", i, r.status, r.body, http.StatusOK)
		}
	}
}

// A worker whose /health says that it is not available gets nothing new at once, ends what it has, and is back when it is well.
func TestWorkerDrains(t *testing.T) {
	t.Parallel()
	w := start(t, 3, nil)
	admin := w.serveBefore(map[string]any{"fixed": unprobed("health_every", "100ms")})
	eventually(t, "requests are decided", func() bool { return w.post(chatOf(400, 0), nil).id() != "" })
	held := make(chan reply)
	go func() { held <- w.post(chatOf(400, 1), http.Header{"X-Hold": {"to the end"}}) }()
	var draining *worker
	eventually(t, "a request is at a worker", func() bool {
		for _, x := range w.workers {
			if x.waiting.Load() > 0 {
				draining = x
			}
		}
		return draining != nil
	})
	draining.health.Store(http.StatusServiceUnavailable)
	eventually(t, "it is left alone", func() bool { return metricOf(t, admin, "sightline_workers_out", "") == 1 })
	before := draining.served.Load()
	for i := range 30 {
		if r := w.post(chatOf(400, 100+i), nil); r.status != http.StatusOK {
			t.Errorf("request %d: status %d, %v, want %d", i, r.status, r.err, http.StatusOK)
		}
	}
	if n := draining.served.Load() - before; n != 0 {
		t.Errorf("%d requests went to a worker that drains, want 0", n)
	}
	if rows := page(t, admin, "/workers"); !strings.Contains(rows, "health check: 503") || inFlight(t, admin) == 0 {
		t.Errorf(`not shown: got %s, want strings.Contains(rows, "health check: 503"), inFlight(t, admin) != 0`, rows)
	}
	close(draining.hold("to the end"))
	if r := <-held; r.status != http.StatusOK {
		t.Errorf("what it had ended with status %d, %v, want %d", r.status, r.err, http.StatusOK)
	}
	eventually(t, "nothing is in flight", func() bool { return inFlight(t, admin) == 0 })
	if metricOf(t, admin, "sightline_workers_out", "") != 1 {
		t.Error("an answer to what it had brought it back")
	}
	draining.health.Store(0)
	eventually(t, "it gets requests again", func() bool {
		w.post(chatOf(400, 200+int(draining.served.Load())), nil)
		return draining.served.Load() > before
	})
	if n := metricOf(t, admin, "sightline_worker_failures_total", ""); n != 0 {
		t.Errorf("%v requests failed, want 0", n)
	}
}

// What others send a worker is told by its metrics, and new prompts go elsewhere; told no more, it gets its share again.
func TestOthersLoadIsSeen(t *testing.T) {
	w := start(t, 2, nil)
	busy := w.workers[0]
	busy.running.Store(50)
	w.workers[1].running.Store(1)
	admin := w.serveBefore(map[string]any{"fixed": unprobed("load_every", "100ms")})
	eventually(t, "the page shows it", func() bool { return strings.Contains(page(t, admin, "/"), "50 from elsewhere") })
	seed := 0
	share := func() (at int32) {
		before := busy.served.Load()
		for range 20 {
			seed++
			w.post(chatOf(400, seed), nil)
		}
		return busy.served.Load() - before
	}
	eventually(t, "requests are decided", func() bool { return w.post(chatOf(400, 0), nil).id() != "" })
	if n := share(); n > 5 { // half are its share; ours at the other one weigh until their ends are told
		t.Errorf("%d of 20 requests at a worker with 50 of others', want at most 5", n)
	}
	if metricOf(t, admin, "sightline_worker_load_age_seconds", "") > 3 {
		t.Errorf("ages: %s", page(t, admin, "/metrics"))
	}
	busy.running.Store(0)
	eventually(t, "it gets its share", func() bool { return share() > 5 })
}
