package router

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"sync"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
)

// The first of a decision's three values: what a request asks for, and what each kind of engine makes of it. No worker is known here.
//
//	open: the body is parsed and cleaned ─▶ nameModel ─▶ readAs: its prompt, for each kind of engine that is wanted

// reading is a request as engines read it. Its memory is used again by the next one.
type reading struct {
	body       body.Skeleton
	req        body.Request
	cleanEdits []body.Edit // edits that remove what a client must not say, and rename the model
	removed    []string    // fields that they remove, by the table's name
	renamed    string      // the model's name that the edits put into the body; "": they leave the client's
	bytes      int         // of the body
	cleaned    bool        // the body is safe to pass on with cleanEdits, whatever happens
	servedName             // what it asks for
	asked      string      // the model's name, for people, if it is not known
	session    string      // as vLLM finds it; "": none
	tenant     string      // as Request.Tenant
	shaped     bool        // parameters of the request shape its prompt
	byEngine   []engineReading
	longest    int // tokens of the longest prompt of all
}

// engineReading is a request as one kind of engine reads it: those of a release and flags. Classes of workers that differ only in block
// size share it.
type engineReading struct {
	needed       bool // some worker's engine reads it so
	edits        []body.Edit
	texts        engine.MediumTexts
	model        *engine.Model  // which reads the request
	prompt       *engine.Prompt // the longest one, since all prompts of a request share a worker; if err is set, an empty one
	computed     *engine.Prompt // the prompt by the rules that have stepped aside; nil: none has
	facts        engine.Facts   // valid even with an error
	engineTokens int            // prompt tokens that the engine will report; 0: not known
	err          error
	panicked     any
}

// readInput is what a reading is made from, besides the request.
type readInput struct {
	*serving // names of models
	lanes    *lanes
	opt      *Options
	// listed resolves the name of an adapter that is not configured but that is listed somewhere; "": it is not.
	listed func(adapter string) (model, name string)
}

// String describes what was read.
func (r *reading) String() string {
	out := fmt.Sprintf("model %q, adapter %q, %d bytes", cmp.Or(r.asked, r.req.Model), r.adapter, r.bytes)
	for i := range r.byEngine {
		if e := &r.byEngine[i]; e.needed && e.err != nil {
			out += fmt.Sprintf("; engine %d: %v", i, e.err)
		} else if e.needed {
			out += fmt.Sprintf("; engine %d: %d tokens, %d media, exact %v %s", i, len(e.prompt.IDs), len(e.prompt.Media), e.prompt.Exact,
				e.prompt.Why)
		}
	}
	return out
}

// release gives the memory of the body back.
func (r *reading) release() {
	r.body.Release()
	clear(r.byEngine)
	*r = reading{body: r.body, byEngine: r.byEngine[:0]}
}

// open parses a request's body and removes from it what a client must not say. unread is the reason if the rest of the body cannot be read.
func (r *reading) open(in *readInput, q *Request) (unread error, refusal *Refusal) {
	for _, piece := range q.Body {
		r.bytes += len(piece)
	}
	defer in.lanes.scan(q.Client, r.bytes)()
	unread = body.Read(q.Body, &r.body, &r.req)
	if in.opt.RefuseUnread && errors.Is(unread, body.ErrLarge) {
		return unread, &Refusal{Status: http.StatusRequestEntityTooLarge, Message: unread.Error()}
	}
	var err error
	removed := func(field string) { r.removed = append(r.removed, field) }
	r.cleanEdits, err = body.Clean(q.Body, &r.body, unread, q.Salt, in.opt.CacheHints, removed)
	if err != nil {
		refusal = &Refusal{Status: http.StatusBadRequest, Message: err.Error()}
		var refused *body.Refused
		if errors.As(err, &refused) {
			refusal = &Refusal{Status: refused.Status, Message: refused.Reason}
		}
		return unread, refusal
	}
	if in.opt.AskUsage && unread == nil {
		if e, ok := body.AskUsage(q.Path, &r.req); ok {
			r.cleanEdits = r.withEdits([]body.Edit{e})
		}
	}
	r.session = sessionOf(r.req.Fields, q.Session)
	if in.opt.Rewrite != nil && unread == nil && r.req.Model != "" {
		r.rename(in, q.ID)
	}
	r.cleaned = true
	r.applyHead(q)
	return unread, nil
}

// parseAgain parses the body that was dropped while the request waited for its turn, and gave no error before.
func (r *reading) parseAgain(q *Request, lanes *lanes) {
	defer lanes.scan(q.Client, r.bytes)()
	_ = body.Read(q.Body, &r.body, &r.req)
	r.session = sessionOf(r.req.Fields, q.Session)
	r.applyHead(q)
}

// drop drops what was parsed of the body, which takes up to ten times its size.
func (r *reading) drop() { r.body, r.req, r.session = body.Skeleton{}, body.Request{}, "" }

// rename has the request ask for another model, if Options.Rewrite says so. Its draw is independent of the one for unsteered conversations.
func (r *reading) rename(in *readInput, id string) {
	name := in.opt.Rewrite(r.req.Model, func() float64 { return unitInterval(r.conversationHash(id) ^ 0x7265_6e61_6d65) })
	if name == r.req.Model {
		return
	}
	if edits := body.Rename(&r.req, name); edits != nil {
		r.cleanEdits, r.renamed = r.withEdits(edits), name
	}
}

// applyHead adds what is not said by the body to what is read of it: the client, the salt that is put into it, and the model's new name.
func (r *reading) applyHead(q *Request) {
	r.req.Model = cmp.Or(r.renamed, r.req.Model)
	r.req.Client, r.tenant = q.Client, q.Tenant
	if q.Salt != nil {
		r.req.SetSalt(*q.Salt)
	}
}

// nameModel looks the request's model up. why is the reason if it cannot be used. A request that names no model asks for the route's
// model, or for the only one, as in the engines (vLLM 0.32, _is_model_supported in entrypoints/serve/engine/serving.py).
func (r *reading) nameModel(in *readInput, pool string) (why string) {
	asked := cmp.Or(r.req.Model, pool, in.onlyModel)
	name, known := in.resolve(asked)
	switch {
	case !known:
		r.asked = sanitizeName(asked)
		return "model unknown"
	case pool != "" && pool != name.model.Name:
		return "model of another pool" // its own engines answer that they have no such model
	}
	r.servedName = name
	if adapter := name.model.adapterOf(name.adapter, &r.req); adapter != name.adapter {
		r.adapter = "" // one that nobody knows is not used
		if named, _ := in.resolve(adapter); named.model == name.model {
			r.adapter = named.adapter
		}
	}
	return ""
}

// resolve looks up a name that is configured, or under which a worker lists an adapter.
func (in *readInput) resolve(asked string) (name servedName, known bool) {
	name, known = in.names[asked]
	if !known {
		model, adapter := in.listed(asked)
		name, known = in.names[model]
		name.adapter, known = adapter, known && adapter != ""
	}
	return name, known
}

// begin makes room for the readings of a model's kinds of engines. The caller marks which are needed.
func (r *reading) begin() {
	n := len(r.model.prompts)
	r.byEngine = slices.Grow(r.byEngine[:0], n)[:n]
	clear(r.byEngine)
}

// readAs makes the readings that are needed, concurrently, since they wait for the same images.
func (r *reading) readAs(ctx context.Context, path string) {
	own := slices.IndexFunc(r.byEngine, func(e engineReading) bool { return e.needed })
	var others sync.WaitGroup
	for i := own + 1; i < len(r.byEngine); i++ {
		if r.byEngine[i].needed {
			others.Go(func() { r.readOne(ctx, path, i) })
		}
	}
	r.readOne(ctx, path, own)
	others.Wait()
	r.measure()
}

// readOne makes one reading. measure re-raises its panic in the request's own goroutine, when all are done.
func (r *reading) readOne(ctx context.Context, path string, i int) {
	e := &r.byEngine[i]
	defer func() { e.panicked = recover() }()
	e.read(ctx, r.model.prompts[i].Model(), path, r.adapter, &r.req)
}

// measure notes how long the longest prompt is, and whether parameters shape it.
func (r *reading) measure() {
	r.longest, r.shaped = 0, shaped(&r.req)
	for i := range r.byEngine {
		e := &r.byEngine[i]
		if e.panicked != nil {
			panic(e.panicked)
		}
		if e.needed {
			r.longest = max(r.longest, len(e.prompt.IDs))
		}
	}
}

func (e *engineReading) read(ctx context.Context, m *engine.Model, path, adapter string, req *body.Request) {
	prompts, err := m.Read(ctx, path, adapter, req)
	e.model, e.edits, e.texts, e.facts = m, prompts.Edits, prompts.Texts, prompts.Facts
	if err != nil {
		e.err, e.prompt = err, &engine.Prompt{Why: err.Error()}
		return
	}
	e.prompt = &prompts.List[0]
	exact := true
	for i := range prompts.List {
		one := &prompts.List[i]
		if len(one.IDs) > len(e.prompt.IDs) {
			e.prompt = one
		}
		e.engineTokens += len(one.IDs)
		exact = exact && one.Exact
	}
	if !exact {
		e.engineTokens = 0
	}
}

// refused reports whether the engine will answer with an error.
func (e *engineReading) refused() bool { return e.err != nil && errors.As(e.err, new(*engine.Refused)) }

// keyed reports whether a salt or an adapter is in the keys of the request's blocks.
func (e *engineReading) keyed(adapter string) bool { return e.prompt.Salt != "" || adapter != "" }

// first returns the first reading that is needed.
func (r *reading) first() *engineReading {
	return &r.byEngine[slices.IndexFunc(r.byEngine, func(e engineReading) bool { return e.needed })]
}

// unreadable returns why no engine's reading has a prompt, "" if one has, or if what is not read is learned. theirs: the mistake is the
// client's, and the engine will report it.
func (r *reading) unreadable(learns bool) (why string, theirs bool) {
	for i := range r.byEngine {
		if e := &r.byEngine[i]; e.needed && (e.err == nil || learns && !e.refused()) {
			return "", false
		}
	}
	if r.first().refused() {
		return "the engine will answer with an error", true
	}
	return r.first().err.Error(), false
}

// editsAgree reports whether all engines that may get the request need the same body edits.
func (r *reading) editsAgree() bool {
	first := r.first()
	return !slices.ContainsFunc(r.byEngine, func(e engineReading) bool { return e.needed && !sameEdits(first.edits, e.edits) })
}

// withEdits returns the edits that clean the body and others, in the order of the body.
func (r *reading) withEdits(changes []body.Edit) []body.Edit {
	all := slices.Concat(r.cleanEdits, changes)
	slices.SortStableFunc(all, func(a, b Edit) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	return all
}

func sameEdits(a, b []body.Edit) bool {
	return slices.EqualFunc(a, b, func(a, b body.Edit) bool { return a.From == b.From && a.To == b.To && bytes.Equal(a.Text, b.Text) })
}

// shapingFields are parameters by which a request changes how its prompt is made, and which few requests have.
var shapingFields = []string{"truncate_prompt_tokens", "truncation", "truncation_side", "chat_template", "chat_template_kwargs",
	"mm_processor_kwargs", "media_io_kwargs", "add_generation_prompt", "continue_final_message", "add_special_tokens", "documents", "suffix"}

// shaped reports whether a request has parameters that shape its prompt.
func shaped(req *body.Request) bool {
	return slices.ContainsFunc(shapingFields, func(key string) bool {
		v := req.Fields[key]
		return v.Exists() && v.Type != gjson.Null
	})
}

// vLLM from 0.30 on writes a request's session id into the events of the blocks that it stores, and uses it for nothing else
// (read in 0.30.0, 0.31.0 and 0.32.0). A request without one gets the decision's id, so that the audit can attribute events.

// namesSessions reports whether workers of a class name sessions in their events and may be sent ours.
func namesSessions(s *engine.Server) bool {
	return !s.NoSessionIDs && s.Rules().TakesSessionID
}

// sessionOf returns the session id of a request as vLLM finds it: in the body, else in the header, else among the extra
// arguments; "" for none. One in the body that is not a string is not replaced: vLLM refuses the request.
func sessionOf(fields map[string]gjson.Result, header string) string {
	if v := fields["session_id"]; v.Type != gjson.Null && v.Raw != `""` {
		return v.String()
	}
	if header != "" {
		return header
	}
	return fields["vllm_xargs"].Get("session_id").String()
}

// conversationHash returns a hash of what stays the same in a conversation from turn to turn: its session or else its messages up to the
// user's first. The first blocks do not identify a conversation, since those of one service share them. A prompt that is a single
// text is its own conversation, and so is a request that was not read, which has only its id.
func (r *reading) conversationHash(id string) uint64 {
	h, req, s := fnv.New64a(), &r.req, &r.body
	messages := req.Messages
	if len(messages) == 0 {
		messages, _ = s.Messages(req.Fields["input"]) // of /v1/responses
	}
	switch text := req.Fields["prompt"]; {
	case r.session != "":
		_, _ = h.Write([]byte(r.session[:min(len(r.session), sessionText)])) // a hash does not fail
	case len(messages) > 0:
		s.Outline(h, req.Fields["system"])
		for i := range messages {
			_, _ = h.Write([]byte(messages[i].Role))
			s.Outline(h, messages[i].Content)
			if messages[i].Role == "user" {
				break
			}
		}
	case text.Exists() || req.Fields["input"].Exists():
		s.Outline(h, text)
		s.Outline(h, req.Fields["input"])
	default:
		_, _ = h.Write([]byte(id))
	}
	return h.Sum64()
}
