package vllm

import (
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

// health is answered by the engine's client, not the engine: 503 once the client has found the engine dead
// (vllm/entrypoints/serve/instrumentator/health.py, read in a revision of 2026).
//
// A server sets its gauges with each scheduler step's output, including the last before it goes idle, with a series for each
// data-parallel rank, labelled engine (vllm/v1/metrics/loggers.py). A step is assumed to last two seconds at most. The
// API server's process ends with its engine's, and its page reports its start time, unless several API servers share one page:
// prometheus_client has process_* only if it does not collect from several processes, as SGLang's and TensorRT-LLM's pages do.
const health = "/health"

var load = rules.Load{Path: "/metrics", Running: "vllm:num_requests_running", Waiting: "vllm:num_requests_waiting",
	Usage: "vllm:kv_cache_usage_perc", Rank: "engine",
	MediaQueries: "vllm:mm_cache_queries_total", MediaHits: "vllm:mm_cache_hits_total",
	Adapters: "vllm:lora_requests_info", StartTime: "process_start_time_seconds", MaxAge: 2 * time.Second}

// cacheInfo is a gauge per rank whose labels are the cache's settings.
const cacheInfo = "vllm:cache_config_info"
