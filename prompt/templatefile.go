package prompt

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/prompt/template"
)

// KeyError is what is wrong with one of the server's flags, by its key.
type KeyError struct {
	Key string
	Err error
}

func (e *KeyError) Error() string { return e.Key + ": " + e.Err.Error() }
func (e *KeyError) Unwrap() error { return e.Err }

// unwritten are SGLang's forms that are not written here (0.5.23, parser/conversation.py and python_chat_template.py).
var unwritten = []string{"devstral", "qwen2-audio", "whisper", "glm-5.3", "glm-5.3-flash"}

func isForm(name string) bool { return slices.Contains(unwritten, name) || writingNamed(name) != nil }

// ReadsTemplate tells whether an engine starts with a --chat-template of that look. SGLang takes no template as text, and
// its files must end in .jinja or .json.
func ReadsTemplate(engine, value string) bool {
	return engine != "sglang" || value == "" || isForm(value) || strings.HasSuffix(value, ".jinja") || strings.HasSuffix(value, ".json")
}

// TemplateFile is the file that a --chat-template names, relative ones below dir; "" where it is none: a form of SGLang's,
// or the template itself. As vLLM has it (0.32, renderers/chat_utils.py), a text with a brace or a new line is a template
// unless there is such a file.
func TemplateFile(engine, value, dir string) string {
	if value == "" || engine == "sglang" && isForm(value) {
		return ""
	}
	file := value
	if !filepath.IsAbs(file) {
		file = filepath.Join(dir, file)
	}
	if strings.ContainsAny(value, "{}\n") {
		if _, err := os.Stat(file); err != nil {
			return ""
		}
	}
	return file
}

// loadTemplates picks the templates that the server will use, and compiles them.
func (m *Model) loadTemplates(own templates, dir string) (err error) {
	given := m.opt.TemplateFile
	if m.opt.Engine == "sglang" {
		name := given
		if name == "" {
			name = writingOf(m.modelType, m.opt.VisionFamily, dir)
		}
		m.writing = writingNamed(name)
	}
	switch {
	case m.mistral != nil:
		m.opaque = ErrMistral
		own = templates{}
	case m.writing != nil:
	case given != "" && m.opt.Engine == "sglang" && !strings.HasSuffix(given, ".jinja"): // a form that is not written here, or of the operator's own
		m.opaque = ErrConversation
	case given != "":
		text, err := m.templateText()
		if err != nil {
			return &KeyError{"chat_template", err}
		}
		own = templates{plain: text, tools: text}
	case m.opt.Engine != "vllm":
		own.plain = own.tokenizer
	case own.missing():
		fallback := fallbackTemplate(m.modelType, dir)
		own = templates{plain: fallback, tools: fallback}
	}
	if m.opaque == nil {
		m.opaque = opaque(m.opt, m.modelType, dir)
	}
	if m.plain, err = m.compile(own.plain); err == nil {
		m.tools = m.plain
		if own.tools != own.plain {
			m.tools, err = m.compile(own.tools)
		}
	}
	switch {
	case err != nil && given != "":
		return &KeyError{"chat_template", err}
	case err != nil:
		return fmt.Errorf("chat template: %w", err)
	}
	m.messagesRules()
	return nil
}

// templateText is the --chat-template as the engine reads it.
func (m *Model) templateText() (string, error) {
	file := TemplateFile(m.opt.Engine, m.opt.TemplateFile, "")
	if file == "" {
		return m.opt.TemplateFile, nil
	}
	text, err := os.ReadFile(file)
	if err != nil || m.opt.Engine != "sglang" {
		return string(text), err
	}
	// SGLang 0.5.23, template_manager.py
	return strings.ReplaceAll(strings.Trim(string(text), "\n"), `\n`, "\n"), nil
}

func (m *Model) compile(source string) (*chatTemplate, error) {
	if source == "" {
		return nil, nil
	}
	t, err := template.Compile(source, template.Options{Now: m.opt.Now, Location: m.opt.Location})
	if err != nil {
		return nil, err
	}
	c := &chatTemplate{Template: t}
	switch {
	case m.opt.Engine == "sglang":
		c.openai = t.SGLangFormat() == template.FormatOpenAI
	case m.opt.Engine == "trtllm":
		c.openai = t.TensorRTFormat() == template.FormatOpenAI
	case m.opt.ContentFormat == "openai" || m.opt.ContentFormat == "string":
		c.openai = m.opt.ContentFormat == "openai"
	default:
		c.openai = t.ContentFormat() == template.FormatOpenAI
	}
	return c, nil
}
