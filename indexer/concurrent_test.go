package indexer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
)

// TestConcurrent feeds slots from goroutines of their own while others look up, list and count, all in one shard and
// under a budget in one of two runs. A slot's own blocks must be found between its events whatever the others do.
func TestConcurrent(t *testing.T) {
	rounds := 60
	if os.Getenv("SIGHTLINE_LONG") != "" {
		rounds = 3000
	}
	for _, o := range []Options{{}, {MaxBytes: 16 << 20}} {
		t.Run(fmt.Sprintf("limit %d", o.MaxBytes), func(t *testing.T) {
			x := New(o)
			front := make([]uint64, 40) // shared by all: one shard
			for i := range front {
				front[i] = pathOf(1, uint64(i))
			}
			var done atomic.Bool
			var feed, look sync.WaitGroup
			for w := range uint64(4) {
				feed.Go(func() { feeder(t, x, front, w, rounds) })
			}
			for r := range uint64(2) {
				look.Go(func() {
					rng := rand.New(rand.NewPCG(r, 1))
					var m Matches
					q := append(append([]uint64{}, front...), make([]uint64, 60)...)
					for !done.Load() {
						seed := rng.Uint64N(4)<<32 | rng.Uint64N(uint64(rounds))
						for i := range q[40:] {
							q[40+i] = pathOf(seed, uint64(i))
						}
						x.Match(q, &m)
						for _, h := range m.Slots {
							if h.Blocks == 0 || int(h.Blocks) > len(q) {
								t.Errorf("%+v", h)
							}
						}
						x.Stats()
					}
				})
			}
			feed.Wait()
			done.Store(true)
			look.Wait()
			if s := x.Stats(); s.Nodes != 0 || s.Blocks != 0 || s.Slots != 0 {
				t.Errorf("left behind: %+v", s)
			}
		})
	}
}

// feeder is one worker: it stores, looks up, removes, takes a snapshot, leaves and joins again.
func feeder(t *testing.T, x *Index, front []uint64, w uint64, rounds int) {
	id := x.Join(SlotOptions{})
	var m Matches
	doc := append(append([]uint64{}, front...), make([]uint64, 60)...)
	for r := range rounds {
		seed := w<<32 | uint64(r)
		for i := range doc[40:] {
			doc[40+i] = pathOf(seed, uint64(i))
		}
		engineHashes := make([]uint64, len(doc))
		path := uint64(frontPath)
		for i, l := range doc {
			path = pathOf(path, l)
			engineHashes[i] = path
		}
		if err := x.Store(id, GPU, 0, false, engineHashes, doc); err != nil {
			t.Error(err)
		}
		if r%3 == 0 {
			x.Remove(id, GPU, engineHashes[70:])
		}
		if r%4 == 0 {
			if err := x.Store(id, CPU, 0, false, engineHashes[:80], doc[:80]); err != nil {
				t.Error(err)
			}
		}
		if !x.Partial(id) {
			want := 100
			if r%3 == 0 {
				want = 70
				if r%4 == 0 {
					want = 80
				}
			}
			x.Match(doc, &m)
			got := 0
			for _, row := range m.Slots {
				if row.Slot == id {
					got = int(row.Blocks)
				}
			}
			if got != want {
				t.Errorf("worker %d round %d: %d leading blocks, want %d", w, r, got, want)
			}
		}
		switch r % 20 {
		case 7:
			x.Remove(id, CPU, engineHashes)
		case 11:
			if list, err := x.Blocks(id); err != nil {
				t.Error(err)
			} else if err := rebuild(x, id, list); err != nil && !x.Partial(id) {
				t.Error(err)
			}
		case 19:
			x.Leave(id)
			id = x.Join(SlotOptions{})
		}
	}
	if err := x.Leave(id); err != nil {
		t.Error(err)
	}
}

// TestManySlots gives one node more residencies than one list holds, and takes them away again.
func TestManySlots(t *testing.T) {
	const slots = 1500
	x := New(Options{})
	doc := make([]uint64, 50)
	for i := range doc {
		doc[i] = uint64(i + 1)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	depth := map[SlotID]int{}
	var all []SlotID
	for range slots {
		id := x.Join(SlotOptions{})
		all = append(all, id)
		depth[id] = 1 + rng.IntN(len(doc))
		other := append([]uint64{}, doc[:depth[id]]...)
		if rng.IntN(2) == 0 {
			other = append(other, rng.Uint64())
		}
		if err := x.Store(id, GPU, 0, false, other, other); err != nil {
			t.Fatal(err)
		}
	}
	var m Matches
	check := func() {
		t.Helper()
		x.Match(doc, &m)
		if len(m.Slots) != len(depth) {
			t.Fatalf("%d slots found, want %d", len(m.Slots), len(depth))
		}
		for _, r := range m.Slots {
			if int(r.Blocks) != depth[r.Slot] {
				t.Fatalf("slot %d: %d blocks, want %d", r.Slot, r.Blocks, depth[r.Slot])
			}
		}
	}
	check()
	rng.Shuffle(slots, func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i, id := range all {
		if err := x.Leave(id); err != nil {
			t.Fatal(err)
		}
		delete(depth, id)
		if i%97 == 0 {
			check()
		}
	}
	if s := x.Stats(); s.Nodes != 0 || s.Slots != 0 {
		t.Errorf("left behind: %+v", s)
	}
}

// TestErrors covers every error of the write side.
func TestErrors(t *testing.T) {
	x := New(Options{})
	id := x.Join(SlotOptions{})
	x.Store(id, GPU, 0, false, []uint64{1, 2}, []uint64{1, 2})
	for name, c := range map[string]struct {
		got  func() error
		want error
	}{
		"unknown parent": {func() error { return x.Store(id, GPU, 9, true, []uint64{3}, []uint64{3}) }, ErrUnknownParent},
		"own parent":     {func() error { return x.Store(id, GPU, 2, true, []uint64{3, 2}, []uint64{3, 4}) }, ErrOwnParent},
		"lengths differ": {func() error { return x.Store(id, GPU, 2, true, []uint64{3}, nil) }, ErrMalformed},
		"no such tier":   {func() error { return x.Store(id, 4, 2, true, []uint64{3}, []uint64{3}) }, ErrMalformed},
		"remove, tier":   {func() error { _, err := x.Remove(id, 9, []uint64{1}); return err }, ErrMalformed},
		"no such slot":   {func() error { return x.Store(77, GPU, 0, false, []uint64{3}, []uint64{3}) }, ErrUnknownSlot},
		"leave twice":    {func() error { g := x.Join(SlotOptions{}); x.Leave(g); return x.Leave(g) }, ErrUnknownSlot},
		"remove, left":   {func() error { _, err := x.Remove(50, GPU, []uint64{1}); return err }, ErrUnknownSlot},
	} {
		if err := c.got(); err == nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if n := x.HeldBlocks(id); n != 2 {
		t.Errorf("%d blocks after refused calls", n)
	}
	var m Matches
	if x.Match(nil, &m); len(m.Slots) != 0 || m.Longest != 0 {
		t.Errorf("%+v for no blocks", m)
	}
	x.Match([]uint64{1, 2, 3}, &m)
	if n := testing.AllocsPerRun(100, func() { x.Match([]uint64{1, 2, 3}, &m) }); n != 0 || m.Longest != 2 {
		t.Errorf("%v allocations a lookup, longest %d", n, m.Longest)
	}
}
