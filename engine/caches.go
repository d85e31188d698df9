package engine

import (
	"io/fs"
	"slices"

	"github.com/tidwall/gjson"
)

// recurrentKeys are keys of a config.json whose model has recurrent layers.
var recurrentKeys = []string{"full_attention_interval", "linear_attn_config", "hybrid_override_pattern", "mamba_d_state", "ssm_cfg",
	"ssm_state_size"}

// severalCaches reports whether a model's config.json describes layers that do not see all tokens: windows, chunks, or recurrent
// states. An engine then keeps several KV caches, and continues a prompt only where each has what it needs.
func severalCaches(dir fs.FS) bool {
	for _, c := range languageConfigs(dir) {
		if kinds := c.Get("layer_types"); kinds.IsArray() {
			if slices.ContainsFunc(kinds.Array(), func(kind gjson.Result) bool { return kind.Str != "full_attention" }) {
				return true
			}
			continue
		}
		used := c.Get("use_sliding_window")
		if c.Get("sliding_window").Int() > 0 && (!used.Exists() || used.Bool()) || c.Get("attention_chunk_size").Int() > 0 {
			return true
		}
		for _, key := range recurrentKeys {
			if v := c.Get(key); v.Exists() && v.Type != gjson.Null {
				return true
			}
		}
	}
	return false
}

// attentionChunk returns the tokens of a chunk of chunked attention (Llama 4), as a model's config.json has them; 0: none.
func attentionChunk(dir fs.FS) int {
	for _, c := range languageConfigs(dir) {
		if n := c.Get("attention_chunk_size").Int(); n > 0 && n <= maxChunk {
			return int(n)
		}
	}
	return 0
}

const maxChunk = 1 << 24

// languageConfigs returns the parts of a model's config.json that may describe its language model.
func languageConfigs(dir fs.FS) (parts []gjson.Result) {
	b, err := fs.ReadFile(dir, "config.json")
	if err != nil || !gjson.ValidBytes(b) {
		return nil
	}
	root := gjson.ParseBytes(b)
	for _, at := range []string{"@this", "text_config", "llm_config", "language_config", "thinker_config.text_config"} {
		parts = append(parts, root.Get(at))
	}
	return parts
}
