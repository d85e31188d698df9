package indexer

import (
	"fmt"
	"slices"
	"testing"
)

// TestSnapshot rebuilds every slot of a random index in another index: both must then agree with the model, now and after the
// same further calls.
func TestSnapshot(t *testing.T) {
	for seed := range uint64(12) {
		s := newScript(t, 5000+seed)
		for range 300 {
			s.step()
		}
		other := New(Options{})
		for _, id := range s.live {
			n := s.model.slots[id]
			list, err := s.x.Blocks(id)
			if err != nil {
				t.Fatal(err)
			}
			to := other.Join(SlotOptions{CountCopies: n.counting})
			if err := rebuild(other, to, list); err != nil {
				t.Fatal(err)
			}
			if got, want := other.HeldBlocks(to), len(n.names); got != want {
				t.Fatalf("seed %d: got %d blocks rebuilt, %d held, want %d", seed, got, want, want)
			}
			held := 0
			for i, b := range list {
				if b.Parent >= i {
					t.Fatalf("block %d before its parent %d, want less than %d", i, b.Parent, i)
				}
				if b.Copies != [Tiers]uint8{} {
					held++
				}
			}
			if held != len(n.names) {
				t.Fatalf("%d blocks listed, %d held, want %d", held, len(n.names), len(n.names))
			}
			for _, b := range list { // the listing's paths are the model's
				if b.Copies == [Tiers]uint8{} {
					continue
				}
				var chain []uint64
				for at := b; ; at = list[at.Parent] {
					chain = append(chain, at.Local)
					if at.Parent < 0 {
						break
					}
				}
				path := uint64(frontPath)
				for _, l := range slices.Backward(chain) {
					path = pathOf(path, l)
				}
				if n.names[b.EngineHash] == nil || n.names[b.EngineHash].path != path {
					t.Fatalf("seed %d: got engine hash %x listed behind another path, want its own", seed, b.EngineHash)
				}
			}
			for range 40 { // continues like the original
				doc := s.docs[s.IntN(len(s.docs))]
				engineHashes := s.names(doc, 0, len(doc), s.kind())
				engineHashes = engineHashes[s.IntN(len(engineHashes)):]
				tier := Tier(s.IntN(s.tiers))
				got, _ := other.Remove(to, tier, engineHashes)
				want, _ := s.x.Remove(id, tier, engineHashes)
				if model := n.remove(tier, engineHashes); got != want || got != model {
					t.Fatalf("seed %d: got %d unknown, original %d, model %d, want %d, %d", seed, got, want, model, want, model)
				}
				var m Matches
				other.Match(doc, &m)
				got1 := Match{Slot: to}
				if i := slices.IndexFunc(m.Slots, func(r Match) bool { return r.Slot == to }); i >= 0 {
					got1 = m.Slots[i]
				}
				want1, gpu := n.match(doc)
				want1.Slot = to
				if got1 != want1 || m.OnGPU(got1) != gpu {
					t.Fatalf("seed %d: loaded %+v, %d on the GPU, model %+v, %d, want %+v, %d", seed, got1, m.OnGPU(got1), want1, gpu, want1, gpu)
				}
			}
		}
	}
}

// TestDropStoredSince checks that what the worker has stored since the count began stays, whether its cache was cleared in
// between or not.
func TestDropStoredSince(t *testing.T) {
	locals := make([]uint64, 64)
	for i := range locals {
		locals[i] = pathOf(7, uint64(i))
	}
	for name, cleared := range map[string]bool{"told of the reset": true, "not told": false} {
		x := New(Options{})
		id := x.Join(SlotOptions{CountCopies: true})
		store := func(from int) {
			t.Helper()
			var parent uint64
			if from > 0 {
				parent = locals[from-1]
			}
			if err := x.Store(id, GPU, parent, from > 0, locals[from:], locals[from:]); err != nil {
				t.Fatal(err)
			}
		}
		held := func() int {
			var m Matches
			x.Match(locals, &m)
			return m.Longest
		}
		store(0)
		since := x.Stores(id)
		from := 32
		if cleared {
			x.Clear(id)
			from = 0
		}
		store(from) // the request computes again what it did not find
		if n, err := x.Drop(id, locals, from, since); n != 0 || err != nil || held() != len(locals) {
			t.Errorf("%s: got %d dropped, %v, %d held, want 0, no error, %d", name, n, err, held(), len(locals))
		}
		if unknown, err := x.Remove(id, GPU, locals[from:]); unknown != 0 || err != nil || held() != from {
			t.Errorf("%s: evicted once, %d unknown, %v, %d still held, want 0, no error, %d", name, unknown, err, held(), from)
		}
		x.Clear(id)
		store(0)
		if n, err := x.Drop(id, locals, 32, x.Stores(id)); n != 32 || err != nil || held() != 32 {
			t.Errorf("%s: nothing stored since, %d dropped, %v, %d held, want 32, no error, 32", name, n, err, held())
		}
	}
}

// TestOnLost checks that what a slot holds is told before it is cleared, once, and that nothing is told of an empty one.
func TestOnLost(t *testing.T) {
	x, told := New(Options{}), ""
	x.OnLost(func(id SlotID, held []Block) {
		for _, b := range held {
			told += fmt.Sprint(id, " ", b.Local, " after ", b.Parent, "; ")
		}
	})
	id := x.Join(SlotOptions{})
	if err := x.Store(id, GPU, 0, false, []uint64{11, 12}, []uint64{1, 2}); err != nil {
		t.Fatal(err)
	}
	x.Clear(id)
	x.Clear(id)
	x.Leave(id)
	if want := "0 1 after -1; 0 2 after 0; "; told != want {
		t.Errorf("told %q, want %q", told, want)
	}
}

// TestStoredSince checks which blocks count as stored again: those on pages of sixteen to which something was stored since.
func TestStoredSince(t *testing.T) {
	x := New(Options{})
	id, locals := x.Join(SlotOptions{}), make([]uint64, 64)
	for i := range locals {
		locals[i] = pathOf(8, uint64(i))
	}
	store := func(from int) {
		if err := x.Store(id, GPU, locals[max(0, from-1)], from > 0, locals[from:], locals[from:]); err != nil {
			t.Fatal(err)
		}
	}
	store(0)
	since := x.Stores(id)
	if x.StoredSince(id, locals, 0, 64, since) {
		t.Error("nothing was stored since")
	}
	if _, err := x.Remove(id, GPU, locals[32:]); err != nil {
		t.Fatal(err)
	}
	if x.StoredSince(id, locals, 32, 64, since) {
		t.Error("removed blocks count as stored")
	}
	store(32)
	for _, c := range []struct {
		from, to int
		want     bool
	}{{0, 32, false}, {32, 33, true}, {40, 64, true}, {0, 64, true}, {64, 64, false}} {
		if got := x.StoredSince(id, locals, c.from, c.to, since); got != c.want {
			t.Errorf("blocks %d to %d: %t, want %t", c.from, c.to, got, c.want)
		}
	}
	for _, c := range []struct {
		prompt int
		since  uint64
		want   int
	}{{40, since, 24}, {64, since, 0}, {40, x.Stores(id), 0}, {10, since, 0}} {
		if got := x.Behind(nil, id, locals[:c.prompt], c.since); !slices.Equal(got, locals[c.prompt:][:c.want]) {
			t.Errorf("%d blocks behind the first %d, want %d", len(got), c.prompt, c.want)
		}
	}
	if got := x.Behind(nil, id, []uint64{1, 2}, 0); len(got) > 0 {
		t.Errorf("%d blocks behind an unknown prompt, want 0", len(got))
	}
	if x.StoredSince(9, locals, 0, 64, 0) {
		t.Error("an unknown slot has stored something")
	}
}
