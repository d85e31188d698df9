package tokenizer

import (
	"encoding/json"
	"fmt"
)

// template is what add_special_tokens puts around a text. Each processor of a tokenizer.json wraps the result of the previous one.
type template struct {
	before, after []uint32
}

type tokenPair struct {
	text string
	id   uint32
}

func (p *tokenPair) UnmarshalJSON(b []byte) error {
	return json.Unmarshal(b, &[]any{&p.text, &p.id})
}

// postSpec is the post_processor section of a tokenizer.json; nil: there is none.
type postSpec struct {
	Type       string
	Processors []*postSpec
	Sep, Cls   *tokenPair
	Single     []struct {
		SpecialToken *struct{ ID string }
		Sequence     *struct{ ID string }
	}
	SpecialTokens map[string]struct{ IDs []uint32 } `json:"special_tokens"`
}

func (c *postSpec) build() (t template, err error) {
	if c == nil {
		return t, nil
	}
	switch c.Type {
	case "ByteLevel": // moves offsets only
	case "Sequence":
		for i, one := range c.Processors {
			inner, err := one.build()
			if err != nil {
				return t, fmt.Errorf("processors[%d]: %w", i, err)
			}
			t.before = append(inner.before, t.before...)
			t.after = append(t.after, inner.after...)
		}
	case "BertProcessing", "RobertaProcessing":
		if c.Sep == nil || c.Cls == nil {
			return t, fmt.Errorf("%s: want sep and cls", c.Type)
		}
		t.before, t.after = []uint32{c.Cls.id}, []uint32{c.Sep.id}
	case "TemplateProcessing":
		side := &t.before
		for _, piece := range c.Single {
			switch {
			case piece.Sequence != nil:
				if piece.Sequence.ID != "A" || side == &t.after {
					return t, fmt.Errorf("single: want the sequence A once")
				}
				side = &t.after
			case piece.SpecialToken != nil:
				token, ok := c.SpecialTokens[piece.SpecialToken.ID]
				if !ok {
					return t, fmt.Errorf("single: special token %q is not listed", piece.SpecialToken.ID)
				}
				*side = append(*side, token.IDs...)
			}
		}
	default:
		return t, fmt.Errorf("type %q: not known", c.Type)
	}
	return t, nil
}
