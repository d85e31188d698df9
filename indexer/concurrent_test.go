package indexer

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// TestConcurrent feeds slots from goroutines of their own while others look up, list and count, all with one common beginning
// that a thousand more slots hold, and with a budget in one of two runs. A slot's own blocks must be found between its events
// whatever the others do.
func TestConcurrent(t *testing.T) {
	rounds := 60
	if os.Getenv("SIGHTLINE_LONG") != "" {
		rounds = 3000
	}
	for _, o := range []Options{{}, {MaxBytes: 16 << 20}} {
		t.Run(fmt.Sprintf("limit %d", o.MaxBytes), func(t *testing.T) {
			x := New(o)
			front := make([]uint64, 40)
			for i := range front {
				front[i] = pathOf(1, uint64(i))
			}
			var holders []SlotID
			for range 1000 {
				holders = append(holders, x.Join(SlotOptions{}))
				if err := x.Store(holders[len(holders)-1], GPU, 0, false, front, front); err != nil {
					t.Fatal(err)
				}
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
						for i, h := range m.Slots {
							if h.Blocks == 0 || int(h.Blocks) > len(q) || i > 0 && h.Slot <= m.Slots[i-1].Slot {
								t.Errorf("row %d: %+v", i, h)
							}
						}
						x.Stats()
					}
				})
			}
			feed.Wait()
			done.Store(true)
			look.Wait()
			audit(t, x)
			for _, id := range holders {
				if err := x.Leave(id); err != nil {
					t.Error(err)
				}
			}
			if s := x.Stats(); s.Nodes != 0 || s.Blocks != 0 || s.Slots != 0 {
				t.Errorf("left behind: got %+v, want Nodes 0, Blocks 0, Slots 0", s)
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

// TestReused changes during lookups what a node's number stands for: two chains that begin in one shard and branch after the same
// number of blocks come and go in turn. What follows one must never be found after the other.
func TestReused(t *testing.T) {
	rounds := 5000
	if os.Getenv("SIGHTLINE_LONG") != "" {
		rounds = 1_000_000
	}
	x := New(Options{})
	const length = 64
	var chains [2][3][]uint64 // of each beginning: continued in its own node, in a child, and as only the other one is
	for f := range chains {
		for k := range chains[f] {
			c := []uint64{7}
			for i := range uint64(length - 1) {
				c = append(c, pathOf(uint64(f), i))
			}
			chains[f][k] = append(c, [3]uint64{1, 2 + uint64(f), 3 - uint64(f)}[k])
		}
	}
	var done atomic.Bool
	var look sync.WaitGroup
	for r := range 2 {
		look.Go(func() {
			var m Matches
			for !done.Load() {
				for _, c := range chains {
					x.Match(c[2], &m)
					if m.Longest > length {
						t.Errorf("reader %d: got %d blocks, and %d are all that was ever stored, want at most %d", r, m.Longest, length, length)
						return
					}
				}
			}
		})
	}
	var feed sync.WaitGroup
	feed.Go(func() { // so that lookups must wait between two shards
		id := x.Join(SlotOptions{})
		for i := uint64(0); !done.Load(); i++ {
			x.Store(id, GPU, 0, false, []uint64{i}, []uint64{i})
			x.Remove(id, GPU, []uint64{i})
		}
		x.Leave(id)
	})
	id := x.Join(SlotOptions{})
	for round := range rounds {
		c := chains[round%2]
		x.Store(id, GPU, 0, false, c[0], c[0])
		x.Store(id, GPU, c[1][length-1], true, c[1][length:], c[1][length:])
		if n, err := x.Remove(id, GPU, append(c[0], c[1][length])); n != 0 || err != nil {
			t.Fatalf("got %d %v, want 0, no error", n, err)
		}
	}
	done.Store(true)
	look.Wait()
	feed.Wait()
	x.Leave(id)
	if s := x.Stats(); s.Nodes != 0 {
		t.Errorf("left behind: got %+v, want Nodes 0", s)
	}
	audit(t, x)
}

// TestFollow makes a lookup wait between two shards. It must start over if its parent's shard was cut meanwhile.
func TestFollow(t *testing.T) {
	for _, cut := range []bool{false, true} {
		x := New(Options{})
		id := x.Join(SlotOptions{})
		x.Store(id, GPU, 0, false, []uint64{1, 2, 3}, []uint64{1, 2, 3})
		from := x.shardOfKey(childKey(root, 0, 1, x.seed))
		next := &x.shards[(from.first>>nodeBits+1)%shardCount]
		from.lock.RLock()
		next.lock.Lock()
		whole := make(chan bool)
		go func() { whole <- from.follow(next) }()
		for from.lock.state.Load() != 0 {
			runtime.Gosched()
		}
		if cut {
			x.Remove(id, GPU, []uint64{3})
		}
		next.lock.Unlock()
		if got := <-whole; got == cut {
			t.Errorf("cut %v: follow says %v, want other than %v", cut, got, cut)
		}
	}
}

// TestManySlots gives one node more residencies than one list holds, in order and in random order, and removes them again.
func TestManySlots(t *testing.T) {
	const slots = 2500
	for _, inOrder := range []bool{true, false} {
		x := New(Options{})
		doc := make([]uint64, 50)
		for i := range doc {
			doc[i] = uint64(i + 1)
		}
		rng := rand.New(rand.NewPCG(3, 4))
		depth := map[SlotID]int{}
		var all []SlotID
		for range slots {
			all = append(all, x.Join(SlotOptions{}))
		}
		if !inOrder {
			rng.Shuffle(slots, func(i, j int) { all[i], all[j] = all[j], all[i] })
		}
		for _, id := range all {
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
			audit(t, x)
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
			t.Errorf("left behind: got %+v, want Nodes 0, Slots 0", s)
		}
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
		t.Errorf("%d blocks after refused calls, want 2", n)
	}
	var m Matches
	x.Match(nil, &m)
	if len(m.Slots) != 0 || m.Longest != 0 {
		t.Errorf("%+v for no blocks: got %d, want 0, Longest 0", m, len(m.Slots))
	}
	x.Match([]uint64{1, 2, 3}, &m)
	if n := testing.AllocsPerRun(100, func() { x.Match([]uint64{1, 2, 3}, &m) }); n != 0 || m.Longest != 2 {
		t.Errorf("%v allocations a lookup, longest %d, want 0, 2", n, m.Longest)
	}
}
