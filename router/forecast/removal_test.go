package forecast

import (
	"math"
	"testing"
	"time"
)

// TestRemovals: with a worker goes what it alone holds, as far as such blocks come back; what two hold goes with neither, and what its
// ranks hold twice goes once. A worker that is leaving is no other's second copy.
func TestRemovals(t *testing.T) {
	caches := sized(1000, 1000, 1000, 1000)
	caches[3].Worker = 2 // slots 2 and 3 are ranks of one
	for i := range caches[:3] {
		caches[i].Worker = uint32(i)
	}
	m := New(8 << 20)
	at := start
	settle := func() {
		m.Resize(caches, at)
		m.Settle()
		at = at.Add(time.Second)
	}
	held := func(slot uint32, prompts ...[]uint64) {
		for _, p := range prompts {
			caches[slot].Held += len(p)
			m.Decided(Request{slot, p, 16, 16 * len(p), true, nil, 0, 0}, at)
			settle()
		}
	}
	settle()
	both := chain([2]int{1, 40})
	held(0, both, chain([2]int{2, 100}))
	caches[0].Held = 140
	held(1, both)
	held(2, chain([2]int{3, 20}))
	held(3, chain([2]int{3, 20}))
	settle()
	alone := func() map[uint32]float64 {
		out := map[uint32]float64{}
		for worker, r := range m.Removals(at) {
			out[worker] = r.Alone
			if r.Again < 0 || r.Again > r.Alone || r.Load != 0 {
				t.Errorf("worker %d: %+v, want at most what it holds alone to be asked for again, and no load", worker, r)
			}
		}
		return out
	}
	if got := alone(); len(got) != 3 || got[0] != 1600 || got[1] != 0 || got[2] != 320 {
		t.Errorf("alone %v, want 1600 tokens at 0, none at 1, and 320 at 2, whose ranks hold the same", got)
	}
	caches[0].Leaves = true
	settle()
	if got := alone(); got[0] != 1600 || got[1] != 640 {
		t.Errorf("alone %v while 0 leaves, want 1600 at 0 and 640 at 1, which will be the only one", got)
	}
	caches[0].Held = 0 // it restarted
	settle()
	if got := alone(); got[0] != 0 {
		t.Errorf("alone %v after a restart, want nothing at 0", got)
	}
}

// TestRemovalAgain: what comes back counts, and what was asked for once does not; so of two workers that hold as much, that one is cheaper
// whose prompts do not come back.
func TestRemovalAgain(t *testing.T) {
	m := New(8 << 20)
	caches := sized(2000, 2000)
	caches[1].Worker = 1
	for turn := range 400 {
		at := start.Add(time.Duration(turn) * time.Second)
		m.Resize(caches, at)
		// at 0 ten conversations take turns, at 1 every prompt is another one; each cache has had room for all of the last 2000 blocks
		m.Decided(Request{0, chain([2]int{turn % 10, 20}), 16, 320, true, nil, 0, 0}, at)
		m.Decided(Request{1, chain([2]int{1000 + turn, 20}), 16, 320, true, nil, 0, 0}, at)
		m.Settle()
		caches[0].Held, caches[1].Held = min(200, caches[0].Held+20), min(2000, caches[1].Held+20)
	}
	of := m.Removals(start.Add(400 * time.Second))
	if hot, cold := of[0], of[1]; hot.Alone != 3200 || cold.Alone != 32000 || hot.Again < 1400 || cold.Again > 0.1*cold.Alone {
		t.Errorf("got %+v and %+v, want most of 3200 tokens again at the first, and few of 32000 at the second", hot, cold)
	}
}

// TestRemovalLoad: a worker is worth what the others could not compute.
func TestRemovalLoad(t *testing.T) {
	m := New(8 << 20)
	caches := sized(1000, 1000, 1000)
	for i := range caches {
		caches[i].Worker, caches[i].Rate = uint32(i), 100
	}
	for i := range 300 { // 240 tokens a second, of which the three can do 300
		at := start.Add(time.Duration(i) * time.Second)
		m.Resize(caches, at)
		m.Decided(Request{uint32(i % 3), chain([2]int{i, 15}), 16, 240, true, nil, 0, 0}, at)
		m.Settle()
	}
	now := m.Forecast(10*time.Minute, start.Add(300*time.Second))
	for _, c := range []struct {
		share, waits float64
		want         int
	}{{0.9, 0, 3}, {0.7, 0, 4}, {0.5, 0, 5}, {0.9, 1, 4}, {0.1, 0, 12}} { // 2.4 workers' work; no more than four times the workers are told
		if got := now.Needed(Goal{Busy: c.share}, c.waits); got != c.want {
			t.Errorf("%d workers for %v of the time beside %v, want %d", got, c.share, c.waits, c.want)
		}
	}
	// Another replica's counts are what it says.
	m.Decided(Request{Chain: chain([2]int{1000, 15}), Tokens: 1 << 40}, start.Add(300*time.Second))
	m.Decided(Request{Slot: 9, Chain: chain([2]int{1000, 1}), Tokens: 1 << 40}, start.Add(300*time.Second)) // at a worker that is new here
	now = m.Forecast(10*time.Minute, start.Add(300*time.Second))
	if got := now.Needed(Goal{Busy: 0.9}, 0); got != 3 {
		t.Errorf("%d workers beside another replica's requests of 2^40 tokens, want 3", got)
	}
	for i := range 300 { // as many tokens again that no rule reads
		m.Decided(Request{uint32(i % 3), nil, 16, 240, false, nil, 0, 0}, start.Add(time.Duration(i)*time.Second))
	}
	now = m.Forecast(10*time.Minute, start.Add(300*time.Second))
	if got := now.Needed(Goal{Busy: 0.9}, 0); got != 6 {
		t.Errorf("%d workers of which half the prompts is covered, want 6", got)
	}
	none := New(8 << 20)
	none.Resize(caches, start)
	none.Resize(caches, start.Add(time.Second))
	if got := none.Forecast(10*time.Minute, start.Add(time.Second)); got.Needed(Goal{Busy: 0.9}, 0) != 1 {
		t.Errorf("%d workers without a request, want 1", got.Needed(Goal{Busy: 0.9}, 0))
	}
	none.Decided(Request{0, nil, 16, 240, false, nil, 0, 0}, start.Add(time.Second))
	if got := none.Forecast(10*time.Minute, start.Add(time.Second)); got.Needed(Goal{Busy: 0.9}, 0) != 0 {
		t.Errorf("%d workers of which no prompt is covered, want 0: it is not known", got.Needed(Goal{Busy: 0.9}, 0))
	}
	for worker, r := range m.Removals(start.Add(300 * time.Second)) {
		if want := 600 * (240 - 0.9*200); math.Abs(r.Load-want) > 0.05*want || r.Cost() < r.Load {
			t.Errorf("worker %d: %+v, want about %v tokens of load", worker, r, want)
		}
	}
}

// TestNeededForFirstToken: workers that compute each prompt for 2.4 s, three of them for 0.8 of the time, of which
// queues grow. They wait as in one queue for all, or longer if they do so today.
func TestNeededForFirstToken(t *testing.T) {
	for _, c := range []struct {
		queued float64 // tokens, of 100 a second
		within float64
		want   int
	}{{0, 9, 5}, {0, 2.6, 5}, {0, 2.3, 12}, {266, 2.8, 5}, {1e6, 2.6, 6}} {
		m := New(8 << 20)
		caches := sized(1000, 1000, 1000)
		for i := range caches {
			caches[i].Rate = 100
		}
		for i := range 300 {
			at := start.Add(time.Duration(i) * time.Second)
			m.Resize(caches, at)
			m.Decided(Request{uint32(i % 3), chain([2]int{i, 15}), 16, 240, true, nil, c.queued, 240}, at)
			m.Settle()
		}
		now := m.Forecast(10*time.Minute, start.Add(300*time.Second))
		if got := now.Needed(Goal{FirstToken: c.within}, 0); got != c.want {
			t.Errorf("%v tokens queued: got %d workers for %v s, want %d", c.queued, got, c.within, c.want)
		}
		if got := now.Needed(Goal{Busy: 0.5, FirstToken: c.within}, 0); got != max(5, c.want) {
			t.Errorf("%v tokens queued: got %d workers for %v s and half of the time, want %d", c.queued, got, c.within, max(5, c.want))
		}
	}
}

// TestNeededForImages: what is encoded takes workers' time beside prompts, and delays those behind.
func TestNeededForImages(t *testing.T) {
	for _, c := range []struct{ computes, want int }{{240, 5}, {480, 9}} { // fewer than 0.6 of the time for 240 or 480 tokens a second
		m := New(8 << 20)
		caches := sized(1000, 1000, 1000)
		for i := range caches {
			caches[i].Rate = 100
		}
		for i := range 300 {
			at := start.Add(time.Duration(i) * time.Second)
			m.Resize(caches, at)
			m.Decided(Request{uint32(i % 3), chain([2]int{i, 15}), 16, 240, true, nil, 0, c.computes}, at)
			m.Settle()
		}
		now := m.Forecast(10*time.Minute, start.Add(300*time.Second))
		if got := now.Needed(Goal{FirstToken: 9}, 0); got != c.want {
			t.Errorf("%d tokens to compute of 240: got %d workers, want %d", c.computes, got, c.want)
		}
		if got := now.Needed(Goal{Busy: 0.9}, 0); got != 3 {
			t.Errorf("%d tokens to compute of 240: got %d workers that compute prompts for 0.9 of the time, want 3", c.computes, got)
		}
	}
}

// TestNeededOfIdleFleets: a thousand workers with next to nothing to do need not be more, and one without a request that has work left from
// before needs as many as get that done.
func TestNeededOfIdleFleets(t *testing.T) {
	m := New(8 << 20)
	caches := make([]Cache, 1500)
	for i := range caches {
		caches[i] = Cache{Slot: uint32(i), Worker: uint32(i), Blocks: 1000, Rate: 10_000, Used: -1}
	}
	for i := range 300 {
		m.Resize(caches, start.Add(time.Duration(i)*time.Second))
	}
	m.Decided(Request{0, chain([2]int{1, 2}), 16, 33, true, nil, 0, 33}, start)
	idle := m.Forecast(10*time.Minute, start.Add(300*time.Second))
	if got := idle.Needed(Goal{FirstToken: 0.2}, 0); got != 1 {
		t.Errorf("got %d workers for a request in five minutes, want 1", got)
	}
	none := New(8 << 20)
	for i := range 10 {
		none.Resize(caches, start.Add(time.Duration(i)*time.Second))
	}
	left := none.Forecast(10*time.Minute, start.Add(10*time.Second))
	if got := left.Needed(Goal{FirstToken: 0.2}, 2.3); got != 4 {
		t.Errorf("got %d workers for the work of 2.3 that is left, want 4", got)
	}
}

// TestHostileAnswers: an answer takes no more blocks than a long one has, however large worker and cache say that they are.
func TestHostileAnswers(t *testing.T) {
	m, r := New(8<<20), Request{0, chain([2]int{1, 2}), 1, 2, true, nil, 0, 0}
	caches := []Cache{{Blocks: 10, Held: 10, Tokens: 1 << 40, Used: -1}}
	for range 2 {
		m.Resize(caches, start)
		m.Decided(r, start)
		m.Ended(r, 0, 1<<28, start)
		m.Settle()
	}
	if got := m.ends.get(r.Chain[1]); got != longestAnswer {
		t.Errorf("got an answer of %d blocks, want %d", got, longestAnswer)
	}
}
