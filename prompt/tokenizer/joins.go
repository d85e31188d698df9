package tokenizer

import (
	"bytes"
	"unicode/utf8"
)

// joins says between which two characters a merge of the model can occur: those for which some merge's left part ends with the
// first and its right part begins with the second. At every other border the text splits into pieces that merge independently. A
// model without a pre-tokenizer merges a whole prompt as one word; split like this, its pieces are short again (Gemma 3: 33,695
// pairs of characters).
type joins struct {
	ascii [128][2]uint64
	wide  pairSet // pairs with a non-ASCII character
}

func (j *joins) put(a, b rune) {
	if a < 128 && b < 128 {
		j.ascii[a][b/64] |= 1 << (b % 64)
	} else {
		j.wide.put(uint32(a), uint32(b))
	}
}

func (j *joins) has(a, b rune) bool {
	if a < 128 && b < 128 {
		return j.ascii[a][b/64]>>(b%64)&1 != 0
	}
	return j.wide.has(uint32(a), uint32(b))
}

// pairSet is a set of pairs of numbers of up to 24 bits, with one bit per pair's hash. It may report pairs that were not added.
type pairSet [1 << (pairSetBits - 6)]uint64

const pairSetBits = 21

func pairBit(a, b uint32) uint64 {
	return (uint64(a)<<32 | uint64(b)) * 0x9E3779B97F4A7C15 >> (64 - pairSetBits)
}

func (s *pairSet) put(a, b uint32) {
	bit := pairBit(a, b)
	s[bit/64] |= 1 << (bit % 64)
}

func (s *pairSet) has(a, b uint32) bool {
	bit := pairBit(a, b)
	return s[bit/64]>>(bit%64)&1 != 0
}

// setRegular determines whether the model's words may be split and searched: each token's text must determine its symbol sequence,
// so that no byte token or unknown token takes part in a merge.
func (m *bpe) setRegular() {
	m.regular = true
	special := map[uint32]bool{}
	if m.unk != noID {
		special[m.unk] = true
	}
	if m.raw {
		for _, id := range m.byteSym {
			m.regular = m.regular && id != noID
		}
	} else {
		for _, id := range m.fallback {
			if id != noID {
				special[id] = true
			} else if m.byteFallback {
				m.regular = false
			}
		}
	}
	for _, s := range m.merges {
		if len(special) > 0 && (special[s.a] || special[s.b] || special[s.id]) {
			m.regular = false
		}
	}
}

// setJoins fills joins for a regular model of characters. Without byte fallback, characters that have no token become one unknown
// token, or vanish so that their neighbours become adjacent: such a model has no joins.
func (m *bpe) setJoins() {
	if !m.regular || m.raw || m.ignoreMerges || !m.byteFallback {
		return
	}
	m.joins = &joins{}
	for _, s := range m.pairs.slots {
		if s.a == noID {
			continue
		}
		a, _ := utf8.DecodeLastRune(m.vocab.bytes(s.a))
		b, _ := utf8.DecodeRune(m.vocab.bytes(s.b))
		b = m.asSpace(b)
		if b != ' ' || !m.cutSpaces {
			m.joins.put(m.asSpace(a), b)
		}
	}
}

const (
	lowerBar     = "▁"
	lowerBarRune = '▁'
)

func (m *bpe) asSpace(r rune) rune {
	if m.spaced && r == lowerBarRune {
		return ' '
	}
	return r
}

// appendSpaced appends b with a space for each ▁.
func appendSpaced(dst, b []byte) []byte {
	for {
		i := bytes.Index(b, []byte(lowerBar))
		if i < 0 {
			return append(dst, b...)
		}
		dst = append(append(dst, b[:i]...), ' ')
		b = b[i+len(lowerBar):]
	}
}

// piece returns the end of the piece that begins at b[i]; no merge crosses it.
func (m *bpe) piece(b []byte, i, end int) int {
	j := m.joins
	for i < end {
		c := b[i]
		if c < utf8.RuneSelf {
			for i++; i < end; i++ {
				d := b[i]
				if d >= utf8.RuneSelf {
					break
				}
				if j.ascii[c&127][d/64]>>(d%64)&1 == 0 {
					return i
				}
				c = d
			}
			if i == end || !m.joined(rune(c), b[i:]) {
				return i
			}
			continue
		}
		r, n := utf8.DecodeRune(b[i:])
		i += n
		if i == end || !m.joined(r, b[i:]) {
			return i
		}
	}
	return end
}

// joined reports whether r and the first character of rest must stay in one piece.
func (m *bpe) joined(r rune, rest []byte) bool {
	next, _ := utf8.DecodeRune(rest)
	next = m.asSpace(next)
	if next == ' ' && m.cutSpaces {
		return false
	}
	return m.joins.has(m.asSpace(r), next)
}
