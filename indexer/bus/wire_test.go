package bus

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/event"
)

func TestWire(t *testing.T) {
	events := []event.Event{
		{Kind: event.Cleared},
		{Kind: event.Stored, BlockSize: 2, Handles: []uint64{1, 1 << 63}, Locals: []uint64{3, 4}},
		{Kind: event.Stored, Tier: event.Disk, Group: 6, HasParent: true, Parent: 9, MediaUnknown: true, BlockSize: 16, Handles: []uint64{5}, Locals: []uint64{6}},
		{Kind: event.Removed, Tier: event.Remote, Handles: []uint64{1, 2, 3}},
	}
	audit := event.Event{Kind: event.Stored, BlockSize: 2, Handles: []uint64{1}, Locals: []uint64{2}, Tokens: []uint32{7, 1 << 31}, LoRA: "sql",
		Session: "s-1", Media: []event.Mention{{Block: 0, Offset: -3, Paired: true, Name: []byte("aa")}, {Name: []byte("")}}}
	for _, c := range []struct {
		name   string
		tokens bool
		in     []event.Event
		out    []event.Event
	}{
		{"blocks", false, append(events, audit), append(events, event.Event{Kind: event.Stored, BlockSize: 2, Handles: []uint64{1}, Locals: []uint64{2}})},
		{"tokens", true, append(events, audit), append(events, audit)},
	} {
		b := appendHead(nil, true, 77, 88, 1.5, 3)
		for i := range c.in {
			b = appendEvent(b, &c.in[i], c.tokens)
		}
		if epoch, seq, err := numbers(b); epoch != 77 || seq != 88 || err != nil {
			t.Errorf("%s: epoch %d, seq %d, %v", c.name, epoch, seq, err)
		}
		var d Decoder
		batch, err := d.Decode(b)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if !batch.Partial || batch.Time != 1.5 || batch.Rank != 3 {
			t.Errorf("%s: %+v", c.name, batch)
		}
		for i := range batch.Events {
			got, want := batch.Events[i], c.out[i]
			if len(got.Handles) == 0 {
				got.Handles = nil
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s: event %d\n got %+v\nwant %+v", c.name, i, got, want)
			}
		}
		for cut := range b {
			if batch, err := d.Decode(b[:cut]); err != nil && len(batch.Events) > 0 {
				t.Fatalf("cut at %d: events beside %v", cut, err)
			}
		}
	}
	if _, _, err := numbers([]byte("HTTP/1.1 400 Bad Request and more")); err == nil {
		t.Error("foreign bytes are taken")
	}
}

func FuzzDecode(f *testing.F) {
	b := appendHead(nil, false, 1, 2, 3, 0)
	b = appendEvent(b, &event.Event{Kind: event.Stored, HasParent: true, Parent: 1, BlockSize: 2, Handles: []uint64{1}, Locals: []uint64{2}, Tokens: []uint32{7, 8},
		LoRA: "a", Media: []event.Mention{{Name: []byte("n")}}}, true)
	f.Add(appendEvent(b, &event.Event{Kind: event.Removed, Handles: []uint64{4}}, false))
	f.Add(append(b, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1))
	var d Decoder
	f.Fuzz(func(t *testing.T, b []byte) {
		batch, err := d.Decode(b)
		if err != nil && len(batch.Events) > 0 {
			t.Fatal("events beside an error")
		}
		for _, e := range batch.Events {
			if e.Tier >= event.Tiers || e.Kind == event.Stored && (len(e.Locals) != len(e.Handles) || len(e.Handles) == 0) {
				t.Fatalf("%+v", e)
			}
			if e.Tokens != nil && len(e.Tokens) != e.BlockSize*len(e.Handles) {
				t.Fatalf("%d tokens for %d blocks of %d", len(e.Tokens), len(e.Handles), e.BlockSize)
			}
		}
	})
}

func TestPlaces(t *testing.T) {
	for _, worker := range []string{"worker-1", "10.0.0.5:8000", "a b.c*>", "ä", "x=2E"} {
		for _, rank := range []int{0, 7} {
			w, r, ok := placed(eventSubjects + place(worker, rank))
			if !ok || w != worker || r != rank {
				t.Errorf("%q rank %d comes back as %q rank %d, %v", worker, rank, w, r, ok)
			}
		}
	}
	for _, bad := range []string{"", "other.x.0", eventSubjects, eventSubjects + "x", eventSubjects + "x.y", eventSubjects + "x.-1", eventSubjects + "=4.0", eventSubjects + "=zz.0", eventSubjects + ".0"} {
		if w, r, ok := placed(bad); ok {
			t.Errorf("%q is read as %q rank %d", bad, w, r)
		}
	}
}

// A snapshot, applied to an empty mirror and to an index, gives what the events gave: chains, forks, copies, tiers,
// removals in the middle, handles that come back for other content.
func TestSnapshot(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 2))
		m := mirror{blocks: map[uint64]known{}}
		straight := indexer.New(indexer.Options{})
		a := straight.Join(indexer.HolderOptions{CountCopies: true})
		paths := map[uint64][]uint64{} // handle → local hashes from the front
		for range 60 {
			tier := event.Tier(rng.IntN(2))
			if rng.IntN(3) == 0 {
				h := rng.Uint64N(40)
				unknown, _ := straight.Remove(a, indexer.Tier(tier), []uint64{h})
				if m.remove(tier, h) != (unknown == 0) {
					t.Fatalf("seed %d: the mirror and the index differ on removing %d", seed, h)
				}
				continue
			}
			e := event.Event{Tier: tier, BlockSize: 16}
			var path []uint64
			if h := rng.Uint64N(40); len(paths[h]) > 0 && rng.IntN(3) > 0 {
				e.HasParent, e.Parent, path = true, h, paths[h]
			}
			for range rng.IntN(4) + 1 {
				// A handle stands for one place, as a chained hash does; now and then it comes back for another.
				h := rng.Uint64N(40)
				if e.HasParent && h == e.Parent || paths[h] != nil && rng.IntN(8) > 0 || slices.Contains(e.Handles, h) {
					continue
				}
				path = append(path[:len(path):len(path)], rng.Uint64N(6)+1)
				e.Handles, e.Locals = append(e.Handles, h), append(e.Locals, path[len(path)-1])
			}
			if rng.IntN(4) == 0 { // a further copy, or one in another tier, or a hole healed
				for h := rng.Uint64N(40); h < 40; h++ {
					k, ok := m.blocks[h]
					if p := m.blocks[k.parent]; ok && (!k.hasParent || p.held()) {
						e.HasParent, e.Parent, e.Handles, e.Locals = k.hasParent, k.parent, []uint64{h}, []uint64{k.local}
						break
					}
				}
			}
			if len(e.Handles) == 0 || slices.ContainsFunc(e.Handles, func(h uint64) bool {
				k, ok := m.blocks[h] // elsewhere: not if there is something behind it, see moved
				return ok && (len(e.Handles) > 1 || k.children > 0 && (k.local != e.Locals[0] || k.parent != e.Parent || k.hasParent != e.HasParent))
			}) {
				continue
			}
			errM, errI := m.store(&e), straight.Store(a, indexer.Tier(tier), e.Parent, e.HasParent, e.Handles, e.Locals)
			if (errM == nil) != (errI == nil) {
				t.Fatalf("seed %d: mirror %v, index %v", seed, errM, errI)
			}
			if errM == nil {
				p := paths[e.Parent]
				if !e.HasParent {
					p = nil
				}
				for i, h := range e.Handles {
					p = append(p[:len(p):len(p)], e.Locals[i])
					paths[h] = p
				}
			}
		}
		b := m.snapshot(appendHead(nil, false, 1, 1, 0, 0))
		var d Decoder
		batch, err := d.Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		again := mirror{blocks: map[uint64]known{}}
		told := indexer.New(indexer.Options{})
		c := told.Join(indexer.HolderOptions{CountCopies: true})
		for i, e := range batch.Events {
			switch e.Kind {
			case event.Stored:
				if err := again.store(&e); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if err := told.Store(c, indexer.Tier(e.Tier), e.Parent, e.HasParent, e.Handles, e.Locals); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			case event.Removed:
				for _, h := range e.Handles {
					again.remove(e.Tier, h)
				}
				told.Remove(c, indexer.Tier(e.Tier), e.Handles)
			case event.Cleared:
				if i != 0 {
					t.Fatal("a clear in the middle")
				}
			}
		}
		if !reflect.DeepEqual(m.blocks, again.blocks) {
			t.Fatalf("seed %d:\n%v\n%v", seed, m.blocks, again.blocks)
		}
		for h, path := range paths {
			var x, y indexer.Matches
			straight.Match(path, &x)
			told.Match(path, &y)
			if !reflect.DeepEqual(x.Holders, y.Holders) {
				t.Fatalf("seed %d: block %d: %v, by snapshot %v", seed, h, x.Holders, y.Holders)
			}
		}
	}
}
