package denied

import "strings"

// Scope is a kind of place in a body; several may be or-ed.
type Scope uint8

const (
	InBody    Scope = 1 << iota // the request object
	InArgs                      // engine arguments below it
	InList                      // a list of messages, or of conversations
	InMessage                   // one message, or one input item
	InContent                   // a list of content parts
	InPart                      // one content part
	InMedia                     // the object that holds a medium's URL or data
	InExtra                     // nvext, NVIDIA Dynamo's extensions, agent_context, and lora_request, TensorRT-LLM's adapter
	Nowhere   Scope = 0
)

// Field is a member of a request's body that clients must not send.
type Field struct {
	Name   string
	Prefix bool // Name is a prefix
	In     Scope
	Reader string
	Source string // where the reader's source code has the name
	Why    string
}

const (
	vllmChat   = "vllm/entrypoints/openai/chat_completion/protocol.py"
	sglangChat = "sglang/srt/entrypoints/openai/protocol.py"
	sglangIO   = "sglang/srt/managers/io_struct.py"
	trtChat    = "tensorrt_llm/serve/openai_protocol.py"
	nvext      = "lib/llm/src/protocols (nvext)"
)

// Fields are the members that are removed from a body, and where.
var Fields = []Field{
	{"uuid", false, InPart, "vLLM 0.32", "vllm/entrypoints/chat_utils.py", `the medium's name in all caches; "" counts as one`},
	{"mm_hashes", false, InBody | InArgs | InPart | InMedia, "SGLang 0.5.23", sglangIO, "the medium's identity; killed a Qwen3-VL server"},
	{"mm_content_hashes", false, InBody | InArgs, "SGLang 0.5.23", sglangIO, "lets a trusted hit skip reading the file"},
	{"content_hash", false, InPart | InMedia, "SGLang 0.5.23", sglangChat, "the same for one medium"},
	{"multi_modal_uuids", false, InBody | InArgs, "vLLM 0.32, TensorRT-LLM 1.3", "vllm/inputs/data.py", "media's names, Python API"},

	{"routed_dp_rank", false, InBody | InArgs, "SGLang 0.5.23", sglangChat, "chooses the rank"},
	{"data_parallel_rank", false, InBody | InArgs, "SGLang 0.5.23", sglangChat, "its older name; vLLM takes a header, which Envoy sets"},
	{"disagg_prefill_dp_rank", false, InBody | InArgs, "SGLang 0.5.23", sglangChat, "the same for the prefill side"},
	{"bootstrap_", true, InBody | InArgs, "SGLang 0.5.23", sglangChat, "where KV blocks are taken from: host, port, room and others"},
	{"session_params", false, InBody | InArgs, "SGLang 0.5.23", sglangIO,
		"goes on from, or replaces, what another request of a session stored"},
	{"rid", false, InBody | InArgs, "SGLang 0.5.23", sglangIO, "the request's name: one that is taken disturbs another client's"},

	{"priority", false, InBody, "vLLM 0.32, SGLang 0.5.23, TensorRT-LLM 1.4", vllmChat + ", " + sglangChat + ", " + trtChat,
		"whose requests it is served before"},
	{"request_id", false, InBody | InArgs, "vLLM 0.32, SGLang 0.5.23", vllmChat + ", kv_connector/v1/moriio/moriio_common.py",
		"the request's name; MoRIIO and P2P NCCL read addresses from it"},
	{"kv_transfer_params", false, InBody | InArgs, "vLLM 0.32", vllmChat, "where KV blocks are taken from, by host and port"},
	{"ec_transfer_params", false, InBody | InArgs, "vLLM 0.32", vllmChat, "the same for encoder outputs"},
	{"kv_cache_report_mode", false, InArgs, "vLLM 0.32", "vllm/v1/core/sched/scheduler.py",
		`"full" tells a request's cached blocks to every event subscriber`},

	{"disaggregated_params", false, InBody | InArgs, "TensorRT-LLM 1.3", trtChat, "where KV blocks are taken from, with an opaque state"},
	{"conversation_params", false, InBody | InArgs, "TensorRT-LLM 1.3", trtChat, "the conversation whose rank a request goes to"},
	{"lora_path", false, InExtra, "TensorRT-LLM 1.3", "tensorrt_llm/executor/request.py",
		"in lora_request: any directory of the server's, loaded as an adapter"},

	{"backend_instance_id", false, InExtra, "Dynamo 1.6", nvext, "the worker"},
	{"decode_worker_id", false, InExtra, "Dynamo 1.6", nvext, "the worker"},
	{"prefill_worker_id", false, InExtra, "Dynamo 1.6", nvext, "the prefill worker"},
	{"dp_rank", false, InExtra, "Dynamo 1.6", nvext, "the rank"},
	{"prefill_dp_rank", false, InExtra, "Dynamo 1.6", nvext, "the prefill worker's rank"},
	{"token_data", false, InExtra, "Dynamo 1.6", nvext, "the prompt's tokens, in place of the messages that the blocks are computed from"},
	{"routing_constraints", false, InExtra, "Dynamo 1.6", nvext, "which workers may be chosen"},
	{"router", false, InExtra, "Dynamo 1.6", nvext, "targets of its router"},
	{"annotations", false, InExtra, "Dynamo 1.6", nvext, "query_instance_id: names the worker that would be chosen, in place of an answer"},
	{"extra_fields", false, InExtra, "Dynamo 1.6", nvext, "has answers tell worker ids and the tokens that went to them"},
	{"metadata_upload", false, InExtra, "Dynamo 1.6", nvext, "a URL that a worker uploads to"},
	{"session_control", false, InExtra, "Dynamo before 1.6", nvext, "the session whose worker is taken, and whose blocks are freed"},

	{"kv_hints", false, hinted, "SGLang 0.5.23, vLLM 0.33, Dynamo 1.6", "sglang/srt/managers/kv_hints.py, vllm/v1/kv_hints",
		"which blocks stay or go, and a host to fetch them from"},
	{"retention_", true, hinted, "vLLM, proposed", "vllm#38514", "which blocks stay, and for how long: _directives and _scope"},
	{"kv_cache_retention_config", false, hinted, "TensorRT-LLM 1.3", "tensorrt_llm/llmapi/llm.py", "the same, Python API"},
	{"agent_hint", true, hinted, "Dynamo 1.6; vLLM, proposed", nvext + ", vllm#52113",
		"what else is computed and stored for a client, and before whose requests: agent_hints, agent_hint"},
}

// hinted is where an engine may read what clients say about its cache.
const hinted = InBody | InArgs | InExtra

// Hint reports whether the field says what caches should keep. Trusted clients may be allowed to.
func (f *Field) Hint() bool {
	return f.In == hinted
}

// byName and prefixed index Fields for the look-up of each key of a body.
var byName, prefixed = func() (map[string]*Field, []*Field) {
	names, prefixes := make(map[string]*Field, len(Fields)), []*Field(nil)
	for i := range Fields {
		f := &Fields[i]
		if f.Prefix {
			prefixes = append(prefixes, f)
			continue
		}
		names[f.Name] = f
	}
	return names, prefixes
}()

// FieldOf returns the table's entry for a key in any scope; nil for none. Keys are case-sensitive, as in the engines.
func FieldOf(key string) *Field {
	if f := byName[key]; f != nil {
		return f
	}
	for _, f := range prefixed {
		if strings.HasPrefix(key, f.Name) {
			return f
		}
	}
	return nil
}

// Field returns the table's entry for a key in a place of this scope; nil: the key may stay.
func (s Scope) Field(key string) *Field {
	if f := FieldOf(key); f != nil && f.In&s != 0 {
		return f
	}
	return nil
}

// Label returns the field's name for counters and logs: bootstrap_* for a prefix. It is never a client's text.
func (f *Field) Label() string {
	if f.Prefix {
		return f.Name + "*"
	}
	return f.Name
}

// within maps a scope and a key to the scope of the key's value.
var within = map[Scope]map[string]Scope{
	InBody: {"messages": InList, "input": InList, "system": InContent, "vllm_xargs": InArgs, "extra_args": InArgs,
		"nvext": InExtra, "lora_request": InExtra, "agent_context": InExtra},
	InExtra: {"agent_context": InExtra},
	// vLLM 0.33 reads a reasoning that is an object as a content part (renderers/chat_utils/chat_message.py).
	InMessage: {"content": InContent, "output": InContent, "reasoning": InContent, "reasoning_content": InContent},
	InPart: {"content": InContent, "output": InContent, "image_url": InMedia, "audio_url": InMedia, "input_audio": InMedia,
		"video_url": InMedia, "image_embeds": InMedia, "audio_embeds": InMedia, "source": InMedia, "file": InMedia},
}

// Below returns the scope of a member's value.
func (s Scope) Below(key string) Scope { return within[s][key] }
