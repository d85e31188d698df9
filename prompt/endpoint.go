package prompt

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Draft is a request that was read: one or several prompts, each text or ids, and their media.
type Draft struct {
	Prompts []DraftPrompt
	Salt    string // cache_salt
	Reuse   Reuse
	// MMKwargs and MediaIOKwargs are the request's own, as JSON; "" for none.
	MMKwargs, MediaIOKwargs string
	kwargs                  vision.Kwargs
	limit                   int             // most ids; 0: not checked
	truncate                int             // keep n ids, the last ones; 0: all
	keepsHead, side         bool            // the first ones; which ones was said
	done                    <-chan struct{} // closed when the request's time is over; nil: never
	most                    int             // ids that are made of one prompt; 0, while a model is loaded: all
	refuses                 bool            // the engine refuses more
	room                    int             // ids of the texts of the prompt that is being expanded
	long                    bool            // it has more
	partial                 bool            // a pattern of the tokenizer took too long on one of them
}

// Over tells whether the time for the request is over, or its bound reached: what is not read by then stays unread.
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
	IDs        []uint32 // given as ids by the client
	Media      []Medium
	addSpecial bool
	tail       string // tokenised alone and put behind
}

// Endpoints that are read for some engine.
const (
	chatEndpoint        = "/v1/chat/completions"
	completionsEndpoint = "/v1/completions"
	batchEndpoint       = "/v1/chat/completions/batch"
	responsesEndpoint   = "/v1/responses"
	messagesEndpoint    = "/v1/messages"
)

// Read makes the draft of a request. Of engines other than vLLM /v1/chat/completions and /v1/completions are read. Errors: a
// *Refused or an *Unpredicted; ErrTime once ctx has ended, which ends the draft's Expand too.
func (m *Model) Read(ctx context.Context, endpoint string, req *body.Request) (*Draft, error) {
	d := &Draft{Reuse: m.reuse(endpoint, req), done: ctx.Done()}
	if m.opt.Engine != "vllm" && endpoint != chatEndpoint && endpoint != completionsEndpoint {
		return nil, ErrEndpoint
	}
	if err := m.common(endpoint, req, d); err != nil {
		return nil, err
	}
	d.bound(m.opt.MaxModelLen)
	var err error
	switch endpoint {
	case completionsEndpoint:
		err = m.completions(req, d)
	case chatEndpoint:
		err = m.chat(req, d)
	case batchEndpoint:
		err = m.batch(req, d)
	case responsesEndpoint:
		err = m.responses(req, d)
	case messagesEndpoint:
		err = m.messages(req, d)
	default:
		err = ErrEndpoint
	}
	if d.Over() { // what was read with half of its text says nothing
		return nil, ErrTime
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// common reads the fields that all endpoints share.
func (m *Model) common(endpoint string, req *body.Request, d *Draft) error {
	if v, ok := req.Fields["cache_salt"]; ok && v.Type != gjson.Null {
		salt, isText := req.Body.String(v)
		if !isText || m.opt.Engine == "vllm" && (salt == "" || utf8.RuneCountInString(salt) > 128 || strings.ContainsAny(salt, "@/\\\x00")) {
			return refuse(400, "cache_salt is not allowed")
		}
		d.Salt = salt
	}
	if v := req.Fields["media_io_kwargs"]; m.opt.Engine == "trtllm" && v.IsObject() {
		d.MediaIOKwargs = req.Body.Full(v)
	}
	if err := m.room(endpoint, req, d); err != nil || m.opt.Engine != "vllm" {
		return err
	}
	if err := m.limits(endpoint, req); err != nil || endpoint == messagesEndpoint { // an API without the fields below
		return err
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
	if endpoint == responsesEndpoint {
		if v, given := req.Fields["truncation"]; given && v.String() != "disabled" {
			if m.opt.UnknownCut {
				return ErrTruncation
			}
			d.truncate = m.whole(endpoint, req, d)
		}
		return nil
	}
	return m.truncation(endpoint, req, d)
}

// completions reads /v1/completions: no template; a text, ids, several texts or several lists of ids.
func (m *Model) completions(req *body.Request, d *Draft) error {
	add, vllm := boolField(req, "add_special_tokens", true), m.opt.Engine == "vllm"
	if vllm && req.Fields["prompt_embeds"].Type != gjson.Null {
		return refuse(400, "embeddings as input, without --enable-prompt-embeds")
	}
	if vllm && req.Fields["suffix"].Type != gjson.Null {
		return refuse(400, "suffix for a model that does not fill in the middle")
	}
	p := req.Fields["prompt"]
	one := func(v gjson.Result) error {
		if v.IsArray() {
			ids, err := tokenIDs(v)
			if err != nil {
				return err
			}
			d.Prompts = append(d.Prompts, DraftPrompt{IDs: ids})
			return nil
		}
		text, ok := req.Body.String(v)
		if !ok || vllm && !p.IsArray() && text == "" {
			return refuse(400, "prompt is neither text nor token ids, or empty")
		}
		d.Prompts = append(d.Prompts, DraftPrompt{Text: text, addSpecial: add})
		return nil
	}
	if !p.IsArray() {
		return one(p)
	}
	first := p.Get("0")
	if first.Type == gjson.Number || first.IsBool() {
		return one(p)
	}
	var err error
	p.ForEach(func(_, v gjson.Result) bool {
		if vllm && first.Type == gjson.String && (v.Type == gjson.Number || v.IsBool()) {
			_, err = tokenIDs(p)
		} else if vllm && v.Type != first.Type {
			err = refuse(400, "prompt is a list of texts and token ids")
		} else if len(d.Prompts) == 1024 {
			err = ErrManyPrompts
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

// tokenIDs reads a list of ids as pydantic does, which takes bools for numbers. It takes a text of digits too; where it does
// is not followed.
func tokenIDs(v gjson.Result) (ids []uint32, err error) {
	wrong := refuse(400, "prompt is no list of token ids")
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
