package prompt

import (
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/mmhash/chat"
	"github.com/sightline-router/sightline/mmhash/prompt/template"
)

// Medium is one image, video or audio clip as a request gives it, in prompt order.
type Medium struct {
	Modality string       // image, video or audio; what has no rule of its own: "other"
	Source   gjson.Result // a string: URL, data URL or base64; null where only a uuid is given
	HasUUID  bool
	UUID     string       // as vLLM takes it: str(value)
	UUIDPair gjson.Result // the uuid's value in the body, for the edit that strips it
	Part     gjson.Result // the whole content part
}

// conversation is a request's messages in the form that templates read (vLLM 0.32, entrypoints/chat_utils.py).
type conversation struct {
	messages []template.Value
	media    []Medium
}

// reader turns chat messages into a conversation by the engine's rules.
type reader struct {
	m      *Model
	body   *chat.Skeleton
	openai bool   // content as a list of parts; else one string with placeholders in it
	tag    string // appended to the last message's last text
	media  []Medium
}

// Texts that stand for a medium's place while a string is put together (no engine text contains NUL).
const mark = "\x00medium\x00"

func (r *reader) conversation(messages []chat.Message, mention string) (c conversation, err error) {
	list := make([]template.Value, 0, len(messages))
	for i := range messages {
		m := &messages[i]
		role := m.Role
		if role == "" {
			return c, refuse(400, "message without a role")
		}
		v, err := r.message(m, i == len(messages)-1)
		if err != nil {
			return c, err
		}
		list = append(list, v)
	}
	c.messages = developers(list, mention)
	c.media = r.media
	return c, nil
}

func (r *reader) message(m *chat.Message, last bool) (template.Value, error) {
	d := template.NewDict(4)
	d.Set("role", template.String(m.Role))
	content, err := r.content(m, last)
	if err != nil {
		return template.None, err
	}
	d.Set("content", content)
	switch m.Role {
	case "assistant":
		if calls, ok := m.Fields["tool_calls"]; ok && calls.Type != gjson.Null {
			v, err := r.toolCalls(calls)
			if err != nil {
				return template.None, err
			}
			if len(v.Items()) > 0 {
				d.Set("tool_calls", v)
			}
		}
		for _, key := range []string{"reasoning", "reasoning_content"} {
			if text, ok := r.body.String(m.Fields[key]); ok {
				d.Set("reasoning", template.String(text))
				d.Set("reasoning_content", template.String(text))
				break
			}
		}
	case "tool":
		if id, ok := r.body.String(m.Fields["tool_call_id"]); ok {
			d.Set("tool_call_id", template.String(id))
		}
	}
	if name, ok := r.body.String(m.Fields["name"]); ok {
		d.Set("name", template.String(name))
	}
	return d.Value(), nil
}

// content gives a message's content: parts for the openai format, else one string.
func (r *reader) content(m *chat.Message, last bool) (template.Value, error) {
	tag := ""
	if last {
		tag = r.tag
	}
	switch m.Kind {
	case chat.None:
		if tag != "" {
			return template.None, refuse(400, "continue_final_message without text in the last message")
		}
		if r.openai && m.Role != "tool" {
			return template.NewList(), nil
		}
		return template.String(""), nil
	case chat.Text:
		text, ok := r.body.String(m.Content)
		if !ok {
			return template.None, refuse(400, "content is no valid text")
		}
		text += tag
		if r.openai && m.Role != "tool" {
			return template.NewList(textPart(text)), nil
		}
		return template.String(text), nil
	case chat.List:
		return r.list(m, tag)
	}
	return template.None, refuse(400, "content is neither text nor a list")
}

func (r *reader) list(m *chat.Message, tag string) (template.Value, error) {
	type item struct {
		text     string
		modality string
	}
	items := make([]item, 0, len(m.Parts))
	lastText := -1
	for i := range m.Parts {
		text, medium, err := r.part(&m.Parts[i])
		if err != nil {
			return template.None, err
		}
		if medium == nil {
			lastText = len(items)
			items = append(items, item{text: text})
			continue
		}
		r.media = append(r.media, *medium)
		items = append(items, item{modality: medium.Modality})
	}
	if tag != "" {
		if lastText < 0 {
			return template.None, refuse(400, "continue_final_message without text in the last message")
		}
		items[lastText].text += tag
	}
	if r.openai && m.Role != "tool" {
		list := make([]template.Value, 0, len(items))
		for _, it := range items {
			if it.modality == "" {
				list = append(list, textPart(it.text))
				continue
			}
			d := template.NewDict(1)
			d.Set("type", template.String(it.modality))
			list = append(list, d.Value())
		}
		return template.NewList(list...), nil
	}
	// One string. Placeholders are numbered over the whole request.
	first := len(r.media)
	for _, it := range items {
		if it.modality != "" {
			first--
		}
	}
	count := make(map[string]int)
	for _, md := range r.media[:first] {
		count[md.Modality]++
	}
	var texts, placeholders []string
	for _, it := range items {
		if it.modality == "" {
			if it.text != "" {
				texts = append(texts, it.text)
			}
			continue
		}
		count[it.modality]++
		if p, ok := r.m.placeholder(it.modality, count[it.modality]); ok {
			placeholders = append(placeholders, p)
			if r.m.opt.Interleave {
				texts = append(texts, mark)
			}
		}
	}
	text, err := join(texts, placeholders)
	return template.String(text), err
}

// join puts a string content together: placeholders that the user typed, or that stand at their mark, stay; the missing
// ones stand in front, one a line.
func join(texts, placeholders []string) (string, error) {
	text := strings.Join(texts, "\n")
	for _, p := range placeholders {
		text = strings.Replace(text, mark, p, 1)
	}
	var lines []string
	for i, p := range placeholders {
		if slices.Contains(placeholders[:i], p) {
			continue
		}
		n := -strings.Count(text, p)
		for _, q := range placeholders {
			if q == p {
				n++
			}
		}
		if n < 0 {
			return "", refuse(400, "more placeholders typed than media given")
		}
		for range n {
			lines = append(lines, p)
		}
	}
	if text != "" {
		lines = append(lines, text)
	}
	return strings.Join(lines, "\n"), nil
}

func textPart(text string) template.Value {
	d := template.NewDict(2)
	d.Set("type", template.String("text"))
	d.Set("text", template.String(text))
	return d.Value()
}

// toolCalls reads an assistant message's tool calls; their arguments, JSON in a string, become an object.
func (r *reader) toolCalls(calls gjson.Result) (template.Value, error) {
	v, err := template.FromJSON(r.body.Full(calls))
	if err != nil || v.Kind() != template.KindList {
		return template.None, refuse(400, "tool_calls is no list")
	}
	out := make([]template.Value, 0, len(v.Items()))
	for _, call := range v.Items() {
		fn, ok := call.Get("function")
		if call.Dict() == nil || !ok || fn.Dict() == nil {
			return template.None, refuse(400, "tool call without a function")
		}
		args, _ := fn.Get("arguments")
		switch {
		case args.Dict() != nil:
		case args.IsString() && args.Text() != "":
			if args, err = template.FromJSON(args.Text()); err != nil {
				return template.None, refuse(400, "a tool call's arguments are no JSON")
			}
		default:
			args = template.NewDict(0).Value()
		}
		out = append(out, with(call, "function", with(fn, "arguments", args)))
	}
	return template.NewList(out...), nil
}

// with is a dict with one key replaced, in its old place, or behind the others.
func with(dict template.Value, key string, v template.Value) template.Value {
	d := template.NewDict(dict.Dict().Len() + 1)
	for _, e := range dict.Dict().Entries() {
		d.Set(e.Key.Text(), e.Value)
	}
	d.Set(key, v)
	return d.Value()
}

// developers makes developer messages system ones where the template does not know the role: one alone is renamed,
// several are merged into one in front, joined by a blank line (vLLM ≥ 0.30).
func developers(list []template.Value, source string) []template.Value {
	n := 0
	for _, m := range list {
		if role, _ := m.Get("role"); role.Text() == "developer" {
			n++
		}
	}
	if n == 0 || strings.Contains(source, "developer") {
		return list
	}
	var texts []string
	var rest []template.Value
	for _, m := range list {
		role, _ := m.Get("role")
		if role.Text() != "developer" && role.Text() != "system" {
			rest = append(rest, m)
			continue
		}
		content, _ := m.Get("content")
		if content.IsString() {
			texts = append(texts, content.Text())
		}
		for _, p := range content.Items() {
			if t, ok := p.Get("text"); ok {
				texts = append(texts, t.Text())
			}
		}
	}
	d := template.NewDict(2)
	d.Set("role", template.String("system"))
	merged := strings.Join(texts, "\n\n")
	if first, _ := list[0].Get("content"); first.IsString() {
		d.Set("content", template.String(merged))
	} else {
		d.Set("content", template.NewList(textPart(merged)))
	}
	return append([]template.Value{d.Value()}, rest...)
}

// pyStr is Python's str() of a JSON value, for the uuids that clients send as numbers.
func pyStr(v gjson.Result) string {
	switch v.Type {
	case gjson.String:
		return v.String()
	case gjson.True:
		return "True"
	case gjson.False:
		return "False"
	case gjson.Null:
		return "None"
	case gjson.Number:
		if !strings.ContainsAny(v.Raw, ".eE") {
			return v.Raw
		}
		return strconv.FormatFloat(v.Num, 'g', -1, 64)
	}
	return v.Raw
}
