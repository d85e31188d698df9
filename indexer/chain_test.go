package indexer

import (
	"slices"
	"testing"
)

func TestChain(t *testing.T) {
	x := New(Options{})
	id := x.Join(SlotOptions{})
	hashes, locals := make([]uint64, 5000), make([]uint64, 5000) // more than a node's blocks
	for i := range hashes {
		hashes[i], locals[i] = uint64(1000+i), uint64(i)*0x9E3779B97F4A7C15
	}
	store := func(parent uint64, has bool, hashes, locals []uint64) {
		t.Helper()
		if err := x.Store(id, GPU, parent, has, hashes, locals); err != nil {
			t.Fatal(err)
		}
	}
	store(0, false, hashes, locals)
	branch := []uint64{1, 2, 3}
	store(hashes[99], true, []uint64{1, 2, 3}, branch)
	for _, c := range []struct {
		hash uint64
		most int
		want []uint64
	}{
		{hashes[0], 1, locals[:1]},
		{hashes[17], 100, locals[:18]},
		{hashes[4999], 5000, locals},
		{hashes[4999], 4999, nil},
		{2, 102, append(slices.Clone(locals[:100]), 1, 2)},
		{2, 101, nil},
		{77, 100, nil},
	} {
		got := x.Chain([]uint64{9}, id, c.hash, c.most)
		if got[0] != 9 || !slices.Equal(got[1:], c.want) {
			t.Errorf("block %d, at most %d: %d blocks, want %d", c.hash, c.most, len(got)-1, len(c.want))
		}
	}
	if _, err := x.Remove(id, GPU, hashes[:50]); err != nil {
		t.Fatal(err)
	}
	if got := x.Chain(nil, id, 3, 200); !slices.Equal(got, append(slices.Clone(locals[:100]), branch...)) {
		t.Errorf("behind evicted blocks: %d blocks, want 103", len(got))
	}
	if got := x.Chain(nil, id+1, 3, 200); got != nil {
		t.Errorf("of an unknown slot: got %v, want nil", got)
	}
}
