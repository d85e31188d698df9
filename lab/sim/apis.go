package sim

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/tidwall/gjson"
)

// The APIs beside OpenAI's completions and chats. One prompt each, one piece of an answer: a text, or a call of a tool where the request
// demands one.
const (
	responsesPath = "/v1/responses"
	messagesPath  = "/v1/messages"
)

// toolDemanded returns the function that a request makes the engine call: the one that it names, or the first if any is required.
func toolDemanded(body gjson.Result) string {
	choice := body.Get("tool_choice")
	for _, name := range []string{"name", "function.name"} {
		if v := choice.Get(name); v.Type == gjson.String {
			return v.Str
		}
	}
	if choice.Str != "required" && choice.Get("type").Str != "any" {
		return ""
	}
	first := body.Get("tools.0")
	return cmp.Or(first.Get("function.name").Str, first.Get("name").Str)
}

// arguments are those of a call of a tool: the text that was generated.
func arguments(text string) string {
	b, _ := json.Marshal(map[string]string{"text": text})
	return string(b)
}

// answerOther answers a request of /v1/responses or /v1/messages.
func (w *Worker) answerOther(ctx context.Context, rw http.ResponseWriter, j *job, stream bool) {
	flush := http.NewResponseController(rw).Flush
	sent := 0
	send := func(name string, fields map[string]any) error {
		if !stream {
			return nil
		}
		fields["type"] = name
		if j.path == responsesPath {
			fields["sequence_number"] = sent
		}
		b, _ := json.Marshal(fields)
		if _, err := fmt.Fprintf(rw, "event: %s\ndata: %s\n\n", name, b); err != nil {
			return err
		}
		sent++
		if err := flush(); err != nil {
			return err
		}
		if sent > 1 && Fault(w.fault.Load()) == DieAfterFirstByte {
			panic(http.ErrAbortHandler)
		}
		return nil
	}
	var form interface {
		begin(send sender) error
		piece(send sender, text string) error
		end(send sender, text string, u *usage) (whole any, err error)
	} = &messageForm{j}
	if j.path == responsesPath {
		form = &responseForm{j}
	}
	if stream {
		rw.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	}
	if form.begin(send) != nil {
		return
	}
	var text strings.Builder
	cached, generated, ok := j.collect(ctx, func(o output) error {
		piece := w.text(o.token)
		text.WriteString(piece)
		if j.tool != "" {
			return nil
		}
		return form.piece(send, piece)
	})
	if !ok {
		return
	}
	if j.tool != "" && form.piece(send, arguments(text.String())) != nil {
		return
	}
	whole, err := form.end(send, text.String(), w.usageOf(j, cached, generated))
	if err != nil || stream {
		return
	}
	b, _ := json.Marshal(whole)
	w.writeBody(rw, b)
}

type sender func(name string, fields map[string]any) error

// responseForm is OpenAI's /v1/responses.
type responseForm struct{ *job }

func (f *responseForm) response(status string, output []any, u any) map[string]any {
	return map[string]any{"id": "resp_" + f.id, "object": "response", "created_at": f.created, "model": f.model, "status": status,
		"output": output, "usage": u, "tools": []any{}, "tool_choice": "auto", "parallel_tool_calls": true, "error": nil,
		"incomplete_details": nil, "instructions": nil, "metadata": nil}
}

func (f *responseForm) item(status, text string) map[string]any {
	if f.tool != "" {
		return map[string]any{"id": "fc_" + f.id, "type": "function_call", "status": status, "call_id": "call_" + f.id, "name": f.tool,
			"arguments": text}
	}
	content := []any{}
	if status == "completed" {
		content = append(content, f.part(text))
	}
	return map[string]any{"id": "msg_" + f.id, "type": "message", "status": status, "role": "assistant", "content": content}
}

func (*responseForm) part(text string) map[string]any {
	return map[string]any{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

func (f *responseForm) begin(send sender) error {
	for _, name := range []string{"response.created", "response.in_progress"} {
		if err := send(name, map[string]any{"response": f.response("in_progress", []any{}, nil)}); err != nil {
			return err
		}
	}
	err := send("response.output_item.added", map[string]any{"output_index": 0, "item": f.item("in_progress", "")})
	if err != nil || f.tool != "" {
		return err
	}
	return send("response.content_part.added", f.at(map[string]any{"part": f.part("")}))
}

// at adds where a part is.
func (f *responseForm) at(fields map[string]any) map[string]any {
	item := "msg_" + f.id
	if f.tool != "" {
		item = "fc_" + f.id
	} else {
		fields["content_index"] = 0
	}
	fields["item_id"], fields["output_index"] = item, 0
	return fields
}

func (f *responseForm) piece(send sender, text string) error {
	if f.tool != "" {
		return send("response.function_call_arguments.delta", f.at(map[string]any{"delta": text}))
	}
	return send("response.output_text.delta", f.at(map[string]any{"delta": text, "logprobs": []any{}}))
}

func (f *responseForm) end(send sender, text string, u *usage) (any, error) {
	done := []struct {
		name   string
		fields map[string]any
	}{
		{"response.output_text.done", map[string]any{"text": text, "logprobs": []any{}}},
		{"response.content_part.done", map[string]any{"part": f.part(text)}},
	}
	if f.tool != "" {
		text = arguments(text)
		done = done[:1]
		done[0].name, done[0].fields = "response.function_call_arguments.done", map[string]any{"arguments": text, "name": f.tool}
	}
	for _, d := range done {
		if err := send(d.name, f.at(d.fields)); err != nil {
			return nil, err
		}
	}
	item := f.item("completed", text)
	if err := send("response.output_item.done", map[string]any{"output_index": 0, "item": item}); err != nil {
		return nil, err
	}
	used := map[string]any{"input_tokens": u.PromptTokens, "output_tokens": u.CompletionTokens, "total_tokens": u.TotalTokens,
		"output_tokens_details": map[string]any{"reasoning_tokens": 0}}
	if u.Details != nil {
		used["input_tokens_details"] = map[string]any{"cached_tokens": u.Details.CachedTokens}
	}
	whole := f.response("completed", []any{item}, used)
	return whole, send("response.completed", map[string]any{"response": whole})
}

// messageForm is Anthropic's /v1/messages.
type messageForm struct{ *job }

func (f *messageForm) block(text string) map[string]any {
	if f.tool == "" {
		return map[string]any{"type": "text", "text": text}
	}
	input := map[string]any{}
	_ = json.Unmarshal([]byte(text), &input)
	return map[string]any{"type": "tool_use", "id": "toolu_" + f.id, "name": f.tool, "input": input}
}

func (f *messageForm) message(content []any, stop any, u *usage) map[string]any {
	return map[string]any{"id": "msg_" + f.id, "type": "message", "role": "assistant", "model": f.model, "content": content,
		"stop_reason": stop, "stop_sequence": nil,
		"usage": map[string]any{"input_tokens": u.PromptTokens, "output_tokens": u.CompletionTokens}}
}

func (f *messageForm) begin(send sender) error {
	err := send("message_start", map[string]any{"message": f.message([]any{}, nil, &usage{PromptTokens: f.seqs[0].Prompt})})
	if err != nil {
		return err
	}
	return send("content_block_start", map[string]any{"index": 0, "content_block": f.block("")})
}

func (f *messageForm) piece(send sender, text string) error {
	delta := map[string]any{"type": "text_delta", "text": text}
	if f.tool != "" {
		delta = map[string]any{"type": "input_json_delta", "partial_json": text}
	}
	return send("content_block_delta", map[string]any{"index": 0, "delta": delta})
}

func (f *messageForm) end(send sender, text string, u *usage) (any, error) {
	stop := "max_tokens"
	if f.tool != "" {
		stop, text = "tool_use", arguments(text)
	}
	if err := send("content_block_stop", map[string]any{"index": 0}); err != nil {
		return nil, err
	}
	err := send("message_delta", map[string]any{"delta": map[string]any{"stop_reason": stop, "stop_sequence": nil},
		"usage": map[string]any{"input_tokens": u.PromptTokens, "output_tokens": u.CompletionTokens}})
	if err == nil {
		err = send("message_stop", map[string]any{})
	}
	return f.message([]any{f.block(text)}, stop, u), err
}
