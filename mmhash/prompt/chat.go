package prompt

import (
	"errors"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/mmhash/chat"
	"github.com/sightline-router/sightline/mmhash/prompt/template"
)

// continueTag marks the end of the message to be continued while the template renders (transformers 5,
// utils/chat_template_utils.py). Its blank tells whether the template trims.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

// chat renders a conversation as one prompt of the draft.
func (m *Model) chat(req *chat.Request, messages []chat.Message, d *Draft) error {
	if len(messages) == 0 {
		return refuse(400, "messages is empty")
	}
	if v := req.Fields["chat_template"]; v.Type == gjson.String && !m.opt.TrustChatTemplate {
		return refuse(400, "chat_template in a request, without --trust-request-chat-template")
	}
	tools, err := m.toolList(req)
	if err != nil {
		return err
	}
	t := m.plain
	if !tools.IsNone() {
		t = m.tools
	}
	if v := req.Fields["chat_template"]; v.Type == gjson.String {
		text, ok := req.Body.String(v)
		if !ok {
			return refuse(400, "chat_template is no valid text")
		}
		if t, err = m.compile(text); err != nil {
			return refuse(400, "chat_template of the request does not compile")
		}
	}
	if t == nil {
		return ErrNoTemplate
	}
	generate := boolField(req, "add_generation_prompt", true)
	goOn := boolField(req, "continue_final_message", false)
	if generate && goOn {
		return refuse(400, "continue_final_message together with add_generation_prompt")
	}
	r := reader{m: m, body: req.Body, openai: t.openai}
	if goOn {
		r.tag = continueTag
	}
	c, err := r.conversation(messages, t.source)
	if err != nil {
		return err
	}
	vars, err := m.variables(req, c, tools, generate)
	if err != nil {
		return err
	}
	size := 256
	for i := range messages {
		size += len(messages[i].Content.Raw) + 64
	}
	text, err := t.Render(make([]byte, 0, size), vars)
	if err != nil {
		var raised *template.RaisedError
		if errors.As(err, &raised) {
			return refuse(400, "the chat template refuses the conversation")
		}
		if errors.Is(err, template.ErrLimit) {
			return err
		}
		return refuse(400, "the chat template fails on the conversation")
	}
	rendered := string(text)
	if goOn {
		if rendered, err = cutAtTag(rendered); err != nil {
			return err
		}
	}
	d.Prompts = append(d.Prompts, DraftPrompt{Text: rendered, Media: c.media, addSpecial: boolField(req, "add_special_tokens", false)})
	return nil
}

// cutAtTag ends a rendered conversation where its last message's text ends.
func cutAtTag(text string) (string, error) {
	bare := strings.TrimSpace(continueTag)
	at := strings.LastIndex(text, bare)
	if at < 0 {
		return "", refuse(400, "the chat template drops the message that is to be continued")
	}
	if strings.HasPrefix(text[at:], continueTag) {
		return text[:at], nil
	}
	return strings.TrimRight(text[:at], " \t\n\v\f\r\x1c\x1d\x1e\x1f\u0085\u00a0"), nil
}

// variables are what the template sees; of equal names the last counts.
func (m *Model) variables(req *chat.Request, c conversation, tools template.Value, generate bool) (template.Vars, error) {
	vars := append(make(template.Vars, 0, len(m.vars)+12), m.vars...)
	vars.Set("documents", template.None)
	thinking := false
	if v, ok := req.Fields["chat_template_kwargs"]; ok && v.Type != gjson.Null {
		kw, err := template.FromJSON(req.Body.Full(v))
		if err != nil || kw.Dict() == nil {
			return nil, refuse(400, "chat_template_kwargs is no object")
		}
		for _, e := range kw.Dict().Entries() {
			switch name := e.Key.Text(); name {
			case "chat_template", "tokenize", "conversation":
			case "enable_thinking":
				thinking = true
				fallthrough
			default:
				vars.Set(name, e.Value)
			}
		}
	}
	if v, ok := req.Fields["documents"]; ok && v.Type != gjson.Null {
		documents, err := template.FromJSON(req.Body.Full(v))
		if err != nil {
			return nil, refuse(400, "documents cannot be read")
		}
		vars.Set("documents", documents)
	}
	if effort, ok := req.Body.String(req.Fields["reasoning_effort"]); ok {
		vars.Set("reasoning_effort", template.String(effort))
		if !thinking {
			vars.Set("enable_thinking", template.Bool(effort != "none"))
		}
	}
	vars.Set("messages", template.NewList(c.messages...))
	vars.Set("tools", tools)
	vars.Set("add_generation_prompt", template.Bool(generate))
	return vars, nil
}

// toolList gives the tools as templates see them: type and function, with name, description and parameters in this
// order, null where absent, and what else the client sent behind them (pydantic's model_dump in vLLM).
func (m *Model) toolList(req *chat.Request) (template.Value, error) {
	raw, ok := req.Fields["tools"]
	if !ok || raw.Type == gjson.Null {
		return template.None, nil
	}
	list, err := template.FromJSON(req.Body.Full(raw))
	if err != nil || list.Kind() != template.KindList {
		return template.None, refuse(400, "tools is no list")
	}
	if len(list.Items()) == 0 {
		return template.None, nil
	}
	choice := req.Fields["tool_choice"]
	if choice.Type == gjson.Null && !m.opt.AutoToolChoice && m.opt.Engine == "vllm" {
		return template.None, refuse(400, "tools without tool_choice, without --enable-auto-tool-choice")
	}
	if choice.String() == "none" && m.opt.ExcludeToolsOnNone {
		return template.None, nil
	}
	out := make([]template.Value, 0, len(list.Items()))
	for _, tool := range list.Items() {
		fn, _ := tool.Get("function")
		name, _ := fn.Get("name")
		if tool.Dict() == nil || fn.Dict() == nil || !name.IsString() {
			return template.None, refuse(400, "tool without a function that has a name")
		}
		f := template.NewDict(4)
		for _, key := range []string{"name", "description", "parameters"} {
			v, ok := fn.Get(key)
			if !ok {
				v = template.None
			}
			f.Set(key, v)
		}
		for _, e := range fn.Dict().Entries() {
			if key := e.Key.Text(); key != "strict" || !e.Value.IsNone() {
				f.Set(key, e.Value)
			}
		}
		t := template.NewDict(2)
		t.Set("type", template.String("function"))
		for _, e := range tool.Dict().Entries() {
			if e.Key.Text() == "function" {
				e.Value = f.Value()
			}
			t.Set(e.Key.Text(), e.Value)
		}
		out = append(out, t.Value())
	}
	return template.NewList(out...), nil
}

func boolField(req *chat.Request, key string, otherwise bool) bool {
	switch req.Fields[key].Type {
	case gjson.True:
		return true
	case gjson.False:
		return false
	}
	return otherwise
}
