package indexer

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"
)

// TestSnapshot loads every slot of a random index into another index: both must then agree with the model, now and
// after the same further calls.
func TestSnapshot(t *testing.T) {
	for seed := range uint64(12) {
		s := newScript(t, 5000+seed)
		for range 300 {
			s.step()
		}
		other := New(Options{})
		for _, id := range s.live {
			n := s.model.slots[id]
			data, err := s.x.AppendSnapshot([]byte("xx"), id)
			if err != nil {
				t.Fatal(err)
			}
			to := other.Join(SlotOptions{CountCopies: n.counting})
			if err := other.Load(to, data[2:]); err != nil {
				t.Fatal(err)
			}
			if got, want := other.HeldBlocks(to), len(n.names); got != want {
				t.Fatalf("seed %d: %d blocks loaded, %d dumped", seed, got, want)
			}
			held := 0
			var parents []Block
			if err := s.x.Dump(id, func(b Block) bool {
				if b.Parent >= len(parents) {
					t.Fatalf("block %d before its parent %d", len(parents), b.Parent)
				}
				if parents = append(parents, b); b.Tiers != 0 {
					held++
				}
				return true
			}); err != nil || held != len(n.names) {
				t.Fatalf("%d blocks listed, %d held, %v", held, len(n.names), err)
			}
			for _, b := range parents { // the listing's paths are the model's
				if b.Tiers == 0 {
					continue
				}
				var chain []uint64
				for at := b; ; at = parents[at.Parent] {
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
					t.Fatalf("seed %d: engine hash %x listed at the wrong place", seed, b.EngineHash)
				}
			}
			for range 40 { // and goes on as the original does
				doc := s.docs[s.IntN(len(s.docs))]
				engineHashes := s.names(doc, 0, len(doc), s.kind())
				engineHashes = engineHashes[s.IntN(len(engineHashes)):]
				tier := Tier(s.IntN(s.tiers))
				got, _ := other.Remove(to, tier, engineHashes)
				want, _ := s.x.Remove(id, tier, engineHashes)
				if model := n.remove(tier, engineHashes); got != want || got != model {
					t.Fatalf("seed %d: %d unknown, original %d, model %d", seed, got, want, model)
				}
				var m Matches
				other.Match(doc, &m)
				got1 := Match{Slot: to}
				if i := slices.IndexFunc(m.Slots, func(r Match) bool { return r.Slot == to }); i >= 0 {
					got1 = m.Slots[i]
				}
				want1 := n.match(doc)
				if want1.Slot = to; got1 != want1 {
					t.Fatalf("seed %d: loaded %+v, model %+v", seed, got1, want1)
				}
			}
		}
	}
}

func TestSnapshotDamaged(t *testing.T) {
	x := New(Options{})
	id := x.Join(SlotOptions{})
	locals := []uint64{1, 2, 3, 4, 5}
	if err := x.Store(id, GPU, 0, false, locals, locals); err != nil {
		t.Fatal(err)
	}
	good, _ := x.AppendSnapshot(nil, id)
	for i := range good {
		bad := slices.Clone(good)
		bad[i] ^= 4
		if err := x.Load(id, bad); !errors.Is(err, ErrSnapshot) || x.HeldBlocks(id) != 0 {
			t.Fatalf("byte %d: %v, %d blocks", i, err, x.HeldBlocks(id))
		}
		if err := x.Load(id, good[:i]); !errors.Is(err, ErrSnapshot) {
			t.Fatalf("%d bytes: %v", i, err)
		}
	}
	if err := x.Load(id, good); err != nil || x.HeldBlocks(id) != len(locals) {
		t.Fatal(err)
	}
}

func FuzzLoad(f *testing.F) {
	x := New(Options{})
	id := x.Join(SlotOptions{CountCopies: true})
	locals := []uint64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}
	x.Store(id, GPU, 0, false, locals, locals)
	x.Store(id, CPU, 3, true, []uint64{40, 41}, []uint64{4, 70})
	x.Store(id, GPU, 0, false, locals, locals)
	x.Remove(id, GPU, []uint64{2})
	good, _ := x.AppendSnapshot(nil, id)
	f.Add(good[:len(good)-8])
	x = New(Options{MaxBytes: 16 << 20}) // one for all runs of a process: its memory is reserved from the kernel, and slow to come by
	f.Fuzz(func(t *testing.T, body []byte) {
		id := x.Join(SlotOptions{CountCopies: true})
		defer func() {
			if err := x.Leave(id); err != nil || x.Stats().Nodes != 0 {
				t.Fatalf("left behind %+v: %v", x.Stats(), err)
			}
		}()
		if err := x.Load(id, binary.LittleEndian.AppendUint64(body, xxh3.Hash(body))); err != nil {
			if x.HeldBlocks(id) != 0 {
				t.Fatalf("%v, but %d blocks", err, x.HeldBlocks(id))
			}
			return
		}
		again, err := x.AppendSnapshot(nil, id)
		if err != nil {
			t.Fatal(err)
		}
		held := x.HeldBlocks(id)
		if err := x.Load(id, again); err != nil || x.HeldBlocks(id) != held {
			t.Fatalf("own snapshot: %v, %d blocks of %d", err, x.HeldBlocks(id), held)
		}
	})
}
