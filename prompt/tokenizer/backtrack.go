package tokenizer

import (
	"bytes"
	"math"
)

// A long word is not merged but searched. Merging treats every stretch of a word as if it stood alone, as long as no
// merge crosses its ends; so a row of tokens is what merging the word gives exactly if merging any two neighbours of the
// row alone gives these two back. (If a merge ever crossed a border between two of them, the first such merge would
// also happen in merging these two alone.) The search goes from the left with the longest token first (but where the text
// repeats, with the token before once more) and steps back where the next pair does not hold; a position from which nothing
// led on is never tried again. What merging gives for the text up to a position is unique, so that each position has one
// token before it, and time is linear in the length.

// searchTable is what the search needs; it is built when the first long word comes (some 30 ms for 150,000 tokens).
type searchTable struct {
	trie    *trie
	shorter []uint32 // by token: the longest token that it begins with and is not, or noID
	length  []uint16 // by token: bytes of its text
}

// searchLook is the number of steps of a search after which Options.Done is looked at.
const searchLook = 1 << 11

// farBack is how many tokens a search goes on beyond Options.Max before it stops: those in front of them are final. A step back
// of more than a few tokens was never seen.
const farBack = 4 << 10

// longWord is the number of bytes from which a word is searched and not merged.
const longWord = 24

func (m *bpe) table() *searchTable {
	m.searchOnce.Do(func() {
		n := m.vocab.span()
		t := &searchTable{trie: newTrie(m.vocab.count), length: make([]uint16, n), shorter: make([]uint32, n)}
		var text []byte
		for id := range n {
			if !m.origin[id].exists() {
				continue
			}
			text, _ = m.textOf(text[:0], id)
			if len(text) > math.MaxUint16 || !t.trie.add(text, id) {
				return
			}
			t.length[id] = uint16(len(text))
		}
		t.trie.fit()
		for id, n := range t.length {
			t.shorter[id] = noID
			if n > 1 {
				text, _ = m.textOf(text[:0], uint32(id))
				t.shorter[id] = t.trie.longest(text[:n-1])
			}
		}
		m.search = t
	})
	return m.search
}

// encodeSearch appends the ids of a word by the search; false, and nothing appended, if a character has no token.
func (m *bpe) encodeSearch(dst []uint32, s *scratch, word []byte) ([]uint32, bool) {
	t := m.table()
	if t == nil {
		return dst, false
	}
	start, pos := len(dst), 0
	if n := len(word)/64 + 1; cap(s.dead) < n {
		s.dead = make([]uint64, n)
	} else {
		s.dead = s.dead[:n]
		clear(s.dead)
	}
	dead := s.dead
	token := t.trie.longest(word)
	again := false // token is the one before once more, tried first because the text repeats; the longest follows
	for step := 1; pos < len(word); step++ {
		if len(dst) > farBack && s.full(dst[farBack:]) {
			break
		}
		if step%searchLook == 0 {
			s.look()
		}
		if token == noID && pos == 0 {
			return dst[:start], false
		}
		found := false
		for token != noID {
			end := pos + int(t.length[token])
			if dead[end/64]>>(end%64)&1 == 0 && (len(dst) == start || m.holds(s, dst[len(dst)-1], token)) {
				dst, pos, found = append(dst, token), end, true
				break
			}
			if again {
				token, again = t.trie.longest(word[pos:]), false
			} else {
				token = t.shorter[token]
			}
		}
		if found {
			n := int(t.length[token])
			if again = pos+n <= len(word) && bytes.Equal(word[pos-n:pos], word[pos:pos+n]); !again {
				token = t.trie.longest(word[pos:])
			}
			continue
		}
		if len(dst) == start {
			return dst, false
		}
		// The token before leads nowhere: mark where it ends, and try the next in its place.
		dead[pos/64] |= 1 << (pos % 64)
		token = dst[len(dst)-1]
		dst = dst[:len(dst)-1]
		pos -= int(t.length[token])
		again = len(dst) > start && dst[len(dst)-1] == token
	}
	return dst, true
}

// pairCacheBits is the size of the cache of pairs that hold.
const pairCacheBits = 14

type cachedPair struct {
	key   uint64
	holds bool
}

// holds tells whether merging the texts of a and b together gives a and b.
func (m *bpe) holds(s *scratch, a, b uint32) bool {
	if s.pairs == nil {
		s.pairs = new([1 << pairCacheBits]cachedPair)
	}
	key := uint64(a)<<32 | uint64(b) + 1
	e := &s.pairs[key*0x9E3779B97F4A7C15>>(64-pairCacheBits)]
	if e.key == key {
		return e.holds
	}
	holds := false
	if m.origin[a].timed() && m.origin[b].timed() {
		holds = m.holdsTimed(a, b, noRank)
	} else if rank, _ := m.pairs.get(a, b); rank == noRank {
		s.pairText, _ = m.textOf(s.pairText[:0], a)
		s.pairText, _ = m.textOf(s.pairText, b)
		s.syms = m.symbols(s.syms[:0], s.pairText)
		n := m.merge(s, s.syms)
		holds = n == 2 && s.syms[0] == a && s.syms[1] == b
	}
	e.key, e.holds = key, holds
	return holds
}
