package tokenizer

import (
	"bytes"
	"fmt"

	"github.com/zeebo/xxh3"
)

const noID = ^uint32(0)

// vocab holds the model's own tokens: text to id and id to text. Texts lie in one block of bytes, and the index is a table of
// ids with open addressing, so a vocabulary of 150,000 entries costs about 4 MB.
type vocab struct {
	blob       []byte
	start, end []uint32 // by id; start noID: no such id
	index      []uint32 // ids, noID: free
	count      int
}

func newVocab(sizeHint int) *vocab {
	v := &vocab{blob: make([]byte, 0, sizeHint*8)}
	v.grow(sizeHint)
	return v
}

func (v *vocab) grow(n int) {
	size := 16
	for size < n*2 {
		size *= 2
	}
	old := v.index
	v.index = make([]uint32, size)
	for i := range v.index {
		v.index[i] = noID
	}
	for _, id := range old {
		if id != noID {
			v.index[v.slot(v.bytes(id))] = id
		}
	}
}

// add stores a token. A text that is already there gets the new id, as a JSON object's later key replaces an earlier one;
// an id that another text has is an error.
func (v *vocab) add(text []byte, id uint32) error {
	if v.has(id) && !bytes.Equal(v.bytes(id), text) {
		return fmt.Errorf("%q and %q both have id %d", v.bytes(id), text, id)
	}
	for uint32(len(v.start)) <= id {
		v.start = append(v.start, noID)
		v.end = append(v.end, 0)
	}
	if v.count*2 >= len(v.index) {
		v.grow(len(v.index))
	}
	slot := v.slot(text)
	if old := v.index[slot]; old != noID && old != id {
		v.start[old] = noID
	} else if old == noID {
		v.count++
	}
	v.start[id] = uint32(len(v.blob))
	v.blob = append(v.blob, text...)
	v.end[id] = uint32(len(v.blob))
	v.index[slot] = id
	return nil
}

// slot gives the place of text in the index: where it is, or where it would go.
func (v *vocab) slot(text []byte) int {
	mask := len(v.index) - 1
	for i := int(xxh3.Hash(text)) & mask; ; i = (i + 1) & mask {
		if id := v.index[i]; id == noID || bytes.Equal(v.bytes(id), text) {
			return i
		}
	}
}

// id gives the id of a text, noID if there is none.
func (v *vocab) id(text []byte) uint32 { return v.index[v.slot(text)] }

// has tells whether the vocabulary has the id.
func (v *vocab) has(id uint32) bool { return id < uint32(len(v.start)) && v.start[id] != noID }

// bytes gives the text of an id, nil if there is none.
func (v *vocab) bytes(id uint32) []byte {
	if !v.has(id) {
		return nil
	}
	return v.blob[v.start[id]:v.end[id]]
}

// span is one more than the largest id.
func (v *vocab) span() uint32 { return uint32(len(v.start)) }
