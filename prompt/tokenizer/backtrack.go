package tokenizer

import (
	"bytes"
	"math"
)

// A long word is searched instead of merged. Merging treats each stretch of a word independently of its surroundings as long as no
// merge crosses its ends. So a sequence of tokens is the result of merging the word if and only if, for any two neighbours in it,
// merging their joined texts alone gives these two back. (If a merge ever crossed a border between two of them, the first such
// merge would also happen when merging these two alone.) The search goes from left to right and tries the longest token first, but
// where the text repeats, the previous token again. It backtracks if the next pair does not hold, and never returns to a position
// that led nowhere. The merge result for the text up to a position is unique, so each position has one predecessor token, and time
// is linear in the length.

// searchTable holds what the search needs. It is built for the first long word (some 30 ms for 150,000 tokens).
type searchTable struct {
	trie    *trie
	shorter []uint32 // by token: its longest proper prefix that is a token, or noID
	length  []uint16 // by token: length of its text in bytes
}

// searchLook is the number of search steps between two looks at Options.Done.
const searchLook = 1 << 11

// farBack is how many tokens beyond Options.Max a search continues before it stops; the tokens before that are final. Backtracking
// by more than a few tokens has never been observed.
const farBack = 4 << 10

// longWord is the length in bytes from which a word is searched instead of merged.
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

// encodeSearch appends the ids of a word found by the search. It returns false and appends nothing if a character has no token.
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
	again := false // token is the previous one again, tried first because the text repeats; the longest follows
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
			again = pos+n <= len(word) && bytes.Equal(word[pos-n:pos], word[pos:pos+n])
			if !again {
				token = t.trie.longest(word[pos:])
			}
			continue
		}
		if len(dst) == start {
			return dst, false
		}
		// Dead end: mark where the previous token ends, and try the next shorter one in its place.
		dead[pos/64] |= 1 << (pos % 64)
		token = dst[len(dst)-1]
		dst = dst[:len(dst)-1]
		pos -= int(t.length[token])
		again = len(dst) > start && dst[len(dst)-1] == token
	}
	return dst, true
}

// pairCacheBits is the log2 of the slots in the cache of pairs that hold.
const pairCacheBits = 14

type cachedPair struct {
	key   uint64
	holds bool
}

// holds reports whether merging the joined texts of a and b gives a and b.
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
