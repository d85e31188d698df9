package speculative

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestAllSlotsAtOnce adds, renews, withdraws and expires promises in any order: looking up all slots at once must give the same
// as each slot alone, and the count must equal what is stored.
func TestAllSlotsAtOnce(t *testing.T) {
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 5))
		p := New(10*time.Second, 3000)
		now := time.Unix(1000, 0)
		slots := 1 + r.IntN(60)
		front := chainOf(seed, 12)
		prompt := func() []uint64 {
			c := append([]uint64(nil), front[:1+r.IntN(len(front))]...)
			return append(c, chainOf(uint64(1+r.IntN(5)), r.IntN(20))...)
		}
		for range 400 {
			c := prompt()
			from := r.IntN(len(c) + 1)
			made := p.Add(uint32(r.IntN(slots)), c, from, []time.Duration{p.ttl, Longest(p.ttl)}[r.IntN(2)], now)
			if r.IntN(4) == 0 {
				p.Withdraw(made, c)
			}
			now = now.Add(time.Duration(r.IntN(200)) * time.Millisecond)
			asked := prompt()
			var all Reaches
			want := make(map[uint32]int)
			for slot := range uint32(slots + 3) { // including slots without promises
				if r.IntN(3) > 0 {
					held := r.IntN(len(asked) + 1)
					want[slot] = p.Leading(slot, asked, held, now)
					all.Add(slot, held)
				}
			}
			p.Extend(asked, &all, now)
			for _, one := range all.all {
				if int(one.blocks) != want[one.slot] {
					t.Fatalf("seed %d: slot %d reaches block %d, by itself %d; got %d, want %d",
						seed, one.slot, one.blocks, want[one.slot], int(one.blocks), want[one.slot])
				}
			}
		}
		kept, last := 0, now.Add(time.Hour)
		for i := range p.shard {
			s := &p.shard[i]
			kept += s.promises()
			for len(s.batches) > 0 {
				p.expireOldest(s, last.UnixNano())
			}
			if n := s.promises(); n != 0 || len(s.free) != len(s.lists) {
				t.Errorf("seed %d: %d promises are left when all batches are gone, %d of %d lists in use; got %d, want 0, %d",
					seed, n, len(s.lists)-len(s.free), len(s.lists), len(s.free), len(s.lists))
			}
		}
		if p.size.Load() != 0 || kept == 0 {
			t.Errorf("seed %d: got %d counted of none, before of %d, want 0, some", seed, p.size.Load(), kept)
		}
	}
}
