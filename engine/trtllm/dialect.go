package trtllm

import (
	"slices"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/prompt/template"
	"github.com/sightline-router/sightline/prompt/vision"
)

// Dialect returns how TensorRT-LLM reads requests (1.3, serve/chat_utils.py and inputs/utils.py). This was read in its source and
// not compared with a running server.
func Dialect() prompt.Dialect {
	return prompt.Dialect{
		PromptFlags: true, Documents: true, MediaIOKwargs: true, IDsField: "prompt_token_ids",
		Unread: []string{"prompt_token_ids_b64", "truncate_prompt_tokens", "chat_template", "thinking", "mm_processor_kwargs",
			"lora_request", "suffix", "context_management"},
		Harmony: true, TokenizersTemplate: true,
		Reading: vision.Reading{Processor: true, OutOfVocab: true},
		Format:  (*template.Template).TensorRTFormat,
		Part:    part, Messages: messages, Tools: prompt.OpenAITools, Reuse: reuse,
	}
}

// reuse returns whether the engine looks a prompt up in its cache. For requests for log probabilities of the prompt that is not
// known.
func reuse(endpoint string, req *body.Request) prompt.Reuse {
	if prompt.AsksPromptLogprobs(endpoint, req) {
		return prompt.Perhaps
	}
	return prompt.Reused
}

// part reads one content part: OpenAI's forms, bare strings and embeddings.
func part(r *prompt.Reader, p *body.Part) (it prompt.Item, ok bool, err error) {
	switch {
	case p.Raw.Type == gjson.String:
		it.Text, err = r.String(p.Raw, "content part is not valid text")
	case p.Type == "text":
		it.Text, err = r.String(p.Fields["text"], "text part without valid text")
	case p.Type == "image_embeds":
		it.Medium = &prompt.MediaPart{Modality: "image_embeds", Source: body.Last(p.Fields[p.Type], "data"), Part: p.Raw}
	default:
		it.Medium, err = prompt.OpenAIMediaPart(p)
	}
	return it, true, err
}

// messages converts turns to the template's messages.
func messages(r *prompt.Reader, turns []prompt.Turn, _ bool) (list []template.Value, _ string, err error) {
	list, err = r.EachTurn(turns, message)
	return list, "", err
}

func message(r *prompt.Reader, t *prompt.Turn) (template.Value, error) {
	d := template.NewDict(4)
	d.Set("role", template.String(t.Role))
	items := t.Items
	if t.Kind == body.List {
		items = slices.DeleteFunc(slices.Clone(items), func(it prompt.Item) bool { return it.Medium == nil && it.Text == "" })
	}
	switch {
	case prompt.OnlyText(items):
		d.Set("content", template.String(prompt.JoinText(items, "\n")))
	case r.OpenAI:
		d.Set("content", r.Parts(items))
	default:
		d.Set("content", template.String(oneString(r, items)))
	}
	m := t.Message
	if m == nil {
		return d.Value(), nil
	}
	switch t.Role {
	case "system":
		if prompt.Given(m.Fields["tools"]) { // 1.4 shows them to templates
			return template.None, prompt.ErrField
		}
	case "assistant":
		text, ok := r.Body.String(m.Fields["reasoning"])
		if !ok {
			text, ok = r.Body.String(m.Fields["reasoning_content"])
		}
		if ok {
			d.Set("reasoning_content", template.String(text))
		}
		calls, err := r.ToolCalls(t, arguments)
		if err != nil {
			return template.None, err
		}
		if !calls.IsNone() {
			d.Set("tool_calls", calls)
		}
	case "tool":
		if id, ok := r.Body.String(m.Fields["tool_call_id"]); ok {
			d.Set("tool_call_id", template.String(id))
		}
	}
	return d.Value(), nil
}

// oneString adds the placeholders that the user has not typed to the joined texts.
func oneString(r *prompt.Reader, items []prompt.Item) string {
	text := prompt.JoinText(items, "\n")
	var placeholders []string
	for _, it := range items {
		if it.Medium == nil {
			continue
		}
		if p, ok := r.Placeholder(it.Medium.Modality, r.Take(it.Medium)); ok {
			placeholders = append(placeholders, p)
		}
	}
	typed := vision.CountEach(text, placeholders)
	parts := slices.DeleteFunc(placeholders, func(p string) bool {
		typed[p]--
		return typed[p] >= 0
	})
	if len(parts) == 0 {
		return text
	}
	sep := "\n"
	if r.Facts().PlaceholdersTouch {
		sep = ""
	}
	if r.Facts().PlaceholdersFirst {
		return strings.Join(append(parts, text), sep)
	}
	return strings.Join(append([]string{text}, parts...), sep)
}

// arguments converts a call's arguments to an object; text that json.loads does not read stays text (serve/chat_utils.py).
func arguments(args template.Value) (template.Value, error) {
	if args.IsNone() {
		return template.NewDict(0).Value(), nil
	}
	if args.IsString() {
		v, err := template.FromJSON(args.Text())
		if err != nil {
			return args, prompt.Unread(args.Text(), err)
		}
		args = v
	}
	if args.Dict() == nil {
		return args, prompt.Refuse("a tool call's arguments are not a JSON object")
	}
	return args, nil
}
