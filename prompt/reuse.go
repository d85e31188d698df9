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

// reuse reads the rule, by engine.
//
// vLLM (read in 0.10.0, 0.10.2, 0.11.0, 0.12.0, 0.14.0, 0.17.0, 0.20.0, 0.23.0, 0.30.0, 0.32.0 and 0.33.0, all alike): a
// request with prompt_logprobs, of whatever value, skips the cache; echo stands for it with the number of top_logprobs (0
// where a chat says none, which counts) or, for /v1/completions, of logprobs where they are given. No field of these
// endpoints sets skip_reading_prefix_cache itself; pooling, where token_embed and token_classify set it, is not read here.
// A beam search runs as many requests of its own, and which one is reported is not known.
//
// SGLang (0.5.9 and 0.5.23): echo with logprobs of /v1/completions, which has log probabilities begin at token 0, and the
// cache is matched up to there. A chat begins them behind its prompt.
//
// Of other engines it is not known what becomes of these fields.
func (m *Model) reuse(endpoint string, req *body.Request) Reuse {
	given := func(key string) bool { v, ok := req.Fields[key]; return ok && v.Type != gjson.Null }
	echo, completions := boolField(req, "echo", false), endpoint == completionsEndpoint
	switch {
	case endpoint == responsesEndpoint || endpoint == messagesEndpoint: // have none of these fields
		return Reused
	case m.opt.Engine == "sglang":
		if completions && echo && req.Fields["logprobs"].Int() != 0 {
			return Recomputed
		}
		return Reused
	}
	asked := given("prompt_logprobs")
	switch top, said := req.Fields["top_logprobs"]; {
	case !echo:
	case completions:
		asked = asked || given("logprobs")
	default:
		asked = asked || !said || top.Type != gjson.Null
	}
	switch {
	case m.opt.Engine == "vllm" && boolField(req, "use_beam_search", false):
		return Perhaps
	case asked && m.opt.Engine == "vllm":
		return Recomputed
	case asked:
		return Perhaps
	}
	return Reused
}
