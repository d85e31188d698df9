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

// TestConcurrent feeds holders from goroutines of their own while others look up, list and count, all in one shard and
// under a budget in one of two runs. A holder's own blocks must be found between its events whatever the others do.
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
						for _, h := range m.Holders {
							if h.Blocks == 0 || int(h.Blocks) > len(q) || h.InTier[GPU]+h.InTier[CPU] != h.Blocks {
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
			if s := x.Stats(); s.Stems != 0 || s.Blocks != 0 || s.Holders != 0 {
				t.Errorf("left behind: %+v", s)
			}
		})
	}
}

// feeder is one worker: it stores, checks, removes, is listed, leaves and comes back.
func feeder(t *testing.T, x *Index, front []uint64, w uint64, rounds int) {
	h := x.Join(HolderOptions{})
	var m Matches
	doc := append(append([]uint64{}, front...), make([]uint64, 60)...)
	for r := range rounds {
		seed := w<<32 | uint64(r)
		for i := range doc[40:] {
			doc[40+i] = pathOf(seed, uint64(i))
		}
		handles := make([]uint64, len(doc))
		path := uint64(frontPath)
		for i, l := range doc {
			path = pathOf(path, l)
			handles[i] = path
		}
		if err := x.Store(h, GPU, 0, false, handles, doc); err != nil {
			t.Error(err)
		}
		if r%3 == 0 {
			x.Remove(h, GPU, handles[70:])
		}
		if r%4 == 0 {
			if err := x.Store(h, CPU, 0, false, handles[:80], doc[:80]); err != nil {
				t.Error(err)
			}
		}
		if !x.Partial(h) {
			want := 100
			if r%3 == 0 {
				want = 70
				if r%4 == 0 {
					want = 80
				}
			}
			x.Match(doc, &m)
			got := 0
			for _, row := range m.Holders {
				if row.Holder == h {
					got = int(row.Blocks)
				}
			}
			if got != want {
				t.Errorf("worker %d round %d: %d leading blocks, want %d", w, r, got, want)
			}
		}
		switch r % 20 {
		case 7:
			x.ClearTier(h, CPU)
		case 11:
			if data, err := x.AppendSnapshot(nil, h); err != nil {
				t.Error(err)
			} else if err := x.Load(h, data); err != nil {
				t.Error(err)
			}
		case 19:
			x.Leave(h)
			h = x.Join(HolderOptions{BlocksHint: 500})
		}
	}
	if err := x.Leave(h); err != nil {
		t.Error(err)
	}
}

// TestManyHolders has a stem with more seats than one list holds, come and go.
func TestManyHolders(t *testing.T) {
	const holders = 1500
	x := New(Options{})
	doc := make([]uint64, 50)
	for i := range doc {
		doc[i] = uint64(i + 1)
	}
	rng := rand.New(rand.NewPCG(3, 4))
	depth := map[Holder]int{}
	var all []Holder
	for range holders {
		h := x.Join(HolderOptions{})
		all = append(all, h)
		depth[h] = 1 + rng.IntN(len(doc))
		other := append([]uint64{}, doc[:depth[h]]...)
		if rng.IntN(2) == 0 {
			other = append(other, rng.Uint64())
		}
		if err := x.Store(h, GPU, 0, false, other, other); err != nil {
			t.Fatal(err)
		}
	}
	var m Matches
	check := func() {
		t.Helper()
		x.Match(doc, &m)
		if len(m.Holders) != len(depth) {
			t.Fatalf("%d holders found, want %d", len(m.Holders), len(depth))
		}
		for _, r := range m.Holders {
			if int(r.Blocks) != depth[r.Holder] {
				t.Fatalf("holder %d: %d blocks, want %d", r.Holder, r.Blocks, depth[r.Holder])
			}
		}
	}
	check()
	rng.Shuffle(holders, func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i, h := range all {
		if err := x.Leave(h); err != nil {
			t.Fatal(err)
		}
		delete(depth, h)
		if i%97 == 0 {
			check()
		}
	}
	if s := x.Stats(); s.Stems != 0 || s.Holders != 0 {
		t.Errorf("left behind: %+v", s)
	}
}

// TestErrors names what the write side refuses.
func TestErrors(t *testing.T) {
	x := New(Options{})
	h := x.Join(HolderOptions{})
	x.Store(h, GPU, 0, false, []uint64{1, 2}, []uint64{1, 2})
	for name, c := range map[string]struct {
		got  func() error
		want error
	}{
		"unknown parent": {func() error { return x.Store(h, GPU, 9, true, []uint64{3}, []uint64{3}) }, ErrUnknownParent},
		"own parent":     {func() error { return x.Store(h, GPU, 2, true, []uint64{3, 2}, []uint64{3, 4}) }, ErrOwnParent},
		"lengths differ": {func() error { return x.Store(h, GPU, 2, true, []uint64{3}, nil) }, ErrMalformed},
		"no such tier":   {func() error { return x.Store(h, 4, 2, true, []uint64{3}, []uint64{3}) }, ErrMalformed},
		"remove, tier":   {func() error { _, err := x.Remove(h, 9, []uint64{1}); return err }, ErrMalformed},
		"clear, tier":    {func() error { return x.ClearTier(h, 4) }, ErrMalformed},
		"no such holder": {func() error { return x.Store(77, GPU, 0, false, []uint64{3}, []uint64{3}) }, ErrUnknownHolder},
		"leave twice":    {func() error { g := x.Join(HolderOptions{}); x.Leave(g); return x.Leave(g) }, ErrUnknownHolder},
		"remove, left":   {func() error { _, err := x.Remove(50, GPU, []uint64{1}); return err }, ErrUnknownHolder},
	} {
		if err := c.got(); err == nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if n := x.HeldBlocks(h); n != 2 {
		t.Errorf("%d blocks after refused calls", n)
	}
	var m Matches
	if x.Match(nil, &m); len(m.Holders) != 0 || m.Longest != 0 {
		t.Errorf("%+v for no blocks", m)
	}
	x.Match([]uint64{1, 2, 3}, &m)
	if n := testing.AllocsPerRun(100, func() { x.Match([]uint64{1, 2, 3}, &m) }); n != 0 || m.Longest != 2 {
		t.Errorf("%v allocations a lookup, longest %d", n, m.Longest)
	}
}
