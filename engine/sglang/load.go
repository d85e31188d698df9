package sglang

import (
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

// A server started with --enable-metrics sets its gauges with each prefill batch and each fortieth decode step
// (--decode-log-interval), and every 30 s while idle; in between they keep their last values. There is a series for each
// data-parallel rank, labelled dp_rank, and with --enable-metrics-for-all-schedulers for each tensor-parallel one
// (scheduler_metrics_mixin.py, metrics_collector.py and the scheduler's runtime checks below python/sglang/srt, read in revisions
// of 2025 and 2026).
var load = rules.Load{Path: "/metrics", Running: "sglang:num_running_reqs", Waiting: "sglang:num_queue_reqs",
	Usage: "sglang:token_usage", Rank: "dp_rank", MaxAge: 5 * time.Second, KeepsLastValue: true}

// health takes at least one second to answer: it waits until the engine has produced a token, and an idle engine computes one for
// it, unless SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0, with which only the HTTP server answers. It answers 503 during start-up
// and graceful shutdown, and after 20 s without a token (python/sglang/srt/entrypoints/http_server.py, read in a revision of 2026).
// The path /health_generate is the same without the exception.
const health = "/health"
