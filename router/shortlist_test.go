package router

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/sightline-router/sightline/workers/fleet"
)

// inflight counts the requests that are open at all workers.
func (w *world) inflight() (n int) {
	for _, s := range w.opt.Fleet.Slots("") {
		n += s.Load(w.now).Inflight
	}
	return n
}

// TestAllowed checks that a pool and a subset hint limit the choice whether the body can be read or not, and that the cache
// decides within them.
func TestAllowed(t *testing.T) {
	w := newWorld(t, 4)
	const body = `{"model":"m","messages":[{"role":"user","content":"What does the sign on the left say, in one word?"}]}`
	for _, c := range []struct {
		name string
		pool string
		only []string
		want map[string]bool // nil: none
	}{
		{"no limit", "", nil, map[string]bool{"w0": true, "w1": true, "w2": true, "w3": true}},
		{"two", "", []string{"10.0.0.2:8000", "10.0.0.4:8000"}, map[string]bool{"w1": true, "w3": true}},
		{"without a port", "", []string{"10.0.0.3"}, map[string]bool{"w2": true}},
		{"another port", "", []string{"10.0.0.3:8001"}, nil},
		{"not a worker", "", []string{"10.9.9.9", "nonsense"}, nil},
		{"nothing", "", []string{}, nil},
		{"its pool", "m", nil, map[string]bool{"w0": true, "w1": true, "w2": true, "w3": true}},
		{"its pool and a subset", "m", []string{"10.0.0.1"}, map[string]bool{"w0": true}},
		{"another pool", "n", nil, nil},
	} {
		for _, text := range []string{body, "", `{"model":"unknown"}`} {
			req := &Request{ID: fmt.Sprint(c.name, len(text)), Path: "/v1/chat/completions", Pool: c.pool, Only: c.only}
			if text != "" {
				req.Body = [][]byte{[]byte(text)}
			}
			d := w.Decide(t.Context(), req)
			if len(d.Targets) != min(len(c.want), 3) {
				t.Errorf("%s, %d bytes: targets %v, want of %v", c.name, len(text), d.Targets, c.want)
			}
			for _, target := range d.Targets {
				if !c.want[target.Worker] {
					t.Errorf("%s, %d bytes: target %v, want of %v", c.name, len(text), target, c.want)
				}
			}
		}
	}
}

// TestMaxInFlight checks that a worker at its limit of requests gets no more, whatever it holds, and that a request is shed if
// all are full.
func TestMaxInFlight(t *testing.T) {
	w := newWorld(t, 2)
	w.limit(2)
	body := chatBody("m", fmt.Sprintf("%q", text(100, 1)))
	w.stores(0, body)
	ask := func(id, body string, only ...string) Decision {
		req := &Request{ID: id, Path: "/v1/chat/completions", Only: only}
		if body != "" {
			req.Body = [][]byte{[]byte(body)}
		}
		return w.Decide(t.Context(), req)
	}
	for i, want := range []string{"w0", "w0", "w1", "w1"} {
		if d := ask(fmt.Sprint(i), body); len(d.Targets) != 2-i/2 || d.Targets[0].Worker != want {
			t.Errorf("request %d: %+v, want %s", i, d.Targets, want)
		}
	}
	for _, unread := range []string{body, "", `{"model":"unknown"}`} {
		if d := ask("x", unread); d.Refuse == nil || d.Refuse.Status != http.StatusTooManyRequests || len(d.Targets) != 0 {
			t.Errorf("all full, body %q: %+v; got %d, want Refuse one, Refuse.Status %d, 0", unread, d, len(d.Targets), http.StatusTooManyRequests)
		}
	}
	if d := w.Decide(t.Context(), &Request{ID: "y", Path: "/v1/responses/z", Stored: "z"}); d.Refuse != nil || len(d.Targets) == 0 {
		t.Errorf("an answer that is there: %+v; got %d, want Refuse nil, some", d, len(d.Targets))
	}
	w.Observe(Outcome{ID: "y", Phase: Ended, Code: 200, CachedTokens: -1})
	w.Observe(Outcome{ID: "0", Phase: Ended, Code: 200, CachedTokens: -1})
	if d := ask("z", body, "10.0.0.2"); d.Refuse == nil {
		t.Errorf("all of the subset full: got %+v, want Refuse one", d)
	}
	if d := ask("0", body); len(d.Targets) != 1 || d.Targets[0].Worker != "w0" {
		t.Errorf("room again: %+v; got %d, want 1, Targets[0].Worker %q", d, len(d.Targets), "w0")
	}
	if d := ask("n", body, "10.9.9.9"); d.Refuse != nil { // nobody eligible: 503 in the protocol's mode, not 429
		t.Errorf("nobody eligible: got %+v, want nil", d.Refuse)
	}
}

// TestLostReportsDoNotLock checks that places expire whose requests are never reported on, although no request is let in that
// could book one.
func TestLostReportsDoNotLock(t *testing.T) {
	for _, confirmed := range []bool{false, true} {
		w := newWorld(t, 2)
		w.limit(1)
		body := chatBody("m", fmt.Sprintf("%q", text(100, 1)))
		ask := func() Decision { return w.decide(body) }
		for range 2 {
			d := ask()
			if confirmed {
				w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: d.Targets[0].Addr, Source: 1})
			}
		}
		w.Observe(Outcome{ID: "none", Phase: Started, Addr: "10.0.0.1:8000", Source: 1})
		if d := ask(); d.Refuse == nil {
			t.Errorf("confirmed %v: not full: got %+v, want Refuse one", confirmed, d)
		}
		wait := 31 * time.Second
		if confirmed {
			w.Observe(Outcome{Phase: Lost, Source: 1})
			wait = 5 * time.Second
		}
		w.now = w.now.Add(wait)
		if d := ask(); d.Refuse != nil || len(d.Targets) == 0 {
			t.Errorf("confirmed %v: after %v: %+v; got %d, want nil, some", confirmed, wait, d.Refuse, len(d.Targets))
		}
	}
}

// TestNoLimitWithoutReports checks that the limit refuses nobody if Envoy reports nothing.
func TestNoLimitWithoutReports(t *testing.T) {
	w := newWorld(t, 2)
	w.limit(1)
	body := chatBody("m", fmt.Sprintf("%q", text(100, 1)))
	w.decide(body)
	w.decide(body)
	if d := w.decide(body); d.Refuse == nil {
		t.Errorf("not full: got %+v, want one", d.Refuse)
	}
	w.now = w.now.Add(6 * time.Second)
	for range 10 {
		if d := w.decide(body); d.Refuse != nil {
			t.Errorf("no report came, and yet: got %+v, want nil", d.Refuse)
		}
	}
}

// TestFailingWorker checks that a failing worker gets a trial now and then, one request at a time, whatever it holds; that a 4xx
// or a client that disconnects is no failure; that a full worker gets no trial; and that all are used if all are out.
func TestFailingWorker(t *testing.T) {
	body := chatBody("m", fmt.Sprintf("%q", text(300, 1)))
	for _, c := range []struct {
		name string
		say  Outcome
		out  bool
	}{
		{"503", Outcome{Phase: Ended, Code: 503, Answered: true}, true},
		{"Envoy refuses its address", Outcome{Phase: Ended, Code: 403, Denied: true}, true},
		{"500", Outcome{Phase: Ended, Code: 500, Answered: true}, true},
		{"501", Outcome{Phase: Ended, Code: 501, Answered: true}, false},
		{"503 of Envoy's own", Outcome{Phase: Ended, Code: 503}, false},
		{"400", Outcome{Phase: Ended, Code: 400, Answered: true}, false},
		{"429", Outcome{Phase: Ended, Code: 429, Answered: true}, false},
		{"the client leaves", Outcome{Phase: Ended}, false},
		{"no connection", Outcome{Phase: Failed, Fault: "connect"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 4)
			w.stores(1, body)
			at := func(d Decision) string { return d.Targets[0].Worker }
			end := func(d Decision, o Outcome) {
				o.ID, o.Addr, o.CachedTokens = d.ID, d.Targets[0].Addr, -1
				w.Observe(o)
				if o.Phase == Failed {
					w.Observe(Outcome{ID: d.ID, Phase: Ended, CachedTokens: -1})
				}
			}
			good := Outcome{Phase: Ended, Code: 200, Answered: true}
			for range 3 {
				d := w.decide(body)
				if at(d) != "w1" {
					t.Fatalf(`got %+v, want at(d) == "w1"`, d)
				}
				end(d, c.say)
			}
			if d := w.decide(body); (at(d) != "w1") != c.out {
				t.Fatalf(`then to %s, want (at(d) != "w1") == %v`, at(d), c.out)
			} else if !c.out {
				return
			}
			for range 4 { // not even offered for a retry
				for _, target := range w.decide(chatBody("m", fmt.Sprintf("%q", text(9, 7)))).Targets {
					if target.Worker == "w1" {
						t.Errorf("a retry would go there: got %q, want other than %q", target.Worker, "w1")
					}
				}
			}
			w.now = w.now.Add(time.Second)
			trial := w.decide(body)
			if at(trial) != "w1" || len(trial.Targets) != 3 {
				t.Fatalf(`no trial: got %+v, want at(trial) == "w1", len(trial.Targets) == 3`, trial.Targets)
			}
			if d := w.decide(body); at(d) == "w1" {
				t.Error(`two trials at once, want at(d) != "w1"`)
			}
			end(trial, c.say)
			w.now = w.now.Add(3 * time.Second)
			if d := w.decide(body); at(d) == "w1" {
				t.Error(`the next trial comes too soon, want at(d) != "w1"`)
			}
			w.now = w.now.Add(time.Second)
			// A request that no engine can read is a trial as well.
			trial = w.decide(`{"model":"m","messages":[{"role":"nobody"}]}`)
			if at(trial) != "w1" {
				t.Fatalf(`no trial: %+v, want at(trial) == "w1"`, trial.Targets)
			}
			end(trial, good)
			if d := w.decide(body); at(d) != "w1" {
				t.Errorf("well again, and yet to %s, want %q", at(d), "w1")
			}
		})
	}
}

func TestAllFail(t *testing.T) {
	w := newWorld(t, 4)
	seen := map[string]int{}
	for i := range 200 {
		w.now = w.now.Add(5 * time.Millisecond)
		d := w.decide(chatBody("m", fmt.Sprintf("%q", text(30, uint64(i)))))
		if d.Refuse != nil || len(d.Targets) == 0 {
			t.Fatalf("%+v: got %d, want Refuse nil, some", d, len(d.Targets))
		}
		seen[d.Targets[0].Worker]++
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 503, Answered: true, CachedTokens: -1})
	}
	for _, name := range []string{"w0", "w1", "w2", "w3"} {
		if seen[name] < 30 {
			t.Errorf("all fail: requests to %v, want [name] at least 30", seen)
		}
	}
}

// TestNewcomer checks that a worker that joins, and looks idle, gets no more than the mean of the others at first, and everything
// if the others are full.
func TestNewcomer(t *testing.T) {
	w := newWorld(t, 3)
	all := w.opt.Fleet.Workers()
	w.opt.Fleet.Set(all[:2])
	w.now = w.now.Add(time.Minute)
	ask := func(seed uint64) (string, *Refusal) {
		d := w.decide(chatBody("m", fmt.Sprintf("%q", text(400, seed))))
		if d.Refuse != nil {
			return "", d.Refuse
		}
		return d.Targets[0].Worker, nil
	}
	for i := range uint64(6) {
		ask(i)
	}
	w.opt.Fleet.Set(all)
	got := map[string]int{}
	for i := range uint64(6) {
		name, _ := ask(10 + i)
		got[name]++
	}
	if got["w2"] != 3 && got["w2"] != 4 { // 3 at first, and the mean grows with the others'
		t.Errorf("%v: want three or four of six at the newcomer", got)
	}
	w.limit(5)
	for i := range uint64(8) {
		if name, refused := ask(20 + i); refused != nil && w.inflight() < 15 {
			t.Errorf("request %d: got %q refused with %d in flight, want none refused below 15", i, name, w.inflight())
		}
	}
	if n := w.inflight(); n != 15 {
		t.Errorf("%d in flight, want all places of three taken", n)
	}
}

// TestOthersRequests checks that other senders' requests at a worker raise its cost, but take none of our places.
func TestOthersRequests(t *testing.T) {
	w := newWorld(t, 2)
	w.limit(1)
	w.opt.Fleet.Workers()[0].Slots[0].SetReport(fleet.LoadReport{Running: 60, ValidFor: time.Hour}, w.now)
	for i, want := range []string{"w1", "w0"} {
		if d := w.decide(chatBody("m", fmt.Sprintf("%q", text(100, uint64(i))))); d.Refuse != nil || d.Targets[0].Worker != want {
			t.Errorf("request %d: %+v, want %s", i, d, want)
		}
	}
	if d := w.decide(chatBody("m", `"x"`)); d.Refuse == nil {
		t.Errorf("full: got %+v, want Refuse one", d)
	}
}
