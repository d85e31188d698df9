package vision

import (
	"errors"
	"slices"
)

// Expand replaces the placeholders of media in the prompt's ids and appends the result to dst. The n-th medium of a modality
// replaces the n-th occurrence of its placeholder, even one that a user typed; further occurrences stay as they are (vLLM 0.32).
// Spans come in prompt order, with offsets from the first appended id.
//
// Fewer placeholders than media is a *RefusedError: the engine answers 500. Errors of Count are passed on; with an
// *UndecidableError, out still holds the tokens before that medium, which are exact (vLLM). Costs one pass over ids plus the
// output; it allocates per request and replacement, not per token. ids is not changed.
func (m *Expander) Expand(dst, ids []uint32, media []Media, kw Kwargs) (out []uint32, spans []Span, err error) {
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
	b.out = slices.Grow(dst, len(ids)+b.size(media))
	items, err := m.queue(media)
	if err != nil {
		return dst, nil, err
	}
	spans = make([]Span, 0, len(media))
	put := func(it *item) error {
		start := len(b.out)
		if err := b.item(media[it.index], it.k); err != nil {
			b.out = b.out[:start]
			return err
		}
		spans = append(spans, Span{it.index, start - base, len(b.out) - start})
		return nil
	}
	rest, err := m.insert(b, ids, items.inserted, put)
	if err != nil {
		return dst, nil, err
	}
	plain := func(part []uint32) { b.out = append(b.out, part...) }
	rest, err = place(items, rest, func(it *item) []uint32 { return it.targetIDs(m) }, plain, put)
	var undecided *UndecidableError
	switch {
	case errors.As(err, &undecided):
		return m.exactPrefix(b.out, base, spans), spans, err
	case err != nil:
		return dst, nil, err
	case items.left > 0:
		return m.expandDecoded(dst, ids, media, kw)
	}
	b.out = append(b.out, rest...)
	if m.fam.newlineMerge {
		b.out = m.mergeNewlines(b.out, base, spans)
	}
	return b.out, spans, nil
}

// insert writes the media of a family without placeholders after the prompt's beginning, and returns the remaining ids.
func (m *Expander) insert(b *builder, ids []uint32, items []*item, put func(*item) error) ([]uint32, error) {
	if len(items) == 0 {
		return ids, nil
	}
	p := items[0].placeholder.prefix
	if len(ids) < len(p) || !slices.Equal(ids[:len(p)], p) {
		return nil, refused(500, "the prompt does not start with %q, behind which the images go", m.tok.DecodeText(p))
	}
	b.out = append(b.out, p...)
	for _, it := range items {
		if err := put(it); err != nil {
			return nil, err
		}
	}
	return ids[len(p):], nil
}

// exactPrefix finishes a prompt that ends at a medium that cannot be counted.
func (m *Expander) exactPrefix(out []uint32, base int, spans []Span) []uint32 {
	if !m.fam.newlineMerge {
		return out
	}
	out = m.mergeNewlines(out, base, spans)
	for len(out) > base && slices.Contains(m.newlines[:], out[len(out)-1]) {
		out = out[:len(out)-1] // it may merge with what follows
	}
	return out
}

// item is one medium waiting for its placeholder.
type item struct {
	placeholder *placeholder
	index       int // in the media slice
	k           int // number within its modality, from 0
	ids         []uint32
}

func (it *item) targetIDs(m *Expander) []uint32 {
	if it.ids == nil {
		it.ids = it.placeholder.targets
		if it.ids == nil {
			it.ids = m.tok.EncodeText(nil, it.targetText())
		}
	}
	return it.ids
}

func (it *item) targetText() string {
	return numbered(it.placeholder.target, it.k+1)
}

// queues holds the waiting media, one queue for each distinct placeholder.
type queues struct {
	waiting  [][]*item
	left     int
	inserted []*item // of a family that inserts instead of replacing
}

func (m *Expander) queue(media []Media) (*queues, error) {
	q := &queues{}
	byText := map[string]int{}
	counts := map[*placeholder]int{}
	for i, md := range media {
		r := placeholderOf(m.placeholders, md.Modality)
		if r == nil {
			return nil, refused(400, "the model takes no %s", orImage(md.Modality))
		}
		it := &item{placeholder: r, index: i, k: counts[r]}
		counts[r]++
		if r.target == "" {
			if r.count == nil {
				return nil, undecidable(r.modality, notCounted)
			}
			q.inserted = append(q.inserted, it)
			continue
		}
		text := it.targetText()
		at, ok := byText[text]
		if !ok {
			at = len(q.waiting)
			byText[text] = at
			q.waiting = append(q.waiting, nil)
		}
		q.waiting[at] = append(q.waiting[at], it)
		q.left++
	}
	return q, nil
}

// place walks a prompt from one placeholder of a waiting item to the next, in one pass for any number of items. It passes the text
// before a placeholder to plain and the item to put, and returns the rest after the last one. Items without a place remain in
// q.left. target returns an item's placeholder.
func place[E byte | uint32](q *queues, text []E, target func(*item) []E, plain func([]E), put func(*item) error) ([]E, error) {
	list := make([][]E, len(q.waiting))
	for i, items := range q.waiting {
		list[i] = target(items[0])
	}
	n := newMultiSearch(list)
	from := 0
	for at := 0; at < len(text) && q.left > 0; at++ {
		if !n.first[byte(text[at])] {
			continue
		}
		best, end := -1, 0
		n.at(text, at, func(i, to int) {
			if len(q.waiting[i]) > 0 && (best < 0 || i < best) {
				best, end = i, to
			}
		})
		if best < 0 {
			continue
		}
		it := q.waiting[best][0]
		q.waiting[best] = q.waiting[best][1:]
		q.left--
		plain(text[from:at])
		if err := put(it); err != nil {
			return nil, err
		}
		from, at = end, end-1
	}
	return text[from:], nil
}

// images counts the images of a request, on which some rules depend.
func images(media []Media) int {
	n := 0
	for _, md := range media {
		if orImage(md.Modality) == "image" {
			n++
		}
	}
	return n
}

// expandDecoded is vLLM's second way, used if a placeholder is not found among the ids (because its text merged with its neighbours
// during tokenization): decode the prompt, replace in the text, encode again.
func (m *Expander) expandDecoded(dst, ids []uint32, media []Media, kw Kwargs) ([]uint32, []Span, error) {
	c, _, err := m.condense(m.tok.DecodeText(ids), media, kw, func(it *item) string { return m.tok.DecodeText(it.targetIDs(m)) })
	if err != nil {
		return dst, nil, err
	}
	return c.encode(m, dst, m.fam.viaPieces)
}

// mergeNewlines is vLLM's pass over Gemma 3 prompts: the vocabulary has tokens for 1 to 4 newlines, and two that become adjacent at
// a seam are merged.
func (m *Expander) mergeNewlines(out []uint32, base int, spans []Span) []uint32 {
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
