package indexer

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestDoubt checks what an event that names a block settles, across pages and nodes, and what it does not: blocks after a hole,
// on another branch, or with content under several engine hashes; and that a block that is stored later, or under a free number,
// is not in doubt.
func TestDoubt(t *testing.T) {
	x := New(Options{})
	id := x.Join(SlotOptions{CountCopies: true})
	doc := make([]uint64, 100)
	for i := range doc {
		doc[i] = uint64(i) + 1000
	}
	// store stores blocks [from, to) of the document, whose engine hashes are their numbers above base.
	store := func(base uint64, from, to int, behind uint64) {
		t.Helper()
		var engineHashes []uint64
		for i := from; i < to; i++ {
			engineHashes = append(engineHashes, base+uint64(i))
		}
		if err := x.Store(id, GPU, behind, from > 0, engineHashes, doc[from:to]); err != nil {
			t.Fatal(err)
		}
	}
	doubts := func(what string, want int) {
		t.Helper()
		list := x.Doubtful(id)
		if got := x.InDoubt(id); got != want || len(list) != want {
			t.Fatalf("%s: %d blocks in doubt, %d listed, want %d", what, got, len(list), want)
		}
	}
	store(0, 0, 100, 0)
	branch := []uint64{7, 8, 9}
	if err := x.Store(id, CPU, 39, true, []uint64{207, 208, 209}, branch); err != nil {
		t.Fatal(err)
	}
	store(0, 0, 10, 0) // further copies
	doubts("nothing is lost", 0)
	x.Doubt(id, nil)
	doubts("a gap", 103)
	if n := x.Confirm(id, 208); n != 42 { // two of the branch, 40 before
		t.Errorf("%d blocks confirmed, want 42", n)
	}
	if n := x.Confirm(id, 208) + x.Confirm(id, 20) + x.Confirm(id, 12345); n != 0 {
		t.Errorf("%d blocks confirmed again, want 0", n)
	}
	doubts("a child of the branch", 61)
	if n := x.Confirm(id, 63); n != 24 {
		t.Errorf("%d blocks confirmed, want those behind the branch", n)
	}
	if unknown, _ := x.Remove(id, GPU, []uint64{5, 70, 209}); unknown != 1 { // one copy; the branch is elsewhere
		t.Errorf("%d unknown, want 1", unknown)
	}
	doubts("a removal", 36)
	if n := x.Confirm(id, 99); n != 29 {
		t.Errorf("%d blocks confirmed behind a hole, want 29", n)
	}
	doubts("a hole", 7)
	dropped := x.DropDoubtful(id, []uint64{209, 4, 65, 64, 64})
	slices.Sort(dropped)
	if !slices.Equal(dropped, []uint64{64, 65, 209}) {
		t.Errorf("dropped %v, want %v", dropped, []uint64{64, 65, 209})
	}
	doubts("a drop", 4)
	store(0, 64, 66, 63)
	doubts("stored again", 4)

	x.Doubt(id, nil)
	store(500, 10, 40, 9) // the same under other engine hashes
	if n := x.Confirm(id, 45); n != 6 {
		t.Errorf("%d blocks confirmed up to one that is beyond doubt, want 6", n)
	}
	x.Doubt(id, nil)
	if n := x.Confirm(id, 45); n != 6+4 { // neither 10 to 39 nor 510 to 539; 5 is gone
		t.Errorf("%d blocks confirmed around content of two engine hashes, want %d", n, 6+4)
	}
	x.Doubt(id, []uint64{80, 81, 9999})
	if list := x.Doubtful(id); !slices.Contains(list, 80) || !slices.Contains(list, 81) || len(list) != 2 {
		t.Errorf("in doubt: got %v, want %d in it, %d in it, 2 of them", list, 80, 81)
	}
	if err := x.Clear(id); err != nil {
		t.Fatal(err)
	}
	doubts("a clear", 0)
	x.Doubt(id, nil)
	store(0, 0, 100, 0)
	doubts("stored after a gap that found nothing", 0)
}

// TestGapIsCheap checks that a gap does not list what is held, that confirmed blocks cost an entry for each sixteen, and that
// these are freed when the doubt ends.
func TestGapIsCheap(t *testing.T) {
	x := New(Options{})
	id := x.Join(SlotOptions{})
	const blocks = 200_000
	names := make([]uint64, blocks)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range names {
		names[i] = rng.Uint64()
	}
	if err := x.Store(id, GPU, 0, false, names, names); err != nil {
		t.Fatal(err)
	}
	s := x.slot(id)
	for range 2 {
		if n := testing.AllocsPerRun(10, func() { x.Doubt(id, nil) }); n > 2 || len(s.sure) > 0 || x.InDoubt(id) != blocks {
			t.Errorf("got %v allocations of a gap and %d pages listed, want at most 2 and none, with %d blocks in doubt", n, len(s.sure), blocks)
		}
		if n := x.Confirm(id, names[blocks/2-1]); n != blocks/2 || len(s.sure) > blocks/2/pageBlocks+1 {
			t.Errorf("%d blocks confirmed on %d pages, want %d, at most %d", n, len(s.sure), blocks/2, blocks/2/pageBlocks+1)
		}
	}
	if n := x.Confirm(id, names[blocks-1]); n != blocks/2 || s.sure != nil {
		t.Errorf("%d blocks confirmed, %d pages left behind: got %v, want %d, nil", n, len(s.sure), s.sure, blocks/2)
	}
}

// TestDoubtWithinBudget checks that blocks that are evicted for lack of memory are no longer in doubt.
func TestDoubtWithinBudget(t *testing.T) {
	x := New(Options{MaxBytes: 1})
	id := x.Join(SlotOptions{})
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 4000 {
		list := make([]uint64, 400)
		for k := range list {
			list[k] = rng.Uint64()
		}
		if err := x.Store(id, GPU, 0, false, list, list); err != nil {
			t.Fatal(err)
		}
		switch {
		case i%100 == 50:
			x.Doubt(id, nil)
		case i%100 == 60:
			x.DropDoubtful(id, x.Doubtful(id)[:x.InDoubt(id)/8])
		}
		if n := x.InDoubt(id); n > x.HeldBlocks(id) || i%100 == 99 && n != len(x.Doubtful(id)) {
			t.Fatalf("%d blocks in doubt of %d held, %d listed", n, x.HeldBlocks(id), len(x.Doubtful(id)))
		}
	}
	if x.Stats().Evicted == 0 {
		t.Error("nothing was evicted")
	}
	x.DropDoubtful(id, x.Doubtful(id))
	if s := x.slot(id); s.sure != nil || s.doubtful != 0 {
		t.Errorf("%d blocks in doubt, %d pages: got %v, want nil, 0", s.doubtful, len(s.sure), s.sure)
	}
	audit(t, x)
}
