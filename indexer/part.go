package indexer

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Part is a share of all prompts, selected by the local hash of a prompt's first block: the Number-th of Of, counted from 1. The
// zero value is all prompts. Nothing is stored about other parts, not even their engine hashes: a block whose parent is not held
// is assumed to belong to another part.
type Part struct{ Number, Of int }

// ErrOtherPart is returned by Store if the index holds a part: the blocks begin a prompt of another part, or follow a block that
// is not held.
var ErrOtherPart = errors.New("a block of another part")

// Holds reports whether prompts with that first block belong to the part. All processes agree on it.
func (p Part) Holds(first uint64) bool {
	return p.Of < 2 || int(mix(first, partSeed)>>32%uint64(p.Of)) == p.Number-1
}

const partSeed = 0x51676874

// ParsePart parses "2/3", the second of three; "" is all prompts.
func ParsePart(text string) (p Part, err error) {
	if text == "" {
		return Part{}, nil
	}
	number, of, ok := strings.Cut(text, "/")
	if ok {
		p.Number, err = strconv.Atoi(number)
		if err == nil {
			p.Of, err = strconv.Atoi(of)
		}
	}
	if !ok || err != nil || p.Number < 1 || p.Number > p.Of || p.Of > maxParts {
		return Part{}, fmt.Errorf("%q is not a part (want one such as 1/2, the first of two, of %d at most)", text, maxParts)
	}
	return p, nil
}

const maxParts = 1000

// Part returns the share of all prompts that the index holds.
func (x *Index) Part() Part { return x.part }

// dropOtherPart removes blocks of another part: their engine hashes no longer stand for what the slot held under them.
func (s *slot) dropOtherPart(tier Tier, engineHashes []uint64) {
	for part := range slices.Chunk(engineHashes, sliceBlocks) {
		s.remove(tier, part)
	}
}
