package tokenizer

import (
	"encoding/binary"
	"math/bits"
)

// Two open-addressed tables carry the hot path: pairTable returns what two neighbouring symbols merge to, wordTable the ids of
// whole words of up to 16 bytes. Both are immutable once built.

const noRank = ^uint32(0)

// slotOf returns the slot of a hash in a table of n slots. n need not be a power of two, so a table is as large as its entries need.
func slotOf(hash uint64, n int) int {
	at, _ := bits.Mul64(hash, uint64(n))
	return int(at)
}

// slotsFor returns the number of slots for n entries, for a load of two thirds.
func slotsFor(n int) int { return n + n/2 + 16 }

// pairTable maps two neighbouring symbols to the rank of their merge and its result.
type pairTable struct {
	slots  []merge // a is noID: free
	likely pairSet // the pairs that merge; most look-ups are for pairs that do not
}

// newPairTable builds the table of merges. Of a pair that occurs twice the later one is used, as in the reference.
func newPairTable(merges []merge) *pairTable {
	t := &pairTable{slots: make([]merge, slotsFor(len(merges)))}
	for i := range t.slots {
		t.slots[i].a = noID
	}
	for _, c := range merges {
		t.likely.put(c.a, c.b)
		i := t.home(c.a, c.b)
		for t.slots[i].a != noID && (t.slots[i].a != c.a || t.slots[i].b != c.b) {
			i++
			if i == len(t.slots) {
				i = 0
			}
		}
		t.slots[i] = c
	}
	return t
}

func (t *pairTable) home(a, b uint32) int {
	return slotOf((uint64(a)<<32|uint64(b))*0x9E3779B97F4A7C15, len(t.slots))
}

// get returns the merge of a and b; rank is noRank if there is none.
func (t *pairTable) get(a, b uint32) (rank, id uint32) {
	if !t.likely.has(a, b) {
		return noRank, noID
	}
	for i := t.home(a, b); ; {
		s := &t.slots[i]
		if s.a == a && s.b == b {
			return s.rank, s.id
		}
		if s.a == noID {
			return noRank, noID
		}
		i++
		if i == len(t.slots) {
			i = 0
		}
	}
}

// shortWord is the longest word, in bytes, that a wordKey holds.
const shortWord = 16

// wordKey is a word of up to 16 bytes as two zero-padded numbers, and its length.
type wordKey struct {
	lo, hi uint64
	n      uint32
}

// keyOf packs b[i:end]. If 16 bytes can be read from i, this is two loads and a mask.
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
type wordTable struct{ slots []wordSlot }

type wordSlot struct {
	lo, hi uint64
	n, id  uint32 // n is 0: free
}

// find returns the slot of a word whose hash is h, or the free one where it would go.
func (t *wordTable) find(k wordKey, h uint64) *wordSlot {
	for i := slotOf(h, len(t.slots)); ; {
		s := &t.slots[i]
		if s.lo == k.lo && s.hi == k.hi && s.n == k.n || s.n == 0 {
			return s
		}
		i++
		if i == len(t.slots) {
			i = 0
		}
	}
}

// get returns the id of a word whose hash is h.
func (t *wordTable) get(k wordKey, h uint64) (uint32, bool) {
	s := t.find(k, h)
	return s.id, s.n != 0
}
