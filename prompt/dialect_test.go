package prompt_test

import (
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	. "github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/template"
)

// stub is a fifth engine: it accepts images and texts in OpenAI's forms, joins texts with bars, and supports no tools.
func stub() Dialect {
	return Dialect{
		Format: (*template.Template).ContentFormat,
		Part: func(r *Reader, p *body.Part) (it Item, ok bool, err error) {
			if p.Type == "text" {
				it.Text, err = r.String(p.Fields["text"], "text part without valid text")
			} else {
				it.Medium, err = OpenAIMediaPart(p)
			}
			return it, true, err
		},
		Messages: func(_ *Reader, turns []Turn, _ bool) (list []template.Value, tail string, err error) {
			for _, t := range turns {
				list = append(list, template.NewDict(2).Set("role", template.String(t.Role)).Set("content",
					template.String(JoinText(t.Items, "|"))).Value())
			}
			return list, "", nil
		},
		Tools: func(template.Value, gjson.Result) (template.Value, error) { return template.None, nil },
	}
}

// TestStubEngine: in this package an engine is only its Dialect; a feature that the Dialect omits is absent.
func TestStubEngine(t *testing.T) {
	m := load(t, shipped, Options{Dialect: stub()})
	d := draft(t, m, ChatEndpoint,
		`{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"tools":[{"type":"function"}],"add_generation_prompt":false}`)
	if text := d.Prompts[0].Text; !strings.Contains(text, "<|im_start|>user\na|b<|im_end|>") ||
		!strings.HasSuffix(text, "<|im_start|>assistant\n") {
		t.Errorf("got %q, want %q in it, %q last", text, "<|im_start|>user\na|b<|im_end|>", "<|im_start|>assistant\n")
	}
	if _, err := m.Read(t.Context(), MessagesEndpoint, request(t, `{"messages":[{"role":"user","content":"a"}]}`)); err != ErrEndpoint {
		t.Errorf("another API: got %v, want %v", err, ErrEndpoint)
	}
	if _, err := Load(shipped, Options{}); err == nil || !strings.Contains(err.Error(), "Dialect") {
		t.Errorf("no dialect: got %v, want an error, %q in it", err, "Dialect")
	}
}
