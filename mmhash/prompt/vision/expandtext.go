package vision

import (
	"slices"
	"sort"
	"strings"
)

// Expansion in the text, as the Hugging Face processor does it (and vLLM where
// it finds no placeholder among the ids).

// condensedText is a prompt in which every run of embedding tokens is a
// single one, so that it is tokenised as fast as a prompt without pictures.
// Added tokens never merge with their neighbours, so the ids are those of the
// full text with each run stretched afterwards.
type condensedText struct {
	str    []byte
	pieces []piece
}

type piece struct {
	end  int   // in str
	item *item // nil: the prompt's own text
	runs []int
	rule *rule
}

func (c *condensedText) plain(s string) {
	c.str = append(c.str, s...)
	c.pieces = append(c.pieces, piece{end: len(c.str)})
}

func (c *condensedText) item(b *builder, md Media, it *item) error {
	b.str, b.runs = b.str[:0], b.runs[:0]
	if err := b.item(md, it.k); err != nil {
		return err
	}
	c.str = append(c.str, b.str...)
	c.pieces = append(c.pieces, piece{end: len(c.str), item: it, runs: slices.Clone(b.runs), rule: it.rule})
	return nil
}

// encode tokenises the text and stretches the runs.
func (c *condensedText) encode(m *Model, dst []uint32, separately bool) ([]uint32, []Span, error) {
	var ids []uint32
	var ends []int // of the pieces in ids, when encoded separately
	if separately {
		from := 0
		for _, p := range c.pieces {
			ids = m.tok.EncodeText(ids, string(c.str[from:p.end]))
			ends = append(ends, len(ids))
			from = p.end
		}
	} else {
		ids = m.tok.EncodeText(nil, string(c.str))
	}
	// The runs in the order in which their tokens appear, tokens that the
	// prompt itself contains among them.
	type run struct {
		n     int
		piece int
	}
	var runs []run
	embeds := map[uint32]bool{}
	from := 0
	for i, p := range c.pieces {
		if p.item != nil {
			for _, n := range p.runs {
				runs = append(runs, run{n, i})
			}
			if p.rule.hasID {
				embeds[p.rule.id] = true
			}
		} else {
			text := string(c.str[from:p.end])
			for n := m.countEmbeds(text); n > 0; n-- {
				runs = append(runs, run{1, -1})
			}
		}
		from = p.end
	}
	base, next := len(dst), 0
	spans := make([]Span, 0, len(c.pieces)/2)
	first := make(map[int]int) // piece -> offset of its first run
	last := make(map[int]int)
	for i, id := range ids {
		if !m.isEmbed(id) {
			dst = append(dst, id)
			continue
		}
		if next == len(runs) {
			return dst[:base], nil, undecidable("image", "the tokenizer reads a placeholder where the text has none (token %d)", i)
		}
		r := runs[next]
		next++
		if r.piece >= 0 {
			if _, seen := first[r.piece]; !seen {
				first[r.piece] = len(dst) - base
			}
		}
		dst = appendRun(dst, id, r.n)
		if r.piece >= 0 {
			last[r.piece] = len(dst) - base
		}
	}
	if next != len(runs) {
		return dst[:base], nil, undecidable("image", "%d placeholder tokens of the text were not tokenised as such", len(runs)-next)
	}
	for i, p := range c.pieces {
		if p.item == nil {
			continue
		}
		text := ""
		if i > 0 {
			text = string(c.str[c.pieces[i-1].end:p.end])
		} else {
			text = string(c.str[:p.end])
		}
		lead, trail := text, ""
		if p.rule.hasID {
			if at := strings.Index(text, p.rule.idText); at >= 0 {
				lead = text[:at]
				trail = text[strings.LastIndex(text, p.rule.idText)+len(p.rule.idText):]
			}
		}
		start, end := first[i]-len(m.tok.EncodeText(nil, lead)), last[i]
		if trail != "" {
			end += len(m.literal([]byte(trail), true, p.rule))
		}
		spans = append(spans, Span{p.item.index, max(start, 0), min(end, len(dst)-base) - max(start, 0)})
	}
	sort.SliceStable(spans, func(i, j int) bool { return spans[i].Offset < spans[j].Offset })
	return dst, spans, nil
}

func (m *Model) isEmbed(id uint32) bool {
	for _, r := range m.rules {
		if r.hasID && r.id == id {
			return true
		}
	}
	return false
}

// countEmbeds counts the embedding tokens that a text spells out.
func (m *Model) countEmbeds(text string) int {
	n := 0
	for i, r := range m.rules {
		if !r.hasID {
			continue
		}
		seen := false
		for _, earlier := range m.rules[:i] {
			seen = seen || earlier.hasID && earlier.id == r.id
		}
		if !seen {
			n += strings.Count(text, r.idText)
		}
	}
	return n
}

// ExpandText expands the placeholders of a rendered prompt and tokenises it,
// as the engine does: in the text for engines that run the Hugging Face
// processor (SGLang, TensorRT-LLM), on the ids for vLLM. See Expand.
func (m *Model) ExpandText(dst []uint32, text string, media []Media, kw Kwargs) ([]uint32, []Span, error) {
	if m.fam == nil || !m.ReadsText() {
		return m.Expand(dst, m.tok.EncodeText(nil, text), media, kw)
	}
	// SGLang and TensorRT-LLM call the processor for requests with media only.
	if m.fam.prepareText != nil && (len(media) > 0 || m.engine == Transformers) {
		text = m.fam.prepareText(m, text)
	}
	if len(media) == 0 {
		if m.engine == Transformers && m.placeholderIn(text, "") {
			return dst, nil, refused(400, "a placeholder in the text, but no media")
		}
		return m.embedIDs(m.tok.EncodeText(dst, text), len(dst)), nil, nil
	}
	q, err := m.queue(media)
	if err != nil {
		return dst, nil, err
	}
	b, err := m.builder(kw, images(media))
	if err != nil {
		return dst, nil, err
	}
	b.mode = condensed
	var c condensedText
	for k, i := range q.inserted {
		if err := c.item(b, media[i], &item{rule: q.inserting, index: i, k: k}); err != nil {
			return dst, nil, err
		}
	}
	from := 0
	for q.left > 0 {
		it, at, end := q.next(from, func(it *item, from int) (int, int) {
			target := it.targetText()
			if i := strings.Index(text[from:], target); i >= 0 {
				return from + i, from + i + len(target)
			}
			return -1, -1
		})
		if it == nil {
			return dst, nil, refused(400, "fewer placeholders in the prompt than media (%d are left over)", q.left)
		}
		c.plain(text[from:at])
		if err := c.item(b, media[it.index], it); err != nil {
			return dst, nil, err
		}
		from = end
	}
	c.plain(text[from:])
	for _, p := range c.pieces {
		if p.item != nil && m.placeholderIn(text[from:], p.item.rule.modality) {
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

// placeholderIn reports whether a text holds a placeholder of a modality, of
// any for "". The processors count them and refuse a mismatch; vLLM does not.
func (m *Model) placeholderIn(text, modality string) bool {
	for _, r := range m.rules {
		if (modality == "" || r.modality == modality) && len(r.targets) > 0 && strings.Contains(text, r.target) {
			return true
		}
	}
	return false
}

// edited applies the family's finishText to the whole text and cuts it into
// pieces again, at the embedding tokens.
func (c condensedText) edited(m *Model) condensedText {
	whole := m.fam.finishText(m, string(c.str))
	var out condensedText
	from := 0
	for _, p := range c.pieces {
		if p.item == nil {
			continue
		}
		id := p.rule.idText
		// Every picture's runs follow in order; a piece is its runs only.
		at := strings.Index(whole[from:], id)
		if at < 0 {
			break
		}
		start := from + at
		end := start
		for range p.runs {
			if i := strings.Index(whole[end:], id); i >= 0 {
				end += i + len(id)
			}
		}
		out.plain(whole[from:start])
		out.str = append(out.str, whole[start:end]...)
		out.pieces = append(out.pieces, piece{end: len(out.str), item: p.item, runs: p.runs, rule: p.rule})
		from = end
	}
	out.plain(whole[from:])
	return out
}

// embedIDs writes TensorRT-LLM's out-of-vocabulary id over every media id
// from offset base on.
func (m *Model) embedIDs(out []uint32, base int) []uint32 {
	if m.trtID == 0 {
		return out
	}
	for i, id := range out[base:] {
		if m.isEmbed(id) {
			out[base+i] = m.trtID
		}
	}
	return out
}
