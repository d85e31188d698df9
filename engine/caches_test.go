package engine

import (
	"testing"
	"testing/fstest"
)

// TestSeveralCaches: which models keep more than one KV cache, by the keys of their config.json.
func TestSeveralCaches(t *testing.T) {
	for config, want := range map[string]bool{
		`{"model_type":"qwen2","sliding_window":131072,"use_sliding_window":false}`: false,
		`{"model_type":"llama"}`: false,
		`{"model_type":"qwen3","sliding_window":null,"layer_types":["full_attention","full_attention"]}`: false,
		`{"text_config":{"model_type":"gemma3_text","sliding_window":1024,"sliding_window_pattern":6}}`:  true,
		`{"model_type":"gpt_oss","layer_types":["sliding_attention","full_attention"]}`:                  true,
		`{"text_config":{"layer_types":["linear_attention","full_attention"]}}`:                          true,
		`{"model_type":"qwen3_next","full_attention_interval":4}`:                                        true,
		`{"text_config":{"model_type":"llama4_text","attention_chunk_size":8192}}`:                       true,
		`{"model_type":"nemotron_h","hybrid_override_pattern":"M-M*"}`:                                   true,
		`not json`: false,
	} {
		if got := severalCaches(fstest.MapFS{"config.json": {Data: []byte(config)}}); got != want {
			t.Errorf("%s: got %v, want %v", config, got, want)
		}
	}
	if severalCaches(fstest.MapFS{}) {
		t.Error("without a config.json")
	}
}

// TestAttentionChunk: the chunk that vLLM's events do not say.
func TestAttentionChunk(t *testing.T) {
	for config, want := range map[string]int{
		`{"text_config":{"model_type":"llama4_text","attention_chunk_size":8192}}`: 8192,
		`{"model_type":"llama4_text","attention_chunk_size":128}`:                  128,
		`{"model_type":"llama"}`:           0,
		`{"attention_chunk_size":null}`:    0,
		`{"attention_chunk_size":-1}`:      0,
		`{"attention_chunk_size":1e300}`:   0,
		`{"attention_chunk_size":"8192x"}`: 0,
	} {
		if got := attentionChunk(fstest.MapFS{"config.json": {Data: []byte(config)}}); got != want {
			t.Errorf("%s: %d, want %d", config, got, want)
		}
	}
}
