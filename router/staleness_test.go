package router

import (
	"fmt"
	"testing"
	"time"

	"github.com/sightline-router/sightline/workers/fleet"
)

// TestDeadStreamLosesCredit checks that the blocks known of a worker count for less and less once its events have stopped, never
// as exact, and finally for nothing, and count fully when the events come again.
func TestDeadStreamLosesCredit(t *testing.T) {
	w := newWorld(t, 2)
	body := chatBody("m", fmt.Sprintf("%q", text(4000, 7)))
	w.stores(0, body)
	var age time.Duration
	w.slots[0].EventAge = func(time.Time) time.Duration { return age }
	whole := w.decide(body)
	if whole.Reason != Exact || whole.Targets[0].Worker != "w0" || whole.CachedTokens < 4000 {
		t.Fatalf("got %+v, want Reason %q, Targets[0].Worker %q, CachedTokens at least 4000", whole, Exact, "w0")
	}
	last := whole.CachedTokens + 1
	for _, age = range []time.Duration{doubtAfter - 1, doubtAfter, time.Minute, 3 * time.Minute, unknownAfter - 30*time.Second} {
		w.now = w.now.Add(time.Hour) // the predictions have expired
		d := w.decide(body)
		switch {
		case age < doubtAfter && (d.Reason != Exact || d.CachedTokens != whole.CachedTokens):
			t.Errorf("after %v: got %+v, want it exact with %d tokens until %v", age, d, whole.CachedTokens, doubtAfter)
		case age >= doubtAfter && (d.Reason != Predicted || d.Why != eventsLate):
			t.Errorf("after %v: got %s, %q, want it predicted, since %s", age, d.Reason, d.Why, eventsLate)
		case d.CachedTokens >= last && age > doubtAfter:
			t.Errorf("after %v: got %d tokens, %d before, want fewer", age, d.CachedTokens, last)
		}
		last = d.CachedTokens
	}
	w.now, age = w.now.Add(time.Hour), unknownAfter
	if d := w.decide(body); d.Reason != Load || d.CachedTokens != 0 {
		t.Errorf("after %v: got %s, %d tokens, want %q, 0", age, d.Reason, d.CachedTokens, Load)
	}
	w.now, age = w.now.Add(time.Hour), 0
	if d := w.decide(body); d.Reason != Exact || d.CachedTokens != whole.CachedTokens {
		t.Errorf("live again: got %s, %d tokens, want %q, %d", d.Reason, d.CachedTokens, Exact, whole.CachedTokens)
	}
}

// TestDoubtfulComesSecond checks that a worker whose events prove a prefix is preferred to one whose events have not come for
// long, and that what the engine did not find is removed from the latter.
func TestDoubtfulComesSecond(t *testing.T) {
	w := newWorld(t, 2)
	body := chatBody("m", fmt.Sprintf("%q", text(4000, 8)))
	w.stores(0, body)
	w.stores(1, body)
	w.slots[0].EventAge = func(time.Time) time.Duration { return time.Minute }
	for range 4 {
		d := w.decide(body)
		if d.Reason != Exact || d.Targets[0].Worker != "w1" {
			t.Fatalf("got %s %s, want %q, %q", d.Reason, d.Targets[0].Worker, Exact, "w1")
		}
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: -1})
	}
	req := &Request{ID: "only", Path: "/v1/chat/completions", Only: []string{"10.0.0.1:8000"}, Body: [][]byte{[]byte(body)}}
	d := w.Decide(t.Context(), req)
	if d.Reason != Predicted || d.CachedTokens < 2000 {
		t.Fatalf("got %+v, want Reason %q, CachedTokens at least 2000", d, Predicted)
	}
	held := w.index.HeldBlocks(w.slots[0].ID)
	w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: "10.0.0.1:8000"})
	w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: 160})
	if now := w.index.HeldBlocks(w.slots[0].ID); now != 10 {
		t.Errorf("the engine found 10 blocks; %d are believed of %d, want 10", now, held)
	}
}

// TestLostEventsLeaveDoubt checks that a worker whose events were lost counts as predicted at once, and less and less, although
// its stream is live.
func TestLostEventsLeaveDoubt(t *testing.T) {
	w := newWorld(t, 1)
	body := chatBody("m", fmt.Sprintf("%q", text(4000, 9)))
	w.stores(0, body)
	var lost time.Duration
	w.slots[0].EventAge = func(time.Time) time.Duration { return 0 }
	w.slots[0].Doubt = func(time.Time) time.Duration { return lost }
	whole := w.decide(body)
	last := whole.CachedTokens + 1
	for _, lost = range []time.Duration{time.Millisecond, time.Minute, 4 * time.Minute} {
		w.now = w.now.Add(time.Hour)
		d := w.decide(body)
		if d.Reason != Predicted || d.Why != eventsLost || d.CachedTokens >= last || d.CachedTokens == 0 {
			t.Errorf("after %v: got %s, %q, %d tokens, want %q, %q, less than %d, some",
				lost, d.Reason, d.Why, d.CachedTokens, Predicted, eventsLost, last)
		}
		last = d.CachedTokens
	}
	w.now, lost = w.now.Add(time.Hour), unknownAfter
	if d := w.decide(body); d.CachedTokens != 0 {
		t.Errorf("after %v: got %d tokens, want 0", lost, d.CachedTokens)
	}
	w.now, lost = w.now.Add(time.Hour), 0
	if d := w.decide(body); d.Reason != Exact || d.CachedTokens != whole.CachedTokens {
		t.Errorf("settled: got %s, %d tokens, want %q, %d", d.Reason, d.CachedTokens, Exact, whole.CachedTokens)
	}
}

// TestMostMustBeGone checks that a worker in doubt, of which some misses are expected, is resynced only when most answers miss.
func TestMostMustBeGone(t *testing.T) {
	for good, want := range map[int]int{0: 1, 5: 0} {
		w := newWorld(t, 1)
		w.slots[0].Doubt = func(time.Time) time.Duration { return 1 }
		asked := 0
		w.opt.Resync = func(*fleet.Slot) { asked++ }
		seed := uint64(0)
		answer := func(share int) {
			seed++
			body := chatBody("m", fmt.Sprintf("%q", text(1000, 2000+seed)))
			w.stores(0, body)
			d := w.decide(body)
			w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: d.CachedTokens * share})
			w.now = w.now.Add(time.Second)
		}
		answer(0)
		for range good {
			answer(1)
		}
		answer(0)
		answer(0)
		if asked != want {
			t.Errorf("%d good answers among three bad ones: asked %d times, want %d", good, asked, want)
		}
	}
}

// TestPredictionsOfADeadStream checks that predictions for a worker count for minutes if its events do not come: without a
// source, or with a dead one.
func TestPredictionsOfADeadStream(t *testing.T) {
	for name, c := range map[string]struct {
		age  func(time.Time) time.Duration
		want Reason
	}{
		"no source": {nil, Predicted},
		"live":      {func(time.Time) time.Duration { return 0 }, Load},
		"dead":      {func(time.Time) time.Duration { return unknownAfter }, Predicted},
	} {
		w := newWorld(t, 1)
		w.slots[0].EventAge = c.age
		body := chatBody("m", fmt.Sprintf("%q", text(400, 9)))
		w.decide(body)
		w.now = w.now.Add(time.Minute)
		if d := w.decide(body); d.Reason != c.want {
			t.Errorf("%s: a minute later %s, want %s", name, d.Reason, c.want)
		}
	}
}
