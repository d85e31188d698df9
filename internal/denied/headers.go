package denied

import "strings"

// Header is a request header that clients must not send, or all headers with a prefix. Names are in lower case, as HTTP/2 and Envoy
// write them, and match in any case.
type Header struct {
	Name   string
	Prefix bool // Name is a prefix
	Reader string
	Source string // where the reader's source code has the name
	Why    string
}

// Match reports whether this header has that name, in any case.
func (h *Header) Match(name string) bool {
	if !h.Prefix {
		return strings.EqualFold(name, h.Name)
	}
	return len(name) >= len(h.Name) && strings.EqualFold(name[:len(h.Name)], h.Name)
}

// Headers are removed by Envoy before it reads a request; later filters set those that they need themselves.
var Headers = []Header{
	{"x-target-worker", true, "Envoy, our configuration", "envoy/envoy.yaml.tmpl", "an address that Envoy dials"},
	{"x-sightline-", true, "Sightline", "extproc/answer.go", "joins a decision and its access log"},
	{"x-route-reason", false, "Envoy, our configuration", "envoy/envoy.yaml.tmpl", "counts decisions"},
	{"x-envoy-", true, "Envoy", "source/common/http/headers.h", "retries, timeouts, alternative destinations"},
	{"x-gateway-destination-endpoint", true, "gateways, endpoint-picker protocol 1.0",
		"docs/proposals/004-endpoint-picker-protocol", "an address that the gateway dials"},

	{"x-data-parallel-", true, "vLLM 0.32, SGLang 0.5.23, Dynamo 1.6, llm-d router 0.9",
		"vllm/entrypoints/generate/base/serving.py, sglang/srt/entrypoints/openai/serving_base.py, llm-d pkg/common/routing/common.go",
		"a rank; with -host-port an address that a sidecar dials"},
	{"x-vllm-priority", false, "vLLM 0.30", "vllm/entrypoints/generate/base/serving.py", "overrides the body's priority"},
	{"x-request-id", false, "vLLM 0.10 to 0.33",
		"vllm/entrypoints/serve/engine/serving.py, kv_connector/v1/moriio/moriio_common.py, p2p/p2p_nccl_connector.py",
		"names the request; MoRIIO and, to 0.23, P2P NCCL read from it the addresses that KV blocks come from. Envoy makes a new one"},

	{"x-override-", true, "SGLang 0.5.23", "sglang/srt/entrypoints/request_headers.py",
		"bootstrap address, ranks, priority and id, over the body's"},
	{"x-body-compressed", false, "SGLang 0.5.23", "sglang/srt/entrypoints/http_request_decompression.py",
		"has the engine decompress a body, so that it reads another one than was cleaned"},
	{"x-smg-", true, "SGLang 0.5.23 and its model gateway",
		"sglang/srt/entrypoints/openai/serving_base.py, sgl-model-gateway/src/policies/manual.rs", "a worker, or the key that one is chosen by"},

	{"x-trtllm-", true, "TensorRT-LLM 1.3", "tensorrt_llm/serve/conversation_id.py, disagg_auth.py",
		"the worker that a conversation belongs to"},

	{"x-dynamo-", true, "Dynamo 1.6", "lib/llm/src/protocols (nvext, agents)", "a worker, a rank, a priority, a session that ends"},
	{"x-worker-instance-id", false, "Dynamo to 1.6", "lib/llm/src/protocols (nvext)", "the worker, by its name before 1.6"},
	{"x-prefill-", true, "Dynamo to 1.6", "lib/llm/src/protocols (nvext)", "the prefill worker (-instance-id) and its rank (-dp-rank)"},
	{"x-dp-rank", false, "Dynamo to 1.6", "lib/llm/src/protocols (nvext)", "the rank"},
	{"x-tenant-id", false, "Dynamo 1.6", "lib/llm/src/protocols (nvext)", "another tenant's cache salt, trusted for media"},
	{"x-bypass-remote-prefill", false, "Dynamo 1.6", "deploy/inference-gateway", "goes past the prefill worker that was chosen"},

	{"x-prefiller-", true, "llm-d router 0.9, its sidecar", "pkg/common/routing/common.go", "an address that KV blocks come from"},
	{"x-encoder-", true, "llm-d router 0.9, its sidecar", "pkg/common/routing/common.go", "addresses that embeddings come from"},
	{"x-kv-cache-source-", true, "llm-d router 0.9, its sidecar", "pkg/common/routing/common.go", "an address that KV blocks come from"},
	{"x-session-token", false, "llm-d router 0.9", "pkg/epp/framework/plugins/scheduling/util/sessionaffinity/header.go",
		"a worker's name, encoded"},
}
