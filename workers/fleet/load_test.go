package fleet

import (
	"fmt"
	"math"
	"net/netip"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

// heard returns a worker whose events come.
func heard(c *clock) (*requests, *Slot) {
	_, a, _ := twoWorkers(c)
	a.Slots[0].EventAge = func(time.Time) time.Duration { return 0 }
	return newRequests(c.now), a.Slots[0]
}

// stored is a lookup that finds so many blocks of the prompt whose first block is id.
type stored map[uint64]int

func (s stored) held(locals []uint64) int { return s[locals[0]] }

func promptOf(id uint64, blocks int) []uint64 {
	locals := make([]uint64, blocks)
	for i := range locals {
		locals[i] = id
	}
	return locals
}

// TestEventsMoveTheQueue checks that the queue is what events have not reported yet: it shrinks with each stored block, and the
// last one ends it, whatever the tail after it.
func TestEventsMoveTheQueue(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	f.Book("a", s, Work{Tokens: 8005, Context: 10005, Locals: promptOf(1, 625), From: 125})
	f.Book("b", s, Work{Tokens: 1600, Context: 1600, Locals: promptOf(2, 100)})
	if l := s.Load(c.t); l.Backlog != 9605 || l.Context != 11605 || l.Rate != 0 {
		t.Errorf("got %+v, want Backlog 9605, Context 11605, Rate 0", l)
	}
	now := stored{1: 125}
	for _, step := range []struct {
		blocks map[uint64]int
		want   float64
	}{
		{map[uint64]int{1: 125}, 9605}, // of other prompts
		{map[uint64]int{1: 375}, 8005./2 + 1600},
		{map[uint64]int{1: 625}, 1600}, // including the five tokens after its last block
		{map[uint64]int{1: 625, 2: 100}, 0},
	} {
		for id, n := range step.blocks {
			now[id] = n
		}
		s.Progress(now.held, c.t)
		if l := s.Load(c.t); math.Abs(l.Backlog-step.want) > 1e-6 {
			t.Errorf("%v: %v tokens queued, want %v", step.blocks, l.Backlog, step.want)
		}
	}
	f.End("a")
	f.End("b")
	if l := s.Load(c.t); l.Inflight != 0 || l.Backlog != 0 || l.Context != 0 {
		t.Errorf("in the end %+v, want Inflight 0, Backlog 0, Context 0", l)
	}
}

// TestSeenMovesTheQueue checks the same for prompts whose blocks are not known beforehand: their queue shrinks and their rate is measured
// by what events show of each, whatever their length was estimated to be; one whose events cannot be told apart drains by the rate.
func TestSeenMovesTheQueue(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	none := func([]uint64) int { t.Fatal("there is nothing to look up"); return 0 }
	a, b, lost := &Seen{Blocks: 625}, &Seen{Blocks: 100}, &Seen{Blocks: 50}
	f.Book("a", s, Work{Tokens: 8000, Context: 10000, Seen: a, From: 125})
	f.Book("b", s, Work{Tokens: 1600, Context: 1600, Seen: b})
	f.Book("lost", s, Work{Tokens: 800, Context: 800, Seen: lost})
	lost.Lose()
	for _, step := range []struct {
		a, b int
		want float64
	}{
		{0, 0, 10400},
		{375, 0, 4000 + 2400},
		{600, 20, 1280 + 800}, // the first had fewer blocks than was estimated, since the next one has begun
		{600, 120, 800},       // and this one more
	} {
		a.Store(step.a)
		b.Store(step.b)
		c.t = c.t.Add(100 * time.Millisecond)
		before := s.Load(c.t).Backlog
		s.Progress(none, c.t)
		if l := s.Load(c.t); l.Backlog > step.want || l.Backlog < step.want-1000 {
			t.Errorf("%+v: %v tokens queued, before %v, want %v", step, l.Backlog, before, step.want)
		}
	}
	if l := s.Load(c.t); l.Rate == 0 {
		t.Errorf("no rate was measured: got %v, want some", l.Rate)
	}
	c.t = c.t.Add(time.Second)
	if l := s.Load(c.t); l.Backlog != 0 {
		t.Errorf("%v tokens are still queued of one whose events cannot be told apart, want 0", l.Backlog)
	}
}

// TestSeenOfOthers: messages without blocks of a prompt show that it waits, unless others may have got its blocks: then it drains by the
// rate.
func TestSeenOfOthers(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	for _, others := range []bool{false, true} {
		f, s := heard(c)
		seen := &Seen{Blocks: 625, Others: others}
		f.Book("a", s, Work{Tokens: 10000, Context: 10000, Seen: seen})
		for range 40 {
			c.t = c.t.Add(50 * time.Millisecond)
			s.Progress(func([]uint64) int { return 0 }, c.t)
		}
		want := 10000.
		if others {
			want = 0
		}
		if l := s.Load(c.t); l.Backlog != want {
			t.Errorf("others %v: after 2 s without any of its blocks %v tokens are queued, want %v", others, l.Backlog, want)
		}
		f, s = heard(c)
		seen = &Seen{Blocks: 625, Others: others}
		f.Book("b", s, Work{Tokens: 10000, Context: 10000, Seen: seen})
		seen.Store(500)
		c.t = c.t.Add(50 * time.Millisecond)
		s.Progress(func([]uint64) int { return 0 }, c.t)
		if l := s.Load(c.t); l.Backlog != 2000 {
			t.Errorf("others %v: after 500 of 625 blocks %v tokens are queued, want 2000", others, l.Backlog)
		}
	}
}

// TestSeenOfOthersHidesNone: however many prompts have lost their events to others, those behind move by theirs.
func TestSeenOfOthersHidesNone(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	for i := range 2 * maxLookups {
		f.Book(string(rune('a'+i)), s, Work{Tokens: 160, Context: 160, Seen: &Seen{Blocks: 10, Others: true}})
	}
	f.Book("behind", s, Work{Tokens: 1600, Context: 1600, Locals: promptOf(1, 100)})
	for range 40 {
		c.t = c.t.Add(50 * time.Millisecond)
		s.Progress(stored{}.held, c.t)
	}
	c.t = c.t.Add(50 * time.Millisecond)
	s.Progress(stored{1: 100}.held, c.t)
	if l := s.Load(c.t); l.Backlog != 0 {
		t.Errorf("behind %d prompts without events: got %v tokens queued once all blocks are stored, want 0", 2*maxLookups, l.Backlog)
	}
}

// TestEarlyBlocks checks that, for a slot that reports blocks when their step begins, a message means that the blocks of the
// previous one are computed.
func TestEarlyBlocks(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	s.EarlyEvents = true
	f.Book("a", s, Work{Tokens: 1600, Locals: promptOf(1, 100)})
	now := stored{}
	for _, step := range []struct {
		blocks int
		want   float64
	}{{50, 1600}, {100, 800}, {100, 0}} {
		now[1] = step.blocks
		s.Progress(now.held, c.t)
		if l := s.Load(c.t); math.Abs(l.Backlog-step.want) > 1e-6 {
			t.Errorf("%d blocks told: %v tokens queued, want %v", step.blocks, l.Backlog, step.want)
		}
	}
}

// TestRateComesFromEvents checks that only the time between events gives a worker's rate, not how soon its headers come.
func TestRateComesFromEvents(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	const rate = 3200.
	now := stored{}
	for i := range 30 {
		id := uint64(i + 1)
		f.Book("x", s, Work{Tokens: 6400, Locals: promptOf(id, 400)})
		for done := 0; done < 400; {
			done += 80
			now[id] = done
			c.t = c.t.Add(time.Duration(80 * 16 / rate * float64(time.Second)))
			s.Progress(now.held, c.t)
		}
		f.End("x")
		c.t = c.t.Add(time.Minute) // idle: not a sample
	}
	if l := s.Load(c.t); math.Abs(l.Rate-rate) > 0.02*rate {
		t.Errorf("rate %v, want %v", l.Rate, rate)
	}
}

// TestLoadingIsLearned checks that the time of loading an adapter is what its request takes beyond its tokens' time, and that a
// request that waited for another gives no sample.
func TestLoadingIsLearned(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	now := stored{}
	prefill := func(id uint64, load, before int, took time.Duration) {
		f.Book(fmt.Sprint(id), s, Work{Tokens: 1600 + load, AdapterLoad: load, Locals: promptOf(id, 100)})
		if before > 0 {
			f.Book("behind", s, Work{Tokens: 1600 + load, AdapterLoad: load, Locals: promptOf(id+1, 100)})
		}
		c.t = c.t.Add(took)
		now[id], now[id+1] = 100, 100*before
		s.Progress(now.held, c.t)
		f.End(fmt.Sprint(id))
		f.End("behind")
		c.t = c.t.Add(time.Minute)
	}
	for i := range 50 {
		prefill(uint64(10+2*i), 0, 0, 200*time.Millisecond) // 8,000 a second
	}
	if got := s.AdapterLoadTokens(); got != 0 {
		t.Errorf("%d tokens before any was loaded, want 0", got)
	}
	for i := range 30 {
		prefill(uint64(1000+2*i), 2500, 0, 700*time.Millisecond)
	}
	got := s.AdapterLoadTokens()
	if took := float64(got) / s.Load(c.t).Rate; math.Abs(took-0.5) > 0.1 {
		t.Errorf("loading takes %.2f s, want half a second", took)
	}
	prefill(2000, 2500, 1, 2*time.Second)
	if s.adapterLoadTime > 0.9 {
		t.Errorf("%.2f s: one that waited counts", s.adapterLoadTime)
	}
}

// TestHangingWorkerKeepsItsQueue checks that a worker without events is assumed to go on for two seconds, not for ever.
func TestHangingWorkerKeepsItsQueue(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	f.Book("a", s, Work{Tokens: 100000, Locals: promptOf(1, 6250)})
	c.t = c.t.Add(time.Hour / 4)
	if l := s.Load(c.t); l.Backlog != 100000-2*defaultRate {
		t.Errorf("%v tokens queued after a quarter of an hour, want %v", l.Backlog, 100000-2*defaultRate)
	}
	s.Progress(stored{1: 625}.held, c.t) // what was assumed done was not
	if l := s.Load(c.t); l.Backlog != 90000 {
		t.Errorf("%v tokens queued after a tenth of it was stored, want 90000", l.Backlog)
	}
}

// TestFullWorkerKeepsItsQueue checks that a worker whose steps compute nothing of its queue, since its KV cache has no room, keeps it.
func TestFullWorkerKeepsItsQueue(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	f.Book("a", s, Work{Tokens: 16000, Locals: promptOf(1, 1000)})
	for range 50 {
		c.t = c.t.Add(100 * time.Millisecond)
		s.Progress(stored{}.held, c.t) // blocks of answers
	}
	if l := s.Load(c.t); l.Backlog != 16000 {
		t.Errorf("%v tokens queued after five seconds without progress, want 16000", l.Backlog)
	}
}

// TestLostMessages checks that what was queued when messages were lost drains at the slot's rate, and what came later by its events.
func TestLostMessages(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	f.Book("before", s, Work{Tokens: 16000, Locals: promptOf(1, 1000)})
	s.EventsLost(c.t)
	wait := func(want float64) {
		t.Helper()
		for range 30 {
			c.t = c.t.Add(50 * time.Millisecond)
			s.Progress(stored{}.held, c.t)
		}
		if l := s.Load(c.t); math.Abs(l.Backlog-want) > 1e-3 {
			t.Errorf("%v tokens queued, want %v", l.Backlog, want)
		}
	}
	wait(1000)
	wait(0)
	f.Book("again", s, Work{Tokens: 16000, Locals: promptOf(1, 1000)})
	s.EventsLost(c.t)
	f.Book("after", s, Work{Tokens: 8000, Locals: promptOf(2, 500)})
	wait(1000 + 8000)
	wait(8000)
}

// TestLostEventEndsWithTheNext checks that a lost event does not keep a request in the queue for long, since engines prefill in
// order of arrival.
func TestLostEventEndsWithTheNext(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	f.Book("lost", s, Work{Tokens: 16000, Locals: promptOf(1, 1000)})
	f.Book("told", s, Work{Tokens: 16000, Locals: promptOf(2, 1000)})
	f.Book("next", s, Work{Tokens: 16000, Locals: promptOf(3, 1000)})
	s.Progress(stored{2: 1000}.held, c.t)
	if l := s.Load(c.t); l.Backlog != 16000 {
		t.Errorf("%v tokens queued, want those of the last", l.Backlog)
	}
}

// TestDrainsWhereNoEventComes checks that the queue drains by the rate if no event can come (none at all, or all of the prompt's
// blocks are held).
func TestDrainsWhereNoEventComes(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	f.Book("whole", s, Work{Tokens: 16, Locals: promptOf(1, 100), From: 100})
	c.t = c.t.Add(10 * time.Millisecond)
	if l := s.Load(c.t); l.Backlog != 0 {
		t.Errorf("a prompt that is held whole: got %v, want 0", l.Backlog)
	}
	s.EventAge = nil
	f.Book("mute", s, Work{Tokens: 5 * defaultRate, Locals: promptOf(1, 100)})
	c.t = c.t.Add(5 * time.Second)
	if l := s.Load(c.t); l.Backlog != 0 {
		t.Errorf("a worker without events: got %v, want 0", l.Backlog)
	}
}

// BenchmarkLoad reads a slot with 64 prompts queued, a millisecond after the previous read.
func BenchmarkLoad(b *testing.B) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	for i := range 64 {
		f.Book(fmt.Sprint(i), s, Work{Tokens: 1e6, Locals: promptOf(1, 64)})
	}
	for b.Loop() {
		c.t = c.t.Add(time.Millisecond)
		s.Load(c.t)
	}
}

// TestFetchingIsLearned checks that the rate of fetching from lower tiers is learned from requests that waited for nothing else,
// and that, while one waits for its blocks, later ones overtake it and stored blocks give no rate of computing.
func TestFetchingIsLearned(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	s.Worker.SetFetchRate(50000)
	if got := s.FetchRate(); math.Abs(got-50000) > 1 {
		t.Fatalf("%v tokens a second, want those configured", got)
	}
	done := stored{}
	for i := range 3 { // 10,000 tokens a second, nothing fetched
		id := uint64(100 + i)
		f.Book(fmt.Sprint(id), s, Work{Tokens: 16000, Locals: promptOf(id, 1000)})
		c.t = c.t.Add(1600 * time.Millisecond)
		done[id] = 1000
		s.Progress(done.held, c.t)
		f.End(fmt.Sprint(id))
	}
	rate := s.Load(c.t).Rate
	f.Book("waits", s, Work{Tokens: 8000, Fetch: 8000, Locals: promptOf(1, 1000), From: 500})
	f.Book("passes", s, Work{Tokens: 1600, Locals: promptOf(2, 100)})
	c.t = c.t.Add(160 * time.Millisecond)
	done[1], done[2] = 500, 100
	s.Progress(done.held, c.t)
	if l := s.Load(c.t); l.Rate != rate || l.Backlog != 8000 {
		t.Errorf("passed by: %v tokens a second, %v queued, want %v and 8,000", l.Rate, l.Backlog, rate)
	}
	c.t = c.t.Add(840 * time.Millisecond) // 0.8 s of it are for its own tokens
	done[1] = 1000
	s.Progress(done.held, c.t)
	if got := s.FetchRate(); math.Abs(got-40000) > 400 {
		t.Errorf("%v tokens a second, want 8,000 in 0.2 s", got)
	}
	if l := s.Load(c.t); l.Rate != rate {
		t.Errorf("%v tokens a second, %v before, want %v", l.Rate, rate, rate)
	}
	slower := func(seconds float64) {
		f.Book("again", s, Work{Tokens: 8000, Fetch: 8000, Locals: promptOf(4, 1000), From: 500})
		c.t = c.t.Add(time.Duration((0.8 + seconds) * float64(time.Second)))
		done[4] = 1000
		s.Progress(done.held, c.t)
		f.End("again")
		delete(done, 4)
	}
	slower(2) // it waited for something else
	if got := s.FetchRate(); got < 33000 || got > 34500 {
		t.Errorf("%v tokens a second after one that took ten times as long, want 0.02 of it", got)
	}
	slower(0.1)
	if got := s.FetchRate(); got < 40500 || got > 41500 {
		t.Errorf("%v tokens a second after one at 80,000, want 0.3 of it", got)
	}
	for _, b := range []Work{{Tokens: 8000, Pull: 8000, Locals: promptOf(3, 1000), From: 500},
		{Tokens: 8000, Fetch: 100, Locals: promptOf(3, 1000), From: 500}, {Tokens: 8000, Fetch: 8000, AdapterLoad: 10,
			Locals: promptOf(3, 1000), From: 500}} {
		f.Book("tells nothing", s, b)
		c.t = c.t.Add(10 * time.Second)
		done[3] = 1000
		s.Progress(done.held, c.t)
		f.End("tells nothing")
		delete(done, 3)
	}
	if got := s.FetchRate(); got < 40500 || got > 41500 {
		t.Errorf("%v tokens a second after some that tell nothing, want at least 40500, at most 41500", got)
	}
}

// TestFetchedBlocksAreNoWork checks that blocks that a worker fetches show neither its rate nor that earlier requests are done.
func TestFetchedBlocksAreNoWork(t *testing.T) {
	for _, apart := range []bool{false, true} {
		c := &clock{time.Unix(1000, 0)}
		f, s := heard(c)
		f.Book("computed here", s, Work{Tokens: 16000, Context: 16000, Locals: promptOf(1, 1000)})
		f.Book("begins like one that is fetched", s, Work{Tokens: 8000, Context: 8000, Locals: promptOf(2, 500)})
		if apart {
			first := NewWorker("p", netip.MustParseAddrPort("10.0.0.9:8000"), "m", 0, func(int) indexer.SlotID { return 9 })
			f.Book("fetched", first.Slots[0], Work{Tokens: 8000, Context: 8000, Locals: promptOf(2, 500)}, s)
		}
		c.t = c.t.Add(10 * time.Millisecond)
		s.Progress(stored{2: 500}.held, c.t)
		l := s.Load(c.t)
		if apart && (l.Rate != 0 || l.Backlog < 15000) {
			t.Errorf("fetched: %v tokens a second, %v queued, want no rate and the other's 16,000", l.Rate, l.Backlog)
		}
		if !apart && (l.Rate == 0 || l.Backlog != 0) {
			t.Errorf("computed: %v tokens a second, %v queued, want a rate, and that the event of the other was lost", l.Rate, l.Backlog)
		}
		f.End("fetched")
		if s.prefilledElsewhere != 0 {
			t.Errorf("still fetches at the end: got %d, want 0", s.prefilledElsewhere)
		}
	}
}

// TestExpectedRate checks that a worker that is expected to be faster empties its queue sooner, until its events say otherwise,
// and is not considered slow by that.
func TestExpectedRate(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f := newRequests(c.now)
	_, a, _ := twoWorkers(c)
	a.Slots[0].expectedRate = 3 * defaultRate
	f.Book("long", a.Slots[0], Work{Tokens: 72000})
	c.t = c.t.Add(time.Second)
	if l := a.Slots[0].Load(c.t); l.Backlog != 72000-3*defaultRate || l.Rate != 0 {
		t.Errorf("got %+v, want Backlog %v, Rate 0", l, 72000-3*defaultRate)
	}
}
