package prompt

import (
	"errors"
	"slices"
	"strings"
	"unsafe"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt/template"
)

// settings are what of a request, beside its messages, decides how the template is rendered.
type settings struct {
	tools      template.Value // as templates see them; None where there are none
	documents  template.Value
	kwargs     *template.Dict // chat_template_kwargs; nil: none
	effort     template.Value // reasoning_effort; None: not given
	source     string         // a template of the request's own; "": the server's
	likeOwn    bool           // it gets contents in the form of the model's own
	generate   bool           // add_generation_prompt
	goOn       bool           // continue_final_message
	addSpecial bool           // put the tokenizer's own BOS and EOS around
}

// chat reads /v1/chat/completions.
func (m *Model) chat(req *body.Request, d *Draft) error {
	if req.Batch != nil {
		return refuse(400, "messages is a list of lists")
	}
	if len(req.Messages) == 0 {
		return refuse(400, "messages is empty")
	}
	if ids := m.givenIDs(req); ids.Type != gjson.Null {
		return readyPrompt(req, ids, d)
	}
	s, err := m.settings(req)
	if err != nil {
		return err
	}
	return m.converse(req, req.Messages, s, d)
}

// givenIDs is the field by which a chat can bring its prompt ready tokenised, to the engines that have one.
func (m *Model) givenIDs(req *body.Request) gjson.Result {
	switch m.opt.Engine {
	case "sglang":
		return req.Fields["input_ids"]
	case "trtllm":
		return req.Fields["prompt_token_ids"]
	}
	return gjson.Result{}
}

func readyPrompt(req *body.Request, v gjson.Result, d *Draft) error {
	for i := range req.Messages {
		for j := range req.Messages[i].Parts {
			if req.Messages[i].Parts[j].Type != "text" { // where its placeholders stand among the ids is not ours to say
				return ErrPart
			}
		}
	}
	if !v.IsArray() {
		return refuse(400, "prompt is no list of token ids")
	}
	ids, err := tokenIDs(v)
	if err != nil {
		return err
	}
	d.Prompts = append(d.Prompts, DraftPrompt{IDs: ids})
	return nil
}

// batch reads vLLM's /v1/chat/completions/batch: one prompt for each conversation, without tools.
func (m *Model) batch(req *body.Request, d *Draft) error {
	if len(req.Batch) == 0 {
		return refuse(400, "messages is no list of conversations")
	}
	if n := req.Fields["n"]; n.Type == gjson.Number && n.Num != 1 {
		return refuse(400, "a batch that asks for several choices")
	}
	if choice := req.Fields["tool_choice"]; choice.Type != gjson.Null && choice.String() != "none" {
		return refuse(400, "a batch with a tool_choice")
	}
	own := *req
	own.Fields = make(map[string]gjson.Result, len(req.Fields))
	for key, v := range req.Fields {
		switch key {
		case "tools", "tool_choice", "documents", "reasoning_effort", "truncate_prompt_tokens", "add_special_tokens": // not of this API
		default:
			own.Fields[key] = v
		}
	}
	d.truncate = 0
	d.bound(m.opt.MaxModelLen)
	s, err := m.settings(&own)
	if err != nil {
		return err
	}
	for _, messages := range req.Batch {
		if len(messages) == 0 {
			return refuse(400, "messages is empty")
		}
		if err := m.converse(req, messages, s, d); err != nil {
			return err
		}
	}
	return nil
}

// settings reads the fields of a chat request.
func (m *Model) settings(req *body.Request) (s settings, err error) {
	s.documents, s.effort = template.None, template.None
	if s.tools, err = m.toolList(req); err != nil {
		return s, err
	}
	if v := req.Fields["chat_template"]; v.Type == gjson.String && m.opt.Engine == "vllm" {
		if !m.opt.TrustChatTemplate {
			return s, refuse(400, "chat_template in a request, without --trust-request-chat-template")
		}
		var ok bool
		if s.source, ok = req.Body.String(v); !ok {
			return s, refuse(400, "chat_template is no valid text")
		}
	}
	if s.kwargs, err = m.templateKwargs(req); err != nil {
		return s, err
	}
	if v, ok := req.Fields["documents"]; ok && v.Type != gjson.Null && m.opt.Engine != "sglang" {
		if s.documents, err = readValue(req.Body, v, "documents cannot be read"); err != nil {
			return s, err
		}
		if m.opt.Engine == "vllm" && !areDocuments(v) {
			return s, refuse(400, "documents is no list of objects with texts")
		}
	}
	if m.opt.Engine == "vllm" {
		if err := m.kwargsAsFields(&s); err != nil {
			return s, err
		}
	}
	if v := req.Fields["reasoning_effort"]; v.Type != gjson.Null {
		if s.effort, err = readValue(req.Body, v, "reasoning_effort cannot be read"); err != nil {
			return s, err
		}
		if m.opt.Engine == "vllm" && !oneOf(v, "none", "minimal", "low", "medium", "high", "xhigh", "max") {
			return s, refuse(400, "reasoning_effort of an unknown kind")
		}
	}
	s.goOn = boolField(req, "continue_final_message", false)
	s.generate = boolField(req, "add_generation_prompt", true)
	if m.opt.Engine == "sglang" {
		s.generate = true // the API has no such field
		return s, nil
	}
	s.addSpecial = boolField(req, "add_special_tokens", false)
	if s.generate && s.goOn {
		return s, refuse(400, "continue_final_message together with add_generation_prompt")
	}
	return s, nil
}

// kwargsAsFields reads those of chat_template_kwargs that count as if they stood in the request (vLLM).
func (m *Model) kwargsAsFields(s *settings) error {
	if s.kwargs == nil {
		return nil
	}
	given := func(key string) (template.Value, bool) {
		v, ok := s.kwargs.Get(key)
		return v, ok && !v.IsNone() && (!v.IsString() || v.Text() != "auto")
	}
	if v, ok := given("tools"); ok && v.Kind() == template.KindList {
		if !areDicts(v) {
			return refuse(400, "tools is no list of objects")
		}
		s.tools = v
	}
	if v, ok := given("documents"); ok && s.documents.IsNone() {
		if v.Kind() != template.KindList && (!v.IsString() || v.Text() != "") || !areDicts(v) {
			return refuse(400, "documents is no list of objects")
		}
		s.documents = v
	}
	if v, ok := given("chat_template"); ok && s.source == "" && m.opt.TemplateFile == "" {
		if !v.IsString() {
			return refuse(400, "chat_template is no valid text")
		}
		s.source, s.likeOwn = v.Text(), true
	}
	return nil
}

func areDicts(list template.Value) bool {
	return !slices.ContainsFunc(list.Items(), func(v template.Value) bool { return v.Dict() == nil })
}

func areDocuments(v gjson.Result) bool {
	ok := v.IsArray()
	v.ForEach(func(_, doc gjson.Result) bool {
		ok = ok && doc.IsObject()
		doc.ForEach(func(_, v gjson.Result) bool { ok = ok && isText(v); return ok })
		return ok
	})
	return ok
}

// templateKwargs reads chat_template_kwargs.
func (m *Model) templateKwargs(req *body.Request) (*template.Dict, error) {
	v, ok := req.Fields["chat_template_kwargs"]
	if !ok || v.Type == gjson.Null {
		return nil, nil
	}
	kw, err := readValue(req.Body, v, "chat_template_kwargs is no object")
	if err != nil {
		return nil, err
	}
	if kw.Dict() == nil {
		return nil, refuse(400, "chat_template_kwargs is no object")
	}
	if _, ok := kw.Get("chat_template"); ok && !m.opt.TrustChatTemplate {
		return nil, refuse(400, "chat_template in a request, without --trust-request-chat-template")
	}
	for _, name := range []string{"messages", "conversation"} {
		if v, ok := kw.Get(name); ok && !v.IsNone() && m.opt.Engine == "vllm" && (!v.IsString() || v.Text() != "auto") {
			return nil, refuse(400, "chat_template_kwargs with the name of an argument")
		}
	}
	return kw.Dict(), nil
}

// converse renders chat messages as one prompt of the draft.
func (m *Model) converse(req *body.Request, messages []body.Message, s settings, d *Draft) error {
	r := reader{m: m, body: req.Body}
	if m.mistral != nil {
		return r.converseMistral(messages, s, d)
	}
	if m.writing != nil {
		turns, err := r.turns(messages)
		if err != nil {
			return err
		}
		return r.written(m.writing, turns, s, d)
	}
	t, err := m.templateFor(s)
	if err != nil {
		return err
	}
	r.openai = t.openai
	turns, err := r.turns(messages)
	if err != nil {
		return err
	}
	return r.render(turns, t, s, d)
}

// templateFor picks the template: the request's own, or one of the model's.
func (m *Model) templateFor(s settings) (t *chatTemplate, err error) {
	if m.opaque != nil {
		return nil, m.opaque
	}
	t = m.plain
	if !s.tools.IsNone() {
		t = m.tools
	}
	if s.source != "" {
		if t, err = m.compile(s.source); err != nil {
			return nil, refuse(400, "chat_template of the request does not compile")
		}
		if s.likeOwn && m.plain != nil {
			t.openai = m.plain.openai
		}
	}
	if t == nil {
		return nil, ErrNoTemplate
	}
	return t, nil
}

// render lays the turns out as the engine does and renders them as one prompt of the draft.
func (r *reader) render(turns []turn, t *chatTemplate, s settings, d *Draft) (err error) {
	m := r.m
	var messages []template.Value
	var tail string // goes behind the rendered text, tokenised alone
	switch m.opt.Engine {
	case "sglang":
		turns, tail = lastTurnSGLang(turns, s.goOn)
		messages, err = r.layOut(turns, r.messageSGLang)
		s.goOn = false
	case "trtllm":
		messages, err = r.layOut(turns, r.messageTRTLLM)
	default:
		messages, err = r.vllm(turns, t)
	}
	if err != nil {
		return err
	}
	if len(r.media) > 0 && m.visErr == nil && !m.vision.Multimodal() {
		return refuse(400, "media for a model that takes text alone")
	}
	size := 256
	for i := range turns {
		size += 64
		for _, it := range turns[i].items {
			size += len(it.text) + 32
		}
	}
	call := template.Chat{Messages: template.NewList(messages...), Tools: s.tools, Documents: s.documents,
		AddGenerationPrompt: s.generate, Vars: m.variables(t, &s), Done: d.done}
	if s.goOn {
		call.ContinueFinal = "content"
	}
	text, err := t.Apply(make([]byte, 0, size), &call)
	if err != nil && m.opt.Engine == "sglang" && !s.tools.IsNone() { // tried again with the bare functions
		call.Tools = bareFunctions(s.tools)
		text, err = t.Apply(text[:0], &call)
	}
	if err != nil {
		return renderError(err)
	}
	d.Prompts = append(d.Prompts, DraftPrompt{Text: unsafe.String(unsafe.SliceData(text), len(text)), Media: r.media, addSpecial: s.addSpecial, tail: tail})
	return nil
}

// renderError says what an error of a template means to the request; its own text may quote the client's.
func renderError(err error) error {
	var raised *template.RaisedError
	switch {
	case errors.As(err, &raised):
		return refuse(400, "the chat template refuses the conversation")
	case errors.Is(err, template.ErrLimit):
		return ErrTemplateLimit
	}
	return refuse(400, "the chat template fails on the conversation")
}

// variables are what the template sees beside messages and tools. Of equal names the last counts: special tokens, the
// server's default_chat_template_kwargs, the request's, and what the API makes of its own fields.
func (m *Model) variables(t *chatTemplate, s *settings) template.Vars {
	vars := append(make(template.Vars, 0, len(m.vars)+8), m.vars...)
	vllm := m.opt.Engine == "vllm"
	effort := func() {
		if !s.effort.IsNone() {
			vars.Set("reasoning_effort", s.effort)
		}
	}
	if !vllm {
		effort() // kwargs override it
	}
	thinking := false
	if s.kwargs != nil {
		for _, e := range s.kwargs.Entries() {
			name := e.Key.Text()
			thinking = thinking || name == "enable_thinking"
			switch {
			case apiVariable[name]:
			case vllm && (e.Value.IsNone() || e.Value.IsString() && e.Value.Text() == "auto"): // counts as not given
			case t.Uses(name):
				vars.Set(name, e.Value)
			}
		}
	}
	if vllm && !s.effort.IsNone() {
		effort()
		if !thinking {
			vars.Set("enable_thinking", template.Bool(s.effort.Text() != "none"))
		}
	}
	return vars
}

// apiVariable are names that a client's kwargs cannot set: parameters of apply_chat_template.
var apiVariable = map[string]bool{"messages": true, "conversation": true, "chat_template": true, "tokenize": true, "tools": true, "documents": true,
	"add_generation_prompt": true, "continue_final_message": true, "return_dict": true}

// boolField reads a flag as pydantic does: numbers and words stand for it too.
func boolField(req *body.Request, key string, otherwise bool) bool {
	v := req.Fields[key]
	switch strings.ToLower(v.String()) {
	case "true", "1", "t", "yes", "y", "on":
		return true
	case "false", "0", "f", "no", "n", "off":
		return false
	}
	return otherwise
}
