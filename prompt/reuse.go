package prompt

import (
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
)

// Reuse says whether the engine looks a request up in its prefix cache. What it computes it stores in any case.
type Reuse uint8

const (
	Reused     Reuse = iota // it does
	Recomputed              // it does not: log probabilities of the prompt need every token computed
	Perhaps                 // not known: what is held is an upper bound of what will be found
)

// AsksPromptLogprobs tells of a request with prompt_logprobs, of whatever value (vLLM 0.32). echo stands for it with the
// number of top_logprobs (0 where a chat says none, which counts) or, for /v1/completions, of logprobs where given.
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
