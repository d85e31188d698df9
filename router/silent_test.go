package router

import (
	"fmt"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestNobodyReports checks that nothing blocks if Envoy never reports: once that is noticed the limit refuses nobody, load falls
// by events and by time, and requests spread over the workers.
func TestNobodyReports(t *testing.T) {
	w := newWorld(t, 3)
	w.limit(4)
	w.slots[0].EventAge = func(time.Time) time.Duration { return 0 }
	went, refused := map[string]int{}, 0
	for i := range 600 { // a minute
		d := w.decide(chatBody("m", fmt.Sprintf("%q", text(100, uint64(i)))))
		switch {
		case d.Refuse == nil:
			went[d.Targets[0].Worker]++
		case i >= 60:
			t.Fatalf("request %d is refused: %s, want i < 60", i, d.Why)
		default:
			refused++
		}
		w.slots[0].Progress(func(locals []uint64) int { return len(locals) }, w.now)
		if l := w.slots[0].Load(w.now); l.Backlog != 0 {
			t.Fatalf("%v tokens queued behind the event of the last, want 0", l.Backlog)
		}
		if n := w.opt.Ledger.Open(); n > 301 {
			t.Fatalf("%d requests open: they do not end after 30 s, want at most 301", n)
		}
		w.now = w.now.Add(100 * time.Millisecond)
	}
	if silent, since := w.Silent(); silent == "" || w.now.Sub(since) < 59*time.Second || refused > 50 {
		t.Errorf(`silent %q since %v, %d refused before that was known, want silent != "", w.now.Sub(since) >= 59*time.Second, refused <= 50`,
			silent, since, refused)
	}
	for worker, n := range went {
		if n < 120 {
			t.Errorf("%s got %d of 600 requests", worker, n)
		}
	}
	w.opt.Ledger.Book("long", ledger.Booking{Slot: w.slots[1], Work: fleet.Work{Tokens: 50000}})
	w.now = w.now.Add(30 * time.Second)
	w.opt.Ledger.Expire()
	for _, s := range w.slots {
		if l := s.Load(w.now); l.Inflight != 0 || l.Backlog != 0 || l.Context != 0 {
			t.Errorf("idle for 30 s: got %+v, want Inflight 0, Backlog 0, Context 0", l)
		}
	}
}

// TestWhatIsWarnedOf checks that everyday client errors are not logged, that a model name that nobody serves is, once, and that
// such names are forgotten later.
func TestWhatIsWarnedOf(t *testing.T) {
	core, logged := observer.New(zap.InfoLevel)
	w := newWorld(t, 2)
	w.opt.Log = zap.New(core)
	w.answers.Add("resp_1", "10.0.0.2:8000")
	for _, id := range []string{"resp_1", "resp_2"} {
		w.Decide(t.Context(), &Request{ID: id, Path: "/v1/responses/" + id, Stored: id})
	}
	for _, body := range []string{chatBody("m", `"hi"`), chatBody("lora", `"hi"`), `{"model":"m","messages":"hi"}`, `[]`} {
		w.decide(body)
	}
	if logged.Len() > 0 {
		t.Errorf("%v: got %d, want 0", logged.All(), logged.Len())
	}
	for i := range 100 {
		w.decide(chatBody(fmt.Sprint("nobody-", i), `"hi"`))
	}
	if lines := logged.FilterField(zap.String("asked", "nobody-0")).Len(); lines != 1 || len(w.Unserved()) != maxUnserved {
		t.Errorf("%d lines, %d names, want 1, %d", lines, len(w.Unserved()), maxUnserved)
	}
	if n := w.unserved.names(w.now.Add(2 * time.Hour)); len(n) != 0 {
		t.Errorf("%v after two hours, want 0 of them", n)
	}
}
