package trtllm

import (
	"context"
	"errors"
	"net/http"

	"github.com/sightline-router/sightline/engine/rules"
)

// describe asks for GET /server_info, which the release candidates of 1.3 have since the tenth. It does not ask where events go: a
// POST to /kv_cache_events would take them away from their reader.
func describe(ctx context.Context, client *http.Client, _ []byte, f *rules.Facts) {
	var a struct {
		BlockSize int    `json:"tokens_per_block"`
		HashAlgo  string `json:"kv_cache_hash_algo"`
	}
	if err := rules.GetJSON(ctx, client, f.Addr, "/server_info", "TensorRT-LLM 1.3", &a); err != nil {
		f.Lacks("block_size", err)
	}
	f.BlockSize, f.HashAlgo = rules.CleanCount(a.BlockSize), rules.CleanText(a.HashAlgo)
	f.Lacks("events", errors.New("to ask for them would take them away (want kv_cache_config: event_buffer_max_size over 0)"))
}
