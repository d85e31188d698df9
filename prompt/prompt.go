// Package prompt turns a chat request into the token ids that the engine will prefill, and locates its media in them.
//
//	body.Request ─ Read ─▶ Draft (text, media in order) ─ sizes of the media ─ Expand ─▶ token ids + spans
//
// Read follows the engine's own steps: content parts, tools and template variables as the server makes them, the model's own chat
// template, its own tokenizer. What differs by engine is a Dialect, which the engine's package fills in. Expand replaces each media
// marker by the run of placeholder tokens that the engine uses; only package vision decides how many those are. Between the two the
// caller determines the media's sizes, which may need the network.
//
// A request that cannot be read is a *Refused: the engine will answer it with an error, so it is routed but stores nothing. So is a
// request that a flag of the server forbids, since a worker with other flags may serve it. Other errors of a request are not
// predicted; the engine's answer reports them soon enough.
package prompt

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/prompt/mistral"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/tokenizer"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Options mirror the server's flags, as far as the prompt depends on them. Empty values are the engine's defaults.
type Options struct {
	Dialect           Dialect // of the engine and its release
	TemplateFile      string  // --chat-template: a file, the template itself, or the name of one of the engine's formats
	ContentFormat     string  // auto, string or openai
	Interleave        bool    // --interleave-mm-strings
	VisionFamily      string  // of docs/families.md, for a directory that names none; default: detected
	ProcessorKwargs   string  // --mm-processor-kwargs, JSON
	TemplateKwargs    string  // --default-chat-template-kwargs, JSON
	TrustMMKwargs     bool    // --trust-request-mm-kwargs
	TrustChatTemplate bool    // --trust-request-chat-template
	AutoToolChoice    bool    // --enable-auto-tool-choice
	MaxModelLen       int     // 0: not checked
	TokenizerMode     string  // --tokenizer-mode; mistral is used without it for directories that only this mode can read, unless it is hf
	Now               func() time.Time
	// Like is another Renderer of the same directory, nil for none. Its tokenizer and the tokenizer's cache are shared.
	Like *Renderer
}

// Refused means that the engine will answer the request with an error status.
type Refused struct {
	Status int
	Reason string // one of a fixed set of texts, fit for a metric's label
}

func (e *Refused) Error() string {
	return fmt.Sprintf("the engine will answer %d: %s", e.Status, e.Reason)
}

// Refuse returns the error of a request that is answered with 400, for a reason from a fixed set.
func Refuse(reason string) error { return &Refused{Status: 400, Reason: reason} }

// Unpredicted means that the prompt of a request cannot be derived from it. Reason is one of a fixed set of texts.
type Unpredicted struct{ Reason string }

func (e *Unpredicted) Error() string { return e.Reason }

// Uncompared is the reason for which a prompt that rules read to its end is predicted and not exact.
const Uncompared = "engine release whose rules were read, not compared"

const whyTooLong = "prompt is longer than max_model_len"

// Reasons for which a request is not exact.
var (
	ErrNoTemplate = &Unpredicted{"the model directory has no chat template (expected chat_template.jinja, chat_template.json or " +
		"tokenizer_config.json with chat_template; or give one with chat_template)"}
	ErrTemplateLimit = &Unpredicted{"the chat template goes beyond its limits on this conversation"}
	ErrEndpoint      = &Unpredicted{"endpoint whose prompts are not read"}
	ErrStored        = &Unpredicted{"request that goes on from a response stored in the server"}
	ErrPart          = &Unpredicted{"request with an item whose place in the prompt is not known"}
	ErrTooMany       = &Unpredicted{body.ErrTooMany.Error()}
	ErrManyPrompts   = &Unpredicted{"more than 1024 prompts in a request"}
	ErrMistral       = &Unpredicted{"API other than chat completions and completions, in mistral mode"}
	ErrLong          = &Unpredicted{fmt.Sprintf("prompt of more than %d tokens", maxTokens)}
	ErrTime          = &Unpredicted{"no time left to read all of the prompt"}
	ErrText          = &Unpredicted{"text that is not tokenized here (over 30 combining marks in a row)"}
	ErrTruncation    = &Unpredicted{"truncated prompt, of an engine's release whose rule for it is not known"}
	ErrPython        = &Unpredicted{"request with JSON that only Python reads (NaN, Infinity, half of a surrogate pair)"}
	ErrField         = &Unpredicted{"request with a field that changes its prompt and that is not read"}
	ErrFiles         = &Unpredicted{"model whose directory does not load"}
	ErrNoFiles       = &Unpredicted{"model without a directory"}
	ErrRelease       = &Unpredicted{"engine release that is older than those whose requests are read"}
	ErrTemplate      = &Unpredicted{"chat template that does not load here"}
	ErrFeature       = &Unpredicted{"chat template that uses a part of Jinja which does not run here"}
	ErrEncoder       = &Unpredicted{"model whose chats the engine encodes by code of its own, without a chat template"}
	ErrClass         = &Unpredicted{"model whose tokenizer the engine changes in a way that is not read here"}
	ErrHarmony       = &Unpredicted{"model whose prompts the engine writes in the Harmony format"}
)

// Renderer reads requests for one model. Immutable after Load, safe for concurrent use.
type Renderer struct {
	expander
	maybeMistral bool // the server may be in Mistral mode nevertheless
	plain        *chatTemplate
	tools        *chatTemplate
	opaque       error    // why no chat request can be read, whatever the template; nil: they can
	blind        bool     // it reads no request at all, because of opaque
	fault        error    // what of the files does not load
	modelType    string   // of config.json
	archs        []string // of config.json
	facts        vision.Facts
	disabled     func() (string, error) // the effort that /v1/messages sets if thinking is disabled
	merges       func() (bool, error)   // /v1/messages puts all system texts in front
}

// expander makes token ids of what a request becomes: text, and media by their sizes.
type expander struct {
	parameters
	tok    *tokenizer.Tokenizer
	vision *vision.Expander
	visErr error // why media cannot be expanded; nil: they can
	cache  *tokenizer.Cache
}

// parameters reads what a request says besides its messages, as a server with these options does.
type parameters struct {
	opt     Options
	mistral *mistral.Tokenizer // nil: not in mistral mode
	vars    template.Vars      // special tokens and the server's default kwargs
}

type chatTemplate struct {
	*template.Template
	openai bool
}

// Load reads a model directory. It fails only for a server's flag (*KeyError) and an incomplete Dialect. Files that do not load cost the
// requests that need them, and Fault names them: without a tokenizer no request can be read, without a template that compiles no chat,
// without a processor's settings no medium. Without any template, or with an unknown vision family, Warnings says so: plain text is
// still exact.
func Load(dir string, opt Options) (*Renderer, error) {
	if !opt.Dialect.complete() {
		return nil, errors.New("prompt.Options.Dialect lacks Format, Part, Messages or Tools " +
			"(want an engine's, such as that of engine/vllm)")
	}
	m := new(Renderer)
	m.opt = opt
	m.opt.Like = nil
	if err := vision.CheckFamily(opt.VisionFamily); err != nil {
		return nil, &KeyError{"vision_family", err}
	}
	d, err := readDirectory(secure.Dir(dir))
	if err != nil {
		return Unloadable(opt, ErrFiles, fmt.Errorf("%s: %w", dir, err)), nil
	}
	m.modelType, m.archs, m.facts = d.modelType, d.archs, vision.FactsOf(d.modelType, opt.VisionFamily)
	if err := m.loadTokenizer(dir, opt.Like); err != nil {
		return Unloadable(opt, ErrFiles, err), nil
	}
	if m.cache == nil {
		m.cache = m.tok.NewCache(cacheBytes, rand.Uint64())
	}
	if err := m.loadTemplates(d.templates, dir); err != nil {
		return nil, err
	}
	if err := m.loadVariables(d.special); err != nil {
		return nil, err
	}
	var server vision.Kwargs
	if opt.ProcessorKwargs != "" {
		server, err = vision.ParseKwargs([]byte(opt.ProcessorKwargs))
		if err != nil {
			return nil, &KeyError{"mm_processor_kwargs", err}
		}
	}
	m.vision, m.visErr = vision.Load(secure.Dir(dir), m.tokens(new(Draft)), vision.Options{Reading: opt.Dialect.Reading,
		Family: opt.VisionFamily, ProcessorKwargs: server, MistralFormat: m.mistral != nil})
	var missing *vision.MissingError
	var unknown *vision.UnknownModelError
	if m.visErr != nil && !errors.As(m.visErr, &missing) && !errors.As(m.visErr, &unknown) {
		m.fault = cmp.Or(m.fault, m.visErr)
	}
	return m, nil
}

// Unloadable returns a model that reads no request, for a reason: ErrNoFiles, ErrFiles or ErrRelease. fault is what Fault returns.
func Unloadable(opt Options, why *Unpredicted, fault error) *Renderer {
	opt.Like = nil
	m := &Renderer{blind: true, opaque: why, fault: fault}
	m.opt, m.tok, m.visErr = opt, tokenizer.Empty(), cmp.Or(fault, error(why))
	return m
}

// Fault returns what of the files does not load; nil if all of it does.
func (m *Renderer) Fault() error { return m.fault }

// loadVariables sets what templates see in every request: special tokens and the server's default kwargs.
func (m *parameters) loadVariables(special map[string]string) error {
	for _, k := range slices.Sorted(maps.Keys(special)) {
		m.vars.Set(k, template.String(special[k]))
	}
	if m.opt.TemplateKwargs == "" {
		return nil
	}
	kw, err := template.FromJSON(m.opt.TemplateKwargs)
	if err != nil {
		return &KeyError{"default_chat_template_kwargs", err}
	}
	if kw.Dict() == nil {
		return &KeyError{"default_chat_template_kwargs", errors.New("want a JSON object, such as {\"enable_thinking\": false}")}
	}
	for _, e := range kw.Dict().Entries() {
		m.vars.Set(e.Key.Text(), e.Value)
	}
	return nil
}

// loadTokenizer reads the tokenizer as the server does.
func (m *Renderer) loadTokenizer(dir string, like *Renderer) (err error) {
	files := secure.Dir(dir)
	mode := m.opt.TokenizerMode
	auto := mode == "" || mode == "auto"
	mistralMode := m.opt.Dialect.Mistral && (mode == "mistral" || auto && mistral.Detect(files))
	m.maybeMistral = auto && !mistralMode && m.opt.Dialect.Mistral && mistral.Possible(files)
	if like != nil && like.cache != nil && mistralMode == (like.mistral != nil) {
		m.tok, m.mistral, m.cache = like.tok, like.mistral, like.cache
		return nil
	}
	if mistralMode {
		m.mistral, err = mistral.Load(files)
		if err == nil {
			m.tok = m.mistral.Text()
		}
	} else {
		var classOf func(name string) tokenizer.Class
		if m.opt.Dialect.Class != nil {
			classOf = func(name string) tokenizer.Class { return m.opt.Dialect.Class(m.modelType, name) }
		}
		m.tok, err = tokenizer.Load(files, classOf)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

// Warnings lists what keeps some requests of this model from being exact, one line each.
func (m *Renderer) Warnings() (w []string) {
	if why := m.tok.Unlike(); why != "" {
		w = append(w, ErrClass.Error()+": "+why)
	}
	switch {
	case m.blind && m.fault != nil:
		return []string{m.opaque.Error() + ", so its requests are routed by what workers' events teach: " + m.fault.Error()}
	case m.blind:
		return []string{m.opaque.Error() + ": its requests are routed by what workers' events teach, from the second of a kind on"}
	case m.opaque == ErrTemplate:
		w = append(w, m.opaque.Error()+", so its chats are routed by what workers' events teach: "+m.fault.Error())
	case m.opaque != nil:
		w = append(w, m.opaque.Error())
	case m.plain == nil:
		w = append(w, ErrNoTemplate.Error())
	}
	if m.maybeMistral {
		w = append(w, "the directory has a Mistral tokenizer too: the engine takes it by itself where the weights are "+
			"consolidated*.safetensors, and then tokenizer_mode must be mistral here")
	}
	if m.visErr != nil {
		return append(w, m.visErr.Error())
	}
	return append(w, m.vision.Warnings()...)
}

// Unread returns which requests no rule reads, of the most common ones, and why; "": all are read.
func (m *Renderer) Unread() (which, why string) {
	switch {
	case m.blind:
		which, why = "all requests", m.opaque.Error()
	case m.mistral != nil: // chats are read
	case m.opaque != nil:
		which, why = "chats", m.opaque.Error()
	case m.plain == nil:
		which, why = "chats", ErrNoTemplate.Error()
	}
	switch {
	case which != "" && m.fault != nil:
		return which, why + ": " + m.fault.Error()
	case which == "" && m.visErr != nil:
		return "media", m.visErr.Error()
	}
	return which, why
}

// Family returns the vision family's name, "" for a text model.
func (m *Renderer) Family() string {
	if m.vision == nil {
		return ""
	}
	return m.vision.Family()
}

// Config returns config.json's model_type and architectures.
func (m *Renderer) Config() (modelType string, architectures []string) { return m.modelType, m.archs }

// Facts returns what the engines do for the model's family.
func (m *Renderer) Facts() vision.Facts { return m.facts }

// ImageToken returns the id at an image's positions in the engine's token stream; false if the model has none.
func (m *Renderer) ImageToken() (uint32, bool) {
	if m.vision == nil {
		return 0, false
	}
	return m.vision.EmbedID("image")
}

// Tokenizer returns the model's tokenizer.
func (m *Renderer) Tokenizer() *tokenizer.Tokenizer { return m.tok }
