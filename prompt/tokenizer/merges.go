package tokenizer

import (
	"bytes"
	"cmp"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// The merges of a BPE model come as texts in a tokenizer.json or merges.txt, or follow from the vocabulary alone. They are resolved
// to ids on all processors; origin.go determines which of them can ever happen.

// merge joins two symbols a and b to the symbol id.
type merge struct{ a, b, rank, id uint32 }

// mergeTexts holds the two texts of each merge, lowest rank first.
type mergeTexts struct {
	text []byte
	cut  []uint32 // two per merge: the ends of its left and its right text
}

func (t *mergeTexts) add(left, right string) {
	t.text = append(t.text, left...)
	t.cut = append(t.cut, uint32(len(t.text)))
	t.text = append(t.text, right...)
	t.cut = append(t.cut, uint32(len(t.text)))
}

// readMergeTexts reads a JSON list of "a b" or ["a", "b"].
func readMergeTexts(b []byte) (*mergeTexts, error) {
	n := bytes.Count(b, []byte(","))
	t := &mergeTexts{text: make([]byte, 0, len(b)/2), cut: make([]uint32, 0, 2*n+2)}
	r := readerOf(b)
	r.List(func() {
		if r.Peek() != '[' {
			left, right, ok := strings.Cut(r.Text(), " ")
			if !ok || strings.Contains(right, " ") {
				r.Fail(fmt.Errorf("merge %d: want two texts with a space between, got %.60q", len(t.cut)/2, left+right))
			}
			t.add(left, right)
			return
		}
		rank := len(t.cut)
		r.List(func() {
			t.text = append(t.text, r.Text()...)
			t.cut = append(t.cut, uint32(len(t.text)))
		})
		if len(t.cut) != rank+2 {
			r.Fail(fmt.Errorf("merge %d: want two texts, got %d", rank/2, len(t.cut)-rank))
		}
	})
	return t, r.Err()
}

// readMergesTxt reads a merges.txt.
func readMergesTxt(b []byte) (*mergeTexts, error) {
	t := &mergeTexts{}
	for number, line := range strings.Split(string(b), "\n") {
		line = strings.TrimRight(line, "\r")
		if line == "" || strings.HasPrefix(line, "#version") {
			continue
		}
		left, right, ok := strings.Cut(line, " ")
		if !ok || left == "" || right == "" || strings.Contains(right, " ") {
			return nil, fmt.Errorf("line %d: want two texts with a space between, got %.60q", number+1, line)
		}
		t.add(left, right)
	}
	return t, nil
}

// resolve finds the ids of the merges' texts.
func (m *bpe) resolve(t *mergeTexts) error {
	m.merges = make([]merge, len(t.cut)/2)
	return inParts(len(m.merges), func(from, to int) error {
		start := uint32(0)
		if from > 0 {
			start = t.cut[2*from-1]
		}
		for rank := from; rank < to; rank++ {
			mid, end := t.cut[2*rank], t.cut[2*rank+1]
			whole, a, b := t.text[start:end], t.text[start:mid], t.text[mid:end]
			start = end
			left, right := m.vocab.id(a), m.vocab.id(b)
			if left == noID || right == noID {
				return fmt.Errorf("merge %d (%q, %q): not in the vocabulary", rank, a, b)
			}
			product := m.vocab.id(whole)
			if product == noID {
				return fmt.Errorf("merge %d (%q, %q): their sum is not in the vocabulary", rank, a, b)
			}
			m.merges[rank] = merge{left, right, uint32(rank), product}
		}
		return nil
	})
}

// inParts calls fn for parts of 0 … n concurrently, one for each processor, and returns the first part's error.
func inParts(n int, fn func(from, to int) error) error {
	parts := min(runtime.GOMAXPROCS(0), 8, n/1024+1)
	errs := make([]error, parts)
	var wg sync.WaitGroup
	for part := range parts {
		wg.Go(func() { errs[part] = fn(n*part/parts, n*(part+1)/parts) })
	}
	wg.Wait()
	return cmp.Or(errs...)
}

// allSplits makes every split of a token into two tokens a merge. in says which ids take part.
func (m *bpe) allSplits(rank func(id uint32) uint32, in func(id uint32) bool) {
	v := m.vocab
	for id := range v.span() {
		if !in(id) {
			continue
		}
		text := v.bytes(id)
		for i := 1; i < len(text); i++ {
			if !m.plainBytes && text[i]&0xC0 == 0x80 {
				continue
			}
			left, right := v.id(text[:i]), v.id(text[i:])
			if left != noID && right != noID && in(left) && in(right) {
				m.merges = append(m.merges, merge{left, right, rank(id), id})
			}
		}
	}
	slices.SortStableFunc(m.merges, func(a, b merge) int { return int(a.rank) - int(b.rank) })
}
