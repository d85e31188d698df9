package prompt

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/tokenizer"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Dialect describes how one release of an engine reads requests: everything between a body and its token ids that differs by
// engine. The engine's package fills it in (engine/vllm/dialect.go and its like). A bool is named by what holds if it is true;
// functions cover what a bool cannot. Format, Part, Messages and Tools are required, all else may be zero. A function returns a
// *Refused or an *Unpredicted for a request that cannot be read.
type Dialect struct {
	// What a request may contain.
	OtherAPIs        bool   // /v1/responses, /v1/messages and batches of chats are read, by the rules of this package
	PromptFlags      bool   // a chat's add_generation_prompt and add_special_tokens are read
	Documents        bool   // a chat's documents are read
	ClientTemplates  bool   // a chat may carry a chat_template, if the server was told to trust it
	KwargsAreFields  bool   // chat_template_kwargs' tools, documents and chat_template are read as fields; null and "auto" count as missing
	EffortWins       bool   // reasoning_effort overrides the one in chat_template_kwargs
	CustomTools      bool   // /v1/responses: tools and calls of type custom are shown as functions
	DisablesThinking bool   // /v1/messages: thinking of type disabled sets reasoning_effort
	MMKwargs         bool   // mm_processor_kwargs is read
	MediaIOKwargs    bool   // media_io_kwargs is read
	RefusesMMKwargs  bool   // both are answered with 400, unless the server was told to trust them
	IDsField         string // the field of a chat that holds its prompt as token ids; "": none
	Cut              Cut    // how truncate_prompt_tokens cuts
	AnswerCounts     bool   // max_model_len bounds the prompt and max_tokens together
	BoundsAnswer     bool   // max_model_len bounds max_tokens
	NeedsToolParser  bool   // tools, unless tool_choice is none, are answered with 400 without --enable-auto-tool-choice
	AdapterField     string // the field that names a LoRA adapter where the model's name is not model:adapter; "": none

	// Unread are fields of requests that change a prompt, and that are not read: nothing is predicted with one of them.
	Unread []string

	// How a prompt is rendered.
	Harmony            bool           // chats of gpt-oss are written in the Harmony format, not by their template
	Mistral            bool           // the engine has a Mistral mode
	TokenizersTemplate bool           // the tokenizer's own template is used, never the processor's
	BareTools          bool           // a template that fails on tools is tried again with only their functions
	ContinuesBehind    bool           // a text to be continued is tokenized alone and appended to the rendered prompt
	RotatesEXIF        bool           // images are rotated by their EXIF orientation before their tokens are counted
	DecodesIDs         bool           // the processor gets the prompt's ids decoded, not the prompt
	Reading            vision.Reading // how media are inserted into a prompt

	// Format returns the form in which a template expects a message's content.
	Format func(*template.Template) template.Format
	// Fallback returns the template for a model type whose directory dir has none, "" for none.
	Fallback func(modelType, dir string) string
	// Class returns what the engine makes of a tokenizer.json, by config.json's model_type and the tokenizer class; nil: nothing else.
	Class func(modelType, class string) tokenizer.Class
	// FileText converts the text of a --chat-template file to a template; nil: the text as it is.
	FileText func(text string) string
	// Named reports whether a --chat-template is the name of a format that the engine writes without a template. An engine with such names
	// accepts no template as text, and its files must end in .jinja or .json. nil: it has none.
	Named func(value string) bool
	// Unrendered returns why the engine does not render a model's chats by a template: by the given --chat-template ("": none), or by
	// its own choice. They cannot be predicted then. nil: it renders them.
	Unrendered func(given string, m Directory) error

	// Part reads one content part of a chat. ok is false if the part does not reach the prompt.
	Part func(r *Reader, p *body.Part) (it Item, ok bool, err error)
	// Messages converts the turns to the template's messages. tail is appended to the rendered text (ContinuesBehind); continueFinal means
	// that the last message is to be continued.
	Messages func(r *Reader, turns []Turn, goOn bool) (list []template.Value, tail string, err error)
	// Effort returns the template variables that a reasoning_effort sets unless chat_template_kwargs have them; nil: none. ok is
	// false for a value whose effect is not known.
	Effort func(t *template.Template, effort template.Value) (sets template.Vars, ok bool)
	// Tools converts a chat's tools to the template's, None if there are none.
	Tools func(tools template.Value, choice gjson.Result) (template.Value, error)
	// Reuse returns whether a request to an endpoint is looked up in the prefix cache; nil: always.
	Reuse func(endpoint string, req *body.Request) Reuse
}

// Directory is what an engine recognizes a model by.
type Directory struct {
	ModelType, VisionFamily, Path string
	Architectures                 []string // config.json's
	TokenizerMode                 string   // --tokenizer-mode
}

// Architecture returns the first of config.json's architectures, "" if there is none.
func (d *Directory) Architecture() string {
	if len(d.Architectures) == 0 {
		return ""
	}
	return d.Architectures[0]
}

// Cut is how truncate_prompt_tokens truncates a prompt.
type Cut uint8

const (
	CutNot     Cut = iota // the engine has no such field
	CutUnknown            // not known
	CutMarkers            // a medium counts as its one marker, not as the tokens that replace it
	CutTokens             // all tokens count
)

// complete reports whether the required functions are set.
func (d *Dialect) complete() bool {
	return d.Format != nil && d.Part != nil && d.Messages != nil && d.Tools != nil
}

// TakesTemplate reports whether the engine starts with such a --chat-template.
func (d *Dialect) TakesTemplate(value string) bool {
	return d.Named == nil || value == "" || d.Named(value) || slices.Contains([]string{".jinja", ".json"}, filepath.Ext(value))
}

// TemplateFile returns the file that a --chat-template names, relative ones below dir; "" if it is the name of a format or the
// template itself. A text with a brace or a new line is a template unless there is such a file (vLLM 0.32,
// renderers/chat_utils.py).
func (d *Dialect) TemplateFile(value, dir string) string {
	if value == "" || d.Named != nil && d.Named(value) {
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
