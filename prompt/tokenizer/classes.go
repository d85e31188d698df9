package tokenizer

import (
	_ "embed"
	"encoding/binary"
	"sync"
)

// The reference engine's classes of every code point: Oniguruma's Unicode 16 classes, Rust's own, and the older tables of two
// crates. Go's unicode package is Unicode 15 and calls 4,924 of these letters unassigned. gen/classes.py makes the file by asking
// the reference about every code point.
//
//go:embed classes.bin
var classRuns []byte

// General categories in the order of gen/classes.py, those that are named here; categories has all.
const (
	gcCn = iota
	gcLu
	gcLl
	gcLt
	gcLm
	gcLo
	gcMn
	gcMc
	gcMe
	gcNd
	gcNl
	gcNo
	gcPc      // the first of punctuation
	gcSo = 22 // the last of symbols
)

// A class record: the category in the low five bits, then flags in the order of gen/classes.py.
const (
	clCategory    = 1<<5 - 1
	clOnigSpace   = 1 << (5 + iota - 1) // \s of the regex engine
	_                                   // \w of the regex engine
	_                                   // char::is_whitespace, which is unicode.IsSpace
	clRustNumeric                       // char::is_numeric
	clRustWord                          // \w of the crate regex
	clOldPunct                          // crate unicode_categories: punctuation
	clOldNorm                           // crate unicode-normalization-alignments: decomposes or has a combining class
)

const (
	maxRune   = 0x10FFFF
	pageBits  = 8
	pageSize  = 1 << pageBits
	pageCount = (maxRune + 1) / pageSize
)

// runeTable maps every code point to a small value in two steps; equal pages are stored once (about 120 KB for class records).
type runeTable[T comparable] struct {
	page   [pageCount]uint16
	values []T
}

// at returns the value of r, which must be a code point (0 … 0x10FFFF), as utf8.DecodeRune always returns.
func (t *runeTable[T]) at(r rune) T {
	return t.values[int(t.page[uint32(r)>>pageBits])<<pageBits|int(r&(pageSize-1))]
}

// put sets the value of r. The first page is shared by all characters that were not put.
func (t *runeTable[T]) put(r rune, v T) {
	p := &t.page[r>>pageBits]
	if *p == 0 {
		*p = uint16(len(t.values) >> pageBits)
		t.values = append(t.values, t.values[:pageSize]...)
	}
	t.values[int(*p)<<pageBits|int(r&(pageSize-1))] = v
}

// newRuneTable fills a table with f's value for every code point.
func newRuneTable[T comparable](f func(r rune) T) *runeTable[T] {
	t := &runeTable[T]{}
	seen := map[[pageSize]T]uint16{}
	for p := range t.page {
		var page [pageSize]T
		for i := range page {
			page[i] = f(rune(p<<pageBits | i))
		}
		n, ok := seen[page]
		if !ok {
			n = uint16(len(seen))
			seen[page] = n
			t.values = append(t.values, page[:]...)
		}
		t.page[p] = n
	}
	return t
}

// classes is the table of class records, unpacked at first use (about 10 ms).
var classes = sync.OnceValue(func() *runeTable[uint32] {
	runs, record, left := classRuns, uint32(0), uint64(0)
	return newRuneTable(func(rune) uint32 {
		if left == 0 {
			n, w := binary.Uvarint(runs)
			v, w2 := binary.Uvarint(runs[w:])
			left, record, runs = n, uint32(v), runs[w+w2:]
		}
		left--
		return record
	})
})

// isClass reports whether r has one of the given flags.
func isClass(r rune, flags uint32) bool { return classes().at(r)&flags != 0 }
