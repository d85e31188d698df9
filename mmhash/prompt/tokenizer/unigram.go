package tokenizer

import (
	"fmt"
	"math"
	"slices"
	"unicode/utf8"
)

// unigram is the Unigram language model of SentencePiece as Hugging Face's tokenizers 0.23 decodes it: of all ways to cut a
// word into tokens, the one with the greatest sum of scores. A character that no token covers alone costs the lowest
// score less ten; neighbouring ones become one unknown token, or their bytes where byte fallback is on.
type unigram struct {
	vocab        *vocab
	scores       []float64
	trie         *trie
	unk          uint32
	byteFallback bool
	fallback     [256]uint32
	unkScore     float64

	// sentencePiece: scores are added in float32, a user's own symbols win over all else, and unknown characters are not joined when
	// they become bytes: SentencePiece 0.2's own arithmetic.
	single bool
}

const unknownPenalty = 10

// lattice is the memory of one search: for each position the best way to get there.
type lattice []latticeNode

type latticeNode struct {
	score float64
	from  int32
	id    uint32
}

func newUnigram(v *vocab, scores []float64, unk uint32, byteFallback bool) (*unigram, error) {
	m := &unigram{vocab: v, scores: scores, unk: unk, byteFallback: byteFallback, trie: newTrie(len(scores))}
	lowest := math.Inf(1)
	for id := range v.span() {
		if !v.has(id) {
			return nil, fmt.Errorf("vocab: no token has id %d (of %d), or two have one text", id, v.span())
		}
		if text := v.bytes(id); len(text) > 0 && !m.trie.add(text, id) {
			return nil, fmt.Errorf("vocab: too many characters")
		}
		lowest = min(lowest, scores[id])
	}
	m.unkScore = lowest - unknownPenalty
	for b := range m.fallback {
		m.fallback[b] = v.id(fmt.Appendf(nil, "<0x%02X>", b))
	}
	if unk != noID && unk >= v.span() {
		return nil, fmt.Errorf("unk_id %d: the vocabulary ends at %d", unk, v.span())
	}
	return m, nil
}

func (m *unigram) encode(dst []uint32, s *scratch, text []byte, i, end int) []uint32 {
	b := text[i:end]
	if len(b) == 0 {
		return dst
	}
	m.search(s, b)
	// The path is read from its end; ids go to dst backwards and are turned round.
	start := len(dst)
	best := s.lattice
	for at := len(b); at > 0; {
		n := best[at]
		from := int(n.from)
		if n.id == m.unk {
			for from > 0 && best[from].id == m.unk {
				from = int(best[from].from)
			}
			dst = m.unknown(dst, b[from:at])
		} else {
			dst = append(dst, n.id)
		}
		at = from
	}
	slices.Reverse(dst[start:])
	return dst
}

// search fills the lattice for b.
func (m *unigram) search(s *scratch, b []byte) {
	if cap(s.lattice) <= len(b) {
		s.lattice = make(lattice, len(b)+1+len(b)/4)
	}
	best := s.lattice[:len(b)+1]
	s.lattice = best
	for i := range best {
		best[i].from = -1
	}
	best[0].score = 0
	reach := func(end, from int, id uint32, score float64) {
		if n := &best[end]; n.from < 0 || score > n.score {
			*n = latticeNode{score, int32(from), id}
		}
	}
	for at, look := 0, lookEvery; at < len(b); {
		if at > look {
			s.look()
			look = at + lookEvery
		}
		_, size := utf8.DecodeRune(b[at:])
		here, covered := best[at].score, false
		node := uint32(0)
		for i := at; i < len(b); i++ {
			if node = m.trie.next(node, b[i]); node == 0 {
				break
			}
			id := m.trie.token[node]
			if id == noID {
				continue
			}
			score := m.scores[id] + here
			if m.single {
				score = float64(float32(m.scores[id]) + float32(here))
			}
			reach(i+1, at, id, score)
			covered = covered || i+1-at == size
		}
		if !covered {
			score := m.unkScore + here
			if m.single {
				score = float64(float32(m.unkScore) + float32(here))
			}
			reach(at+size, at, m.unk, score)
		}
		at += size
	}
}

// unknown appends, backwards, what a stretch of unknown characters becomes.
func (m *unigram) unknown(dst []uint32, text []byte) []uint32 {
	if id := m.vocab.id(text); id != noID {
		return append(dst, id)
	}
	if m.byteFallback {
		start, whole := len(dst), true
		for i := len(text) - 1; i >= 0 && whole; i-- {
			id := m.fallback[text[i]]
			dst, whole = append(dst, id), id != noID
		}
		if whole {
			return dst
		}
		dst = dst[:start]
	}
	if m.unk == noID {
		return dst
	}
	return append(dst, m.unk)
}
