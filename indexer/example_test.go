package indexer_test

import (
	"fmt"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Two workers have stored prompts with a common beginning. A request that continues one of them is matched against both.
func Example() {
	const blockSize = 4
	locals := func(tokens ...uint32) []uint64 {
		return block.Fixed().Locals(nil, tokens, block.Form{Size: blockSize}, nil, block.Root{})
	}

	index := indexer.New(indexer.Options{})
	a := index.Join(indexer.SlotOptions{CountCopies: true})
	b := index.Join(indexer.SlotOptions{CountCopies: true})

	// Stored events: the engines' own block hashes, and the local hashes of the events' tokens.
	must(index.Store(a, indexer.GPU, 0, false, []uint64{901, 902}, locals(1, 2, 3, 4, 5, 6, 7, 8)))
	must(index.Store(a, indexer.CPU, 902, true, []uint64{903}, locals(9, 10, 11, 12))) // follows block 902
	must(index.Store(b, indexer.GPU, 0, false, []uint64{17}, locals(1, 2, 3, 4)))

	var m indexer.Matches // reused from lookup to lookup
	prompt := locals(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
	show := func() {
		index.Match(prompt, &m)
		for _, s := range m.Slots {
			fmt.Printf("slot %d holds %d of %d blocks\n", s.Slot, s.Blocks, len(prompt))
		}
	}
	show()

	unknown, err := index.Remove(a, indexer.GPU, []uint64{902, 555}) // the engine evicted 902; 555 was never stored
	must(err)
	fmt.Println("removed, unknown:", unknown)
	show()
	// Output:
	// slot 0 holds 3 of 4 blocks
	// slot 1 holds 1 of 4 blocks
	// removed, unknown: 1
	// slot 0 holds 1 of 4 blocks
	// slot 1 holds 1 of 4 blocks
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
