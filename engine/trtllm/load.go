package trtllm

import (
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

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
