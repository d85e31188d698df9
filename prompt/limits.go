package prompt

import (
	"math"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
)

// What vLLM (0.32) demands of the fields that do not change the prompt (sampling_params.py and the request types): a
// request that breaks it is answered with 400, so it will store nothing.

// ranges are the limits of sampling fields, both ends included.
var ranges = []struct {
	key      string
	min, max float64
}{
	{"temperature", 0, 2}, {"top_p", math.SmallestNonzeroFloat64, 1}, {"min_p", 0, 1}, {"top_k", -1, math.Inf(1)},
	{"presence_penalty", -2, 2}, {"frequency_penalty", -2, 2}, {"repetition_penalty", math.SmallestNonzeroFloat64, math.Inf(1)},
	{"n", 1, math.Inf(1)}, {"min_tokens", 0, math.Inf(1)},
}

// limits refuses a request whose sampling fields vLLM refuses.
func (m *Model) limits(endpoint string, req *body.Request) error {
	for _, r := range ranges {
		v := req.Fields[r.key]
		if r.key == "n" && (endpoint == responsesEndpoint || endpoint == messagesEndpoint) {
			continue // these APIs have no such field
		}
		if v.Type == gjson.Number && (v.Num < r.min || v.Num > r.max) || v.IsObject() || v.IsArray() {
			return refuse(400, "a sampling parameter is out of its range")
		}
	}
	most := answerField(endpoint, req)
	if most.Type == gjson.Number && (m.opt.MaxModelLen > 0 && most.Num > float64(m.opt.MaxModelLen) || most.Num < 1 && !boolField(req, "echo", false)) {
		return refuse(400, "max_tokens is out of range")
	}
	if endpoint == messagesEndpoint {
		return nil
	}
	if stop := req.Fields["stop"]; stop.IsArray() {
		empty := false
		stop.ForEach(func(_, v gjson.Result) bool { empty = !isText(v) || v.Raw == `""`; return !empty })
		if empty {
			return refuse(400, "stop with an empty text")
		}
	} else if stop.Type != gjson.Null && (!isText(stop) || stop.Raw == `""`) {
		return refuse(400, "stop is no text")
	}
	if endpoint == responsesEndpoint {
		return nil
	}
	if v := req.Fields["logprobs"]; endpoint == chatEndpoint && v.Type == gjson.Number && v.Raw != "0" && v.Raw != "1" {
		return refuse(400, "logprobs is no bool")
	}
	for _, key := range []string{"add_generation_prompt", "continue_final_message", "add_special_tokens"} {
		if v, given := req.Fields[key]; given && !v.IsBool() && v.Raw != "0" && v.Raw != "1" && (!isText(v) || v.Raw == `""`) {
			return refuse(400, key+" is no bool")
		}
	}
	if v := req.Fields["stream_options"]; v.IsObject() && v.Raw != "{}" && req.Fields["stream"].Type != gjson.True {
		return refuse(400, "stream_options without stream")
	}
	if f := req.Fields["response_format"]; body.Last(f, "type").String() == "json_schema" && body.Last(f, "json_schema").Type == gjson.Null {
		return refuse(400, "response_format without its json_schema")
	}
	return nil
}

// answerField is the field that bounds the answer, by API.
func answerField(endpoint string, req *body.Request) gjson.Result {
	switch endpoint {
	case responsesEndpoint:
		return req.Fields["max_output_tokens"]
	case chatEndpoint, batchEndpoint:
		if v := req.Fields["max_completion_tokens"]; v.Type != gjson.Null {
			return v
		}
	}
	return req.Fields["max_tokens"]
}

// answerTokens is how many tokens the answer may have, as vLLM counts them against the prompt: 0 where nothing is said,
// but 16 for completions, the field's default.
func answerTokens(endpoint string, req *body.Request) int {
	v := answerField(endpoint, req)
	if v.Type == gjson.Null && endpoint == completionsEndpoint {
		if _, given := req.Fields["max_tokens"]; !given {
			return 16
		}
	}
	return int(max(0, min(v.Int(), 1<<30)))
}

// room sets how long a prompt may be: max_model_len, and before 0.32 (renderers/params.py) less the answer.
func (m *Model) room(endpoint string, req *body.Request, d *Draft) error {
	d.limit = m.opt.MaxModelLen
	if d.limit > 0 && m.opt.AnswerCounts {
		if d.limit -= answerTokens(endpoint, req); d.limit <= 0 {
			return refuse(400, whyTooLong)
		}
	}
	return nil
}

// whole is how much of a prompt vLLM keeps where it is told to keep what fits: one token is left for the answer, or since
// the answer counts, all of it. 0: not known, because max_model_len is not.
func (m *Model) whole(endpoint string, req *body.Request, d *Draft) int {
	if !m.opt.AnswerCounts && d.limit > 0 && answerTokens(endpoint, req) > 0 {
		return d.limit - 1
	}
	return d.limit
}

// truncation reads truncate_prompt_tokens and truncation_side.
func (m *Model) truncation(endpoint string, req *body.Request, d *Draft) error {
	side, given := req.Fields["truncation_side"]
	if given && side.Type != gjson.Null && !oneOf(side, "left", "right") {
		return refuse(400, "truncation_side is neither left nor right")
	}
	v := req.Fields["truncate_prompt_tokens"]
	if v.Type != gjson.Number {
		return nil
	}
	if m.opt.UnknownCut {
		return ErrTruncation
	}
	n := v.Int()
	switch {
	case n == -1:
		n = int64(m.whole(endpoint, req, d))
	case n < -1 || n == 0 || d.limit > 0 && n > int64(d.limit):
		return refuse(400, "truncate_prompt_tokens is out of range")
	}
	d.truncate, d.keepsHead, d.side = int(min(n, 1<<30)), side.String() == "right", isText(side)
	return nil
}
