package prompt

import (
	"errors"
	"slices"

	"github.com/sightline-router/sightline/prompt/tokenizer"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Expanded is one prompt as the engine prefills it.
type Expanded struct {
	IDs   []uint32
	Spans []vision.Span // in prompt order; Index is the medium's index
	// Exact is false if the prompt is known only up to a medium. IDs and Spans end there, and Why is the reason.
	Exact bool
	Why   string // one of a fixed set of reasons
}

// Expand tokenizes a prompt and inserts the media; sizes[i] belongs to the i-th medium of the prompt. The error is a *Refused.
//
// The number of ids made is bounded: by max_model_len if the engine refuses longer prompts.
func (m *expander) Expand(d *Draft, p *DraftPrompt, sizes []vision.Media) (e Expanded, err error) {
	d.room, d.long = d.most, len(p.IDs) > d.most
	if len(p.Media) > 0 {
		d.room *= 2 // some families drop ids before they insert the media
	}
	defer func() { d.long, d.partial = false, false }()
	switch {
	case d.long:
	case m.mistral != nil:
		e, err = m.expandMistral(d, p, sizes)
	case len(p.Media) > 0 && m.visErr != nil:
		e = Expanded{IDs: m.encodeBefore(d, p), Why: "media of a model whose vision rule is not known"}
		_ = e.truncate(d) // keeps nothing, and no media are known
	case len(p.Media) > 0 && m.vision.ReadsText():
		e, err = m.expandText(d, p, sizes)
	default:
		e = Expanded{IDs: p.IDs, Exact: true}
		if p.IDs == nil {
			e.IDs = m.encode(d, p)
		}
		if d.Over() {
			return d.cut(p, e.IDs)
		}
		if d.truncate > 0 && p.addSpecial && p.IDs == nil && !d.side {
			e.IDs = m.tailOf(d, p, e.IDs)
		}
		_ = e.truncate(d) // without media yet
		if len(p.Media) > 0 {
			e, err = m.expandMedia(d, e.IDs, sizes)
			if err == nil && m.opt.Dialect.Cut != CutMarkers {
				err = e.truncate(d)
			}
		}
	}
	if d.Over() {
		return d.cut(p, p.IDs)
	}
	if err != nil {
		return e, err
	}
	if d.limit > 0 && len(e.IDs) > d.limit {
		return e, Refuse(whyTooLong)
	}
	return e, nil
}

// cut returns the result for a prompt that ran out of time or was too long, from the leading ids known by then, without media.
func (d *Draft) cut(p *DraftPrompt, ids []uint32) (Expanded, error) {
	if d.long && d.engineRefuses {
		return Expanded{}, Refuse(whyTooLong)
	}
	if len(p.Media) > 0 || d.truncate > 0 {
		ids = nil
	}
	if d.long {
		return Expanded{IDs: ids[:min(len(ids), d.most)], Why: ErrLong.Reason}, nil
	}
	return Expanded{IDs: ids, Why: d.whyOver().Reason}, nil
}

// whyOver returns why the draft is over before all of its text is tokenized.
func (d *Draft) whyOver() *Unpredicted {
	if d.partial {
		return ErrText
	}
	return ErrTime
}

// maxTokens bounds the ids made of one prompt: twice the longest context with which models with images are served.
const maxTokens = 1 << 21

// bound sets how many ids are made of one prompt: as many as the engine accepts, if it refuses more.
func (d *Draft) bound(maxModelLen int) {
	d.engineRefuses = maxModelLen > 0 && d.truncate == 0
	d.most = maxModelLen
	if !d.engineRefuses {
		d.most = max(maxModelLen, maxTokens)
	}
}

// options returns the tokenizer's options for a text of the draft.
func (d *Draft) options(addSpecial bool) tokenizer.Options {
	return tokenizer.Options{AddSpecial: addSpecial, Done: d.done, Max: d.room, Partial: &d.partial}
}

// bounded notes whether a text has more ids than there is room for.
func (d *Draft) bounded(ids []uint32) []uint32 {
	d.long = d.long || d.room > 0 && len(ids) > d.room
	return ids
}

// truncate keeps the part of the prompt that the request asks for. vLLM refuses a truncation that would cut or drop media.
func (e *Expanded) truncate(d *Draft) error {
	if d.truncate == 0 || len(e.IDs) <= d.truncate && e.Exact {
		return nil
	}
	if !e.Exact { // the place of the cut depends on what is not known
		e.IDs, e.Spans = nil, nil
		return nil
	}
	start, end := len(e.IDs)-d.truncate, len(e.IDs)
	if d.keepsHead {
		start, end = 0, d.truncate
	}
	for i, s := range e.Spans {
		if s.Offset < start || s.Offset+s.Length > end {
			return Refuse("truncate_prompt_tokens would cut media")
		}
		e.Spans[i].Offset -= start
	}
	e.IDs = e.IDs[start:end]
	return nil
}

// tailOf returns the end of a prompt as Hugging Face's tokenizers truncate it: tokens that they add in front stay.
func (m *expander) tailOf(d *Draft, p *DraftPrompt, ids []uint32) []uint32 {
	n := d.truncate
	text := m.encode(d, &DraftPrompt{Text: p.Text, tail: p.tail})
	front := len(ids) - len(text)
	if len(ids) <= n || front <= 0 || n < front || !slices.Equal(ids[front:], text) {
		return ids
	}
	return append(ids[:front:front], text[len(text)-(n-front):]...)
}

// cacheBytes bounds the cache of tokenized turns: about 4 million tokens.
const cacheBytes = 16 << 20

// encode returns a prompt's ids, or only some leading ones if the draft's time is over.
func (m *expander) encode(d *Draft, p *DraftPrompt) []uint32 {
	dst := make([]uint32, 0, min((len(p.Text)+len(p.tail))/3, d.room)+16)
	dst = d.bounded(m.cache.Encode(dst, p.Text, d.options(p.addSpecial)))
	if p.tail != "" && !d.Over() {
		dst = d.bounded(m.cache.Encode(dst, p.tail, d.options(false)))
	}
	if cap(dst) > 2*len(dst)+1024 {
		return slices.Clone(dst) // they may outlive the request by minutes
	}
	return dst
}

// encodeBefore returns the ids of the text before the first medium that stay the same whatever follows.
func (m *expander) encodeBefore(d *Draft, p *DraftPrompt) []uint32 {
	if p.before == "" {
		return nil
	}
	ids := m.encode(d, &DraftPrompt{Text: p.before, addSpecial: p.addSpecial})
	for _, next := range []string{"\n", "7", "a", "<"} {
		with := m.encode(d, &DraftPrompt{Text: p.before + next, addSpecial: p.addSpecial})
		ids = commonStart(ids, with)
	}
	return ids
}

// commonStart returns the beginning of a that b has too.
func commonStart[E comparable](a, b []E) []E {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return a[:n]
}

// expandText is Expand for engines that expand placeholders in the text.
func (m *expander) expandText(d *Draft, p *DraftPrompt, sizes []vision.Media) (Expanded, error) {
	text := p.Text
	if m.opt.Dialect.DecodesIDs {
		text = m.tok.Decode(m.encode(d, p), false)
	}
	out, spans, err := m.vision.With(m.tokens(d), d.most).ExpandText(nil, text, sizes, d.kwargs)
	return d.expanded(out, spans, err)
}

func (m *expander) expandMedia(d *Draft, ids []uint32, sizes []vision.Media) (e Expanded, err error) {
	out, spans, err := m.vision.With(m.tokens(d), d.most).Expand(nil, ids, sizes, d.kwargs)
	return d.expanded(out, spans, err)
}

// expanded converts package vision's errors to fixed reasons.
func (d *Draft) expanded(out []uint32, spans []vision.Span, err error) (Expanded, error) {
	if err == nil {
		return Expanded{IDs: out, Spans: spans, Exact: true}, nil
	}
	var refused *vision.RefusedError
	var open *vision.UndecidableError
	switch {
	case errors.As(err, &refused):
		return Expanded{}, &Refused{Status: refused.Status, Reason: "media that the engine refuses for their sizes, number or place"}
	case errors.As(err, &open) && open.TooMany && d.engineRefuses:
		return Expanded{}, Refuse(whyTooLong)
	case errors.As(err, &open) && open.TooMany:
		return Expanded{IDs: out, Spans: spans, Why: ErrLong.Reason}, nil
	case errors.As(err, &open):
		return Expanded{IDs: out, Spans: spans, Why: "media whose tokens a request does not tell"}, nil
	}
	return Expanded{}, err
}

// tokens adapts the tokenizer to package vision.
type tokens struct {
	*tokenizer.Tokenizer
	d *Draft
}

func (t tokens) EncodeText(dst []uint32, text string) []uint32 {
	return t.d.bounded(t.Encode(dst, text, t.d.options(false)))
}

func (t tokens) DecodeText(ids []uint32) string { return t.Decode(ids, false) }

// tokens returns the tokenizer for package vision, within the draft's time and bound.
func (m *expander) tokens(d *Draft) vision.Tokens {
	if m.mistral != nil {
		return controlTokens{tokens{m.tok, d}}
	}
	return tokens{m.tok, d}
}
