package prompt

import (
	"errors"
	"strings"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/mistral"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/vision"
)

// converseMistral reads a conversation in Mistral mode: vLLM reads its parts as usual, then mistral-common makes ids of the
// messages including the images (vLLM 0.32, renderers/mistral.py).
func (m *Renderer) converseMistral(req *body.Request, messages []body.Message, s settings, d *Draft) error {
	if s.kwargs != nil || s.source != "" {
		return Refuse("a template or variables for one, in mistral mode")
	}
	r := m.reader(req.Body, nil)
	media := make(map[*body.Part]*MediaPart)
	for i := range messages {
		parts := messages[i].Parts
		for j := range parts {
			it, _, err := m.opt.Dialect.Part(r, &parts[j])
			if err != nil {
				return err
			}
			if it.Medium != nil {
				media[&parts[j]] = it.Medium
			}
		}
	}
	out, err := m.mistral.Encode(&mistral.Request{Body: req.Body, Messages: messages, Tools: s.tools,
		Continue: s.continueFinal, Effort: s.effort.Text(), Done: d.done, Max: d.most})
	var refused *mistral.RefusedError
	switch {
	case errors.As(err, &refused):
		return &Refused{Status: refused.Status, Reason: refused.Reason}
	case errors.Is(err, template.ErrLimit):
		return ErrTemplateLimit
	case errors.Is(err, mistral.ErrPython):
		return ErrPython
	case err != nil:
		return ErrPart
	}
	p := DraftPrompt{IDs: out.IDs}
	for _, part := range out.Images {
		p.Media = append(p.Media, *media[part])
	}
	d.Prompts = append(d.Prompts, p)
	return nil
}

// expandMistral is Expand in Mistral mode. The tokenizer inserts the images before the engine truncates, and unlike the engine it
// ignores their EXIF orientation: if that changes the number of rows, the engine does not find the image.
func (m *expander) expandMistral(d *Draft, p *DraftPrompt, sizes []vision.Media) (e Expanded, err error) {
	e = Expanded{IDs: p.IDs, Exact: true}
	if e.IDs == nil {
		e.IDs = m.encode(d, p)
		if d.Over() {
			return d.cut(p, e.IDs)
		}
		if n := d.truncate; p.addSpecial && !d.side && n > 0 && len(e.IDs) > n { // mistral-common truncates after BOS
			e.IDs[len(e.IDs)-n] = e.IDs[0]
		}
	}
	if len(p.Media) > 0 {
		for _, md := range sizes {
			if md.SidesSwapped && m.rows(md) != m.rows(vision.Media{Modality: md.Modality, Width: md.Height, Height: md.Width}) {
				return e, &Refused{Status: 500, Reason: "image whose EXIF orientation changes its rows, in mistral mode"}
			}
		}
		e, err = m.expandMedia(d, e.IDs, sizes)
		if err != nil || !e.Exact {
			return e, err
		}
	}
	if e.truncate(d) == nil {
		return e, nil
	}
	return e, &Refused{Status: 500, Reason: "truncate_prompt_tokens cuts an image"}
}

// rows returns what distinguishes an image's layout from others: its number of patches, and of all its tokens.
func (m *expander) rows(md vision.Media) (size [2]int) {
	if m.visErr == nil {
		size[0], size[1], _ = m.vision.Count(md, nil)
	}
	return size
}

// controlTokens adapts a Mistral tokenizer to package vision: it encodes only control tokens.
type controlTokens struct{ tokens }

func (t controlTokens) EncodeText(dst []uint32, text string) []uint32 {
	for text != "" {
		n := strings.IndexByte(text, ']') + 1
		id, ok := t.ID(text[:n])
		if !ok {
			return t.tokens.EncodeText(dst, text)
		}
		dst, text = append(dst, id), text[n:]
	}
	return dst
}
