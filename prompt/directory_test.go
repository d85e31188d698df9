package prompt_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	. "github.com/sightline-router/sightline/prompt"
)

// TestTemplatesOfDirectories: which template is used, by the files of a directory (transformers 5, with vLLM 0.32 and SGLang 0.5.23
// on top).
func TestTemplatesOfDirectories(t *testing.T) {
	const (
		config    = "tokenizer_config.json"
		processor = "chat_template.json"
		jinja     = "chat_template.jinja"
		extra     = "additional_chat_templates/tool_use.jinja"
	)
	for _, c := range []struct {
		name                    string
		files                   map[string]string
		plain, tools, tokenizer string
	}{
		{"none", nil, "", "", ""},
		{"tokenizer", map[string]string{config: `{"chat_template":"t"}`}, "t", "t", "t"},
		{"named", map[string]string{config: `{"chat_template":[{"name":"default","template":"d"},{"name":"tool_use","template":"u"}]}`},
			"d", "u", "d"},
		{"named by an object", map[string]string{config: `{"chat_template":{"default":"d","rag":"r"}}`}, "d", "d", "d"},
		{"only tool_use", map[string]string{config: `{"chat_template":[{"name":"tool_use","template":"u"}]}`}, "", "u", ""},
		{"processor alone", map[string]string{processor: `{"chat_template":"p"}`}, "p", "p", "p"},
		{"processor before tokenizer, but not with tools", map[string]string{config: `{"chat_template":"t"}`,
			processor: `{"chat_template":"p"}`}, "p", "t", "t"},
		{"one file for both", map[string]string{config: `{"chat_template":"t"}`, processor: `{"chat_template":"p"}`, jinja: "j"}, "j", "j", "j"},
		{"one file and one for tools", map[string]string{jinja: "j", extra: "u"}, "j", "u", "j"},
		{"in processor_config.json", map[string]string{"processor_config.json": `{"chat_template":"p"}`}, "p", "p", "p"},
	} {
		dir := t.TempDir()
		for name, text := range c.files {
			path := filepath.Join(dir, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := TemplatesIn(dir)
		if err != nil {
			t.Fatal(err)
		}
		if want := [3]string{c.plain, c.tools, c.tokenizer}; got != want {
			t.Errorf("%s: %q, want %q", c.name, got, want)
		}
	}
}

// copyShipped returns a copy of the shipped directory without one file and with others added.
func copyShipped(t *testing.T, without string, with map[string]string) string {
	dir := t.TempDir()
	entries, err := os.ReadDir(shipped)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == without {
			continue
		}
		data, err := os.ReadFile(filepath.Join(shipped, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if with[e.Name()] != "" {
			data = []byte(with[e.Name()])
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestNoTemplate: a model without a template says so at start and for each chat; plain texts are still exact.
func TestNoTemplate(t *testing.T) {
	m := load(t, copyShipped(t, "chat_template.jinja", map[string]string{"tokenizer_config.json": "{}"}), Options{})
	if w := m.Warnings(); len(w) == 0 || !strings.Contains(w[0], "no chat template") {
		t.Errorf("warnings: got %q, want some of them, [0] %q in it", w, "no chat template")
	}
	if _, err := m.Read(t.Context(), ChatEndpoint, request(t, `{"messages":[{"role":"user","content":"a"}]}`)); err != ErrNoTemplate {
		t.Errorf("chat: got %v, want %v", err, ErrNoTemplate)
	}
	if d := draft(t, m, CompletionsEndpoint, `{"prompt":"a"}`); d.Prompts[0].Text != "a" {
		t.Errorf("completion is not read: got %q, want %q", d.Prompts[0].Text, "a")
	}
	m = load(t, copyShipped(t, "chat_template.jinja", map[string]string{"tokenizer_config.json": "{}"}),
		Options{TemplateFile: "{{ messages[0].content }}"})
	if d := draft(t, m, ChatEndpoint, `{"messages":[{"role":"user","content":"a"}]}`); d.Prompts[0].Text != "a" {
		t.Errorf("a template given as text: got %q, want %q", d.Prompts[0].Text, "a")
	}
}

// TestOpaqueModels: prompts that an engine writes in an unsupported format are never called exact.
func TestOpaqueModels(t *testing.T) {
	for engine, want := range map[string]error{"vllm": ErrHarmony, "trtllm": ErrHarmony, "sglang": nil} {
		m := load(t, copyShipped(t, "preprocessor_config.json", map[string]string{"config.json": `{"model_type":"gpt_oss"}`}),
			Options{Dialect: of(engine)})
		if _, err := m.Read(t.Context(), ChatEndpoint, request(t, `{"messages":[{"role":"user","content":"a"}]}`)); err != want {
			t.Errorf("%s: %v, want %v", engine, err, want)
		}
	}
}
