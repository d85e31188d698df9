package prompt

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Dialect is how one release of an engine reads requests: all that differs by engine between a body and its token ids.
// The engine's folder fills it in (engine/vllm/dialect.go and its like). A fact is named by what holds where it is true; a
// function stands where no fact does. Format, Part, Messages and Tools are needed, all else may be zero. Functions
// report a request that cannot be read by a *Refused or an *Unpredicted.
type Dialect struct {
	// What a request may say.
	OtherAPIs       bool   // /v1/responses, /v1/messages and batches of chats are read, by the rules of this package
	PromptFlags     bool   // a chat's add_generation_prompt and add_special_tokens are read
	Documents       bool   // a chat's documents are read
	ClientTemplates bool   // a chat may bring a chat_template, to a server that was told to trust it
	KwargsAreFields bool   // chat_template_kwargs' tools, documents and chat_template are read as fields; null and "auto" as none
	EffortThinks    bool   // reasoning_effort goes before chat_template_kwargs, and sets enable_thinking
	MMKwargs        bool   // mm_processor_kwargs is read
	MediaIOKwargs   bool   // media_io_kwargs is read
	RefusesMMKwargs bool   // these two are answered with 400, unless the server was told to trust them
	IDsField        string // of a chat: its prompt as token ids; "": it has none
	Cut             Cut    // how truncate_prompt_tokens cuts
	AnswerCounts    bool   // max_model_len bounds the prompt and max_tokens together
	BoundsAnswer    bool   // max_model_len bounds max_tokens
	NeedsToolParser bool   // tools, unless tool_choice is none, are answered with 400 without --enable-auto-tool-choice

	// How a prompt is written.
	Harmony            bool           // chats of gpt-oss are written in the Harmony format, past their template
	Mistral            bool           // has a mistral mode
	TokenizersTemplate bool           // renders by the tokenizer's own template, never by the processor's
	BareTools          bool           // a template that fails on tools is tried again with their functions alone
	ContinuesBehind    bool           // a text to be continued goes behind the rendered prompt, tokenised alone
	RotatesEXIF        bool           // turns pictures by their EXIF orientation before their tokens are counted
	DecodesIDs         bool           // its processor gets the prompt's ids decoded, not the prompt
	Reading            vision.Reading // how media are put into a prompt

	// Format tells in which form a template wants a message's content.
	Format func(*template.Template) template.Format
	// Fallback is the template of a model type whose directory dir has none, "" for none.
	Fallback func(modelType, dir string) string
	// FileText is the template that a --chat-template file of this text stands for; nil: the text.
	FileText func(text string) string
	// Named tells that a --chat-template is the name of a form that the engine writes itself. An engine with such names
	// takes no template as text, and its files must end in .jinja or .json. nil: it has none.
	Named func(value string) bool
	// Conversation is how the engine writes chats of a model past the template: by the --chat-template that was given ("":
	// none), or by itself. nil: it renders the template. The error says why chats cannot be predicted.
	Conversation func(given string, m Directory) (Conversation, error)

	// Part reads one content part of a chat; ok is false for one that does not reach the prompt.
	Part func(r *Reader, p *body.Part) (it Item, ok bool, err error)
	// Messages gives the turns as the template's messages. tail goes behind the rendered text (ContinuesBehind); goOn tells
	// that the last message is to be continued.
	Messages func(r *Reader, turns []Turn, goOn bool) (list []template.Value, tail string, err error)
	// Tools gives a chat's tools as the template's, None for none of them.
	Tools func(tools template.Value, choice gjson.Result) (template.Value, error)
	// Reuse tells whether a request to an endpoint is looked up in the prefix cache; nil: always.
	Reuse func(endpoint string, req *body.Request) Reuse
}

// Conversation writes a whole chat as one text, past the chat template.
type Conversation func(r *Reader, turns []Turn, goOn bool) (string, error)

// Directory is what an engine looks at to know a model.
type Directory struct{ ModelType, VisionFamily, Path string }

// Cut is how truncate_prompt_tokens cuts a prompt.
type Cut uint8

const (
	CutNot     Cut = iota // the engine has no such field
	CutUnknown            // it is not known
	CutMarkers            // a medium's marker counts, not the tokens that take its place
	CutTokens             // all tokens count
)

// complete tells that the functions that every request needs are there.
func (d *Dialect) complete() bool {
	return d.Format != nil && d.Part != nil && d.Messages != nil && d.Tools != nil
}

// TakesTemplate tells whether the engine starts with a --chat-template of that look.
func (d *Dialect) TakesTemplate(value string) bool {
	return d.Named == nil || value == "" || d.Named(value) || slices.Contains([]string{".jinja", ".json"}, filepath.Ext(value))
}

// TemplateFile is the file that a --chat-template names, relative ones below dir; "" where it is none: a form by its name,
// or the template itself. A text with a brace or a new line is a template unless there is such a file (vLLM 0.32,
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
