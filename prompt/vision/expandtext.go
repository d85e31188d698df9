package vision

import (
	"slices"
	"strings"
)

// Expansion in the text, as the Hugging Face processor does it (and vLLM where it finds no placeholder among the ids).

// condensedText is a prompt in which every run of embedding tokens is a single one, so that it is tokenised as fast as a prompt
// without pictures. Added tokens never merge with their neighbours, so the ids are those of the full text with each run
// stretched afterwards.
type condensedText []piece

// piece is a part of the prompt's own text or one replacement.
type piece struct {
	text string
	item *item // nil: the prompt's own text
	runs []int // the embedding tokens that each token in it stands for: 1 in the prompt's own text
	// Where the runs lie in the expanded prompt.
	first, last int
}

func (c *condensedText) plain(m *Model, s string) {
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
	for i := range c {
		b.WriteString(c[i].text)
	}
	return b.String()
}

// encode tokenises the text, all at once or piece by piece, stretches the runs and appends the result to dst.
func (c condensedText) encode(m *Model, dst []uint32, separately bool) ([]uint32, []Span, error) {
	var ids []uint32
	if separately {
		for i := range c {
			ids = m.tok.EncodeText(ids, c[i].text)
		}
	} else {
		ids = m.tok.EncodeText(nil, c.String())
	}
	base := len(dst)
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

// next gives the first run at or behind a piece's run; the piece is len(c) where there is none.
func (c condensedText) next(at, run int) (int, int) {
	for at < len(c) && run >= len(c[at].runs) {
		at, run = at+1, 0
	}
	return at, run
}

// span is the replacement's place: its runs and what the layout puts around them. Text at its ends may merge with the
// neighbours' (newlines in Gemma 3); then the shared token counts, as in vLLM.
func (p *piece) span(m *Model, total int) Span {
	r := p.item.rule
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

func (m *Model) isEmbed(id uint32) bool {
	return slices.ContainsFunc(m.rules, func(r *rule) bool { return r.hasID && r.id == id })
}

// countEmbeds counts the embedding tokens that a text spells out.
func (m *Model) countEmbeds(text string) (n int) {
	for i, r := range m.rules {
		if r.hasID && slices.IndexFunc(m.rules, func(other *rule) bool { return other.hasID && other.id == r.id }) == i {
			n += strings.Count(text, r.idText)
		}
	}
	return n
}

// ExpandText expands the placeholders of a rendered prompt and tokenises it, as the engine does: in the text for engines that
// run the Hugging Face processor (SGLang, TensorRT-LLM), on the ids for vLLM. See Expand.
func (m *Model) ExpandText(dst []uint32, text string, media []Media, kw Kwargs) ([]uint32, []Span, error) {
	if m.fam == nil || !m.ReadsText() {
		return m.Expand(dst, m.tok.EncodeText(nil, text), media, kw)
	}
	// SGLang and TensorRT-LLM call the processor for requests with media only.
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
	for _, r := range m.rules {
		given := slices.ContainsFunc(media, func(md Media) bool { return orImage(md.Modality) == r.modality })
		if given && m.placeholderIn(rest, r.modality) {
			return dst, nil, refused(400, "more placeholders in the text than media")
		}
	}
	if m.fam.finishText != nil {
		// The family edits text across the seams; spans are those of the runs.
		c = c.edited(m)
	}
	base := len(dst)
	out, spans, err := c.encode(m, dst, false)
	if err != nil {
		return dst, nil, err
	}
	return m.embedIDs(out, base), spans, nil
}

// condense puts the replacements of media into a text; target gives the text that an item replaces. rest is the prompt's own
// text behind the last of them.
func (m *Model) condense(text string, media []Media, kw Kwargs, target func(*item) string) (c condensedText, rest string, err error) {
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
	plain := func(part []byte) { c.plain(m, string(part)) }
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

// placeholderIn reports whether a text holds a placeholder of a modality, of any for "". The processors count them and refuse a
// mismatch; vLLM does not.
func (m *Model) placeholderIn(text, modality string) bool {
	for _, r := range m.rules {
		if (modality == "" || r.modality == modality) && len(r.targets) > 0 && strings.Contains(text, r.target) {
			return true
		}
	}
	return false
}

// edited applies the family's finishText to the whole text and cuts it into pieces again; a picture's piece is then its runs
// only.
func (c condensedText) edited(m *Model) condensedText {
	rest := m.fam.finishText(m, c.String())
	var out condensedText
	for _, p := range c {
		if p.item == nil {
			continue
		}
		id := p.item.rule.idText
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

// embedIDs writes the id above the vocabulary, where there is one (Reading.OutOfVocab), over every media id from offset base on.
func (m *Model) embedIDs(out []uint32, base int) []uint32 {
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
