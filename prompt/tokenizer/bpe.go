package tokenizer

import (
	"bytes"
	"fmt"
	"slices"
	"sync"
	"unicode/utf8"
)

// bpe is byte pair encoding as in Hugging Face's tokenizers 0.23: a word is split into symbols, and repeatedly the pair with the
// lowest merge rank, leftmost first, becomes one symbol, until no pair has a merge.
//
// It works on one of two alphabets. With raw set, symbols are the bytes of the text, and every token text was mapped back from the
// byte-level alphabet (Ġ for a space) at load; otherwise symbols are characters.
//
// A word that is itself a token needs no merging if merging would produce that token: this holds for every entry of whole.
//
// Each further way pays for itself: without merge, words that are not cached cost twice (by the search) or three times (by the heap);
// without the search, a megabyte of one letter 200 times; without the cuts of wide.go, Chinese 6 to 10 times; without times of merges
// (origin.go), loading twice.
type bpe struct {
	vocab  *vocab
	raw    bool
	merges []merge // by rank; used while loading
	pairs  *pairTable
	origin []origin // by symbol

	byteSym                             [256]uint32        // raw: symbol of a byte, or noID
	runeSym                             *runeTable[uint32] // otherwise: symbol of a character, or noID
	fallback                            [256]uint32        // ids of <0x00> … <0xFF>, or noID
	byteFallback, fuseUnk, ignoreMerges bool
	unk                                 uint32 // the unknown token, or noID

	plainBytes bool // with raw: the vocabulary's texts are the bytes themselves

	spaced     bool   // texts contain spaces where tokens have ▁
	cutSpaces  bool   // with spaced: a word begins at each space
	regular    bool   // see setRegular
	joins      *joins // of a regular model of characters
	wideOnce   sync.Once
	wide       *wideTable // see wideChars
	searchOnce sync.Once
	search     *searchTable // see table

	whole *wordTable        // words of up to 16 bytes that are one token
	long  map[string]uint32 // longer ones
}

// setAlphabet fills the symbol tables from the vocabulary.
func (m *bpe) setAlphabet() {
	for b := range m.byteSym {
		if m.plainBytes {
			m.byteSym[b] = m.vocab.id([]byte{byte(b)})
		} else {
			m.byteSym[b] = m.vocab.id(utf8.AppendRune(nil, byteToRune[b]))
		}
		m.fallback[b] = m.vocab.id(fmt.Appendf(nil, "<0x%02X>", b))
	}
	if m.raw {
		return
	}
	m.runeSym = &runeTable[uint32]{values: slices.Repeat([]uint32{noID}, pageSize)}
	for id := range m.vocab.span() {
		text := m.vocab.bytes(id)
		if r, n := utf8.DecodeRune(text); n == len(text) && n > 0 && (r != utf8.RuneError || n == 3) {
			m.runeSym.put(r, id)
		}
	}
}

// setWhole fills the table of words that are one token: those that merging produces, or all with ignore_merges.
func (m *bpe) setWhole() {
	m.whole, m.long = &wordTable{make([]wordSlot, slotsFor(m.vocab.count))}, map[string]uint32{}
	var text []byte
	for id := range m.vocab.span() {
		if !m.vocab.has(id) || !m.ignoreMerges && !m.origin[id].exists() {
			continue
		}
		var ok bool
		text, ok = m.textOf(text[:0], id)
		if !ok || len(text) == 0 {
			continue
		}
		if len(text) > shortWord {
			m.long[string(text)] = id
		} else {
			k := keyOf(text, 0, len(text))
			*m.whole.find(k, k.hash()) = wordSlot{k.lo, k.hi, k.n, id}
		}
	}
}

// textOf appends the text whose merging could produce id, in the model's alphabet; it returns false if there is none.
func (m *bpe) textOf(dst []byte, id uint32) ([]byte, bool) {
	text := m.vocab.bytes(id)
	if m.spaced {
		return appendSpaced(dst, text), bytes.IndexByte(text, ' ') < 0
	}
	if !m.raw || m.plainBytes {
		return append(dst, text...), true
	}
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		b, ok := runeToByte(r)
		if !ok {
			return dst, false
		}
		dst = append(dst, b)
		text = text[n:]
	}
	return dst, true
}

// encode appends the ids of word b[i:end].
func (m *bpe) encode(dst []uint32, s *scratch, b []byte, i, end int) []uint32 {
	if end-i <= shortWord {
		k := keyOf(b, i, end)
		h := k.hash()
		if id, ok := m.whole.get(k, h); ok {
			return append(dst, id)
		}
		if !m.raw || !m.regular || end-i <= 3 || b[end-3] < 0xE0 {
			return m.encodeCached(dst, s, k, h, b[i:end])
		}
	} else if id, ok := m.long[string(b[i:end])]; ok {
		return append(dst, id)
	}
	switch {
	case m.joins != nil:
		return m.encodePieces(dst, s, b, i, end)
	case m.raw && m.regular:
		return m.encodeWide(dst, s, b, i, end)
	}
	return m.encodeUnlisted(dst, s, b[i:end])
}

// encodePieces appends the ids of b[i:end], split where no merge can cross. Only for models with joins.
func (m *bpe) encodePieces(dst []uint32, s *scratch, b []byte, i, end int) []uint32 {
	for look := i + lookEvery; i < end && !s.full(dst); {
		if i > look {
			s.look()
			look = i + lookEvery
		}
		stop := m.piece(b, i, end)
		if b[i] >= utf8.RuneSelf && oneChar(b[i:stop]) {
			dst = m.symbols(dst, b[i:stop])
		} else {
			dst = m.encodePiece(dst, s, b, i, stop)
		}
		i = stop
	}
	return dst
}

func oneChar(b []byte) bool {
	_, n := utf8.DecodeRune(b)
	return n == len(b)
}

// encodePiece appends the ids of b[i:end], a part of a word.
func (m *bpe) encodePiece(dst []uint32, s *scratch, b []byte, i, end int) []uint32 {
	if end-i > shortWord {
		if id, ok := m.long[string(b[i:end])]; ok && !m.ignoreMerges {
			return append(dst, id)
		}
		return m.encodeUnlisted(dst, s, b[i:end])
	}
	k := keyOf(b, i, end)
	h := k.hash()
	if !m.ignoreMerges {
		if id, ok := m.whole.get(k, h); ok {
			return append(dst, id)
		}
	}
	return m.encodeCached(dst, s, k, h, b[i:end])
}

// encodeUnlisted appends the ids of a word that is not a single token.
func (m *bpe) encodeUnlisted(dst []uint32, s *scratch, word []byte) []uint32 {
	if m.regular && len(word) >= longWord {
		if m.spaced && bytes.Contains(word, []byte(lowerBar)) { // a ▁ typed by a user is equivalent to a space
			s.spaced = appendSpaced(s.spaced[:0], word)
			word = s.spaced
		}
		if with, ok := m.encodeSearch(dst, s, word); ok {
			return with
		}
	}
	return m.encodeWord(dst, s, word)
}

// encodeCached encodes a word of up to 16 bytes that is not one token, and caches the result.
func (m *bpe) encodeCached(dst []uint32, s *scratch, k wordKey, h uint64, word []byte) []uint32 {
	if len(word) == 0 {
		return dst
	}
	e := &s.words[h>>(64-wordCacheBits)]
	if e.lo == k.lo && e.hi == k.hi && uint32(e.n) == k.n {
		return append(dst, e.ids[:e.count]...)
	}
	start := len(dst)
	dst = m.encodeWord(dst, s, word)
	if n := len(dst) - start; n <= len(e.ids) {
		e.lo, e.hi, e.n, e.count = k.lo, k.hi, uint8(k.n), uint8(n)
		copy(e.ids[:], dst[start:])
	}
	return dst
}

// encodeWord appends the ids of a word by merging.
func (m *bpe) encodeWord(dst []uint32, s *scratch, word []byte) []uint32 {
	s.work(len(word))
	s.syms = m.symbols(s.syms[:0], word)
	return append(dst, s.syms[:m.merge(s, s.syms)]...)
}

// symbols appends the initial symbols of a word. A character without a symbol becomes the fallback tokens of its bytes, else the
// unknown token, else nothing. The reference emits an unknown token only at the next known character, so fallback tokens in between
// come before it.
func (m *bpe) symbols(dst []uint32, word []byte) []uint32 {
	unk := false
	for i := 0; i < len(word); {
		var id uint32
		size := 1
		if m.raw {
			id = m.byteSym[word[i]]
		} else {
			var r rune
			r, size = utf8.DecodeRune(word[i:])
			id = m.runeSym.at(r)
		}
		char := word[i : i+size]
		i += size
		if id != noID {
			if unk {
				dst, unk = append(dst, m.unk), false
			}
			dst = append(dst, id)
			continue
		}
		if m.byteFallback {
			if with, ok := m.fallbackOf(dst, char); ok {
				dst = with
				continue
			}
		}
		if m.unk != noID {
			if unk && !m.fuseUnk {
				dst = append(dst, m.unk)
			}
			unk = true
		}
	}
	if unk {
		dst = append(dst, m.unk)
	}
	return dst
}

// fallbackOf appends the byte tokens of a character. It returns false if one is missing.
func (m *bpe) fallbackOf(dst []uint32, char []byte) ([]uint32, bool) {
	var buf [utf8.UTFMax]byte
	if m.raw {
		char = utf8.AppendRune(buf[:0], byteToRune[char[0]])
	}
	for _, b := range char {
		id := m.fallback[b]
		if id == noID {
			return dst, false
		}
		dst = append(dst, id)
	}
	return dst, true
}

// smallMerge is the number of symbols up to which scanning all pairs for each merge is fastest.
const smallMerge = 32

// merge merges symbols in place and returns how many are left.
func (m *bpe) merge(s *scratch, syms []uint32) int {
	if len(syms) > smallMerge {
		return m.mergeHeap(s, syms)
	}
	var ranks, ids [smallMerge]uint32
	n := len(syms)
	for i := 0; i+1 < n; i++ {
		ranks[i], ids[i] = m.pairs.get(syms[i], syms[i+1])
	}
	for n > 1 {
		best, at := noRank, 0
		for i, r := range ranks[:n-1] {
			if r < best {
				best, at = r, i
			}
		}
		if best == noRank {
			break
		}
		s.last = [2]uint32{syms[at], syms[at+1]}
		syms[at] = ids[at]
		if at+2 < n {
			copy(syms[at+1:n-1], syms[at+2:n])
			copy(ranks[at+1:n-2], ranks[at+2:n-1])
			copy(ids[at+1:n-2], ids[at+2:n-1])
		}
		n--
		if at+1 < n {
			ranks[at], ids[at] = m.pairs.get(syms[at], syms[at+1])
		}
		if at > 0 {
			ranks[at-1], ids[at-1] = m.pairs.get(syms[at-1], syms[at])
		}
	}
	return n
}
