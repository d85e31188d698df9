package prompt

import (
	"context"
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Draft is a request that was read: one or more prompts, each text or ids, and their media.
type Draft struct {
	Prompts []DraftPrompt
	Salt    string // cache_salt
	// MMKwargs and MediaIOKwargs are the request's own, as JSON; "" if it has none.
	MMKwargs, MediaIOKwargs string
	kwargs                  vision.Kwargs
	limit                   int             // most ids; 0: not checked
	truncate                int             // keep n ids, by default the last ones; 0: all
	keepsHead, side         bool            // keep the first ones; the request said which
	done                    <-chan struct{} // closed when the request's time is over; nil: never
	most                    int             // bound of the ids made of one prompt; 0, while a model is loaded: none
	engineRefuses           bool            // the engine refuses longer prompts
	room                    int             // ids left for the texts of the prompt that is being expanded
	long                    bool            // the prompt has more ids than that
	partial                 bool            // a pattern of the tokenizer took too long on one of the texts
}

// Over reports whether the request's time is over or its bound reached. Nothing more is read then.
func (d *Draft) Over() bool {
	if d.long || d.partial {
		return true
	}
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// DraftPrompt is one prompt before its media are expanded.
type DraftPrompt struct {
	Text       string
	IDs        []uint32 // if the client sent ids
	Media      []MediaPart
	addSpecial bool
	tail       string // tokenized alone and appended
	before     string // of a family without a vision rule: the beginning of Text that certainly comes before the first medium
}

// Endpoints that are read for at least one engine.
const (
	ChatEndpoint        = denied.Chat
	CompletionsEndpoint = denied.Completions
	BatchEndpoint       = denied.Batch
	ResponsesEndpoint   = denied.Responses
	MessagesEndpoint    = denied.Messages
)

// Read makes the draft of a request. The error is a *Refused or an *Unpredicted, or ErrTime once ctx has ended. The end of ctx also
// ends the draft's Expand.
func (m *Renderer) Read(ctx context.Context, endpoint string, req *body.Request) (*Draft, error) {
	if m.blind {
		return nil, m.opaque
	}
	d := &Draft{done: ctx.Done()}
	if !m.opt.Dialect.OtherAPIs && endpoint != ChatEndpoint && endpoint != CompletionsEndpoint {
		return nil, ErrEndpoint
	}
	if slices.ContainsFunc(m.opt.Dialect.Unread, func(key string) bool { return Given(req.Fields[key]) }) {
		return nil, ErrField
	}
	if err := m.common(endpoint, req, d); err != nil {
		return nil, err
	}
	if m.tok.Unlike() != "" {
		return nil, ErrClass
	}
	d.bound(m.opt.MaxModelLen)
	var err error
	switch endpoint {
	case CompletionsEndpoint:
		err = m.completions(req, d)
	case ChatEndpoint:
		err = m.chat(req, d)
	case BatchEndpoint:
		err = m.batch(req, d)
	case ResponsesEndpoint:
		err = m.responses(req, d)
	case MessagesEndpoint:
		err = m.messages(req, d)
	default:
		err = ErrEndpoint
	}
	if d.Over() { // a result for half of the text is meaningless
		return nil, d.whyOver()
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Given reports whether a field says anything: null, false and an empty list or object do not.
func Given(v gjson.Result) bool {
	return v.Type != gjson.Null && v.Type != gjson.False && v.Raw != "{}" && v.Raw != "[]"
}

// common reads the fields that all endpoints share.
func (m *parameters) common(endpoint string, req *body.Request, d *Draft) error {
	if v := req.Fields["cache_salt"]; v.Type != gjson.Null {
		var ok bool
		d.Salt, ok = req.Body.String(v)
		if !ok {
			return Refuse("cache_salt is not a string")
		}
	}
	if err := m.room(endpoint, req, d); err != nil {
		return err
	}
	if endpoint == MessagesEndpoint { // this API lacks the fields below
		return nil
	}
	if err := m.mediaKwargs(req, d); err != nil {
		return err
	}
	return m.truncation(endpoint, req, d)
}

// mediaKwargs reads a request's options for its media.
func (m *parameters) mediaKwargs(req *body.Request, d *Draft) error {
	dialect := &m.opt.Dialect
	for _, f := range []struct {
		key  string
		read bool
		dst  *string
	}{{"mm_processor_kwargs", dialect.MMKwargs, &d.MMKwargs}, {"media_io_kwargs", dialect.MediaIOKwargs, &d.MediaIOKwargs}} {
		v := req.Fields[f.key]
		if !f.read || !v.IsObject() {
			continue
		}
		if dialect.RefusesMMKwargs && !m.opt.TrustMMKwargs {
			return Refuse(f.key + " in a request, without --trust-request-mm-kwargs")
		}
		if v.Raw != "{}" {
			*f.dst = req.Body.Full(v)
		}
	}
	if d.MMKwargs == "" {
		return nil
	}
	var err error
	d.kwargs, err = vision.ParseKwargs([]byte(d.MMKwargs))
	if err != nil {
		return Refuse("mm_processor_kwargs cannot be read")
	}
	return nil
}

// completions reads /v1/completions, which has no template: a text, ids, several texts or several lists of ids.
func (m *Renderer) completions(req *body.Request, d *Draft) error {
	add := BoolField(req, "add_special_tokens", true)
	p := req.Fields["prompt"]
	one := func(v gjson.Result) error {
		if v.IsArray() {
			return d.addIDs(v)
		}
		text, ok := req.Body.String(v)
		if !ok && m.mistral != nil && v.Type == gjson.String {
			return ErrPython // tekken encodes half of a surrogate pair, and vLLM answers
		}
		if !ok {
			return Refuse("prompt is neither text nor token ids")
		}
		d.Prompts = append(d.Prompts, DraftPrompt{Text: text, addSpecial: add})
		return nil
	}
	first := p.Get("0")
	if !p.IsArray() || first.Type == gjson.Number || first.IsBool() {
		return one(p)
	}
	var err error
	p.ForEach(func(_, v gjson.Result) bool {
		switch {
		case v.Type == gjson.Number || v.IsBool(): // after a text: pydantic might read it as a text, if the request is served at all
			_, err = tokenIDs(p)
		case len(d.Prompts) == 1024:
			err = ErrManyPrompts
		default:
			err = one(v)
		}
		return err == nil
	})
	if err == nil && len(d.Prompts) == 0 {
		err = Refuse("prompt is empty")
	}
	return err
}

// addIDs adds a prompt given as a list of ids.
func (d *Draft) addIDs(list gjson.Result) error {
	ids, err := tokenIDs(list)
	if err != nil {
		return err
	}
	d.Prompts = append(d.Prompts, DraftPrompt{IDs: ids})
	return nil
}

// tokenIDs reads a list of ids as pydantic does, which accepts bools as numbers. For strings of digits,
// which pydantic reads as numbers in some places, the error is ErrPart.
func tokenIDs(v gjson.Result) (ids []uint32, err error) {
	wrong := Refuse("prompt is not a list of token ids")
	ids = make([]uint32, 0, strings.Count(v.Raw, ",")+1)
	v.ForEach(func(_, id gjson.Result) bool {
		switch {
		case id.IsBool():
			ids = append(ids, uint32(min(id.Int(), 1)))
		case id.Type == gjson.Number && id.Num >= 0 && id.Num < 1<<31 && id.Num == float64(uint32(id.Num)):
			ids = append(ids, uint32(id.Num))
		case id.Type == gjson.String && strings.ContainsAny(id.Str, "0123456789"):
			err = ErrPart
		default:
			err = wrong
		}
		return err == nil
	})
	if err == nil && len(ids) == 0 {
		err = wrong
	}
	return ids, err
}

// Reuse is whether the engine looks a request up in its prefix cache. It stores what it computes in any case.
type Reuse uint8

const (
	Reused     Reuse = iota // it does
	Recomputed              // it does not: log probabilities of the prompt need every token computed
	Perhaps                 // not known: what a worker holds is an upper bound of the hit
)

// AsksPromptLogprobs reports whether a request has prompt_logprobs, whatever the value (vLLM 0.32). echo has the same effect if
// there is a number of top_logprobs (a chat without one counts as 0, which is a number) or, for /v1/completions, of logprobs.
func AsksPromptLogprobs(endpoint string, req *body.Request) bool {
	given := func(key string) bool { return req.Fields[key].Type != gjson.Null }
	if given("prompt_logprobs") || !BoolField(req, "echo", false) {
		return given("prompt_logprobs")
	}
	if endpoint == CompletionsEndpoint {
		return given("logprobs")
	}
	_, said := req.Fields["top_logprobs"]
	return !said || given("top_logprobs")
}
