package trtllm

import (
	"context"
	"errors"
	"net/http"
	"time"

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

// A server started with return_perf_metrics and enable_iter_perf_stats sets its gauges from its past iterations whenever a request
// ends and for half a second after. When idle they keep the values of the last iteration. There is no series per rank
// (tensorrt_llm/metrics/collector.py and _iteration_stats_collector_loop in tensorrt_llm/serve/openai_server.py, read in a revision
// of 2026; older ones have only the KV cache usage). The JSON of /metrics is not used: reading it removes the entries for every
// other reader.
var load = rules.Load{Path: "/prometheus/metrics", Running: "trtllm_num_requests_running", Waiting: "trtllm_num_requests_waiting",
	Usage: "trtllm_kv_cache_utilization", MaxAge: 5 * time.Second, KeepsLastValue: true}

// health answers 503 after a fatal error of the engine. The server may then shut itself down (tensorrt_llm/serve/openai_server.py,
// read in revisions of 2026).
const health = "/health"
