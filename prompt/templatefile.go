package prompt

import (
	"fmt"

	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/prompt/template"
)

// KeyError is an invalid server flag, with its key.
type KeyError struct {
	Key string
	Err error
}

func (e *KeyError) Error() string { return e.Key + ": " + e.Err.Error() }
func (e *KeyError) Unwrap() error { return e.Err }

// loadTemplates selects the templates that the server will use, and compiles them. One of a file that does not load leaves the chats
// unread: opaque and fault say so.
func (m *Renderer) loadTemplates(own templates, dir string) (err error) {
	own, err = m.templatesOf(own, dir)
	if err == nil {
		m.plain, err = m.compile(own.plain, template.Limits{})
	}
	if err == nil {
		m.tools = m.plain
		if own.tools != own.plain {
			m.tools, err = m.compile(own.tools, template.Limits{})
		}
	}
	given := m.opt.TemplateFile
	written := given != "" && m.opt.Dialect.TemplateFile(given, "") == "" // in the configuration, not in a file
	switch {
	case err != nil && written:
		return &KeyError{"chat_template", err}
	case err != nil && m.opaque != nil:
		m.plain, m.tools = nil, nil // not rendered anyway
	case err != nil:
		m.plain, m.tools, m.opaque, m.fault = nil, nil, ErrTemplate, fmt.Errorf("chat template: %w", err)
	}
	m.messagesRules()
	return nil
}

// templatesOf returns the templates that chats are rendered by: the directory's, the given one or the engine's. If chats are
// written without one, it sets m.opaque to the reason why they cannot be read.
func (m *Renderer) templatesOf(own templates, dir string) (templates, error) {
	dialect, given := &m.opt.Dialect, m.opt.TemplateFile
	if dialect.Unrendered != nil {
		m.opaque = dialect.Unrendered(given, Directory{ModelType: m.modelType, VisionFamily: m.opt.VisionFamily, Path: dir,
			Architectures: m.archs, TokenizerMode: m.opt.TokenizerMode})
	}
	switch {
	case m.mistral != nil:
		m.opaque = ErrMistral
		return templates{}, nil
	case dialect.Harmony && m.modelType == "gpt_oss":
		m.opaque = ErrHarmony
	case m.opaque != nil:
		return own, nil
	}
	switch {
	case given != "":
		text, err := m.templateText()
		if err != nil {
			err = &KeyError{"chat_template", err}
		}
		return templates{plain: text, tools: text}, err
	case dialect.TokenizersTemplate:
		own.plain = own.tokenizer
	case own.missing() && dialect.Fallback != nil:
		text := dialect.Fallback(m.modelType, dir)
		return templates{plain: text, tools: text}, nil
	}
	return own, nil
}

// templateText returns the --chat-template as the engine reads it.
func (m *parameters) templateText() (string, error) {
	file := m.opt.Dialect.TemplateFile(m.opt.TemplateFile, "")
	if file == "" {
		return m.opt.TemplateFile, nil
	}
	text, err := secure.ReadFile(file)
	if err != nil || m.opt.Dialect.FileText == nil {
		return string(text), err
	}
	return m.opt.Dialect.FileText(string(text)), nil
}

// maxOwnTemplate bounds the bytes of a template that comes with a request, because compiling it has no other bound: the names of a
// call's arguments are compared with each other.
const maxOwnTemplate = 64 << 10

// ownLimits bound a template that comes with a request: its sender does not run the server.
var ownLimits = template.Limits{Steps: 1_000_000, OutputBytes: OwnTemplateBytes / 4, MadeBytes: OwnTemplateBytes}

func (m *parameters) compile(source string, limits template.Limits) (*chatTemplate, error) {
	if source == "" {
		return nil, nil
	}
	t, err := template.Compile(source, template.Options{Now: m.opt.Now, Limits: limits})
	if err != nil {
		return nil, err
	}
	c := &chatTemplate{Template: t}
	switch m.opt.ContentFormat {
	case "openai", "string":
		c.openai = m.opt.ContentFormat == "openai"
	default:
		c.openai = m.opt.Dialect.Format(t) == template.FormatOpenAI
	}
	return c, nil
}
