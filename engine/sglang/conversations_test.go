package sglang

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/prompt"
)

// TestConversations compares random conversations in each of SGLang's named formats with SGLang 0.5.23's own
// parser/conversation.py.
func TestConversations(t *testing.T) {
	const shipped = "../../examples/models/qwen2.5-vl"
	var rec struct {
		Rows []struct {
			Name, Prompt, Error string
			Request             json.RawMessage
			Images              int
		}
		Paths map[string]string
	}
	golden.JSON(t, &rec, "testdata/sglang_conversations.json.gz")
	var like *prompt.Model
	models := map[string]*prompt.Model{}
	open := 0
	for _, row := range rec.Rows {
		m := models[row.Name]
		if m == nil {
			var err error
			m, err = prompt.Load(shipped, prompt.Options{Dialect: Dialect(), TemplateFile: row.Name, Like: like})
			if err != nil {
				t.Fatal(err)
			}
			like, models[row.Name] = m, m
		}
		var sk body.Skeleton
		var req body.Request
		if err := errors.Join(sk.Scan([][]byte{row.Request}), body.Parse(&sk, &req)); err != nil {
			t.Fatal(err)
		}
		d, err := m.Read(t.Context(), prompt.ChatEndpoint, &req)
		var refused *prompt.Refused
		switch {
		case row.Error != "" && errors.As(err, &refused):
		case (row.Images > 0 || row.Error != "") && formatNamed(row.Name).image == "" && errors.Is(err, ErrConversation):
			open++
		case err != nil || row.Error != "":
			t.Errorf("%s %s: %v, SGLang: %q", row.Name, row.Request, err, row.Error)
		case d.Prompts[0].Text != row.Prompt || len(d.Prompts[0].Media) != row.Images:
			t.Errorf("%s %s:\nours     %q\nSGLang's %q", row.Name, row.Request, d.Prompts[0].Text, row.Prompt)
		}
	}
	for path, want := range rec.Paths {
		if got := formatOf("", "", path); got != want {
			t.Errorf("%s is written as %q, SGLang takes %q", path, got, want)
		}
	}
	if len(models) != len(conversationFormats()) {
		t.Errorf("%d of %d ways seen", len(models), len(conversationFormats()))
	}
	t.Logf("%d conversations, %d of them with media whose place is not known", len(rec.Rows), open)
}

// TestFormsByModel: SGLang selects a format by itself for some models; whisper's is not implemented here.
func TestFormsByModel(t *testing.T) {
	for _, c := range []struct {
		modelType, path, given string
		form                   bool
		err                    error
	}{
		{"internvl_chat", "/m", "", true, nil}, {"whisper", "/m", "", false, ErrConversation}, {"llava", "/m/llava-1.5-7b-hf", "", false, nil},
		{"minicpmv4_6", "/m/MiniCPM-V-4.6", "", false, nil},
		{"minicpmv", "/m", "", true, nil}, {"minicpmo", "/m", "", true, nil},
		{"qwen2_5_vl", "/m/qwen", "", false, nil}, {"gpt_oss", "/m", "", false, nil},
		{"qwen2_5_vl", "/m", "qwen2-vl", true, nil}, {"internvl_chat", "/m", "own.jinja", false, nil},
		{"qwen2_5_vl", "/m", "own.json", false, ErrConversation},
	} {
		form, err := conversation(c.given, prompt.Directory{ModelType: c.modelType, Path: c.path})
		if (form != nil) != c.form || !errors.Is(err, c.err) {
			t.Errorf("%+v: form %v, %v", c, form != nil, err)
		}
	}
}
