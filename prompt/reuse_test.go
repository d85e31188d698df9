package prompt_test

import (
	"testing"

	"github.com/sightline-router/sightline/body"

	. "github.com/sightline-router/sightline/prompt"
)

func TestReuse(t *testing.T) {
	for _, c := range []struct {
		engine, endpoint, fields string
		want                     Reuse
	}{
		{"vllm", CompletionsEndpoint, `{}`, Reused},
		{"vllm", CompletionsEndpoint, `{"prompt_logprobs":0}`, Recomputed},
		{"vllm", CompletionsEndpoint, `{"prompt_logprobs":-1}`, Recomputed},
		{"vllm", CompletionsEndpoint, `{"prompt_logprobs":false}`, Recomputed}, // 0
		{"vllm", CompletionsEndpoint, `{"echo":true}`, Reused},
		{"vllm", CompletionsEndpoint, `{"echo":true,"logprobs":null}`, Reused},
		{"vllm", CompletionsEndpoint, `{"echo":true,"logprobs":0}`, Recomputed},
		{"vllm", CompletionsEndpoint, `{"echo":"yes","logprobs":2}`, Recomputed},
		{"vllm", CompletionsEndpoint, `{"logprobs":2}`, Reused},
		{"vllm", CompletionsEndpoint, `{"use_beam_search":true,"prompt_logprobs":1}`, Perhaps},
		{"vllm", ChatEndpoint, `{"echo":true}`, Recomputed},
		{"vllm", BatchEndpoint, `{"echo":true}`, Recomputed},
		{"vllm", ChatEndpoint, `{"echo":true,"top_logprobs":null}`, Reused},
		{"vllm", ResponsesEndpoint, `{"echo":true,"prompt_logprobs":1}`, Reused},
		{"vllm", MessagesEndpoint, `{"echo":true,"prompt_logprobs":1}`, Reused},
		{"sglang", CompletionsEndpoint, `{"echo":true,"logprobs":1}`, Recomputed},
		{"sglang", CompletionsEndpoint, `{"echo":true,"logprobs":0}`, Reused},
		{"sglang", CompletionsEndpoint, `{"prompt_logprobs":1}`, Reused},
		{"sglang", ChatEndpoint, `{"echo":true,"logprobs":true,"top_logprobs":1}`, Reused},
		{"trtllm", CompletionsEndpoint, `{"echo":true,"logprobs":1}`, Perhaps},
		{"trtllm", ChatEndpoint, `{"prompt_logprobs":1}`, Perhaps},
		{"trtllm", ChatEndpoint, `{"use_beam_search":true,"logprobs":true}`, Reused},
	} {
		var sk body.Skeleton
		var req body.Request
		if err := sk.Scan([][]byte{[]byte(c.fields)}); err != nil {
			t.Fatal(err)
		}
		_ = body.Parse(&sk, &req) // it has no messages
		if got := of(c.engine).Reuse(c.endpoint, &req); got != c.want {
			t.Errorf("%s, %s, %s: %d, want %d", c.engine, c.endpoint, c.fields, got, c.want)
		}
	}
}
