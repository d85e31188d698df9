package indexer

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// hybridModel is the reference for one slot with several KV cache groups: sets of engine hashes by group, and the rule said in the
// engine's own words: shorten a candidate until no group shortens it further.
type hybridModel struct {
	specs  []kvevent.Spec                      // by group
	held   []map[uint64]int                    // copies by group
	stored map[uint64]int                      // copies of what Store records
	small  func(path []uint64, end int) uint64 // the engine hash at an end, in the smallest blocks
	size   int                                 // tokens of a stored block
	drafts bool
}

func (h *hybridModel) predict(path []uint64, most int) int {
	run := 0
	for run < len(path) && h.stored[path[run]] > 0 {
		run++
	}
	align, most := 1, min(most, run)
	if h.drafts {
		most = min(most, run-1)
	}
	for _, s := range h.specs {
		align = lcm(align, max(1, s.BlockSize/h.size))
	}
	for n := most; n > 0; n-- {
		ok := n%align == 0
		for g, s := range h.specs {
			has := func(end int) bool { // in the group's blocks
				tokens := end * s.BlockSize
				if tokens%h.size == 0 {
					return h.held[g][path[tokens/h.size-1]] > 0
				}
				return h.held[g][h.small(path, end)] > 0
			}
			end := n * h.size / s.BlockSize
			from := 0
			switch s.Need {
			case kvevent.NeedWindow:
				from = max(0, end-(s.Window-1+s.BlockSize-1)/s.BlockSize)
			case kvevent.NeedChunk:
				from = n * h.size / s.Window * s.Window / s.BlockSize
			case kvevent.NeedLast:
				from = end - 1
			}
			for i := from; i < end && ok; i++ {
				ok = has(i + 1)
			}
		}
		if ok {
			return n
		}
	}
	return 0
}

// TestHybridsAgainstModel stores, removes, drops and clears at random, in further groups and in the main one, and compares lookups
// with the reference, also those of an index that is made from the first one's listing.
func TestHybridsAgainstModel(t *testing.T) {
	spec := func(need kvevent.Need, window, size int) kvevent.Spec {
		return kvevent.Spec{Need: need, Window: window, BlockSize: size}
	}
	const size = 16
	for name, specs := range map[string][]kvevent.Spec{
		"windows":            {spec(kvevent.NeedWindow, 64, size), spec(kvevent.NeedWindow, 64, size)},
		"two windows, state": {spec(kvevent.NeedWindow, 33, size), spec(kvevent.NeedLast, 0, size), spec(kvevent.NeedWindow, 100, size)},
		"chunks":             {spec(kvevent.NeedChunk, 64, size)},
		"two full":           {spec(kvevent.NeedAll, 0, size), spec(kvevent.NeedWindow, 20, size)},
		"small windows":      {spec(kvevent.NeedWindow, 24, size/2), spec(kvevent.NeedWindow, 24, size/2)},
		"small chunks":       {spec(kvevent.NeedChunk, 64, size/2), spec(kvevent.NeedLast, 0, size)},
		"large states":       {spec(kvevent.NeedLast, 0, 2*size)},
	} {
		for _, drafts := range []bool{false, true} {
			t.Run(fmt.Sprint(name, drafts), func(t *testing.T) {
				for seed := range uint64(6) {
					playHybrid(t, rand.New(rand.NewPCG(seed, 1)), specs, size, drafts)
				}
			})
		}
	}
}

func playHybrid(t *testing.T, rng *rand.Rand, specs []kvevent.Spec, size int, drafts bool) {
	x := New(Options{})
	plain := x.Join(SlotOptions{CountCopies: true}) // a slot with one group beside it
	id := x.Join(SlotOptions{CountCopies: true})
	x.SetWithholds(id, drafts)
	h := hybridModel{specs: specs, size: size, drafts: drafts, stored: map[uint64]int{}}
	for range specs {
		h.held = append(h.held, map[uint64]int{})
	}
	// Half a block's hash belongs to the path before and a half of the block that is the same for blocks of equal parity.
	h.small = func(path []uint64, end int) uint64 {
		before := uint64(1)
		if end/2 > 0 {
			before = path[end/2-1]
		}
		return pathOf(before, path[end/2]%2+1000)
	}
	var prompts [][2][]uint64 // locals, hashes
	for range 6 {
		var locals []uint64
		if len(prompts) > 0 && rng.IntN(3) > 0 {
			p := prompts[rng.IntN(len(prompts))][0]
			locals = slices.Clone(p[:rng.IntN(len(p)+1)])
		}
		for range 1 + rng.IntN(150) {
			locals = append(locals, rng.Uint64N(3))
		}
		path, hashes := uint64(frontPath), []uint64{}
		for _, l := range locals {
			path = pathOf(path, l)
			hashes = append(hashes, path)
		}
		prompts = append(prompts, [2][]uint64{locals, hashes})
	}
	apply := func(e kvevent.Event) {
		if e.Kind == kvevent.GroupStored {
			e.Spec = specs[e.Group]
			for _, hash := range e.EngineHashes {
				h.held[e.Group][hash]++
			}
			_, _ = x.StoreGroup(id, size, &e)
			return
		}
		for _, hash := range e.EngineHashes {
			h.held[e.Group][hash]--
		}
		if unknown, _ := x.RemoveGroup(id, e.Group, e.EngineHashes); unknown > 0 {
			t.Fatalf("%d unknown, want 0", unknown)
		}
	}
	for g := range specs {
		apply(kvevent.Event{Kind: kvevent.GroupStored, Group: g})
	}
	for step := range 60 {
		p := prompts[rng.IntN(len(prompts))]
		locals, hashes := p[0], p[1]
		switch rng.IntN(8) {
		case 0: // evicts the end of a prompt in the main group
			for i := len(hashes) - 1; i >= 0 && rng.IntN(8) > 0; i-- {
				for ; h.stored[hashes[i]] > 0; h.stored[hashes[i]]-- {
					x.Remove(id, GPU, hashes[i:i+1])
				}
			}
		case 1, 2: // evicts anything in the others
			g := rng.IntN(len(specs))
			for hash, n := range h.held[g] {
				if n > 0 && rng.IntN(10) == 0 {
					apply(kvevent.Event{Kind: kvevent.GroupRemoved, Group: g, EngineHashes: []uint64{hash}})
				}
			}
		case 3:
			if rng.IntN(6) == 0 {
				_ = x.Clear(id)
				clear(h.stored)
				for g := range h.held {
					clear(h.held[g])
				}
			}
			_ = x.Store(plain, GPU, 0, false, hashes, locals)
		default: // computes a prompt: some of it is new in the main group, runs of it stay in the others
			n := 1 + rng.IntN(len(hashes))
			_ = x.Store(id, GPU, 0, false, hashes[:n], locals[:n])
			for _, hash := range hashes[:n] {
				h.stored[hash] = min(h.stored[hash]+1, maxCopies+1)
			}
			for g, s := range specs {
				e := kvevent.Event{Kind: kvevent.GroupStored, Group: g}
				for range 1 + rng.IntN(3) {
					end := 1 + rng.IntN(n)
					for i := max(0, end-1-rng.IntN(12)); i < end; i++ {
						if s.BlockSize < size {
							e.EngineHashes = append(e.EngineHashes, h.small(hashes, 2*i+1))
						}
						if s.BlockSize <= size || (i+1)%2 == 0 {
							e.EngineHashes = append(e.EngineHashes, hashes[i])
						}
					}
				}
				if rng.IntN(4) > 0 {
					for _, hash := range e.EngineHashes { // the index counts to maxGroupCopies
						if h.held[g][hash] > 5 {
							e.EngineHashes = nil
							break
						}
					}
					apply(e)
				}
			}
		}
		var y *Index
		copied := SlotID(0)
		if step%20 == 19 {
			y = New(Options{})
			copied = y.Join(SlotOptions{CountCopies: true})
			list, _ := x.Blocks(id)
			for e := range Events(list) {
				if e.Kind == kvevent.Removed {
					y.Remove(copied, e.Tier, e.EngineHashes)
				} else if err := y.Store(copied, e.Tier, e.Parent, e.HasParent, e.EngineHashes, e.Locals); err != nil {
					t.Fatal(err)
				}
			}
			y.SetWithholds(copied, drafts)
			for _, e := range x.GroupEvents(id) {
				if e.Kind == kvevent.GroupRemoved {
					_, _ = y.RemoveGroup(copied, e.Group, e.EngineHashes)
				} else {
					_, _ = y.StoreGroup(copied, size, &e)
				}
			}
		}
		for _, p := range prompts {
			m := Matches{Most: 1 + rng.IntN(len(p[0])+1)}
			x.Match(p[0], &m)
			want := h.predict(p[1], min(m.Most, len(p[0])))
			if got := blocksFor(&m, id); got != want {
				t.Fatalf("step %d: %d blocks, want %d of %d", step, got, want, len(p[0]))
			}
			if y != nil {
				m := Matches{Most: m.Most}
				y.Match(p[0], &m)
				if blocksFor(&m, copied) != want {
					t.Fatalf("step %d: %d blocks by the listing, want %d of %d", step, blocksFor(&m, copied), want, len(p[0]))
				}
			}
		}
	}
	audit(t, x)
	if err := x.Leave(id); err != nil || x.hybrids.Load() != 0 {
		t.Fatal(err)
	}
	_ = x.Clear(plain)
	if s := x.Stats(); s.Nodes != 0 || s.Blocks != 0 {
		t.Fatalf("left behind: got %+v, want Nodes 0, Blocks 0", s)
	}
}

func blocksFor(m *Matches, id SlotID) int {
	for _, s := range m.Slots {
		if s.Slot == id {
			return int(s.Blocks)
		}
	}
	return 0
}

// BenchmarkMatchGroups is BenchmarkMatch with slots of four KV cache groups, one of which sees all tokens: the others have one window
// (Gemma 3, GPT-OSS), two windows, or a window and states.
func BenchmarkMatchGroups(b *testing.B) {
	window := func(tokens int) kvevent.Spec {
		return kvevent.Spec{Need: kvevent.NeedWindow, Window: tokens, BlockSize: 16}
	}
	states := kvevent.Spec{Need: kvevent.NeedLast, BlockSize: 16}
	for _, c := range []struct {
		name  string
		specs [3]kvevent.Spec
	}{
		{"window", [3]kvevent.Spec{window(128), window(128), window(128)}},
		{"windows", [3]kvevent.Spec{window(128), window(256), window(256)}},
		{"window and states", [3]kvevent.Spec{window(128), states, states}},
	} {
		b.Run(c.name, func(b *testing.B) {
			x := New(Options{})
			doc := make([]uint64, 512)
			for i := range doc {
				doc[i] = pathOf(1, uint64(i))
			}
			other := x.Join(SlotOptions{})
			x.Store(other, GPU, 0, false, doc, doc)
			for range 8 {
				id := x.Join(SlotOptions{})
				x.Store(id, GPU, 0, false, doc[:64], doc[:64])
				for g, spec := range c.specs {
					held := doc[32:60]
					if spec == states {
						held = doc[59:60]
					}
					_, _ = x.StoreGroup(id, 16, &kvevent.Event{Kind: kvevent.GroupStored, Group: g, EngineHashes: held, Spec: spec})
				}
			}
			var m Matches
			b.ReportAllocs()
			for b.Loop() {
				x.Match(doc, &m)
			}
			if len(m.Slots) != 9 || m.Slots[8].Blocks != 60 {
				b.Fatalf("got %+v, want 9 of them, [8].Blocks 60", m.Slots)
			}
		})
	}
}

// TestHybridsDuringLookups changes two slots with groups while lookups run: for the race detector, and no answer exceeds what may be
// held.
func TestHybridsDuringLookups(t *testing.T) {
	x := New(Options{})
	doc := make([]uint64, 300)
	for i := range doc {
		doc[i] = pathOf(1, uint64(i))
	}
	var writers, readers sync.WaitGroup
	var done atomic.Bool
	for range 2 {
		writers.Go(func() {
			rng := rand.New(rand.NewPCG(1, 2))
			for range 10 {
				id := x.Join(SlotOptions{CountCopies: true})
				for range 30 {
					n := 1 + rng.IntN(len(doc))
					e := kvevent.Event{Kind: kvevent.GroupStored, Group: rng.IntN(3), EngineHashes: doc[n/2 : n]}
					e.Spec = kvevent.Spec{Need: kvevent.Need(1 + 2*(e.Group%2)), Window: 40, BlockSize: 16}
					_ = x.Store(id, GPU, 0, false, doc[:n], doc[:n])
					_, _ = x.StoreGroup(id, 16, &e)
					_, _ = x.RemoveGroup(id, e.Group, doc[n/2:n/2+rng.IntN(n-n/2+1)])
					x.Remove(id, GPU, doc[rng.IntN(n):n])
					if rng.IntN(10) == 0 {
						x.Doubt(id, nil)
					}
				}
				if err := x.Leave(id); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 2 {
		readers.Go(func() {
			m := Matches{Most: 250}
			for !done.Load() {
				x.Match(doc, &m)
				for _, s := range m.Slots {
					if s.Blocks == 0 || s.Blocks > 300 {
						t.Errorf("%d blocks, want some, at most 300", s.Blocks)
					}
				}
			}
		})
	}
	writers.Wait()
	done.Store(true)
	readers.Wait()
	if s := x.Stats(); s.Nodes != 0 || x.hybrids.Load() != 0 {
		t.Errorf("left behind: %+v; got %d, want Nodes 0, 0", s, x.hybrids.Load())
	}
}

// TestGroupsAreBounded checks that blocks beyond the bound are not recorded, and are again after others were removed.
func TestGroupsAreBounded(t *testing.T) {
	x := New(Options{})
	id := x.Join(SlotOptions{CountCopies: true})
	list := make([]uint64, maxGroupBlocks)
	for i := range list {
		list[i] = uint64(i)
	}
	store := func(hashes ...uint64) (dropped int) {
		spec := kvevent.Spec{Need: kvevent.NeedLast, BlockSize: 16}
		dropped, _ = x.StoreGroup(id, 16, &kvevent.Event{Kind: kvevent.GroupStored, EngineHashes: hashes, Spec: spec})
		return dropped
	}
	if dropped := store(list...); dropped > 0 {
		t.Fatalf("%d dropped, want 0", dropped)
	}
	if dropped := store(1, maxGroupBlocks); dropped != 1 {
		t.Errorf("%d dropped, want one", dropped)
	}
	if unknown, _ := x.RemoveGroup(id, 0, []uint64{7, maxGroupBlocks}); unknown != 1 {
		t.Errorf("%d unknown, want one", unknown)
	}
	if dropped := store(maxGroupBlocks); dropped > 0 {
		t.Errorf("dropped although there is room: got %d, want 0", dropped)
	}
}

// TestGroupsWithoutMemory stores groups of blocks in an index whose memory is used up: lookups find less, and all of it is freed.
func TestGroupsWithoutMemory(t *testing.T) {
	x := New(Options{MaxBytes: 1}) // the least that an index works with
	x.budget.limited = false       // nothing is evicted
	doc, id := make([]uint64, 64), x.Join(SlotOptions{})
	prompts := 0
	for ; !x.Partial(id) && prompts < 1<<20; prompts++ {
		for i := range doc {
			doc[i] = pathOf(uint64(prompts), uint64(i))
		}
		if err := x.Store(id, GPU, 0, false, doc, doc); err != nil {
			t.Fatal(err)
		}
	}
	found := 0
	for p := range prompts {
		for i := range doc {
			doc[i] = pathOf(uint64(p), uint64(i))
		}
		e := kvevent.Event{Kind: kvevent.GroupStored, EngineHashes: doc[8:16], Spec: kvevent.Spec{Need: kvevent.NeedLast, BlockSize: 16}}
		_, _ = x.StoreGroup(id, 16, &e)
		var m Matches
		x.Match(doc, &m)
		if blocksFor(&m, id) > 0 {
			found++
		}
	}
	if found == 0 || found == prompts || !x.Partial(id) {
		t.Errorf("got %d of %d prompts found, want some and not all, of a slot that says that it is partial", found, prompts)
	}
	audit(t, x)
	if err := x.Leave(id); err != nil || x.Stats().Nodes != 0 {
		t.Errorf("got %v %+v, want an empty index", err, x.Stats())
	}
}

// TestMemoryOfOneGroup: a worker with one KV cache group takes at most 30 bytes a held block.
func TestMemoryOfOneGroup(t *testing.T) {
	x := New(Options{})
	id, doc := x.Join(SlotOptions{}), make([]uint64, 512)
	for p := range uint64(6000) {
		for i := range doc {
			doc[i] = pathOf(p, uint64(i))
		}
		if err := x.Store(id, GPU, 0, false, doc, doc); err != nil {
			t.Fatal(err)
		}
	}
	s := x.Stats()
	perBlock := float64(s.Used) / float64(s.Blocks)
	t.Logf("%.1f bytes", perBlock)
	if s.Blocks != 6000*512 || perBlock > 30 {
		t.Errorf("%d blocks of %.1f bytes", s.Blocks, perBlock)
	}
}

// TestGroupsWithinBudget lets a worker send only events of further groups: what it makes the index remember is counted, and bounded
// by a part of the index's memory of which others can still have some.
func TestGroupsWithinBudget(t *testing.T) {
	const limit = 32 << 20
	x := New(Options{MaxBytes: limit})
	hostile, honest := x.Join(SlotOptions{CountCopies: true}), x.Join(SlotOptions{CountCopies: true})
	dropped, sent := 0, 0
	store := func(id SlotID, size int, hashes []uint64) int {
		n, err := x.StoreGroup(id, 16, &kvevent.Event{Kind: kvevent.GroupStored, EngineHashes: hashes,
			Spec: kvevent.Spec{Need: kvevent.NeedWindow, Window: 64, BlockSize: size}})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	small, anchor := make([]uint64, 1000), []uint64{7}
	if err := x.Store(hostile, GPU, 0, false, anchor, anchor); err != nil {
		t.Fatal(err)
	}
	for range 1000 { // half of them beside a block that tells their place
		for i := range small {
			small[i] = 7
			if i%2 == 0 {
				sent++
				small[i] = pathOf(3, uint64(sent))
			}
		}
		dropped += store(hostile, 8, small)
	}
	if dropped < sent/2 || dropped == sent {
		t.Errorf("%d of %d dropped, want at least %d, other than %d", dropped, sent, sent/2, sent)
	}
	doc := make([]uint64, 1000)
	for i := range doc {
		doc[i] = pathOf(4, uint64(i))
	}
	if err := x.Store(honest, GPU, 0, false, doc, doc); err != nil {
		t.Fatal(err)
	}
	if n := store(honest, 16, doc); n > 0 {
		t.Errorf("%d of another worker's dropped, want 0", n)
	}
	var m Matches
	x.Match(doc, &m)
	if blocksFor(&m, honest) != len(doc) {
		t.Errorf("%d blocks of another worker found, want %d", blocksFor(&m, honest), len(doc))
	}
	heap := func() int64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.GC() // what finalizers of earlier tests kept
		runtime.ReadMemStats(&s)
		return int64(s.HeapAlloc)
	}
	counted, all, with := x.mem.beside.Load(), x.Stats(), heap()
	if err := x.Leave(hostile); err != nil {
		t.Fatal(err)
	}
	bytes := with - heap()
	t.Logf("%d of %d dropped; %d bytes counted, %d on the heap", dropped, sent, counted, bytes)
	if counted > limit/4 || bytes > limit/4 || all.Resident > limit || all.Used < counted {
		t.Errorf("%d bytes counted, %d on the heap, %+v, want at most %d, at most %d, Resident at most %d, Used at least %d",
			counted, bytes, all, limit/4, limit/4, limit, counted)
	}
	if err := x.Leave(honest); err != nil || x.mem.beside.Load() != 0 {
		t.Errorf("%d bytes left, %v, want no error, 0", x.mem.beside.Load(), err)
	}
}

// TestUnclearGroups: once a slot's groups are not understood, lookups return what Store recorded, it is an upper bound, also in an index
// made from the listing, and nothing more is remembered.
func TestUnclearGroups(t *testing.T) {
	x, y := New(Options{}), New(Options{})
	id, copied := x.Join(SlotOptions{CountCopies: true}), y.Join(SlotOptions{CountCopies: true})
	doc := make([]uint64, 64)
	for i := range doc {
		doc[i] = pathOf(1, uint64(i))
	}
	if err := x.Store(id, GPU, 0, false, doc, doc); err != nil {
		t.Fatal(err)
	}
	store := func(size int) {
		if _, err := x.StoreGroup(id, 16, &kvevent.Event{Kind: kvevent.GroupStored, EngineHashes: doc[:8],
			Spec: kvevent.Spec{Need: kvevent.NeedWindow, Window: 64, BlockSize: size}}); err != nil {
			t.Fatal(err)
		}
	}
	one := []bool{x.OneGroup(id)}
	store(16)
	one = append(one, x.OneGroup(id))
	if x.UpperBound(id) || blocksIn(x, id, doc) != 8 {
		t.Errorf("got an upper bound %t, %d blocks, want eight for certain", x.UpperBound(id), blocksIn(x, id, doc))
	}
	store(8) // a group with blocks of two sizes
	store(16)
	one = append(one, x.OneGroup(id))
	if !slices.Equal(one, []bool{true, false, false}) {
		t.Errorf("before a second group, with it, and when it is not understood: one group %v, want true, false, false", one)
	}
	if !x.UpperBound(id) || blocksIn(x, id, doc) != len(doc) || x.mem.beside.Load() != 0 {
		t.Errorf("got an upper bound %t, %d blocks, %d bytes, want an upper bound of %d, without memory for places",
			x.UpperBound(id), blocksIn(x, id, doc), x.mem.beside.Load(), len(doc))
	}
	for _, e := range x.GroupEvents(id) {
		if _, err := y.StoreGroup(copied, 16, &e); err != nil {
			t.Fatal(err)
		}
	}
	if !y.UpperBound(copied) {
		t.Error("the copy is not an upper bound")
	}
}

// TestPartsOfStates: a group of states with blocks of two sizes makes matches a lower bound, whichever size comes first, here and in a
// copy; another process has none until it shows some.
func TestPartsOfStates(t *testing.T) {
	for name, sizes := range map[string][]int{"the part last": {16, 4}, "the part first": {4, 16}} {
		x, y := New(Options{}), New(Options{})
		id, copied, doc := x.Join(SlotOptions{}), y.Join(SlotOptions{}), []uint64{1, 2, 3, 4}
		if err := x.Store(id, GPU, 0, false, doc, doc); err != nil {
			t.Fatal(err)
		}
		for _, size := range sizes {
			e := kvevent.Event{Kind: kvevent.GroupStored, Group: 1, EngineHashes: []uint64{99},
				Spec: kvevent.Spec{Need: kvevent.NeedLast, BlockSize: size}}
			if size == 16 {
				e.EngineHashes = doc[:3]
			}
			if _, err := x.StoreGroup(id, 16, &e); err != nil {
				t.Fatal(err)
			}
		}
		if !x.FindsParts(id) || x.UpperBound(id) || blocksIn(x, id, doc) != 3 {
			t.Errorf("%s: parts %t, an upper bound %t, %d blocks; want true, false, 3", name, x.FindsParts(id), x.UpperBound(id),
				blocksIn(x, id, doc))
		}
		if n, err := x.RemoveGroup(id, 1, []uint64{99}); n != 0 || err != nil {
			t.Errorf("%s: the part's removal: %d unknown, %v; want 0", name, n, err)
		}
		for _, e := range x.GroupEvents(id) {
			if _, err := y.StoreGroup(copied, 16, &e); err != nil {
				t.Fatal(err)
			}
		}
		if !y.FindsParts(copied) || y.UpperBound(copied) {
			t.Errorf("%s: the copy: parts %t, an upper bound %t; want true, false", name, y.FindsParts(copied), y.UpperBound(copied))
		}
		x.ForgetGroups(id)
		if x.FindsParts(id) {
			t.Errorf("%s: another process finds parts before it has shown one", name)
		}
	}
}

// TestLargerWindows: windows over larger blocks than those of the group that sees all tokens make matches an upper bound.
func TestLargerWindows(t *testing.T) {
	x := New(Options{})
	id, doc := x.Join(SlotOptions{}), []uint64{1, 2, 3, 4}
	if err := x.Store(id, GPU, 0, false, doc, doc); err != nil {
		t.Fatal(err)
	}
	if _, err := x.StoreGroup(id, 16, &kvevent.Event{Kind: kvevent.GroupStored, Group: 1, EngineHashes: doc[:2],
		Spec: kvevent.Spec{Need: kvevent.NeedWindow, Window: 96, BlockSize: 32}}); err != nil {
		t.Fatal(err)
	}
	if !x.UpperBound(id) || x.FindsParts(id) {
		t.Errorf("an upper bound %t, parts %t; want true, false", x.UpperBound(id), x.FindsParts(id))
	}
}

func blocksIn(x *Index, id SlotID, locals []uint64) int {
	var m Matches
	x.Match(locals, &m)
	return blocksFor(&m, id)
}
