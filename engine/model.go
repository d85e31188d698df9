// Package engine turns a chat request into the block hashes by which a worker's KV cache is keyed.
//
//	body ─▶ request ─ prompt ─▶ draft ─ resolve ─▶ sizes, names ─ prompt ─▶ token ids, spans ─ mmhash/block ─▶ hashes
//
// What becomes of a request's media, in this order:
//
//	prompt.MediaPart           what the client wrote: image, audio or video (prompt/part.go)
//	mediaReader.resolve        an image: its bytes are identified (source.go), handed to the worker (delivery.go) and named (callByName)
//	mediaReader.other          audio, video, embeddings: only an identity; their tokens are not counted, since engines resample them
//	prompt.Expand              images become placeholder tokens; the ids end before the first medium that no rule counts
//	Model.expand               the exact part of the prompt ends there, or before the first without a name, and Why says so; router/recall.go
//	                           looks up the rest by what events taught (router/learned)
//
// A Model is one model directory, read for one set of server settings (Server). Every byte of a request is treated as hostile, and
// nothing here waits on the network beyond the caller's context.
package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/dynamo"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/prompt"
)

// Model reads requests for one model. Safe for concurrent use.
type Model struct {
	Name   string
	Server Server
	Media  *Media

	prompt     *prompt.Renderer
	rules      rules.Rules
	keys       *rules.Keys
	first      *firstSeen
	warnings   []string
	upperBound bool // the engine's events do not say all that a hit needs
	chunk      int
}

// UpperBound reports whether what the engine's events say is an upper bound for this model: it keeps several KV caches, and reports
// only the one that sees all tokens. A nil model does not.
func (m *Model) UpperBound() bool { return m != nil && m.upperBound }

// WhyUpperBound is UpperBound's reason in words, to follow a worker's name.
const WhyUpperBound = "its engine reports only the KV cache that sees all tokens, and the model's config.json has layers with others"

// Chunk returns the tokens of a chunk of the model's chunked attention; 0: it has none, or the model is nil.
func (m *Model) Chunk() int {
	if m == nil {
		return 0
	}
	return m.chunk
}

// Load reads a model directory: a plain one, or a Hugging Face cache; "" is none. s must have passed Check; an error is about one of its
// values. A directory that does not load is none: Fault names the file and what is wrong with it, and the model reads no request, or no
// chat. Use LoadLive to follow changes of the files.
func Load(name, dir string, s Server, media *Media) (*Model, error) {
	st := inspect(dir, s)
	return load(name, &st, s, media, newFirstSeen(), nil)
}

// load reads the directory. If same is not nil it must come from the same files, and its tokenizer is reused.
func load(name string, st *dirState, s Server, media *Media, first *firstSeen, same *prompt.Renderer) (*Model, error) {
	fault := st.fault()
	m := &Model{Name: name, Server: s, Media: media, first: first}
	if st.dir != "" && fault == nil && !st.has("config.json", "params.json") {
		m.warnings = append(m.warnings, st.dir+" has no config.json: treated as a text-only model")
	}
	if path := s.AllowedLocalMediaPath; path != "" && !isDir(path) {
		m.warnings = append(m.warnings, "allowed_local_media_path "+path+
			" is not a directory here: prompts are exact up to their first local file (mount the workers' directory here)")
	}
	if _, err := rules.ParseVersion(s.EngineVersion); err != nil {
		return nil, err
	}
	m.rules = s.Rules()
	if st.dir != "" {
		files := secure.Dir(st.dir)
		m.upperBound, m.chunk = m.rules.EventsOfOneCache && severalCaches(files), attentionChunk(files)
	}
	if m.upperBound {
		m.warnings = append(m.warnings,
			"config.json has layers that do not see all tokens, and the engine reports only the KV cache of those that do: "+
				"predicted hits are an upper bound")
	}
	opt := prompt.Options{
		Dialect: m.rules.Dialect, TemplateFile: s.ChatTemplate,
		VisionFamily: s.VisionFamily, ProcessorKwargs: string(s.ProcessorKwargs), TemplateKwargs: string(s.TemplateKwargs),
		TrustMMKwargs: s.TrustMMKwargs, TrustChatTemplate: s.TrustChatTemplate,
		AutoToolChoice: s.AutoToolChoice, MaxModelLen: s.MaxModelLen, Now: s.Clock, Like: same,
	}
	if m.rules.VLLMKeys {
		opt.ContentFormat, opt.Interleave, opt.TokenizerMode = s.ContentFormat, s.InterleaveMM, s.TokenizerMode
	}
	switch {
	case m.rules.TooOld != "":
		m.prompt = prompt.Unloadable(opt, prompt.ErrRelease, &prompt.KeyError{Key: "engine_version", Err: errors.New(m.rules.TooOld)})
	case fault != nil:
		m.prompt = prompt.Unloadable(opt, prompt.ErrFiles, fault)
	case st.dir == "":
		m.prompt = prompt.Unloadable(opt, prompt.ErrNoFiles, nil)
	default:
		var err error
		m.prompt, err = prompt.Load(st.dir, opt)
		if err != nil {
			return nil, fmt.Errorf("model %s: %w", name, err)
		}
	}
	var err error
	m.keys, err = media.keysOf(m)
	if err != nil {
		return nil, fmt.Errorf("model %s: %w", name, err)
	}
	return m, nil
}

// Warnings lists what keeps some requests of this model from being exact, one line each.
func (m *Model) Warnings() []string {
	return append(m.warnings[:len(m.warnings):len(m.warnings)], m.prompt.Warnings()...)
}

// Fault returns what of the model's files does not load; nil if all of it does. Requests that need it are learned.
func (m *Model) Fault() error { return m.prompt.Fault() }

// ReadBy says whether requests are read by rule or learned, and why.
func (m *Model) ReadBy() string {
	which, why := m.prompt.Unread()
	if which == "all requests" {
		return "all requests are learned: " + why
	}
	by := "by rule"
	if family := m.Family(); family != "" {
		by += ", family " + family
	}
	if which != "" {
		by += "; " + which + " are learned: " + why
	}
	return by
}

// Rules returns the rules of the model's engine and release.
func (m *Model) Rules() *rules.Rules { return &m.rules }

// Family returns the vision family, "" for a text model.
func (m *Model) Family() string { return m.prompt.Family() }

// Text returns the text of one token; "" for an id that no token has.
func (m *Model) Text(id uint32) string { return m.Decode([]uint32{id}) }

// Decode returns the text of tokens.
func (m *Model) Decode(ids []uint32) string { return m.prompt.Tokenizer().Decode(ids, false) }

// Refused is the error for a request that the engine will reject; the engine stores no blocks for it.
type Refused = prompt.Refused

// Prompts is the result of reading a request: one prompt, or several for a batch.
type Prompts struct {
	List  []Prompt
	Edits []body.Edit // changes to the body that a worker must see
	Texts MediumTexts
	Facts
}

// Prompt is one prompt as the engine prefills it.
type Prompt struct {
	Rendered    string   // the template's output; empty if the client sent ids
	IDs         []uint32 // with media expanded, up to the first medium whose size is not known
	Media       []Medium // those within IDs, in prompt order
	HashableIDs int      // leading ids that can be hashed: the names of all media before them are known
	Salt        string
	Exact       bool   // the whole prompt is known and can be hashed
	Why         string // what kept the prompt from being exact, one of a fixed set of reasons

	key    *block.Key
	locals func(dst []uint64, p *rules.Hashable) []uint64 // see rules.Keys
	pairs  bool                                           // see rules.Hashable
}

// StablePrefix returns how many leading ids the engine reads as we do, whatever an image host gives it: those before the first medium
// that the engine fetches itself; math.MaxInt: there is none.
func (p *Prompt) StablePrefix() int {
	for i := range p.Media {
		if p.Media[i].Fetched {
			return p.Media[i].Offset
		}
	}
	return math.MaxInt
}

// Read reads one request to an endpoint such as /v1/chat/completions; lora is the adapter that it names, or "". The error is a
// *Refused or one whose text quotes nothing of the request. Edits and Facts are valid even with an error.
//
// When ctx ends, Read returns soon with what is known by then: prompts that are not exact, or an error.
func (m *Model) Read(ctx context.Context, endpoint, lora string, req *body.Request) (*Prompts, error) {
	out := &Prompts{Facts: m.Facts(endpoint, lora, req)}
	if adapter, known := m.Adapter(lora, req); !known || adapter != lora || m.Server.Dynamo() && dynamo.Unread(req) {
		return out, prompt.ErrField
	}
	draft, err := m.prompt.Read(ctx, endpoint, req)
	if err != nil {
		return out, err
	}
	q := mediaReader{Model: m, hashKey: m.Media.Secret.Key(), endpoint: endpoint, adapter: lora,
		client: req.Client, body: req.Body, draft: draft}
	ctx, cancel := q.withinBudget(ctx)
	defer cancel()
	for i := range draft.Prompts {
		p, err := m.expand(ctx, &q, req, &draft.Prompts[i], out)
		if err != nil {
			return out, err
		}
		out.List = append(out.List, p)
	}
	return out, nil
}

// Adapter returns the adapter that the engine uses for a request; named is the one that the model's name is, or "". For an engine with a
// field for it (SGLang) such a name without a colon chooses none, except behind Dynamo's front ends. known is false if the field names
// several, or one with a colon, whose events have another name; behind these front ends if it names any.
func (m *Model) Adapter(named string, req *body.Request) (adapter string, known bool) {
	if m == nil || m.rules.Dialect.AdapterField == "" || strings.Contains(named, ":") {
		return named, true
	}
	v := req.Fields[m.rules.Dialect.AdapterField]
	given := prompt.Given(v) && v.Raw != `""`
	if m.Server.Dynamo() {
		return named, !given
	}
	if !given {
		return "", true
	}
	adapter, known = req.Body.String(v)
	return adapter, known && !strings.Contains(adapter, ":")
}

// withinBudget limits the time that a request waits for images that are not in its body.
func (q *mediaReader) withinBudget(ctx context.Context) (context.Context, context.CancelFunc) {
	budget, prompts := time.Duration(q.Media.budget.Load()), q.draft.Prompts
	for i := range prompts {
		for j := range prompts[i].Media {
			if budget > 0 && q.isRemote(&prompts[i].Media[j]) {
				return context.WithTimeout(ctx, budget)
			}
		}
	}
	return ctx, func() {}
}

// expand turns a draft into a prompt: it resolves the media and puts their tokens into their places.
func (m *Model) expand(ctx context.Context, q *mediaReader, req *body.Request, dp *prompt.DraftPrompt, out *Prompts) (Prompt, error) {
	p := Prompt{Rendered: dp.Text, Salt: q.draft.Salt, key: q.hashKey, locals: m.keys.Locals,
		pairs: m.Server.Speculative != "" && m.rules.HasProcessor}
	if m.keys.Salt != nil {
		p.Salt = m.keys.Salt(p.Salt, req)
	}
	found, why, err := q.resolve(ctx, dp.Media)
	if err != nil {
		return p, err
	}
	for i := range found {
		out.Edits, out.Texts = append(out.Edits, found[i].edits...), append(out.Texts, found[i].text)
	}
	e, err := m.prompt.Expand(q.draft, dp, sizes(found, m.rules.Dialect.RotatesEXIF))
	if err != nil {
		return p, err
	}
	p.IDs, p.Exact, p.Why = e.IDs, e.Exact, e.Why
	// the places of the media are not known; they still count for affinity
	if e.Why == prompt.ErrTime.Reason || e.Why == prompt.ErrLong.Reason && e.IDs == nil {
		p.Media = slices.DeleteFunc(found, func(md Medium) bool { return md.Key == 0 })
	}
	for _, s := range e.Spans {
		md := found[s.Index]
		if !md.HasFacts { // the prompt is known only up to here
			p.IDs, p.Exact, p.Why = p.IDs[:s.Offset], false, why
			md.Offset = s.Offset // Length 0: it counts for affinity through the URL it came by
			p.Media = append(p.Media, md)
			break
		}
		md.Offset, md.Length = s.Offset, s.Length
		p.Media = append(p.Media, md)
	}
	p.HashableIDs = len(p.IDs)
	for _, md := range p.Media { // blocks from the first medium without a name on cannot be matched
		if !md.HasName {
			p.HashableIDs = md.Offset
			if p.Exact {
				p.Exact, p.Why = false, md.unnamed()
			}
			break
		}
	}
	if why := out.Ambiguous(false); why != "" {
		p.HashableIDs, p.Exact, p.Why = 0, false, why
	} else if why := out.Ambiguous(true); why != "" && len(p.Media) > 0 {
		p.HashableIDs, p.Exact, p.Why = p.Media[0].Offset, false, why
	}
	return p, nil
}

// Locals appends the prompt's local hashes for blocks of a form to dst. lora is an adapter's name or "".
func (p *Prompt) Locals(dst []uint64, form block.Form, lora string) []uint64 {
	key := p.BlockKey()
	if p.locals != nil {
		own := rules.Hashable{Key: key, IDs: p.IDs[:p.HashableIDs], BlockSize: form.Size, Adapter: lora, Salt: p.Salt, Pairs: p.pairs}
		for i := range p.Media {
			md := &p.Media[i]
			own.Media = append(own.Media, rules.Span{Offset: md.Offset, Length: md.Length, Key: md.Key, Name: md.Name})
		}
		return p.locals(dst, &own)
	}
	var few [16]block.Span
	spans := few[:0]
	for i := range p.Media {
		spans = append(spans, block.Span{Offset: p.Media[i].Offset, Length: p.Media[i].Length, Name: p.Media[i].Key})
	}
	return key.Locals(dst, p.IDs[:p.HashableIDs], form, spans, key.Root(lora, p.Salt))
}

// BlockKey returns the key of the prompt's hashes, the same from the prompt's reading on.
func (p *Prompt) BlockKey() *block.Key {
	if p.key == nil { // it was not read from a request
		return block.Fixed()
	}
	return p.key
}

// SameBlocks reports whether q has the same blocks as p for every form and adapter: the same ids and media, keyed by the same
// rule.
func (p *Prompt) SameBlocks(q *Prompt) bool {
	return p.Salt == q.Salt && p.key == q.key && p.locals == nil && q.locals == nil &&
		slices.Equal(p.IDs[:p.HashableIDs], q.IDs[:q.HashableIDs]) &&
		slices.EqualFunc(p.Media, q.Media, func(a, b Medium) bool { return a.Offset == b.Offset && a.Length == b.Length && a.Key == b.Key })
}
