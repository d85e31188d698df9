package indexer

import (
	"errors"
	"math/rand/v2"
	"testing"
)

// TestPart checks that half of the prompts take half of the memory: nothing is kept of the others, and a held block is dropped
// when its engine hash is reused for one of theirs.
func TestPart(t *testing.T) {
	const prompts, length = 6000, 200
	fill := func(p Part) (*Index, SlotID, int64) {
		x := New(Options{Part: p})
		slot := x.Join(SlotOptions{})
		rng := rand.New(rand.NewPCG(1, 1))
		for range prompts {
			hashes, locals := make([]uint64, length), make([]uint64, length)
			for i := range hashes {
				hashes[i], locals[i] = rng.Uint64(), rng.Uint64()
			}
			half := length / 2
			first := x.Store(slot, GPU, 0, false, hashes[:half], locals[:half])
			then := x.Store(slot, GPU, hashes[half-1], true, hashes[half:], locals[half:])
			if elsewhere := !p.Holds(locals[0]); elsewhere != errors.Is(first, ErrOtherPart) || elsewhere != errors.Is(then, ErrOtherPart) {
				t.Fatalf("%v: %v, %v", elsewhere, first, then)
			}
		}
		return x, slot, x.Stats().Used
	}
	x, slot, whole := fill(Part{})
	all := x.HeldBlocks(slot)
	sum := 0
	for i := range 2 {
		x, slot, used := fill(Part{i + 1, 2})
		n := x.HeldBlocks(slot)
		t.Logf("part %d of 2: %d of %d blocks, %d of %d bytes: 1/%.2f", i+1, n, all, used, whole, float64(whole)/float64(used))
		sum += n
		if used > whole*3/5 {
			t.Errorf("part %d takes %d of %d bytes", i+1, used, whole)
		}
	}
	if sum != all {
		t.Errorf("the parts hold %d blocks of %d", sum, all)
	}
	p := Part{1, 2}
	x = New(Options{Part: p})
	slot = x.Join(SlotOptions{})
	mine, theirs := uint64(0), uint64(0)
	for ; !p.Holds(mine); mine++ {
	}
	for ; p.Holds(theirs); theirs++ {
	}
	_ = x.Store(slot, GPU, 0, false, []uint64{7}, []uint64{mine})
	if err := x.Store(slot, GPU, 0, false, []uint64{7}, []uint64{theirs}); !errors.Is(err, ErrOtherPart) || x.HeldBlocks(slot) != 0 {
		t.Errorf("%v, %d blocks held", err, x.HeldBlocks(slot))
	}
	for text, want := range map[string]Part{"": {}, "1/1": {1, 1}, "2/3": {2, 3}, "0/2": {}, "3/2": {}, "1/": {}, "one": {}, "1/1001": {}} {
		if got, err := ParsePart(text); got != want || (err == nil) != (want != Part{} || text == "") {
			t.Errorf("%q: %v, %v", text, got, err)
		}
	}
}
