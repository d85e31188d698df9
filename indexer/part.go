package indexer

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Part is a share of all prompts, by the local hash of a prompt's first block: the Number-th of Of, counted from 1. The zero
// value is all of them. Nothing is kept of the other parts, also not which engine hashes they have: a block whose parent is not
// held is taken for one of theirs.
type Part struct{ Number, Of int }

// ErrElsewhere is Store's where a part is held: the blocks begin a prompt of another part, or hang behind a block that is not held.
var ErrElsewhere = errors.New("a block of another part")

// Holds reports whether prompts with that first block are of the part. All processes agree on it.
func (p Part) Holds(first uint64) bool {
	return p.Of < 2 || int(mix(first, partSeed)>>32%uint64(p.Of)) == p.Number-1
}

const partSeed = 0x51676874

// ParsePart reads "2/3", the second of three; "" is all prompts.
func ParsePart(text string) (p Part, err error) {
	if text == "" {
		return Part{}, nil
	}
	number, of, ok := strings.Cut(text, "/")
	if ok {
		if p.Number, err = strconv.Atoi(number); err == nil {
			p.Of, err = strconv.Atoi(of)
		}
	}
	if !ok || err != nil || p.Number < 1 || p.Number > p.Of || p.Of > mostParts {
		return Part{}, fmt.Errorf("%q is no part (want one such as 1/2, the first of two, of %d at most)", text, mostParts)
	}
	return p, nil
}

const mostParts = 1000

// Part is the share of all prompts that the index holds.
func (x *Index) Part() Part { return x.part }

// elsewhere drops blocks of another part. What the slot held by their names is not that any more.
func (s *slot) elsewhere(tier Tier, engineHashes []uint64) {
	for part := range slices.Chunk(engineHashes, sliceBlocks) {
		s.remove(tier, part)
	}
}
