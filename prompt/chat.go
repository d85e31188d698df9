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

// settings holds what a request says, besides its messages, about rendering the template.
type settings struct {
	tools         template.Value // as templates see them; None if there are none
	documents     template.Value
	kwargs        *template.Dict // chat_template_kwargs; nil: none
	effort        template.Value // reasoning_effort; None: not given
	source        string         // the request's own template; "": the server's
	ownFormat     bool           // the request's template gets contents in the form of the model's own
	generate      bool           // add_generation_prompt
	continueFinal bool           // continue_final_message
	addSpecial    bool           // add the tokenizer's own BOS and EOS
}

// chat reads /v1/chat/completions.
func (m *Renderer) chat(req *body.Request, d *Draft) error {
	if req.Batch != nil {
		return Refuse("messages is a list of lists")
	}
	if len(req.Messages) == 0 {
		return Refuse("messages is empty")
	}
	if key := m.opt.Dialect.IDsField; key != "" && req.Fields[key].Type != gjson.Null {
		return readyPrompt(req, req.Fields[key], d)
	}
	s, err := m.settings(req)
	if err != nil {
		return err
	}
	return m.converse(req, req.Messages, s, d)
}

// readyPrompt reads a chat that carries its prompt as token ids.
func readyPrompt(req *body.Request, v gjson.Result, d *Draft) error {
	for i := range req.Messages {
		for j := range req.Messages[i].Parts {
			if req.Messages[i].Parts[j].Type != "text" { // where its placeholders are among the ids is not known
				return ErrPart
			}
		}
	}
	if !v.IsArray() {
		return Refuse("prompt is not a list of token ids")
	}
	return d.addIDs(v)
}

// batch reads /v1/chat/completions/batch as vLLM 0.32 does: one prompt per conversation, without tools.
func (m *Renderer) batch(req *body.Request, d *Draft) error {
	if len(req.Batch) == 0 {
		return Refuse("messages is not a list of conversations")
	}
	own := *req
	own.Fields = make(map[string]gjson.Result, len(req.Fields))
	for key, v := range req.Fields {
		switch key {
		case "tools", "tool_choice", "documents", "reasoning_effort", "truncate_prompt_tokens",
			"add_special_tokens": // this API lacks these fields
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
	d.Prompts = make([]DraftPrompt, 0, len(req.Batch))
	for _, messages := range req.Batch {
		if len(messages) == 0 {
			return Refuse("messages is empty")
		}
		if err := m.converse(req, messages, s, d); err != nil {
			return err
		}
	}
	return nil
}

// settings reads the fields of a chat request.
func (m *parameters) settings(req *body.Request) (s settings, err error) {
	dialect := &m.opt.Dialect
	s = settings{documents: template.None, effort: template.None, generate: true}
	s.tools, err = m.toolList(req)
	if err != nil {
		return s, err
	}
	if v := req.Fields["chat_template"]; v.Type == gjson.String && dialect.ClientTemplates {
		var ok bool
		s.source, ok = req.Body.String(v)
		if !ok || !m.opt.TrustChatTemplate {
			return s, Refuse("chat_template in a request, without --trust-request-chat-template or no valid text")
		}
	}
	s.kwargs, err = m.templateKwargs(req)
	if err != nil {
		return s, err
	}
	if v := req.Fields["documents"]; v.Type != gjson.Null && dialect.Documents {
		s.documents, err = Value(req.Body, v, "documents cannot be read")
		if err != nil {
			return s, err
		}
	}
	if err := m.kwargsAsFields(&s); err != nil {
		return s, err
	}
	if v := req.Fields["reasoning_effort"]; v.Type != gjson.Null {
		s.effort, err = Value(req.Body, v, "reasoning_effort cannot be read")
		if err != nil {
			return s, err
		}
	}
	s.continueFinal = BoolField(req, "continue_final_message", false)
	if dialect.PromptFlags {
		s.generate = BoolField(req, "add_generation_prompt", true)
		s.addSpecial = BoolField(req, "add_special_tokens", false)
	}
	return s, nil
}

// kwargsAsFields applies those chat_template_kwargs that count as fields of the request, for an engine that has such (vLLM 0.32).
func (m *parameters) kwargsAsFields(s *settings) error {
	if s.kwargs == nil || !m.opt.Dialect.KwargsAreFields {
		return nil
	}
	given := func(key string) (template.Value, bool) {
		v, ok := s.kwargs.Get(key)
		return v, ok && !notGiven(v)
	}
	if v, ok := given("tools"); ok && v.Kind() == template.KindList {
		s.tools = v
	}
	if v, ok := given("documents"); ok && s.documents.IsNone() {
		s.documents = v
	}
	if v, ok := given("chat_template"); ok && s.source == "" && m.opt.TemplateFile == "" {
		if !v.IsString() {
			return Refuse("chat_template is not valid text")
		}
		s.source, s.ownFormat = v.Text(), true
	}
	return nil
}

// notGiven reports whether a value of chat_template_kwargs counts as missing where kwargs are fields.
func notGiven(v template.Value) bool { return v.IsNone() || v.IsString() && v.Text() == "auto" }

// templateKwargs reads chat_template_kwargs.
func (m *parameters) templateKwargs(req *body.Request) (*template.Dict, error) {
	v, ok := req.Fields["chat_template_kwargs"]
	if !ok || v.Type == gjson.Null {
		return nil, nil
	}
	kw, err := Value(req.Body, v, "chat_template_kwargs is not an object")
	if err != nil {
		return nil, err
	}
	if kw.Dict() == nil {
		return nil, Refuse("chat_template_kwargs is not an object")
	}
	if _, ok := kw.Get("chat_template"); ok && !m.opt.TrustChatTemplate {
		return nil, Refuse("chat_template in a request, without --trust-request-chat-template")
	}
	return kw.Dict(), nil
}

// converse renders chat messages as one prompt of the draft.
func (m *Renderer) converse(req *body.Request, messages []body.Message, s settings, d *Draft) error {
	if m.mistral != nil {
		return m.converseMistral(req, messages, s, d)
	}
	r, err := m.readerFor(req.Body, s)
	if err != nil {
		return err
	}
	turns, err := r.turns(messages)
	if err != nil {
		return err
	}
	return r.render(turns, s, d)
}

// readerFor returns a reader for the template to use: the request's own or one of the model's.
func (m *Renderer) readerFor(body *body.Skeleton, s settings) (*Reader, error) {
	if m.opaque != nil {
		return nil, m.opaque
	}
	t := m.plain
	if !s.tools.IsNone() {
		t = m.tools
	}
	if len(s.source) > maxOwnTemplate {
		return nil, ErrTemplateLimit
	}
	if s.source != "" {
		var err error
		t, err = m.compile(s.source, ownLimits)
		if err != nil {
			return nil, Refuse("chat_template of the request does not compile")
		}
		if s.ownFormat && m.plain != nil {
			t.openai = m.plain.openai
		}
	}
	if t == nil {
		return nil, ErrNoTemplate
	}
	return m.reader(body, t), nil
}

// render converts the turns as the engine does and renders them as one prompt of the draft.
func (r *Reader) render(turns []Turn, s settings, d *Draft) error {
	m, t := r.m, r.t
	messages, tail, err := m.opt.Dialect.Messages(r, turns, s.continueFinal)
	if err != nil {
		return err
	}
	if len(r.media) > 0 && m.visErr == nil && !m.vision.Multimodal() {
		return Refuse("media for a text-only model")
	}
	size := 128
	for i := range turns {
		size += 64
		for _, it := range turns[i].Items {
			size += len(it.Text) + 32
		}
	}
	vars, err := m.variables(t, &s)
	if err != nil {
		return err
	}
	call := template.Chat{Messages: template.NewList(messages...), Tools: s.tools, Documents: s.documents,
		AddGenerationPrompt: s.generate, Vars: vars, Done: d.done}
	if s.continueFinal && !m.opt.Dialect.ContinuesBehind {
		call.ContinueFinal = "content"
	}
	text, err := t.Apply(make([]byte, 0, size), &call)
	if fails, _ := failed(renderError(err)); fails && m.opt.Dialect.BareTools && !s.tools.IsNone() {
		call.Tools = bareFunctions(s.tools)
		text, err = t.Apply(text[:0], &call)
	}
	if err != nil {
		return renderError(err)
	}
	prompt := DraftPrompt{Text: unsafe.String(unsafe.SliceData(text), len(text)), Media: r.media,
		addSpecial: s.addSpecial, tail: tail}
	if len(r.media) > 0 && m.visErr != nil {
		prompt.before = r.beforeMedia(turns, s.continueFinal, call, text)
	}
	d.Prompts = append(d.Prompts, prompt)
	return nil
}

// beforeMedia returns the beginning of text, the rendered turns, that no placeholder of the engine's can change: it is the same if
// something else stands at the first medium. Where the template gets content as one string, the engine puts placeholders into it
// by the family's rule, which is not known, so all of that turn is replaced.
func (r *Reader) beforeMedia(turns []Turn, continueFinal bool, call template.Chat, text []byte) string {
	first := slices.IndexFunc(turns, func(t Turn) bool { return !OnlyText(t.Items) })
	if first < 0 {
		return ""
	}
	for _, other := range []string{"7", "\n"} {
		changed := slices.Clone(turns)
		turn := &changed[first]
		if at := slices.IndexFunc(turn.Items, func(it Item) bool { return it.Medium != nil }); r.OpenAI && at >= 0 {
			turn.Items = append(slices.Clone(turn.Items[:at]), Item{Text: other})
		} else {
			turn.Kind, turn.Items = body.Text, []Item{{Text: other}}
		}
		messages, _, err := r.m.opt.Dialect.Messages(r.m.reader(r.Body, r.t), changed, continueFinal)
		if err != nil {
			return ""
		}
		call.Messages = template.NewList(messages...)
		rendered, err := r.t.Apply(make([]byte, 0, len(text)), &call)
		if err != nil {
			return ""
		}
		text = commonStart(text, rendered)
	}
	return strings.ToValidUTF8(string(text), "")
}

// renderError converts a template's error to the request's, because the template's text may quote the client's.
func renderError(err error) error {
	var raised *template.RaisedError
	var failed *template.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &raised):
		return Refuse("the chat template refuses the conversation")
	case errors.As(err, &failed) && failed.Unsupported:
		return ErrFeature
	case errors.Is(err, template.ErrLimit):
		return ErrTemplateLimit
	}
	return Refuse("the chat template fails on the conversation")
}

// variables returns what the template sees besides messages and tools. The last of equal names wins. The order is: special tokens,
// the server's default_chat_template_kwargs, the request's, and what the API derives from its own fields.
func (m *parameters) variables(t *chatTemplate, s *settings) (template.Vars, error) {
	dialect, effort := &m.opt.Dialect, s.effort
	if s.kwargs == nil && effort.IsNone() {
		return m.vars, nil // a batch may have thousands of conversations
	}
	vars := append(make(template.Vars, 0, len(m.vars)+8), m.vars...)
	given := func(name string) bool {
		if s.kwargs == nil {
			return false
		}
		_, ok := s.kwargs.Get(name)
		return ok
	}
	if dialect.Effort != nil && !effort.IsNone() {
		sets, ok := dialect.Effort(t.Template, effort)
		if !ok {
			return nil, ErrField
		}
		for _, v := range sets {
			if !given(v.Name) {
				vars = append(vars, v)
			}
		}
	}
	if !dialect.EffortWins && !effort.IsNone() {
		vars.Set("reasoning_effort", effort)
	}
	if s.kwargs != nil {
		for _, e := range s.kwargs.Entries() {
			name := e.Key.Text()
			if apiVariable[name] && !dialect.KwargsAreFields { // apply_chat_template would get it
				return nil, ErrField
			}
			if !apiVariable[name] && t.Uses(name) && !(dialect.KwargsAreFields && notGiven(e.Value)) {
				vars.Set(name, e.Value)
			}
		}
	}
	if dialect.EffortWins && !effort.IsNone() {
		vars.Set("reasoning_effort", effort)
	}
	return vars, nil
}

// apiVariable holds the names that a client's kwargs cannot set: parameters of apply_chat_template.
var apiVariable = map[string]bool{"messages": true, "conversation": true, "chat_template": true, "tokenize": true,
	"tools": true, "documents": true,
	"add_generation_prompt": true, "continue_final_message": true, "return_dict": true}

// BoolField reads a flag as pydantic does, which also accepts numbers and words.
func BoolField(req *body.Request, key string, otherwise bool) bool {
	v := req.Fields[key]
	switch strings.ToLower(v.String()) {
	case "true", "1", "t", "yes", "y", "on":
		return true
	case "false", "0", "f", "no", "n", "off":
		return false
	}
	return otherwise
}
