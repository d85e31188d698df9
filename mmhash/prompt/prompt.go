// Package prompt turns a chat request into the token ids that the engine will prefill, and says where its media lie.
//
//	chat.Request ─ Read ─▶ Draft (text, media in order) ─ sizes of the media ─ Expand ─▶ token ids + spans
//
// Read follows the engine's own steps: content parts, tools and template variables as the server makes them, the model's
// own chat template, its own tokenizer. Expand replaces each media marker by the run of placeholder tokens that the
// engine uses; how many those are is decided in one place, package vision. Between the two the caller finds the media's
// sizes, which may need the network.
//
// What the engine will answer with an error is a *Refused: such a request is routed, but stores nothing.
package prompt

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/mmhash/chat"
	"github.com/sightline-router/sightline/mmhash/prompt/template"
	"github.com/sightline-router/sightline/mmhash/prompt/tokenizer"
	"github.com/sightline-router/sightline/mmhash/prompt/vision"
)

// Options mirror the server's flags, as far as the prompt depends on them. Empty values are the engine's defaults.
type Options struct {
	Engine             string // vllm, sglang or trtllm
	TemplateFile       string // --chat-template
	ContentFormat      string // auto, string or openai
	Interleave         bool   // --interleave-mm-strings
	ProcessorKwargs    string // --mm-processor-kwargs, JSON
	TemplateKwargs     string // --default-chat-template-kwargs, JSON
	RefuseMMKwargs     bool // request kwargs are answered with 400 (vLLM ≥ 0.31 without --trust-request-mm-kwargs)
	TrustChatTemplate  bool
	AutoToolChoice     bool
	ExcludeToolsOnNone bool
	MaxModelLen        int // 0: not checked
	MistralMode        bool
	Location           *time.Location
	Now                func() time.Time
}

// Refused says that the engine will answer the request with an error status.
type Refused struct {
	Status int
	Reason string // our words, never the client's
}

func (e *Refused) Error() string {
	return fmt.Sprintf("the engine will answer %d: %s", e.Status, e.Reason)
}

func refuse(status int, reason string) error { return &Refused{Status: status, Reason: reason} }

// ErrNoTemplate says that the model directory has no chat template, so chat requests cannot be read exactly.
var ErrNoTemplate = errors.New("the model directory has no chat template (expected chat_template.jinja, chat_template.json or tokenizer_config.json with chat_template; or give one with chat_template)")

// Model reads requests for one model. Immutable after Load, safe for concurrent use.
type Model struct {
	opt     Options
	tok     *tokenizer.Tokenizer
	vision  *vision.Model
	visErr  error // why media cannot be expanded; nil: they can
	plain   *chatTemplate
	tools   *chatTemplate
	vars    template.Vars // special tokens and the server's default kwargs
}

type chatTemplate struct {
	*template.Template
	source string
	openai bool
}

// Load reads a model directory. A directory whose tokenizer does not load is an error. One without a template, or of an
// unknown vision family, loads and says so in Warnings: texts are still exact there.
func Load(dir string, opt Options) (*Model, error) {
	m := &Model{opt: opt}
	var err error
	if m.tok, err = tokenizer.Load(dir); err != nil {
		return nil, err
	}
	d, err := readDirectory(dir)
	if err != nil {
		return nil, err
	}
	if opt.TemplateFile != "" {
		text, err := os.ReadFile(opt.TemplateFile)
		if err != nil {
			return nil, fmt.Errorf("chat_template: %w", err)
		}
		d.templates = templates{plain: string(text), tools: string(text)}
	}
	if m.plain, err = m.compile(d.templates.plain); err != nil {
		return nil, err
	}
	m.tools = m.plain
	if d.templates.tools != d.templates.plain {
		if m.tools, err = m.compile(d.templates.tools); err != nil {
			return nil, err
		}
	}
	names := make([]string, 0, len(d.special))
	for k := range d.special {
		names = append(names, k)
	}
	slices.Sort(names)
	for _, k := range names {
		m.vars.Set(k, template.String(d.special[k]))
	}
	if opt.TemplateKwargs != "" {
		kw, err := template.FromJSON(opt.TemplateKwargs)
		if err != nil {
			return nil, fmt.Errorf("default_chat_template_kwargs: %w", err)
		}
		for _, e := range kw.Dict().Entries() {
			m.vars.Set(e.Key.Text(), e.Value)
		}
	}
	var server vision.Kwargs
	if opt.ProcessorKwargs != "" {
		if server, err = vision.ParseKwargs([]byte(opt.ProcessorKwargs)); err != nil {
			return nil, fmt.Errorf("mm_processor_kwargs: %w", err)
		}
	}
	m.vision, m.visErr = vision.Load(os.DirFS(dir), tokens{m.tok}, vision.Options{Engine: opt.Engine, ProcessorKwargs: server, MistralFormat: opt.MistralMode})
	return m, nil
}

// tokens shows the tokenizer as package vision needs it.
type tokens struct{ *tokenizer.Tokenizer }

func (t tokens) EncodeText(dst []uint32, text string) []uint32 {
	return t.Encode(dst, text, tokenizer.Options{})
}
func (t tokens) DecodeText(ids []uint32) string { return t.Decode(ids, false) }

func (m *Model) compile(source string) (*chatTemplate, error) {
	if source == "" {
		return nil, nil
	}
	t, err := template.Compile(source, template.Options{Now: m.opt.Now, Location: m.opt.Location})
	if err != nil {
		return nil, fmt.Errorf("chat template: %w", err)
	}
	c := &chatTemplate{Template: t, source: source}
	switch m.opt.ContentFormat {
	case "openai":
		c.openai = true
	case "string":
	default:
		c.openai = t.ContentFormat() == template.FormatOpenAI
	}
	return c, nil
}

// Warnings name what keeps some requests of this model from being exact, one line each.
func (m *Model) Warnings() (w []string) {
	if m.plain == nil {
		w = append(w, ErrNoTemplate.Error())
	}
	if m.visErr != nil {
		return append(w, m.visErr.Error())
	}
	return append(w, m.vision.Warnings()...)
}

// Family is the vision family's name, "" for a text model.
func (m *Model) Family() string {
	if m.vision == nil {
		return ""
	}
	return m.vision.Family()
}

// RotatesEXIF reports whether the engine turns pictures by their EXIF orientation before it counts tokens.
func (m *Model) RotatesEXIF() bool { return vision.RotatesEXIF(m.opt.Engine) }

// Tokenizer is the model's tokenizer.
func (m *Model) Tokenizer() *tokenizer.Tokenizer { return m.tok }

func (m *Model) placeholder(modality string, k int) (string, bool) {
	if m.vision == nil {
		return "", false
	}
	return m.vision.Placeholder(modality, k)
}

// Draft is a request that was read: one or several prompts, each text or ids, and their media.
type Draft struct {
	Prompts []DraftPrompt
	Salt    string // cache_salt
	// MMKwargs and MediaIOKwargs are the request's own, as JSON; "" for none.
	MMKwargs, MediaIOKwargs string
	kwargs                  vision.Kwargs
	truncate                int // keep the last n ids; 0: all
}

// DraftPrompt is one prompt before its media are expanded.
type DraftPrompt struct {
	Text       string
	IDs        []uint32 // given as ids by the client
	Media      []Medium
	addSpecial bool
}

// Read makes the draft of a request to one of the endpoints that Reads knows. Errors: a *Refused, ErrNoTemplate, an error
// of the template, or one that says what of the request is not understood.
func (m *Model) Read(endpoint string, req *chat.Request) (*Draft, error) {
	d := new(Draft)
	if err := m.common(req, d); err != nil {
		return nil, err
	}
	var err error
	switch endpoint {
	case "/v1/completions":
		err = m.completions(req, d)
	case "/v1/chat/completions":
		err = m.chat(req, req.Messages, d)
	default:
		err = fmt.Errorf("endpoint is not one of the known ones")
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// common reads the fields that all endpoints share.
func (m *Model) common(req *chat.Request, d *Draft) error {
	if v, ok := req.Fields["cache_salt"]; ok && v.Type != gjson.Null {
		salt, isText := req.Body.String(v)
		if !isText || salt == "" || len([]rune(salt)) > 128 || strings.ContainsAny(salt, "@/\\\x00") {
			return refuse(400, "cache_salt is not allowed")
		}
		d.Salt = salt
	}
	for key, dst := range map[string]*string{"mm_processor_kwargs": &d.MMKwargs, "media_io_kwargs": &d.MediaIOKwargs} {
		v, ok := req.Fields[key]
		if !ok || v.Type == gjson.Null {
			continue
		}
		if !v.IsObject() {
			return refuse(400, key+" is no object")
		}
		if m.opt.RefuseMMKwargs {
			return refuse(400, key+" in a request, without --trust-request-mm-kwargs")
		}
		if v.Raw != "{}" {
			*dst = req.Body.Full(v)
		}
	}
	if d.MMKwargs != "" {
		kw, err := vision.ParseKwargs([]byte(d.MMKwargs))
		if err != nil {
			return refuse(400, "mm_processor_kwargs cannot be read")
		}
		d.kwargs = kw
	}
	if v, ok := req.Fields["truncate_prompt_tokens"]; ok && v.Type == gjson.Number {
		n := v.Int()
		switch {
		case n == -1:
			n = int64(m.opt.MaxModelLen)
		case n < -1 || n == 0:
			return refuse(400, "truncate_prompt_tokens is out of range")
		}
		d.truncate = int(min(n, 1<<30))
	}
	return nil
}

// completions reads /v1/completions: no template; a text, ids, several texts or several lists of ids.
func (m *Model) completions(req *chat.Request, d *Draft) error {
	add := true
	if v, ok := req.Fields["add_special_tokens"]; ok && v.Type == gjson.False {
		add = false
	}
	p := req.Fields["prompt"]
	one := func(v gjson.Result) error {
		if v.IsArray() {
			ids, ok := tokenIDs(v)
			if !ok {
				return refuse(400, "prompt is no list of token ids")
			}
			d.Prompts = append(d.Prompts, DraftPrompt{IDs: ids})
			return nil
		}
		text, ok := req.Body.String(v)
		if !ok {
			return refuse(400, "prompt is neither text nor token ids")
		}
		d.Prompts = append(d.Prompts, DraftPrompt{Text: text, addSpecial: add})
		return nil
	}
	if !p.IsArray() {
		return one(p)
	}
	first := p.Get("0")
	if first.Type == gjson.Number {
		return one(p)
	}
	var err error
	p.ForEach(func(_, v gjson.Result) bool {
		if len(d.Prompts) == 1024 {
			err = fmt.Errorf("more than 1024 prompts in a request")
		} else {
			err = one(v)
		}
		return err == nil
	})
	if err == nil && len(d.Prompts) == 0 {
		err = refuse(400, "prompt is empty")
	}
	return err
}

func tokenIDs(v gjson.Result) (ids []uint32, ok bool) {
	ok = true
	v.ForEach(func(_, id gjson.Result) bool {
		ok = id.Type == gjson.Number && id.Num >= 0 && id.Num < 1<<31 && id.Num == float64(uint32(id.Num))
		ids = append(ids, uint32(id.Num))
		return ok
	})
	return ids, ok && len(ids) > 0
}

// Expanded is one prompt as the engine prefills it.
type Expanded struct {
	IDs   []uint32
	Spans []vision.Span // in prompt order; Index is the medium's
	// Exact is false where the prompt is only known up to a medium; IDs and Spans end there, and Why says what stopped it.
	Exact bool
	Why   string
}

// Expand tokenises a prompt and puts the media in; sizes[i] belongs to the i-th medium of the prompt. Errors: a *Refused.
func (m *Model) Expand(d *Draft, p *DraftPrompt, sizes []vision.Media) (e Expanded, err error) {
	ids := p.IDs
	if ids == nil {
		ids = m.encode(p.Text, p.addSpecial)
	}
	if d.truncate > 0 && len(ids) > d.truncate {
		ids = ids[len(ids)-d.truncate:]
	}
	e = Expanded{IDs: ids, Exact: true}
	if len(p.Media) > 0 {
		if e, err = m.expandMedia(d, ids, sizes); err != nil {
			return e, err
		}
	}
	if m.opt.MaxModelLen > 0 && len(e.IDs) > m.opt.MaxModelLen {
		return e, refuse(400, "prompt is longer than max_model_len")
	}
	return e, nil
}

func (m *Model) encode(text string, addSpecial bool) []uint32 {
	dst := make([]uint32, 0, len(text)/3+16)
	return m.tok.Encode(dst, text, tokenizer.Options{AddSpecial: addSpecial})
}

func (m *Model) expandMedia(d *Draft, ids []uint32, sizes []vision.Media) (e Expanded, err error) {
	if m.visErr != nil {
		return Expanded{Why: "media of a model whose vision rule is not known"}, nil
	}
	out, spans, err := m.vision.Expand(make([]uint32, 0, len(ids)+1300*len(sizes)), ids, sizes, d.kwargs)
	if err == nil {
		return Expanded{IDs: out, Spans: spans, Exact: true}, nil
	}
	var refused *vision.RefusedError
	var open *vision.UndecidableError
	switch {
	case errors.As(err, &refused):
		return e, refuse(refused.Status, refused.Reason)
	case errors.As(err, &open):
		return Expanded{IDs: out, Spans: spans, Why: open.Reason}, nil
	}
	return e, err
}
