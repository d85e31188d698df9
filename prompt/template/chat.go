package template

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Chat is a call of transformers' apply_chat_template (render_jinja_template in 5.19, which vLLM 0.32 comes with): the conversation
// and what transformers puts around it. 5.23 also copies a message's reasoning to other names.
type Chat struct {
	Messages            Value // a list of dicts
	Tools, Documents    Value // lists, or the zero Value for None
	AddGenerationPrompt bool
	Vars                Vars // special tokens and chat_template_kwargs; these may override the above

	// ContinueFinal names the field of the last message that the model is to continue ("content" for True), "" for none:
	// the text is cut right after it.
	ContinueFinal string

	// Done, once closed, makes the rendering end soon with ErrStopped. nil: never.
	Done <-chan struct{}
}

// continueTag marks the end of the message to continue; a template that prints the content twice shows it once.
const continueTag = "CONTINUE_FINAL_MESSAGE_TAG "

var reasoningFields = []string{"reasoning_content", "thinking", "reasoning"}

// Apply renders a conversation, appending to dst. Errors are those of Render, or say why the last message cannot be
// continued.
func (t *Template) Apply(dst []byte, chat *Chat) ([]byte, error) {
	var few [8]Var
	vars, final, err := t.prepare(few[:0], chat)
	if err != nil {
		return dst, err
	}
	out, err := t.render(dst, vars, chat.Done)
	if err != nil || chat.ContinueFinal == "" {
		return out, err
	}
	cut, err := cutFinal(out[len(dst):], final)
	if err != nil {
		return dst, err
	}
	return out[:len(dst)+len(cut)], nil
}

// prepare appends the variables of a rendering to vars, and returns the text of the message to continue.
func (t *Template) prepare(vars Vars, chat *Chat) (_ Vars, final string, err error) {
	messages := chat.Messages
	if chat.ContinueFinal != "" {
		messages, final, err = t.tagFinal(messages, chat.ContinueFinal)
		if err != nil {
			return nil, "", err
		}
	}
	vars = append(vars, Var{"messages", messages}, Var{"tools", chat.Tools.or(None)}, Var{"documents", chat.Documents.or(None)},
		Var{"add_generation_prompt", Bool(chat.AddGenerationPrompt)})
	return append(vars, chat.Vars...), final, nil
}

// tagFinal appends continueTag to the field of the last message and returns the text before it.
func (t *Template) tagFinal(messages Value, field string) (_ Value, text string, err error) {
	fail := func(format string, args ...any) (Value, string, error) {
		return messages, "", fmt.Errorf("continue_final_message is set but "+format, args...)
	}
	items := slices.Clone(messages.Items())
	if len(items) == 0 {
		return fail("the conversation is empty")
	}
	last := items[len(items)-1]
	final := last.Field(field)
	if final.IsNone() {
		return fail("the final message has no %q to continue", field)
	}
	fields := []string{field}
	if slices.Contains(reasoningFields, field) { // reasoning may occur under several names: tag each copy
		fields = slices.DeleteFunc(slices.Clone(reasoningFields), func(f string) bool {
			v := last.Field(f)
			return !v.IsString() || v.str != final.str
		})
	}
	if !slices.ContainsFunc(fields, t.Mentions) {
		return fail("%q is not an accepted field in the chat template", field)
	}
	tagged := last.Dict().clone()
	switch {
	case final.IsString():
		text = final.str
		for _, f := range fields {
			tagged.Set(f, String(text+continueTag))
		}
	case final.isSeq():
		parts := slices.Clone(final.Items())
		at := len(parts) - 1
		for at >= 0 && !parts[at].Field("text").IsString() {
			at--
		}
		if at < 0 {
			return fail("there is no text to continue in the final message")
		}
		text = parts[at].Field("text").str
		parts[at] = parts[at].Dict().clone().Set("text", String(text+continueTag)).Value()
		tagged.Set(field, NewList(parts...))
	default:
		return fail("the final message's %q is a %s", field, final.typeName())
	}
	items[len(items)-1] = tagged.Value()
	return NewList(items...), text, nil
}

// cutFinal cuts the text at the last tag. White space before the tag is kept only if the template kept the tag's own space.
func cutFinal(out []byte, final string) ([]byte, error) {
	text := string(out)
	tag := strings.TrimSuffix(continueTag, " ")
	at := strings.LastIndex(text, tag)
	if at < 0 || !strings.Contains(text, strings.TrimFunc(final, isPySpace)) {
		return nil, errors.New("continue_final_message is set but the final message does not appear in the rendered chat")
	}
	if strings.HasPrefix(text[at:], continueTag) {
		return out[:at], nil
	}
	return out[:len(trimRightSpace(text[:at]))], nil
}
