package prompt

import (
	"testing"

	"github.com/sightline-router/sightline/body"
)

func TestReuse(t *testing.T) {
	for _, c := range []struct {
		engine, endpoint, fields string
		want                     Reuse
	}{
		{"vllm", completionsEndpoint, `{}`, Reused},
		{"vllm", completionsEndpoint, `{"prompt_logprobs":0}`, Recomputed},
		{"vllm", completionsEndpoint, `{"prompt_logprobs":-1}`, Recomputed},
		{"vllm", completionsEndpoint, `{"prompt_logprobs":false}`, Recomputed}, // 0
		{"vllm", completionsEndpoint, `{"echo":true}`, Reused},
		{"vllm", completionsEndpoint, `{"echo":true,"logprobs":null}`, Reused},
		{"vllm", completionsEndpoint, `{"echo":true,"logprobs":0}`, Recomputed},
		{"vllm", completionsEndpoint, `{"echo":"yes","logprobs":2}`, Recomputed},
		{"vllm", completionsEndpoint, `{"logprobs":2}`, Reused},
		{"vllm", completionsEndpoint, `{"use_beam_search":true,"prompt_logprobs":1}`, Perhaps},
		{"vllm", chatEndpoint, `{"echo":true}`, Recomputed},
		{"vllm", batchEndpoint, `{"echo":true}`, Recomputed},
		{"vllm", chatEndpoint, `{"echo":true,"top_logprobs":null}`, Reused},
		{"vllm", responsesEndpoint, `{"echo":true,"prompt_logprobs":1}`, Reused},
		{"vllm", messagesEndpoint, `{"echo":true,"prompt_logprobs":1}`, Reused},
		{"sglang", completionsEndpoint, `{"echo":true,"logprobs":1}`, Recomputed},
		{"sglang", completionsEndpoint, `{"echo":true,"logprobs":0}`, Reused},
		{"sglang", completionsEndpoint, `{"prompt_logprobs":1}`, Reused},
		{"sglang", chatEndpoint, `{"echo":true,"logprobs":true,"top_logprobs":1}`, Reused},
		{"trtllm", completionsEndpoint, `{"echo":true,"logprobs":1}`, Perhaps},
		{"trtllm", chatEndpoint, `{"prompt_logprobs":1}`, Perhaps},
		{"trtllm", chatEndpoint, `{"use_beam_search":true,"logprobs":true}`, Reused},
	} {
		var sk body.Skeleton
		var req body.Request
		if err := sk.Scan([][]byte{[]byte(c.fields)}); err != nil {
			t.Fatal(err)
		}
		_ = body.Parse(&sk, &req) // it has no messages
		m := &Model{opt: Options{Engine: c.engine}}
		if got := m.reuse(c.endpoint, &req); got != c.want {
			t.Errorf("%s, %s, %s: %d, want %d", c.engine, c.endpoint, c.fields, got, c.want)
		}
	}
}
