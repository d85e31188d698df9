package router

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestFronts checks that as many requests are expected as came lately, fewer the longer ago, that those of the present quarter second do
// not count yet, and that the beginnings asked about long ago are forgotten first.
func TestFronts(t *testing.T) {
	f, now := newFronts(), time.Unix(1000, 0)
	for range 5 {
		f.add(7, now)
	}
	for after, want := range map[time.Duration]float64{0: 0, 240 * time.Millisecond: 0, 250 * time.Millisecond: 3.9,
		10 * time.Second: 1.5, time.Minute: 0} {
		if got := f.expected(7, now.Add(after)); math.Abs(got-want) > 0.05 {
			t.Errorf("%v later %.2f requests are expected, want %v", after, got, want)
		}
	}
	f.add(7, now.Add(250*time.Millisecond))
	if got := f.expected(7, now.Add(500*time.Millisecond)); got < 4.5 {
		t.Errorf("got %.1f of six requests in two quarters of a second, want at least 4.5 to count", got)
	}
	for i := range uint64(maxFronts + 10) {
		f.add(100+i, now)
	}
	if n := f.of.Len(); n != maxFronts {
		t.Errorf("%d beginnings, want %d at most", n, maxFronts)
	}
}

// TestFrontsCountARequestOnce checks that a request counts once although workers of two classes hold its beginning, and not for what an
// earlier one began with at a class that has no workers any more.
func TestFrontsCountARequestOnce(t *testing.T) {
	w := newClassWorld(t, map[string]func(*engine.Server){"like": func(s *engine.Server) { s.EngineVersion = "0.31.0" }})
	long := chatBody("m", fmt.Sprintf("%q", text(1000, 5)))
	w.stores("", long, 1<<20)
	w.stores("like", long, 1<<20)
	w.decide(long)
	for range 3 {
		w.decide(chatBody("x", `"hi"`)) // not read: it begins like none
	}
	w.opt.Fleet.Set([]*fleet.Worker{w.slot[""].Worker})
	w.decide(chatBody("m", fmt.Sprintf("%q", text(1000, 6))))
	for _, one := range w.fronts.of.Values() {
		if one.came != 1 {
			t.Errorf("%d requests, want one for each beginning", one.came)
		}
	}
	if w.fronts.of.Len() == 0 {
		t.Errorf("no beginning is counted: got %d, want some", w.fronts.of.Len())
	}
}

// TestHotFrontIsCopied: of many requests with one beginning some go to a second worker, before its holder has as long a queue as it
// takes to compute it again; when there are few, none does.
func TestHotFrontIsCopied(t *testing.T) {
	for each, want := range map[time.Duration]bool{12 * time.Millisecond: true, 4 * time.Second: false} {
		w := newWorld(t, 2)
		front := text(3000, 5)
		w.stores(0, chatBody("m", fmt.Sprintf("%q", front)))
		copied, most, under := false, 0.0, []Decision(nil)
		for i := range 60 {
			d := w.decide(chatBody("m", fmt.Sprintf("%q", front+text(20, uint64(100+i)))))
			copied = copied || d.Targets[0].Worker != "w0"
			if !copied {
				most = max(most, w.slots[0].Load(w.now).Backlog)
			}
			under = append(under, d)
			if len(under) > 4 {
				d, under = under[0], under[1:]
				w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, Answered: true, CachedTokens: -1})
			}
			w.now = w.now.Add(each)
		}
		if copied != want || most > 3000 {
			t.Errorf("one each %v: copied %v, want %v; %v tokens queued", each, copied, want, most)
		}
	}
	c := []choose.Candidate{{Overlap: choose.Overlap{Slot: 0, Tokens: 6200, Predicted: 6000}, Inflight: 30},
		{Overlap: choose.Overlap{Slot: 1, Tokens: 6200}}}
	if choose.Rank(c, 1, 0)[0].Slot != 0 {
		t.Error("got a beginning computed twice that is asked about once, want the slot that has it")
	}
	for i := range c {
		c[i].Again = 20
	}
	if choose.Rank(c, 1, 0)[0].Slot != 1 {
		t.Error("a beginning of twenty requests a second stays with a worker that has thirty in flight, want choose.Rank(c, 1, " +
			"0)[0].Slot == 1")
	}
}
