package prompt

import (
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
)

// Reuse is whether the engine looks a request up in its prefix cache. It stores what it computes in any case.
type Reuse uint8

const (
	Reused     Reuse = iota // it does
	Recomputed              // it does not: log probabilities of the prompt need every token computed
	Perhaps                 // not known: what a worker holds is an upper bound of the hit
)

// AsksPromptLogprobs reports whether a request has prompt_logprobs, whatever the value (vLLM 0.32). echo has the same effect if
// there is a number of top_logprobs (a chat without one counts as 0, which is a number) or, for /v1/completions, of logprobs.
func AsksPromptLogprobs(endpoint string, req *body.Request) bool {
	given := func(key string) bool { return req.Fields[key].Type != gjson.Null }
	if given("prompt_logprobs") || !BoolField(req, "echo", false) {
		return given("prompt_logprobs")
	}
	if endpoint == CompletionsEndpoint {
		return given("logprobs")
	}
	_, said := req.Fields["top_logprobs"]
	return !said || given("top_logprobs")
}
