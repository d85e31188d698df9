package prompt

import (
	"encoding/json"
	"errors"
	"testing"
)

// Random conversations in each of SGLang's named ways, written by SGLang 0.5.23's own parser/conversation.py.
func TestSGLangConversations(t *testing.T) {
	var golden struct {
		Rows []struct {
			Name, Prompt, Error string
			Request             json.RawMessage
			Images              int
		}
		Paths map[string]string
	}
	readAs(t, "testdata/sglang_conversations.json.gz", &golden)
	first := load(t, shipped, Options{})
	models := map[string]*Model{}
	open := 0
	for _, row := range golden.Rows {
		m := models[row.Name]
		if m == nil {
			m = load(t, shipped, Options{Engine: "sglang", TemplateFile: row.Name, Like: first})
			models[row.Name] = m
		}
		d, err := m.Read(t.Context(), chatEndpoint, request(t, string(row.Request)))
		var refused *Refused
		switch {
		case row.Error != "" && errors.As(err, &refused):
		case (row.Images > 0 || row.Error != "") && writingNamed(row.Name).image == "" && errors.Is(err, ErrConversation):
			open++
		case err != nil || row.Error != "":
			t.Errorf("%s %s: %v, SGLang: %q", row.Name, row.Request, err, row.Error)
		case d.Prompts[0].Text != row.Prompt || len(d.Prompts[0].Media) != row.Images:
			t.Errorf("%s %s:\nours     %q\nSGLang's %q", row.Name, row.Request, d.Prompts[0].Text, row.Prompt)
		}
	}
	for path, want := range golden.Paths {
		if got := writingOf("", "", path); got != want {
			t.Errorf("%s is written as %q, SGLang takes %q", path, got, want)
		}
	}
	if len(models) != len(writings()) {
		t.Errorf("%d of %d ways seen", len(models), len(writings()))
	}
	t.Logf("%d conversations, %d of them with media whose place is not known", len(golden.Rows), open)
}
