package engine

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/internal/denied"
	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/prompt"
)

// readFields are the fields of requests that are read here, wherever they change a prompt, how it is keyed or whether it is looked up.
const readFields = `
add_generation_prompt add_special_tokens cache_salt chat_template chat_template_kwargs continue_final_message documents echo extra_key
input input_ids instructions lora_path media_io_kwargs messages mm_processor_kwargs model output_config previous_input_messages
previous_response_id prompt prompt_logprobs prompt_token_ids reasoning reasoning_effort system thinking tool_choice tools
truncate_prompt_tokens truncation truncation_side`

// ownFields are read by code that an engine has for one model alone, whose chats are not read here, or become its grammar (vLLM 0.33's
// and SGLang 0.5.23's Kimi K3, Cohere).
const ownFields = "response_format structured_outputs text"

// nvextFields are those of Dynamo's extensions that change no prompt, and those that engine/dynamo reads.
const nvextFields = "greed_sampling max_thinking_tokens request_timestamp_ms cache_salt use_raw_prompt"

// nestedUnread are keys of TensorRT-LLM's messages and tools that no code here names, since its templates do not get them. vLLM's
// and SGLang's are tried one by one (TestContractKeys of each).
const nestedUnread = "filename"

// TestRequestFields: each field of each engine's requests is read, known to change no prompt, removed, or ends the prediction.
// SIGHTLINE_REQUESTS names a list that was made anew (make contract).
func TestRequestFields(t *testing.T) {
	files, err := filepath.Glob("testdata/requests/*.json")
	if made := os.Getenv("SIGHTLINE_REQUESTS"); made != "" {
		files = []string{made}
	}
	if err != nil || len(files) == 0 {
		t.Fatalf("no lists %v: got %d, want no error, some", err, len(files))
	}
	sources := golden.Source(t, "../prompt", "../prompt/vision", "../body", "vllm", "sglang", "trtllm", "dynamo", ".")
	known := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list struct {
			Engine, Release string
			Fields          map[string][]string
			Nested          []string
		}
		if err := json.Unmarshal(text, &list); err != nil {
			t.Fatal(err)
		}
		unread := RulesOf(list.Engine, list.Release).Dialect.Unread
		n := 0
		for place, fields := range list.Fields {
			for _, f := range fields {
				n++
				known[f] = true
				switch {
				case place == "nvext":
					if denied.InExtra.Field(f) == nil && !contains(nvextFields, f) {
						t.Errorf("%s %s: nvext.%s is in no list: see TestRequestFields", list.Engine, list.Release, f)
					}
				case body.NoEffect(f) || denied.InBody.Field(f) != nil || denied.InBody.Below(f) != denied.Nowhere || slices.Contains(unread, f) ||
					contains(ownFields, f) || contains(readFields, f):
				default:
					t.Errorf("%s %s, %s: %s is in no list: see TestRequestFields", list.Engine, list.Release, place, f)
				}
			}
		}
		for _, f := range list.Nested {
			if read := strings.Contains(sources, `"`+f+`"`); read == contains(nestedUnread, f) {
				t.Errorf("%s %s: %s of messages or tools is read (%v) or in nestedUnread, want one", list.Engine, list.Release, f, read)
			}
		}
		if n < 15 {
			t.Errorf("%s: got %d fields, want all of them", file, n)
		}
	}
	if os.Getenv("SIGHTLINE_REQUESTS") != "" {
		return
	}
	for _, f := range strings.Fields(readFields) {
		switch {
		case !strings.Contains(sources, `"`+f+`"`):
			t.Errorf("%s: got no place that reads it, want one", f)
		case !known[f] || body.NoEffect(f):
			t.Errorf("%s: got a field that no engine has, or that is in two lists", f)
		}
	}
}

func contains(list, word string) bool { return slices.Contains(strings.Fields(list), word) }

// TestUnreadFieldsEndPredictions: with a field that changes a prompt and is not read nothing is predicted; null, and another engine's
// field, change nothing.
func TestUnreadFieldsEndPredictions(t *testing.T) {
	for _, c := range []struct {
		engine, endpoint, field string
		ends                    bool
	}{
		{"trtllm", denied.Chat, `"prompt_token_ids_b64":"AQAAAA=="`, true},
		{"trtllm", denied.Chat, `"truncate_prompt_tokens":16`, true},
		{"trtllm", denied.Completions, `"lora_request":{"lora_name":"a","lora_int_id":1}`, true},
		{"trtllm", denied.Chat, `"chat_template":"x"`, true},
		{"trtllm", denied.Chat, `"thinking":{"type":"enabled"}`, true},
		{"trtllm", denied.Chat, `"lora_request":null,"truncate_prompt_tokens":null`, false},
		{"trtllm", denied.Chat, `"lora_path":"a"`, false},
		{"sglang", denied.Chat, `"lora_path":"a"`, true},
		{"sglang", denied.Completions, `"lora_path":["a"]`, true},
		{"sglang", denied.Completions, `"suffix":"b"`, true},
		{"sglang", denied.Chat, `"reasoning":{"effort":"high"}`, true},
		{"sglang", denied.Chat, `"task":"query"`, true},
		{"sglang", denied.Chat, `"max_dynamic_patch":4`, true},
		{"sglang", denied.Chat, `"use_audio_in_video":false,"mm_processor_kwargs":{}`, false},
		{"sglang", denied.Chat, `"prompt_token_ids_b64":"AQAAAA==","truncate_prompt_tokens":16`, false},
		{"vllm", denied.Completions, `"prompt_embeds":"AAAA"`, true},
		{"vllm", denied.Completions, `"suffix":""`, true},
		{"vllm", denied.Chat, `"lora_path":"a","task":"query"`, false},
		{"dynamo", denied.Chat, `"nvext":{"use_raw_prompt":true}`, true},
		{"dynamo", denied.Chat, `"nvext":{"use_raw_prompt":false}`, false},
	} {
		m := loadShipped(t, func(s *Server, _ *Media) {
			s.Engine = c.engine
			s.EngineVersion = map[string]string{"vllm": "0.33.0", "sglang": "0.5.23", "trtllm": "1.3.0", "dynamo": "0.32.0"}[c.engine]
			if c.engine == "dynamo" {
				s.Engine, s.BlockHash = "vllm", "dynamo"
			}
		})
		text := `{"prompt":"hi",` + c.field + `}`
		if c.endpoint == denied.Chat {
			text = `{"messages":[{"role":"user","content":"hi"}],` + c.field + `}`
		}
		var skeleton body.Skeleton
		var req body.Request
		if err := body.Read([][]byte{[]byte(text)}, &skeleton, &req); err != nil {
			t.Fatal(err)
		}
		if _, err := m.Read(t.Context(), c.endpoint, "", &req); errors.Is(err, prompt.ErrField) != c.ends || err != nil && !c.ends {
			t.Errorf("%s %s with %s: got %v, want an end: %t", c.engine, c.endpoint, c.field, err, c.ends)
		}
	}
}

// TestAdapter: whose blocks a request's are, by the model's name and the field for it.
func TestAdapter(t *testing.T) {
	for _, c := range []struct {
		engine, hash, named, field, want string
		known                            bool
	}{
		{"vllm", "sightline", "a", `"lora_path":"b"`, "a", true},
		{"sglang", "sightline", "a", `"lora_path":null`, "", true},
		{"sglang", "sightline", "a", `"lora_path":"b"`, "b", true},
		{"sglang", "sightline", "m:a", `"lora_path":"b"`, "m:a", true},
		{"sglang", "sightline", "", `"lora_path":["a"]`, "", false},
		{"sglang", "sightline", "", `"lora_path":"m:a"`, "m:a", false},
		{"sglang", "dynamo", "a", `"lora_path":""`, "a", true}, // its front ends serve adapters by their names
		{"sglang", "dynamo", "a", `"lora_path":"a"`, "a", false},
	} {
		m := loadShipped(t, func(s *Server, _ *Media) {
			s.Engine, s.BlockHash, s.EngineVersion = c.engine, c.hash, map[string]string{"vllm": "0.33.0", "sglang": "0.5.23"}[c.engine]
		})
		var skeleton body.Skeleton
		var req body.Request
		if err := body.Read([][]byte{[]byte(`{"prompt":"hi",` + c.field + `}`)}, &skeleton, &req); err != nil {
			t.Fatal(err)
		}
		if got, known := m.Adapter(c.named, &req); got != c.want || known != c.known {
			t.Errorf("%s, %s hashes, %q with %s: got %q (known: %t), want %q (%t)", c.engine, c.hash, c.named, c.field, got, known, c.want, c.known)
		}
	}
}
