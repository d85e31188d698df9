package router

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sightline-router/sightline/internal/fair"
)

// TestHold checks that a request waits for a worker if none is known, and that its client is told to retry if none comes.
func TestHold(t *testing.T) {
	for name, c := range map[string]struct {
		hold        time.Duration
		comes, full bool
		why         string // for a refusal; "": a worker or Envoy's fallback takes it
		outcome     string
	}{
		"off":               {0, false, false, "", ""},
		"one comes":         {time.Hour, true, false, "", waitServed},
		"none comes":        {time.Millisecond, false, false, "no worker is there for this request", waitNone},
		"many wait already": {time.Hour, false, true, "no worker is there for this request", waitFull},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			workers := w.opt.Fleet.Workers()
			w.opt.Fleet.Set(nil)
			w.opt.Hold = c.hold
			if c.full {
				w.waiters.places.TryTake(0, maxAwaitingWorker)
			}
			done := make(chan Decision, 1)
			go func() { done <- w.decide(`{"model":"m","messages":[{"role":"user","content":"hi"}]}`) }()
			if c.comes {
				for w.waiters.places.Taken() == 0 {
					runtime.Gosched()
				}
				w.opt.Fleet.Set(workers)
			}
			d := <-done
			if (len(d.Targets) == 1) != c.comes || (d.Refuse != nil) != (c.why != "") {
				t.Errorf("got %+v, want a target: %v, a refusal: %v", d, c.comes, c.why != "")
			}
			if d.Refuse != nil && (d.Refuse.Status != http.StatusServiceUnavailable || d.Refuse.Message != c.why) {
				t.Errorf("got the refusal %+v, want status 503 and %q", d.Refuse, c.why)
			}
			if c.outcome != "" && !strings.Contains(w.counted(t, "sightline_requests_held_total"), c.outcome+"=1 ") {
				t.Errorf(`not counted as %q, want c.outcome == "" or c.outcome+"=1 " in w.counted(t, `+
					`"sightline_requests_held_total")`, c.outcome)
			}
		})
	}
}

// TestAPlaceIsAwaited checks that a request which finds no place gets one that is reported free soon after, and that few wait for one.
func TestAPlaceIsAwaited(t *testing.T) {
	for name, c := range map[string]struct {
		frees, crowd bool
		outcome      string
	}{
		"one is free soon":  {true, false, waitPlace},
		"none is":           {false, false, waitNoPlace},
		"many wait already": {false, true, waitCrowd},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.Serve(w.opt.Models, 1, 0)
			const body = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`
			first := w.decide(body)
			w.Observe(Outcome{ID: first.ID, Phase: Started, Addr: first.Targets[0].Addr, Source: 1})
			if c.crowd {
				w.waiters.forPlace.TryTake(0, maxAwaitingReport)
			}
			done := make(chan Decision, 1)
			go func() { done <- w.decide(body) }()
			if c.frees {
				for w.waiters.forPlace.Taken() == 0 {
					runtime.Gosched()
				}
				w.Observe(Outcome{ID: first.ID, Phase: Done, Addr: first.Targets[0].Addr, Code: 200, Source: 1})
			}
			if d := <-done; (d.Refuse == nil) != c.frees {
				t.Errorf("got %+v, want a place: %v", d, c.frees)
			}
			if !strings.Contains(w.counted(t, "sightline_requests_held_total"), c.outcome+"=1 ") {
				t.Errorf("got it not counted as %q, want it there once", c.outcome)
			}
			if n := w.waiters.forPlace.Taken(); n != 0 && !c.crowd {
				t.Errorf("got %d that still wait, want none", n)
			}
		})
	}
}

// TestWaitingIsShared checks that a client whose requests wait in any number, for a worker or for a place, leaves room for another's.
func TestWaitingIsShared(t *testing.T) {
	const hostile, victim = fair.Client(1), fair.Client(2)
	for name, c := range map[string]struct {
		block func(w *world) (free func())
		room  func(w *world) *fair.Room
		size  int64
	}{
		"for a worker": {func(w *world) func() {
			w.opt.Hold = time.Minute
			workers := w.opt.Fleet.Workers()
			w.opt.Fleet.Set(nil)
			return func() { w.opt.Fleet.Set(workers) }
		}, func(w *world) *fair.Room { return w.waiters.places }, maxAwaitingWorker},
		"for a place": {func(w *world) func() {
			w.limit(1)
			first := w.decide(chatBody("m", `"first"`))
			w.Observe(Outcome{ID: first.ID, Phase: Started, Addr: first.Targets[0].Addr, Source: 1})
			return func() {
				w.Observe(Outcome{ID: first.ID, Phase: Done, Addr: first.Targets[0].Addr, Code: 200, Source: 1})
			}
		}, func(w *world) *fair.Room { return w.waiters.forPlace }, maxAwaitingReport},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1)
				free, room := c.block(w), c.room(w)
				ask := func(client fair.Client, i int64) Decision {
					return w.Decide(t.Context(), &Request{ID: fmt.Sprint(client, i), Path: "/v1/chat/completions", Client: client,
						Body: [][]byte{[]byte(chatBody("m", `"hello"`))}})
				}
				var all sync.WaitGroup
				defer all.Wait()
				for i := range 2 * c.size {
					all.Go(func() { ask(hostile, i) })
				}
				synctest.Wait()
				if n := room.Taken(); n < c.size/2 {
					t.Fatalf("only %d of the hostile client's requests wait, want at least %d", n, c.size/2)
				}
				time.Sleep(reportInterval / 2) // so that its next look is not at the same time as theirs
				done := make(chan Decision)
				go func() { done <- ask(victim, 0) }()
				time.Sleep(reportInterval - 1)
				free()
				if d := <-done; len(d.Targets) != 1 {
					t.Errorf("the other client's request: %+v; got %d, want 1", d, len(d.Targets))
				}
			})
		})
	}
}

// TestDecisionLines checks that each decision is one log line at debug level, however many there are, without any word of a
// prompt.
func TestDecisionLines(t *testing.T) {
	w := newWorld(t, 2)
	core, lines := observer.New(zap.DebugLevel)
	w.unsampledLog = zap.New(core)
	for range 3 {
		w.decide(`{"model":"m","messages":[{"role":"user","content":"a secret"}]}`)
	}
	said := lines.FilterMessage("decided").All()
	if len(said) != 3 {
		t.Fatalf("%d lines, want 3", len(said))
	}
	for i, l := range said {
		f := l.ContextMap()
		if f["id"] == "" || f["model"] != "m" || f["worker"] == "" || f["prompt_tokens"] == int64(0) {
			t.Errorf("line %d: got %v, want id some, model %q, worker some, prompt_tokens some", i, f, "m")
		}
		for _, v := range f {
			if s, _ := v.(string); strings.Contains(s, "secret") {
				t.Errorf(`line %d has the prompt: %v, want no "secret" in s`, i, f)
			}
		}
	}
}
