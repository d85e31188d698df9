package tokenizer

import "unicode/utf8"

// wordPiece cuts a word greedily into the longest tokens from the left; all but the first carry a prefix (##). A word that
// cannot be cut so, or is too long, is one unknown token.
type wordPiece struct {
	vocab    *vocab
	prefix   string
	unk      uint32
	maxChars int
	starts   *trie // tokens as they are
	inside   *trie // tokens that begin with the prefix, without it
}

func newWordPiece(v *vocab, prefix string, unk uint32, maxChars int) *wordPiece {
	m := &wordPiece{vocab: v, prefix: prefix, unk: unk, maxChars: maxChars, starts: newTrie(v.count), inside: newTrie(v.count)}
	for id := range v.span() {
		text := v.bytes(id)
		if len(text) > 0 {
			m.starts.add(text, id)
		}
		if len(text) > len(prefix) && string(text[:len(prefix)]) == prefix {
			m.inside.add(text[len(prefix):], id)
		}
	}
	return m
}

func (m *wordPiece) encode(dst []uint32, _ *scratch, text []byte, i, end int) []uint32 {
	b := text[i:end]
	start, from := len(dst), m.starts
	if utf8.RuneCount(b) > m.maxChars {
		return m.unknown(dst)
	}
	for len(b) > 0 {
		id := from.longest(b)
		if id == noID {
			return m.unknown(dst[:start])
		}
		size := len(m.vocab.bytes(id))
		if from == m.inside {
			size -= len(m.prefix)
		}
		dst = append(dst, id)
		b, from = b[size:], m.inside
	}
	return dst
}

func (m *wordPiece) unknown(dst []uint32) []uint32 {
	if m.unk == noID {
		return dst
	}
	return append(dst, m.unk)
}

// wordLevel knows whole words only.
type wordLevel struct {
	vocab *vocab
	unk   uint32
}

func (m *wordLevel) encode(dst []uint32, _ *scratch, b []byte, i, end int) []uint32 {
	id := m.vocab.id(b[i:end])
	if id == noID {
		id = m.unk
	}
	if id == noID {
		return dst
	}
	return append(dst, id)
}
