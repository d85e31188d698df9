package tokenizer

import (
	"encoding/binary"
	"math/bits"
)

// Two open-addressed tables carry the hot path: pairTable says what two neighbouring symbols merge to, wordTable knows
// whole words of up to 16 bytes. Both are built once and only read afterwards.

const noRank = ^uint32(0)

// pairTable maps two neighbouring symbols to the rank of their merge and its product.
type pairTable struct {
	slots []pairSlot
	shift uint8
	count int
}

type pairSlot struct {
	a, b     uint32 // a noID: free
	rank, id uint32
}

func newPairTable(n int) *pairTable {
	t := &pairTable{}
	size := tableSize(n)
	t.slots = make([]pairSlot, size)
	for i := range t.slots {
		t.slots[i].a = noID
	}
	t.shift = uint8(64 - bits.TrailingZeros(uint(size)))
	return t
}

// tableSize gives a power of two that n entries fill to two thirds at most.
func tableSize(n int) int {
	size := 16
	for size*2 < n*3 {
		size *= 2
	}
	return size
}

func (t *pairTable) hash(a, b uint32) int {
	return int((uint64(a)<<32 | uint64(b)) * 0x9E3779B97F4A7C15 >> (t.shift & 63))
}

// put stores a merge; a pair that comes twice keeps the later one, as in the reference.
func (t *pairTable) put(a, b, rank, id uint32) {
	mask := len(t.slots) - 1
	for i := t.hash(a, b); ; i = (i + 1) & mask {
		s := &t.slots[i]
		if s.a == noID {
			t.count++
		} else if s.a != a || s.b != b {
			continue
		}
		*s = pairSlot{a, b, rank, id}
		return
	}
}

// grow doubles the table.
func (t *pairTable) grow() {
	bigger := newPairTable(len(t.slots))
	for _, s := range t.slots {
		if s.a != noID {
			bigger.put(s.a, s.b, s.rank, s.id)
		}
	}
	*t = *bigger
}

// get gives the merge of a and b; rank noRank if there is none.
func (t *pairTable) get(a, b uint32) (rank, id uint32) {
	mask := len(t.slots) - 1
	for i := t.hash(a, b); ; i = (i + 1) & mask {
		s := &t.slots[i]
		if s.a == a && s.b == b {
			return s.rank, s.id
		}
		if s.a == noID {
			return noRank, noID
		}
	}
}

// shortWord is the longest word, in bytes, that a wordKey holds.
const shortWord = 16

// wordKey is a word of up to 16 bytes as two numbers, filled up with zeros, and its length.
type wordKey struct {
	lo, hi uint64
	n      uint32
}

// keyOf packs b[i:end]. Where 16 bytes can be read from i this is two loads and a mask.
func keyOf(b []byte, i, end int) wordKey {
	n := uint(end - i)
	var lo, hi uint64
	if i+shortWord <= len(b) {
		lo, hi = binary.LittleEndian.Uint64(b[i:]), binary.LittleEndian.Uint64(b[i+8:])
		if n < 8 {
			lo &= 1<<(n*8&63) - 1
			hi = 0
		} else if n < 16 {
			hi &= 1<<((n-8)*8&63) - 1
		}
	} else {
		var w [shortWord]byte
		copy(w[:], b[i:end])
		lo, hi = binary.LittleEndian.Uint64(w[:]), binary.LittleEndian.Uint64(w[8:])
	}
	return wordKey{lo, hi, uint32(n)}
}

func (k wordKey) hash() uint64 {
	h, l := bits.Mul64(k.lo^0x9E3779B97F4A7C15, k.hi^0xD6E8FEB86659FD93^uint64(k.n)<<56)
	return (h ^ l) * 0xFF51AFD7ED558CCD
}

// wordTable maps words of up to 16 bytes to token ids.
type wordTable struct {
	slots []wordSlot
	shift uint8
}

type wordSlot struct {
	lo, hi uint64
	n, id  uint32 // n 0: free
}

func newWordTable(n int) *wordTable {
	size := tableSize(n)
	return &wordTable{slots: make([]wordSlot, size), shift: uint8(64 - bits.TrailingZeros(uint(size)))}
}

func (t *wordTable) put(k wordKey, id uint32) {
	mask := len(t.slots) - 1
	for i := int(k.hash() >> (t.shift & 63)); ; i = (i + 1) & mask {
		if s := &t.slots[i]; s.n == 0 || s.n == k.n && s.lo == k.lo && s.hi == k.hi {
			*s = wordSlot{k.lo, k.hi, k.n, id}
			return
		}
	}
}

// get gives the id of a word whose hash is h.
func (t *wordTable) get(k wordKey, h uint64) (uint32, bool) {
	mask := len(t.slots) - 1
	for i := int(h >> (t.shift & 63)); ; i = (i + 1) & mask {
		s := &t.slots[i]
		if s.lo == k.lo && s.hi == k.hi && s.n == k.n {
			return s.id, true
		}
		if s.n == 0 {
			return 0, false
		}
	}
}
