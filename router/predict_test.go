package router

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/router/fleet"
	"github.com/sightline-router/sightline/router/ledger"
)

func chainOf(seed uint64, n int) (c []uint64) {
	for i := range n {
		seed = seed*6364136223846793005 + 1442695040888963407 + uint64(i)
		c = append(c, seed)
	}
	return c
}

func TestPredictions(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPredictions(10*time.Second, predBlocks)
	a := chainOf(1, 20)
	p.add(3, a, 4, p.ttl, now)
	if n := p.leading(3, a, 4, now); n != 20 {
		t.Errorf("leading %d, want all 20", n)
	}
	if n := p.leading(3, a, 0, now); n != 0 {
		t.Errorf("leading %d although block 0 is not held", n)
	}
	if n := p.leading(2, a, 4, now); n != 4 {
		t.Errorf("another slot has %d", n)
	}
	if n := p.leading(3, a, 4, now.Add(11*time.Second)); n != 4 {
		t.Errorf("%d after the end", n)
	}
	p.add(3, a, 10, p.ttl, now.Add(5*time.Second)) // used again: expires later
	p.add(3, chainOf(9, 1), 0, p.ttl, now.Add(12*time.Second))
	if n := p.leading(3, a, 10, now.Add(12*time.Second)); n != 20 {
		t.Errorf("a renewed prediction ended: %d", n)
	}
	if n := p.leading(3, a, 4, now.Add(12*time.Second)); n != 4 {
		t.Errorf("blocks that were not used again live on: %d", n)
	}
}

// TestPredictionsTakenBack checks that a refused request's promise is withdrawn, but nothing that another had promised before or
// since.
func TestPredictionsTakenBack(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPredictions(10*time.Second, predBlocks)
	long := chainOf(1, 20)
	first := p.add(3, long[:10], 0, p.ttl, now)
	refused := p.add(3, long, 0, p.ttl, now.Add(time.Millisecond))
	p.withdraw(refused, long)
	if n := p.leading(3, long, 0, now.Add(time.Second)); n != 10 {
		t.Errorf("%d predicted, want the first request's 10", n)
	}
	refused = p.add(3, long, 0, p.ttl, now.Add(2*time.Second))
	p.add(3, long[:15], 0, p.ttl, now.Add(3*time.Second))
	p.withdraw(refused, long)
	p.withdraw(first, long[:10])
	if n := p.leading(3, long, 0, now.Add(4*time.Second)); n != 15 {
		t.Errorf("%d predicted, want the last request's 15", n)
	}
	p.withdraw(p.add(2, long, 5, p.ttl, now), long)
	if n := p.leading(2, long, 5, now.Add(time.Second)); n != 5 {
		t.Errorf("%d predicted of a promise that was taken back", n)
	}
	p.withdraw(p.add(2, long, 20, p.ttl, now), long) // nothing was promised
}

// promises returns their number.
func (p *promisedBlocks) promises() (n int) {
	n = len(p.first)
	for _, list := range p.lists {
		n += len(list)
	}
	return n
}

// TestPredictionsBounded checks that memory is bounded, and that predictions that end early are counted: the oldest of all
// shards.
func TestPredictionsBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	const most = 32 << 10
	p := newPredictions(time.Hour, most)
	var chains [][]uint64
	for i := range 200 {
		now = now.Add(time.Millisecond)
		c := chainOf(uint64(i), 1000)
		c[0] = uint64(i % 3) // three shards
		chains = append(chains, c)
		p.add(0, c, 0, p.ttl, now)
	}
	kept := 0
	for i := range p.shard {
		kept += p.shard[i].promises()
	}
	if int64(kept) != p.size.Load() || kept > most || kept < most-1000 {
		t.Errorf("%d entries, counted %d, want up to %d", kept, p.size.Load(), most)
	}
	if p.dropped.Load() == 0 {
		t.Error("nothing counted as dropped")
	}
	for i := 170; i < 200; i++ {
		if n := p.leading(0, chains[i], 1, now); n != 1000 {
			t.Fatalf("of request %d, one of the newest, %d", i, n)
		}
	}
	if n := p.leading(0, chains[100], 1, now); n != 1 {
		t.Errorf("of an old one %d", n)
	}
}

// TestPredictionsOfOneBeginning checks that of 200 prompts of 8 k tokens with one system prompt none ends early.
func TestPredictionsOfOneBeginning(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPredictions(10*time.Second, predBlocks)
	var chains [][]uint64
	for i := range 200 {
		c := slices.Concat(chainOf(1, 20), chainOf(uint64(100+i), 480))
		chains = append(chains, c)
		p.add(uint32(i%8), c, 0, p.ttl, now)
	}
	for i, c := range chains {
		if n := p.leading(uint32(i%8), c, 0, now); n != len(c) {
			t.Errorf("prompt %d: %d of %d blocks predicted", i, n, len(c))
		}
	}
	if n := p.dropped.Load(); n != 0 {
		t.Errorf("%d dropped", n)
	}
}

// TestPredictionsSideBySide adds, drops and expires predictions concurrently, with room for few of them.
func TestPredictionsSideBySide(t *testing.T) {
	p := newPredictions(time.Second, 2000)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			now := time.Unix(1000, 0)
			for i := range 300 {
				now = now.Add(20 * time.Millisecond)
				c := chainOf(uint64(i%20), 100+g)
				made := p.add(uint32(g%2), c, 0, p.ttl, now)
				p.leading(uint32(g%2), c, 0, now)
				if i%3 == 0 {
					p.withdraw(made, c)
				}
			}
		})
	}
	all.Wait()
	kept := 0
	for i := range p.shard {
		kept += p.shard[i].promises()
	}
	if int64(kept) != p.size.Load() || kept > 2000+8*108 {
		t.Errorf("%d entries, counted %d", kept, p.size.Load())
	}
}

// TestPredictionsRenewed checks that a prompt that is sent repeatedly, or withdrawn and sent again, is stored once, until its
// end.
func TestPredictionsRenewed(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPredictions(10*time.Second, predBlocks)
	c := chainOf(1, 500)
	kept := func() (n int) {
		for _, b := range p.shardOf(c).batches {
			n += len(b.blocks)
		}
		return n
	}
	for i := range 100 {
		now = now.Add(time.Second)
		made := p.add(3, c, 0, p.ttl, now)
		if i%7 == 0 {
			p.withdraw(made, c)
		} else if n := p.leading(3, c, 0, now.Add(9*time.Second)); n != 500 {
			t.Fatalf("%d blocks nine seconds after use %d", n, i)
		}
		if n := kept(); n != 500 {
			t.Fatalf("%d keys kept for 500 blocks", n)
		}
	}
	p.add(3, []uint64{c[0] + predShards}, 0, p.ttl, now.Add(11*time.Second))
	p.add(3, []uint64{c[0] + predShards}, 0, p.ttl, now.Add(22*time.Second))
	if n := kept(); n != 1 {
		t.Errorf("%d keys kept of a prompt that ended", n)
	}
	long := chainOf(7, predPrompt+10)
	if p.add(3, long, 0, p.ttl, now); p.shardOf(long).promises() != predPrompt+1 && p.shardOf(long).promises() != predPrompt || p.leading(3, long, 0, now) != predPrompt {
		t.Errorf("%d entries of a prompt longer than one may be", p.shardOf(long).promises())
	}
}

func TestSightings(t *testing.T) {
	full := 0
	s := newSightings(func(string) { full++ })
	var slots [9]fleet.Slot
	for _, i := range []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 1} {
		s.add(77, &slots[i], 100)
	}
	for i := range slots { // the last eight
		if by := s.slotsOf(77); by.holds(&slots[i]) != (i > 0) {
			t.Errorf("slot %d holds it: %v", i, i == 0)
		}
	}
	if none := s.slotsOf(78); none.holds(&slots[1]) {
		t.Error("a medium that nobody saw")
	}
	s.add(78, &slots[1], encoderCache-200)
	if by := s.slotsOf(77); !by.holds(&slots[1]) || slots[1].AddEncoded(0) != encoderCache-100 {
		t.Errorf("it went though there is room: %d tokens encoded", slots[1].AddEncoded(0))
	}
	s.add(77, &slots[1], 100) // used again: it is recent
	s.add(79, &slots[1], 300)
	if by, old := s.slotsOf(77), s.slotsOf(78); !by.holds(&slots[1]) || !old.holds(&slots[1]) {
		t.Error("media within the cache's room are not there")
	}
	s.add(80, &slots[1], encoderCache)
	if by := s.slotsOf(77); by.holds(&slots[1]) || !by.holds(&slots[2]) {
		t.Error("as much as the cache holds came after it, on one slot alone")
	}
	for i := range uint64(maxSeen + 10) {
		s.add(1000+i, &slots[1], 1)
	}
	if n, old := s.media.Len(), s.slotsOf(77); n > maxSeen || old != (seenBy{}) || full != 10+4 {
		t.Errorf("%d media, the oldest by %v; %d went", n, old, full)
	}
}

// BenchmarkPredictions looks up and adds prompts of 500 blocks, 74 of them common to all, among eight slots; with and without
// room.
func BenchmarkPredictions(b *testing.B) {
	for _, most := range []int64{predBlocks, 100_000} {
		b.Run(fmt.Sprint("room for ", most), func(b *testing.B) {
			p := newPredictions(20*time.Second, most)
			now, system := time.Unix(1000, 0), chainOf(1, 74)
			var chains [][]uint64
			for i := range 400 {
				chains = append(chains, slices.Concat(system, chainOf(uint64(100+i), 426)))
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				c := chains[i%len(chains)]
				now = now.Add(time.Millisecond)
				for slot := range uint32(8) {
					p.leading(slot, c, 0, now)
				}
				p.add(uint32(i%8), c, 0, p.ttl, now)
			}
		})
	}
}

// TestPredictionsLast checks that a prediction counts until the request's turn comes and a while longer; for minutes without
// events, since nothing else tells what the worker holds; and never longer than LongestPrediction, during which its slot ID is
// not reused.
func TestPredictionsLast(t *testing.T) {
	w := newWorld(t, 2)
	s, ttl := w.slots[0], 20*time.Second
	done := 0
	book := func(id string, tokens int) {
		w.opt.Ledger.Book(id, ledger.Booking{Slot: s, Tokens: tokens, Locals: make([]uint64, tokens/16)})
	}
	if got := w.predictionTTL(s, nil, w.now); got != ttl {
		t.Errorf("%v where nothing is known of the rate, want %v", got, ttl)
	}
	for i := range 30 { // 3,200 tokens a second
		book(fmt.Sprint(i), 6400)
		for done = 80; done <= 400; done += 80 {
			w.now = w.now.Add(400 * time.Millisecond)
			s.Progress(func([]uint64) int { return done }, w.now)
		}
		w.opt.Ledger.End(fmt.Sprint(i), 1)
	}
	for _, c := range []struct {
		queue int
		want  time.Duration
	}{{0, ttl}, {32000, ttl + 10*time.Second}, {1e6, LongestPrediction(ttl)}} {
		book("queue", c.queue)
		if got := w.predictionTTL(s, nil, w.now); got < c.want-time.Second || got > c.want+time.Second || got > LongestPrediction(ttl) {
			t.Errorf("%v behind %v tokens, want about %v", got, c.queue, c.want)
		}
		w.opt.Ledger.End("queue", 1)
	}
	s.EventAge = nil
	if got := w.predictionTTL(s, nil, w.now); got != LongestPrediction(ttl) {
		t.Errorf("%v without events, want %v", got, LongestPrediction(ttl))
	}
	c := chainOf(1, 10)
	w.predicted.add(uint32(s.ID), c, 0, LongestPrediction(ttl), w.now)
	if n := w.predicted.leading(uint32(s.ID), c, 0, w.now.Add(LongestPrediction(ttl))); n != 0 {
		t.Errorf("%d blocks count for ever", n)
	}
}
