package trtllm

import (
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

// A server started with return_perf_metrics and enable_iter_perf_stats sets its gauges from the iterations so far each time that
// a request is over, and for half a second on: with nothing to do they stand still, at what the last iteration had. There is no
// series for each rank (tensorrt_llm/metrics/collector.py and _iteration_stats_collector_loop in
// tensorrt_llm/serve/openai_server.py, read in a revision of 2026; older ones have the KV cache's use alone). The JSON of
// /metrics is not asked for: an answer takes what it holds away from everybody else.
var load = rules.Load{Path: "/prometheus/metrics", Running: "trtllm_num_requests_running", Waiting: "trtllm_num_requests_waiting",
	Usage: []string{"trtllm_kv_cache_utilization"}, Old: 5 * time.Second, Stands: true}

// health answers 503 after a fatal error of the engine, and then the server may shut itself down
// (tensorrt_llm/serve/openai_server.py, read in revisions of 2026).
const health = "/health"
