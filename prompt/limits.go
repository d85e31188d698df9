package prompt

import (
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
)

// This file holds how long a prompt may be and how it is truncated, by the rules of vLLM (0.32, renderers/params.py and the request
// types). For engines without truncate_prompt_tokens only the first applies.

// answerField returns the field that bounds the answer, by API.
func answerField(endpoint string, req *body.Request) gjson.Result {
	switch endpoint {
	case ResponsesEndpoint:
		return req.Fields["max_output_tokens"]
	case ChatEndpoint, BatchEndpoint:
		if v := req.Fields["max_completion_tokens"]; v.Type != gjson.Null {
			return v
		}
	}
	return req.Fields["max_tokens"]
}

// answerTokens returns how many tokens of answer vLLM counts against the prompt: 0 if the request does not say, but 16 for
// completions, the field's default.
func answerTokens(endpoint string, req *body.Request) int {
	v := answerField(endpoint, req)
	if v.Type == gjson.Null && endpoint == CompletionsEndpoint {
		if _, given := req.Fields["max_tokens"]; !given {
			return 16
		}
	}
	return int(max(0, min(v.Int(), 1<<30)))
}

// room sets how long a prompt may be: max_model_len, in some releases less the answer.
func (m *parameters) room(endpoint string, req *body.Request, d *Draft) error {
	d.limit = m.opt.MaxModelLen
	if d.limit == 0 {
		return nil
	}
	if m.opt.Dialect.BoundsAnswer && answerField(endpoint, req).Num > float64(d.limit) {
		return Refuse("max_tokens is more than max_model_len")
	}
	if m.opt.Dialect.AnswerCounts {
		d.limit -= answerTokens(endpoint, req)
		if d.limit <= 0 {
			return Refuse(whyTooLong)
		}
	}
	return nil
}

// whole returns how much of a prompt is kept if the request asks for as much as fits: one token is left for the answer, or all of
// it in releases that count the answer. 0: unknown, because max_model_len is.
func (m *parameters) whole(endpoint string, req *body.Request, d *Draft) int {
	if !m.opt.Dialect.AnswerCounts && d.limit > 0 && answerTokens(endpoint, req) > 0 {
		return d.limit - 1
	}
	return d.limit
}

// Truncates reports whether a request asks the engine to leave out a part of its prompt if that is too long.
func (d *Dialect) Truncates(endpoint string, req *body.Request) bool {
	if d.Cut == CutNot || endpoint == MessagesEndpoint { // it lacks the fields
		return false
	}
	if endpoint == ResponsesEndpoint {
		mode, given := req.Fields["truncation"]
		return given && mode.String() != "disabled"
	}
	return req.Fields["truncate_prompt_tokens"].Type == gjson.Number
}

// truncation reads a response's truncation, else truncate_prompt_tokens and truncation_side.
func (m *parameters) truncation(endpoint string, req *body.Request, d *Draft) error {
	switch {
	case !m.opt.Dialect.Truncates(endpoint, req):
		return nil
	case m.opt.Dialect.Cut == CutUnknown:
		return ErrTruncation
	case endpoint == ResponsesEndpoint:
		d.truncate = m.whole(endpoint, req, d)
		return nil
	}
	n, side := req.Fields["truncate_prompt_tokens"].Int(), req.Fields["truncation_side"]
	switch {
	case n == -1:
		n = int64(m.whole(endpoint, req, d))
	case n < -1 || n == 0 || d.limit > 0 && n > int64(d.limit):
		return Refuse("truncate_prompt_tokens is out of range")
	}
	d.truncate, d.keepsHead, d.side = int(min(n, 1<<30)), side.String() == "right", isText(side)
	return nil
}
