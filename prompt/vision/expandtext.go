package vision

import (
	"slices"
	"strings"
)

// Expansion in the text, as the Hugging Face processor does it (and vLLM if it finds no placeholder among the ids).

// condensedText is a prompt in which every run of embedding tokens is reduced to one, so that it is tokenized as fast as a prompt
// without images. Added tokens never merge with their neighbours, so stretching each run afterwards gives the ids of the full
// text.
type condensedText []piece

// piece is a part of the prompt's own text, or one replacement.
type piece struct {
	text string
	item *item // nil: the prompt's own text
	runs []int // the run length of each embedding token in it: 1 in the prompt's own text
	// The position of the runs in the expanded prompt.
	first, last int
}

func (c *condensedText) plain(m *Expander, s string) {
	*c = append(*c, piece{text: s, runs: slices.Repeat([]int{1}, m.countEmbeds(s))})
}

func (c *condensedText) item(b *builder, md Media, it *item) error {
	b.str, b.runs = b.str[:0], b.runs[:0]
	if err := b.item(md, it.k); err != nil {
		return err
	}
	*c = append(*c, piece{text: string(b.str), item: it, runs: slices.Clone(b.runs), first: -1})
	return nil
}

func (c condensedText) String() string {
	var b strings.Builder
	size := 0
	for i := range c {
		size += len(c[i].text)
	}
	b.Grow(size)
	for i := range c {
		b.WriteString(c[i].text)
	}
	return b.String()
}

// encode tokenizes the text, all at once or piece by piece, stretches the runs and appends the result to dst.
func (c condensedText) encode(m *Expander, dst []uint32, separately bool) ([]uint32, []Span, error) {
	var ids []uint32
	if separately {
		for i := range c {
			ids = m.tok.EncodeText(ids, c[i].text)
		}
	} else {
		text := c.String()
		ids = m.tok.EncodeText(make([]uint32, 0, min(len(text)/3, m.most)+16), text)
	}
	base, size := len(dst), len(ids)
	for i := range c {
		for _, n := range c[i].runs {
			size += n - 1
		}
	}
	dst = slices.Grow(dst, max(size, 0))
	at, run := c.next(0, 0)
	for i, id := range ids {
		if !m.isEmbed(id) {
			dst = append(dst, id)
			continue
		}
		if at == len(c) {
			return dst[:base], nil, undecidable("image", "the tokenizer reads a placeholder where the text has none (token %d)", i)
		}
		p := &c[at]
		if run == 0 {
			p.first = len(dst) - base
		}
		dst = appendRun(dst, id, p.runs[run])
		p.last = len(dst) - base
		at, run = c.next(at, run+1)
	}
	if at < len(c) {
		return dst[:base], nil, undecidable("image", "placeholder tokens of the text were not tokenised as such")
	}
	var spans []Span
	for i := range c {
		if c[i].item != nil {
			spans = append(spans, c[i].span(m, len(dst)-base))
		}
	}
	slices.SortStableFunc(spans, func(a, b Span) int { return a.Offset - b.Offset })
	return dst, spans, nil
}

// next returns the first run at or after a piece's run; the piece is len(c) if there is none.
func (c condensedText) next(at, run int) (int, int) {
	for at < len(c) && run >= len(c[at].runs) {
		at, run = at+1, 0
	}
	return at, run
}

// span returns the replacement's place: its runs and what the layout puts around them. If text at its ends merges with the
// neighbours' (newlines in Gemma 3), the shared token is included, as in vLLM.
func (p *piece) span(m *Expander, total int) Span {
	r := p.item.placeholder
	lead, trail := p.text, ""
	if i := strings.Index(p.text, r.idText); r.hasID && i >= 0 {
		lead, trail = p.text[:i], p.text[strings.LastIndex(p.text, r.idText)+len(r.idText):]
	}
	start := max(p.first-len(m.tok.EncodeText(nil, lead)), 0)
	end := p.last
	if trail != "" {
		end = min(end+len(m.literal([]byte(trail), true, r)), total)
	}
	return Span{p.item.index, start, max(end-start, 0)}
}

func (m *Expander) isEmbed(id uint32) bool {
	return slices.ContainsFunc(m.placeholders, func(r *placeholder) bool { return r.hasID && r.id == id })
}

// countEmbeds counts the embedding tokens that a text spells out.
func (m *Expander) countEmbeds(text string) (n int) {
	for i, r := range m.placeholders {
		if r.hasID && slices.IndexFunc(m.placeholders, func(other *placeholder) bool { return other.hasID && other.id == r.id }) == i {
			n += strings.Count(text, r.idText)
		}
	}
	return n
}

// ExpandText expands the placeholders of a rendered prompt and tokenizes it, as the engine does: in the text for engines that run
// the Hugging Face processor (SGLang, TensorRT-LLM), on the ids for vLLM. See Expand.
func (m *Expander) ExpandText(dst []uint32, text string, media []Media, kw Kwargs) ([]uint32, []Span, error) {
	if m.fam == nil || !m.ReadsText() {
		return m.Expand(dst, m.tok.EncodeText(nil, text), media, kw)
	}
	// SGLang and TensorRT-LLM call the processor only for requests with media.
	if m.fam.prepareText != nil && (len(media) > 0 || m.settings.reading.Always) {
		text = m.fam.prepareText(m, text)
	}
	if len(media) == 0 {
		if m.settings.reading.Always && m.placeholderIn(text, "") {
			return dst, nil, refused(400, "a placeholder in the text, but no media")
		}
		return m.embedIDs(m.tok.EncodeText(dst, text), len(dst)), nil, nil
	}
	c, rest, err := m.condense(text, media, kw, (*item).targetText)
	if err != nil {
		return dst, nil, err
	}
	for _, r := range m.placeholders {
		given := slices.ContainsFunc(media, func(md Media) bool { return orImage(md.Modality) == r.modality })
		if given && m.placeholderIn(rest, r.modality) {
			return dst, nil, refused(400, "more placeholders in the text than media")
		}
	}
	if m.fam.finishText != nil {
		// The family edits text across the seams, so spans are those of the runs alone.
		c = c.edited(m)
	}
	base := len(dst)
	out, spans, err := c.encode(m, dst, false)
	if err != nil {
		return dst, nil, err
	}
	return m.embedIDs(out, base), spans, nil
}

// condense puts the replacements of media into a text. target returns the text that an item replaces. rest is the prompt's own text
// after the last of them.
func (m *Expander) condense(text string, media []Media, kw Kwargs, target func(*item) string) (c condensedText, rest string, err error) {
	q, err := m.queue(media)
	if err != nil {
		return nil, "", err
	}
	b, err := m.builder(kw, images(media))
	if err != nil {
		return nil, "", err
	}
	b.condensed = true
	put := func(it *item) error { return c.item(b, media[it.index], it) }
	for _, it := range q.inserted {
		if err := put(it); err != nil {
			return nil, "", err
		}
	}
	plain := func(part []byte) { // place passes parts of the text, not copies
		from := len(text) - cap(part)
		c.plain(m, text[from:from+len(part)])
	}
	left, err := place(q, bytesOf(text), func(it *item) []byte { return bytesOf(target(it)) }, plain, put)
	if err != nil {
		return nil, "", err
	}
	if q.left > 0 {
		status := 500
		if m.ReadsText() {
			status = 400
		}
		return nil, "", refused(status, "fewer placeholders in the prompt than media (%d are left over)", q.left)
	}
	rest = text[len(text)-len(left):]
	c.plain(m, rest)
	return c, rest, nil
}

// placeholderIn reports whether a text holds a placeholder of a modality ("": of any). The processors count them and refuse a
// mismatch; vLLM does not.
func (m *Expander) placeholderIn(text, modality string) bool {
	return slices.ContainsFunc(m.placeholders, func(r *placeholder) bool {
		return (modality == "" || r.modality == modality) && len(r.targets) > 0 && strings.Contains(text, r.target)
	})
}

// edited applies the family's finishText to the whole text and splits it into pieces again. An image's piece then consists of its
// runs only.
func (c condensedText) edited(m *Expander) condensedText {
	rest := m.fam.finishText(m, c.String())
	var out condensedText
	for _, p := range c {
		if p.item == nil {
			continue
		}
		id := p.item.placeholder.idText
		start := strings.Index(rest, id)
		if start < 0 {
			break
		}
		end := start
		for range p.runs {
			if i := strings.Index(rest[end:], id); i >= 0 {
				end += i + len(id)
			}
		}
		out.plain(m, rest[:start])
		out = append(out, piece{text: rest[start:end], item: p.item, runs: p.runs, first: -1})
		rest = rest[end:]
	}
	out.plain(m, rest)
	return out
}

// embedIDs replaces every media id from offset base on by the id above the vocabulary, if there is one (Reading.OutOfVocab).
func (m *Expander) embedIDs(out []uint32, base int) []uint32 {
	if m.outOfVocab == 0 {
		return out
	}
	for i, id := range out[base:] {
		if m.isEmbed(id) {
			out[base+i] = m.outOfVocab
		}
	}
	return out
}
