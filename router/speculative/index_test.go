package speculative

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
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
	p := New(10*time.Second, Blocks)
	a := chainOf(1, 20)
	p.Add(3, a, 4, p.ttl, now)
	if n := p.Leading(3, a, 4, now); n != 20 {
		t.Errorf("leading %d, want all 20", n)
	}
	if n := p.Leading(3, a, 0, now); n != 0 {
		t.Errorf("leading %d although block 0 is not held, want 0", n)
	}
	if n := p.Leading(2, a, 4, now); n != 4 {
		t.Errorf("another slot has %d, want 4", n)
	}
	if n := p.Leading(3, a, 4, now.Add(11*time.Second)); n != 4 {
		t.Errorf("%d after the end, want 4", n)
	}
	p.Add(3, a, 10, p.ttl, now.Add(5*time.Second)) // used again: expires later
	p.Add(3, chainOf(9, 1), 0, p.ttl, now.Add(12*time.Second))
	if n := p.Leading(3, a, 10, now.Add(12*time.Second)); n != 20 {
		t.Errorf("a renewed prediction ended: got %d, want 20", n)
	}
	if n := p.Leading(3, a, 4, now.Add(12*time.Second)); n != 4 {
		t.Errorf("blocks that were not used again live on: got %d, want 4", n)
	}
}

// TestPredictionsTakenBack checks that a refused request's promise is withdrawn, but nothing that another had promised before or
// since.
func TestPredictionsTakenBack(t *testing.T) {
	now := time.Unix(1000, 0)
	p := New(10*time.Second, Blocks)
	long := chainOf(1, 20)
	first := p.Add(3, long[:10], 0, p.ttl, now)
	refused := p.Add(3, long, 0, p.ttl, now.Add(time.Millisecond))
	p.Withdraw(refused, long)
	if n := p.Leading(3, long, 0, now.Add(time.Second)); n != 10 {
		t.Errorf("%d predicted, want the first request's 10", n)
	}
	refused = p.Add(3, long, 0, p.ttl, now.Add(2*time.Second))
	p.Add(3, long[:15], 0, p.ttl, now.Add(3*time.Second))
	p.Withdraw(refused, long)
	p.Withdraw(first, long[:10])
	if n := p.Leading(3, long, 0, now.Add(4*time.Second)); n != 15 {
		t.Errorf("%d predicted, want the last request's 15", n)
	}
	p.Withdraw(p.Add(2, long, 5, p.ttl, now), long)
	if n := p.Leading(2, long, 5, now.Add(time.Second)); n != 5 {
		t.Errorf("%d predicted of a promise that was taken back, want 5", n)
	}
	p.Withdraw(p.Add(2, long, 20, p.ttl, now), long) // nothing was promised
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
	p := New(time.Hour, most)
	var chains [][]uint64
	for i := range 200 {
		now = now.Add(time.Millisecond)
		c := chainOf(uint64(i), 1000)
		c[0] = uint64(i % 3) // three shards
		chains = append(chains, c)
		p.Add(0, c, 0, p.ttl, now)
	}
	kept := 0
	for i := range p.shard {
		kept += p.shard[i].promises()
	}
	if int64(kept) != p.size.Load() || kept > most || kept < most-1000 {
		t.Errorf("%d entries, counted %d, want up to %d", kept, p.size.Load(), most)
	}
	if p.Dropped() == 0 {
		t.Error("nothing counted as dropped, want p.Dropped() != 0")
	}
	for i := 170; i < 200; i++ {
		if n := p.Leading(0, chains[i], 1, now); n != 1000 {
			t.Fatalf("of request %d, one of the newest, %d, want 1000", i, n)
		}
	}
	if n := p.Leading(0, chains[100], 1, now); n != 1 {
		t.Errorf("of an old one %d, want 1", n)
	}
}

// TestPredictionsOfOneBeginning checks that of 200 prompts of 8 k tokens with one system prompt none ends early.
func TestPredictionsOfOneBeginning(t *testing.T) {
	now := time.Unix(1000, 0)
	p := New(10*time.Second, Blocks)
	var chains [][]uint64
	for i := range 200 {
		c := slices.Concat(chainOf(1, 20), chainOf(uint64(100+i), 480))
		chains = append(chains, c)
		p.Add(uint32(i%8), c, 0, p.ttl, now)
	}
	for i, c := range chains {
		if n := p.Leading(uint32(i%8), c, 0, now); n != len(c) {
			t.Errorf("prompt %d: got %d of %d blocks predicted, want %d", i, n, len(c), len(c))
		}
	}
	if n := p.dropped.Load(); n != 0 {
		t.Errorf("%d dropped, want 0", n)
	}
}

// TestPredictionsSideBySide adds, drops and expires predictions concurrently, with room for few of them.
func TestPredictionsSideBySide(t *testing.T) {
	p := New(time.Second, 2000)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			now := time.Unix(1000, 0)
			for i := range 300 {
				now = now.Add(20 * time.Millisecond)
				c := chainOf(uint64(i%20), 100+g)
				made := p.Add(uint32(g%2), c, 0, p.ttl, now)
				p.Leading(uint32(g%2), c, 0, now)
				if i%3 == 0 {
					p.Withdraw(made, c)
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
		t.Errorf("%d entries, counted %d: got %d, want %d, at most %d", kept, p.size.Load(), int64(kept), p.size.Load(), 2000+8*108)
	}
}

// TestPredictionsRenewed checks that a prompt that is sent repeatedly, or withdrawn and sent again, is stored once, until its
// end.
func TestPredictionsRenewed(t *testing.T) {
	now := time.Unix(1000, 0)
	p := New(10*time.Second, Blocks)
	c := chainOf(1, 500)
	kept := func() (n int) {
		for _, b := range p.shardOf(c).batches {
			n += len(b.blocks)
		}
		return n
	}
	for i := range 100 {
		now = now.Add(time.Second)
		made := p.Add(3, c, 0, p.ttl, now)
		if i%7 == 0 {
			p.Withdraw(made, c)
		} else if n := p.Leading(3, c, 0, now.Add(9*time.Second)); n != 500 {
			t.Fatalf("%d blocks nine seconds after use %d, want n == 500", n, i)
		}
		if n := kept(); n != 500 {
			t.Fatalf("%d keys kept for 500 blocks, want 500", n)
		}
	}
	p.Add(3, []uint64{c[0] + shards}, 0, p.ttl, now.Add(11*time.Second))
	p.Add(3, []uint64{c[0] + shards}, 0, p.ttl, now.Add(22*time.Second))
	if n := kept(); n != 1 {
		t.Errorf("%d keys kept of a prompt that ended, want 1", n)
	}
	long := chainOf(7, PromptBlocks+10)
	p.Add(3, long, 0, p.ttl, now)
	if p.shardOf(long).promises() != PromptBlocks+1 && p.shardOf(long).promises() != PromptBlocks ||
		p.Leading(3, long, 0, now) != PromptBlocks {
		t.Errorf("%d entries of a prompt longer than one may be, want p.shardOf(long).promises() == PromptBlocks+1 or "+
			"p.shardOf(long).promises() == PromptBlocks, p.Leading(3, long, 0, now) == PromptBlocks", p.shardOf(long).promises())
	}
}

// BenchmarkPredictions looks up and adds prompts of 500 blocks, 74 of them common to all, among eight slots; with and without
// room.
func BenchmarkPredictions(b *testing.B) {
	for _, most := range []int64{Blocks, 100_000} {
		b.Run(fmt.Sprint("room for ", most), func(b *testing.B) {
			p := New(20*time.Second, most)
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
					p.Leading(slot, c, 0, now)
				}
				p.Add(uint32(i%8), c, 0, p.ttl, now)
			}
		})
	}
}

// TestComputed checks which blocks count as being computed: those promised by requests that have not ended, at whichever slot.
func TestComputed(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	p, chain := New(time.Minute, Blocks), []uint64{64, 2, 3, 4, 5}
	a := p.Add(1, chain[:4], 0, time.Minute, now)
	b := p.Add(2, chain[:2], 0, time.Minute, now)
	expect := func(what string, from, want int) {
		t.Helper()
		if got := p.Computed(chain, from, now); got != want {
			t.Errorf("%s: %d blocks from %d on are computed, want %d", what, got, from, want)
		}
	}
	expect("both compute", 0, 4)
	expect("both compute", 3, 1)
	expect("behind the end", 5, 0)
	p.Keep(a, chain[:4])
	expect("one has ended", 0, 2)
	expect("one has ended", 2, 0)
	p.Keep(b, chain[:2])
	expect("both have ended", 0, 0)
	if n := p.Leading(1, chain, 0, now); n != 4 {
		t.Errorf("%d blocks are predicted, want 4: an end withdraws nothing", n)
	}
	again := p.Add(1, chain, 0, time.Minute, now.Add(time.Second))
	expect("once more", 0, 5)
	p.Keep(again, chain)
	expect("and that has ended", 0, 0)
	now = now.Add(time.Hour)
	expect("an hour later", 0, 0)
}
