package vision

import (
	"errors"
	"slices"
)

// Expand puts the replacements of media into the prompt ids and appends the result to dst. The n-th medium of a modality goes
// to the n-th occurrence of its placeholder, whoever wrote it: one that a user typed takes the picture, and further occurrences
// stay as they are (vLLM 0.32). Spans come in prompt order, offsets count from the first appended id.
//
// Fewer placeholders than media is a *RefusedError: the engine answers 500. Errors of Count are passed on; with an
// *UndecidableError, out still holds the tokens before that medium, which are exact (vLLM). Costs one pass over ids plus the
// output; it allocates per request and replacement, not per token. ids is not changed.
func (m *Model) Expand(dst, ids []uint32, media []Media, kw Kwargs) (out []uint32, spans []Span, err error) {
	switch {
	case m.fam == nil && len(media) > 0:
		return dst, nil, refused(400, "a text model takes no media")
	case m.ReadsText() && m.fam != nil:
		return m.ExpandText(dst, m.tok.DecodeText(ids), media, kw)
	}
	if len(media) == 0 {
		return append(dst, ids...), nil, nil
	}
	if m.fam.prepareIDs != nil {
		ids = m.fam.prepareIDs(m, ids)
	}
	b, err := m.builder(kw, images(media))
	if err != nil {
		return dst, nil, err
	}
	base := len(dst)
	b.out = slices.Grow(dst, len(ids))
	items, err := m.queue(media)
	if err != nil {
		return dst, nil, err
	}
	spans = make([]Span, 0, len(media))
	from := 0
	if items.inserting != nil {
		p := items.inserting.prefix
		if len(ids) < len(p) || !slices.Equal(ids[:len(p)], p) {
			return dst, nil, refused(500, "the prompt does not start with %q, behind which the pictures go", m.tok.DecodeText(p))
		}
		b.out = append(b.out, p...)
		from = len(p)
		for k, i := range items.inserted {
			start := len(b.out)
			if err := b.item(media[i], k); err != nil {
				return dst, nil, err
			}
			spans = append(spans, Span{i, start - base, len(b.out) - start})
		}
	}
	for items.left > 0 {
		it, at, end := next(items, ids, from, func(it *item) []uint32 { return it.targetIDs(m) }, indexIDs)
		if it == nil {
			return m.expandDecoded(dst, ids, media, kw)
		}
		b.out = append(b.out, ids[from:at]...)
		start := len(b.out)
		if err := b.item(media[it.index], it.k); err != nil {
			var unknown *UndecidableError
			if !errors.As(err, &unknown) {
				return dst, nil, err
			}
			return m.exactPrefix(b.out[:start], base, spans), spans, err
		}
		spans = append(spans, Span{it.index, start - base, len(b.out) - start})
		from = end
	}
	b.out = append(b.out, ids[from:]...)
	if m.fam.newlineMerge {
		b.out = m.mergeNewlines(b.out, base, spans)
	}
	return b.out, spans, nil
}

// exactPrefix finishes a prompt that breaks off at a medium that cannot be counted.
func (m *Model) exactPrefix(out []uint32, base int, spans []Span) []uint32 {
	if !m.fam.newlineMerge {
		return out
	}
	out = m.mergeNewlines(out, base, spans)
	for len(out) > base && slices.Contains(m.newlines[:], out[len(out)-1]) {
		out = out[:len(out)-1] // may merge with what follows
	}
	return out
}

// item is one medium that waits for its placeholder.
type item struct {
	rule  *rule
	index int // in the media slice
	k     int // number within its modality, from 0
	ids   []uint32
}

func (it *item) targetIDs(m *Model) []uint32 {
	if it.ids == nil {
		if it.ids = it.rule.targets; it.ids == nil {
			it.ids = m.tok.EncodeText(nil, it.targetText())
		}
	}
	return it.ids
}

func (it *item) targetText() string {
	return numbered(it.rule.target, it.k+1)
}

// queues hold the media that wait, one queue for each placeholder that can be told apart.
type queues struct {
	waiting   []queue
	many      any // *needles of their placeholders, where they are many
	left      int
	inserting *rule // family that inserts instead of replacing
	inserted  []int
}

type queue struct {
	items []*item
	// Where the placeholder comes next, from searched on; start < 0: nowhere.
	start, end int
	searched   bool
}

func (m *Model) queue(media []Media) (*queues, error) {
	q := &queues{}
	byKey := map[string]int{}
	counts := map[*rule]int{}
	for i, md := range media {
		r := m.rule(md.Modality)
		if r == nil {
			return nil, refused(400, "the model takes no %s", orImage(md.Modality))
		}
		it := &item{rule: r, index: i, k: counts[r]}
		counts[r]++
		if r.target == "" {
			if r.undecidable != "" {
				return nil, undecidable(r.modality, "%s", r.undecidable)
			}
			q.inserting = r
			q.inserted = append(q.inserted, i)
			continue
		}
		text := it.targetText()
		at, ok := byKey[text]
		if !ok {
			at = len(q.waiting)
			byKey[text] = at
			q.waiting = append(q.waiting, queue{})
		}
		q.waiting[at].items = append(q.waiting[at].items, it)
		q.left++
	}
	return q, nil
}

// next takes the waiting item whose placeholder comes first in text at or behind from; nil if none comes. target gives an
// item's placeholder. Few placeholders are searched for one by one, and every queue remembers where its next one stands, so
// that all searches together read the prompt once for each queue; many are searched for at once.
func next[E byte | uint32](q *queues, text []E, from int, target func(*item) []E, index func(text, target []E, from int) (start, end int)) (it *item, start, end int) {
	best := -1
	if len(q.waiting) > fewNeedles {
		best, start, end = nextOfMany(q, text, from, target)
	} else {
		for i := range q.waiting {
			w := &q.waiting[i]
			if len(w.items) == 0 {
				continue
			}
			if !w.searched || w.start >= 0 && w.start < from {
				w.start, w.end = index(text, target(w.items[0]), from)
				w.searched = true
			}
			if w.start >= 0 && (best < 0 || w.start < start) {
				best, start, end = i, w.start, w.end
			}
		}
	}
	if best < 0 {
		return nil, 0, 0
	}
	w := &q.waiting[best]
	it = w.items[0]
	w.items = w.items[1:]
	q.left--
	return it, start, end
}

func nextOfMany[E byte | uint32](q *queues, text []E, from int, target func(*item) []E) (best, start, end int) {
	n, ok := q.many.(*needles[E])
	if !ok {
		list := make([][]E, len(q.waiting))
		for i := range q.waiting {
			list[i] = target(q.waiting[i].items[0])
		}
		n = newNeedles(list)
		q.many = n
	}
	best = -1
	for start = from; start < len(text) && best < 0; start++ {
		n.at(text, start, func(i, to int) {
			if len(q.waiting[i].items) > 0 && (best < 0 || i < best) {
				best, end = i, to
			}
		})
	}
	return best, start - 1, end
}

// images counts the pictures of a request: some rules depend on it.
func images(media []Media) int {
	n := 0
	for _, md := range media {
		if orImage(md.Modality) == "image" {
			n++
		}
	}
	return n
}

func indexIDs(ids, target []uint32, from int) (start, end int) {
	if len(target) == 0 {
		return -1, -1
	}
	for from+len(target) <= len(ids) {
		i := slices.Index(ids[from:len(ids)-len(target)+1], target[0])
		if i < 0 {
			return -1, -1
		}
		from += i
		if slices.Equal(ids[from:from+len(target)], target) {
			return from, from + len(target)
		}
		from++
	}
	return -1, -1
}

// expandDecoded is vLLM's second way, taken when a placeholder is not found as ids (its text merged with its neighbours when
// the prompt was tokenised): decode the prompt, replace in the text, encode again.
func (m *Model) expandDecoded(dst, ids []uint32, media []Media, kw Kwargs) ([]uint32, []Span, error) {
	c, _, err := m.condense(m.tok.DecodeText(ids), media, kw, func(it *item) string { return m.tok.DecodeText(it.targetIDs(m)) })
	if err != nil {
		return dst, nil, err
	}
	return c.encode(m, dst, m.fam.viaPieces)
}

// mergeNewlines is vLLM's pass over Gemma 3 prompts: the vocabulary has tokens for 1 to 4 newlines, and pairs that meet at a
// seam become one.
func (m *Model) mergeNewlines(out []uint32, base int, spans []Span) []uint32 {
	n := m.newlines
	for _, pass := range [][3]uint32{{n[0], n[1], n[2]}, {n[1], n[0], n[2]}, {n[1], n[1], n[3]}} {
		w, span := base, 0
		for r := base; r < len(out); r++ {
			merged := r+1 < len(out) && out[r] == pass[0] && out[r+1] == pass[1]
			for span < len(spans) && (spans[span].Offset == r-base || merged && spans[span].Offset == r+1-base) {
				spans[span].Offset = w - base
				span++
			}
			if merged {
				out[w] = pass[2]
				r++
			} else {
				out[w] = out[r]
			}
			w++
		}
		out = out[:w]
	}
	return out
}
