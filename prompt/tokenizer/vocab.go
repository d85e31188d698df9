package tokenizer

import (
	"bytes"
	"fmt"
	"unsafe"

	"github.com/zeebo/xxh3"
)

const noID = ^uint32(0)

// vocab holds the model's own tokens: text to id and id to text. Texts share one block of bytes, and the index is a table of ids
// with open addressing, so a vocabulary of 150,000 entries costs about 4 MB.
type vocab struct {
	blob       []byte
	start, end []uint32 // by id; start is noID: no such id
	index      []uint32 // an id and, in the high byte, eight bits of the text's hash; noID: free
	count      int
}

func newVocab(sizeHint int) *vocab {
	v := &vocab{blob: make([]byte, 0, sizeHint*8), start: make([]uint32, 0, sizeHint), end: make([]uint32, 0, sizeHint)}
	v.grow(sizeHint)
	return v
}

func (v *vocab) grow(n int) {
	old := v.index
	v.index = make([]uint32, slotsFor(n))
	for i := range v.index {
		v.index[i] = noID
	}
	for _, e := range old {
		if e != noID {
			slot, entry := v.find(v.bytes(e & idBits))
			v.index[slot] = entry | e&idBits
		}
	}
}

// add stores a token. A text that already exists gets the new id, as a JSON object's later key replaces an earlier one. An id that
// already has another text is an error.
func (v *vocab) add(text string, id uint32) error {
	if v.has(id) && string(v.bytes(id)) != text {
		return fmt.Errorf("%q and %q both have id %d", v.bytes(id), text, id)
	}
	for uint32(len(v.start)) <= id {
		v.start = append(v.start, noID)
		v.end = append(v.end, 0)
	}
	if v.count*3 >= len(v.index)*2 {
		v.grow(v.count * 2)
	}
	slot, entry := v.find(unsafe.Slice(unsafe.StringData(text), len(text)))
	if old := v.index[slot]; old == noID {
		v.count++
	} else {
		old &= idBits
		if old != id {
			v.start[old] = noID
		}
	}
	v.start[id] = uint32(len(v.blob))
	v.blob = append(v.blob, text...)
	v.end[id] = uint32(len(v.blob))
	v.index[slot] = entry | id
	return nil
}

const idBits = 1<<24 - 1 // ids are at most maxID

// find returns the slot of text in the index, or the one where it would go, and the hash bits of its entry.
func (v *vocab) find(text []byte) (slot int, entry uint32) {
	hash := xxh3.Hash(text)
	entry = uint32(hash) << 24
	for i := slotOf(hash, len(v.index)); ; {
		if e := v.index[i]; e == noID || e&^idBits == entry && bytes.Equal(v.bytes(e&idBits), text) {
			return i, entry
		}
		i++
		if i == len(v.index) {
			i = 0
		}
	}
}

// id returns the id of a text, noID if there is none.
func (v *vocab) id(text []byte) uint32 {
	slot, _ := v.find(text)
	if e := v.index[slot]; e != noID {
		return e & idBits
	}
	return noID
}

// has reports whether the vocabulary has the id.
func (v *vocab) has(id uint32) bool { return id < uint32(len(v.start)) && v.start[id] != noID }

// bytes returns the text of an id, nil if there is none.
func (v *vocab) bytes(id uint32) []byte {
	if !v.has(id) {
		return nil
	}
	return v.blob[v.start[id]:v.end[id]]
}

// span is one more than the largest id.
func (v *vocab) span() uint32 { return uint32(len(v.start)) }
