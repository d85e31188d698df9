package indexer_test

import (
	"fmt"

	"github.com/sightline-router/sightline/indexer"
)

// Two workers tell what they hold; a lookup says how many leading blocks of a prompt each of them has.
func Example() {
	x := indexer.New(indexer.Options{})
	a, b := x.Join(indexer.SlotOptions{}), x.Join(indexer.SlotOptions{})

	// Engine block hashes are the engine's own; local hashes are ours, of one block's tokens and media.
	if err := x.Store(a, indexer.GPU, 0, false, []uint64{901, 902, 903}, []uint64{11, 12, 13}); err != nil {
		fmt.Println(err)
	}
	if err := x.Store(b, indexer.GPU, 0, false, []uint64{77}, []uint64{11}); err != nil {
		fmt.Println(err)
	}
	if err := x.Store(b, indexer.GPU, 77, true, []uint64{78}, []uint64{99}); err != nil { // another second block
		fmt.Println(err)
	}

	var m indexer.Matches // used again for each lookup
	x.Match([]uint64{11, 12, 14}, &m)
	blocks := map[indexer.SlotID]uint32{}
	for _, held := range m.Slots {
		blocks[held.Slot] = held.Blocks
	}
	fmt.Println("a", blocks[a], "b", blocks[b], "longest", m.Longest)
	// Output:
	// a 2 b 1 longest 2
}
