package stream

import (
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
)

// lose loses the worker's next batch.
func (w *tree) lose(change func()) {
	feed := w.feed
	w.feed = nil // so that tell sends nothing
	change()
	w.feed = feed
	w.hand.seq++
}

func (w *tree) doubtful() int { return w.feed.Stats().Doubtful }

// clears empties the worker.
func (w *tree) clears() {
	for _, n := range w.nodes {
		n.held, n.children = false, 0
	}
	w.tell(kvevent.Event{Kind: kvevent.Cleared})
}

// TestLostMessageLeavesDoubt checks that one lost message removes nothing: what was reported before is in doubt until later
// events have settled it.
func TestLostMessageLeavesDoubt(t *testing.T) {
	w := newTree(t, 1)
	w.join()
	front := w.store(nil, 10)
	named, removed, stored, silent := w.store(front, 10), w.store(front, 10), w.store(front, 10), w.store(front, 10)
	var under *node
	w.lose(func() { under = w.store(named, 2); w.evict(stored) })
	w.tell()
	if s := w.feed.Stats(); s.Doubtful != 50 || s.Unfilled != 1 || !s.Partial || w.feed.Doubt(time.Now()) == 0 || w.matched(silent) != 20 {
		t.Fatalf("got %+v, %v, want a partial slot with 50 blocks in doubt after one gap, of which 20 match", s, w.feed.Doubt(time.Now()))
	}
	next := w.store(named, 3) // shows that all before it is held
	if d := w.doubtful(); d != 30 || w.matched(next) != 23 {
		t.Errorf("%d blocks in doubt, want 30; %d known", d, w.matched(next))
	}
	w.evict(removed)
	w.tell(kvevent.Event{Kind: kvevent.Stored, BlockSize: size, HasParent: true, Parent: stored.parent.hash,
		EngineHashes: []uint64{stored.hash}, Locals: []uint64{stored.local}})
	stored.held = true
	if d := w.doubtful(); d != 19 {
		t.Errorf("%d blocks in doubt, want 19", d)
	}
	w.evict(stored)
	w.store(under, 1) // what was stored in the lost message is not known
	w.neverMore()
	w.feed.Resync() // nobody can be asked: what is in doubt is dropped nevertheless
	applied(t, w.feed, "the end of the doubt", func(s Stats) bool { return s.DoubtfulDropped == 19 && s.Doubtful == 0 })
	if w.feed.Doubt(time.Now()) != 0 || w.matched(next) != 23 || w.matched(silent) != 10 || w.matched(removed) != 10 {
		t.Errorf("known: %d, %d, %d", w.matched(next), w.matched(silent), w.matched(removed))
	}
}

// TestLostClear checks that a lost Clear is noticed by what is stored again, and that a doubt that nothing settles expires.
func TestLostClear(t *testing.T) {
	w := newTree(t, 2)
	w.join()
	var prompts []*node
	for range 30 {
		prompts = append(prompts, w.store(nil, 10))
	}
	w.lose(w.clears)
	for i, n := range prompts[:restoredToDropAll] {
		if w.matched(prompts[29]) != 10 {
			t.Fatalf("all is dropped after %d events", i)
		}
		e := kvevent.Event{Kind: kvevent.Stored, BlockSize: size}
		for ; n != nil; n = n.parent {
			n.held = true
			e.EngineHashes, e.Locals = append([]uint64{n.hash}, e.EngineHashes...), append([]uint64{n.local}, e.Locals...)
		}
		w.tell(e)
	}
	w.neverMore()
	if held := w.index.HeldBlocks(w.slot); held != restoredToDropAll*10 || w.feed.Doubt(time.Now()) != 0 {
		t.Errorf("got %d blocks held, want %d, and none in doubt", held, restoredToDropAll*10)
	}

	w = newTree(t, 3)
	w.doubt = 20 * time.Millisecond
	w.join()
	for range 5 {
		w.store(nil, 10)
	}
	w.lose(w.clears)
	w.tell()
	applied(t, w.feed, "the end of the doubt", func(s Stats) bool { return s.DoubtfulDropped == 50 })
	w.neverMore()
}

// TestDoubtModel checks that, whatever is lost, nothing is promised that is not held once the doubt is over, and that what events
// have named since is known.
func TestDoubtModel(t *testing.T) {
	seeds := 4
	if os.Getenv("SIGHTLINE_LONG") != "" {
		seeds = 500
	}
	for seed := range uint64(seeds) {
		w := newTree(t, seed)
		w.join()
		w.store(nil, 3)
		step := func() {
			n := w.nodes[w.rng.IntN(len(w.nodes))]
			switch r := w.rng.IntN(100); {
			case r < 50 && n.held:
				w.store(n, w.rng.IntN(4)+1)
			case r < 60:
				w.store(nil, w.rng.IntN(4)+1)
			case r < 99:
				if n.held && n.children == 0 {
					w.evict(n)
				}
			default:
				w.clears()
			}
		}
		for range 150 {
			if w.rng.IntN(25) == 0 {
				w.lose(step)
			} else {
				step()
			}
		}
		w.lose(func() {})
		w.tell()
		last := w.store(nil, 5)
		for w.doubtful() > 0 {
			w.feed.Resync()
			applied(t, w.feed, "the end of the doubt", func(s Stats) bool { return s.Doubtful == 0 })
		}
		w.neverMore()
		if w.matched(last) != 5 {
			t.Errorf("seed %d: what was stored since is not known", seed)
		}
	}
}

// TestRest checks that what an agent knows beyond the blocks that it holds is in its snapshot: a feed that begins with it doubts
// the same blocks, and has the same waiting ones, in the same order, without those that are gone.
func TestRest(t *testing.T) {
	w := newTree(t, 7)
	w.join()
	front := w.store(nil, 10)
	w.lose(func() { w.store(front, 3) })
	w.tell()
	sure := w.store(front, 2)
	doubted := w.store(nil, 4)
	w.lose(func() { w.store(nil, 1) })
	w.tell()
	w.store(sure, 1)
	strange := &node{hash: 5, local: 5}
	w.store(w.store(strange, 3), 2)
	gone := w.store(strange, 1)
	w.evict(gone)

	b := newTree(t, 8)
	sink := Join(b.index, indexer.SlotOptions{})
	list, err := w.index.Blocks(w.slot)
	if err != nil {
		t.Fatal(err)
	}
	for e := range indexer.Events(list) {
		if err := sink.Store(&e); err != nil {
			t.Fatal(err)
		}
	}
	knows := func(x *indexer.Index, slot indexer.SlotID, f *Feed) []kvevent.Event {
		return append([]kvevent.Event{{Kind: kvevent.Lost, EngineHashes: x.Doubtful(slot)}}, f.PendingEvents()...)
	}
	rest := knows(w.index, w.slot, w.feed)
	var told []kvevent.Event
	f := Start(Options{Source: &byHand{feed: make(chan *Feed, 1)}, Sink: sink, From: Position{Next: 9, Partial: true}, InitialEvents: rest,
		BlockSize: size, OnEvent: func(e *kvevent.Event) { told = append(told, *e) }})
	was, is := w.feed.Stats(), f.Stats()
	if is.Doubtful != was.Doubtful || was.Doubtful != 4 || is.Orphans != was.Orphans || was.Orphans != 5 ||
		f.Doubt(time.Now()) == 0 || doubted == nil {
		t.Errorf("%d blocks in doubt and %d that wait, want %d and %d", is.Doubtful, is.Orphans, was.Doubtful, was.Orphans)
	}
	again := knows(b.index, sink.Slot(), f)
	for _, list := range [][]kvevent.Event{rest, again} {
		slices.Sort(list[0].EngineHashes) // they come from a map
	}
	if !reflect.DeepEqual(rest, again) {
		t.Errorf("%+v\nwant %+v", again, rest)
	}
	f.Close()
	if len(told) > 0 {
		t.Errorf("told again: got %+v, want 0 of them", told)
	}
}

// BenchmarkGap loses a message of a rank that holds 2^20 blocks in prompts of 512.
func BenchmarkGap(b *testing.B) {
	index := indexer.New(indexer.Options{})
	sink := Join(index, indexer.SlotOptions{CountCopies: true})
	list, rng := make([]uint64, 512), rand.New(rand.NewPCG(1, 2))
	for range 1 << 20 / len(list) {
		for i := range list {
			list[i] = rng.Uint64()
		}
		if err := index.Store(sink.Slot(), indexer.GPU, 0, false, list, list); err != nil {
			b.Fatal(err)
		}
	}
	f := &Feed{content: content{o: Options{Sink: sink, doubtTime: time.Hour}}}
	b.ReportAllocs()
	for b.Loop() {
		f.markDoubtful(nil)
	}
}
