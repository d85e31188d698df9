package vllm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/source/zmq"
)

// eventSource is a server's answer about one rank's events (GET /kv_event_sources, since 0.31).
type eventSource struct {
	Enabled   bool   `json:"enable_kv_cache_events"`
	Publisher string `json:"publisher"`
	Pub       string `json:"endpoint"` // as the rank binds it, such as tcp://*:5557, with the rank's own port
	Replay    string `json:"replay_endpoint"`
}

// findEvents is Rules.FindEvents.
func findEvents(ctx context.Context, client *http.Client, addr, host string, _ int) (list []rules.EventSource, err error) {
	ranks, err := fetchEventSources(ctx, client, addr)
	if err == nil && len(ranks) == 0 {
		err = rules.ErrNoEvents
	}
	for i := 0; i < len(ranks) && err == nil; i++ {
		var one rules.EventSource
		one, err = ranks[i].on(host)
		list = append(list, one)
	}
	return list, err
}

// fetchEventSources returns the sources of a server's ranks, from its rank 0 on. Their keys are the ranks among all nodes: those of a node
// with --data-parallel-start-rank 8 begin with 8 (v1/engine/core_client.py, 0.33), whereas the X-data-parallel-rank that the server takes
// begins with 0 (v1/engine/input_processor.py).
func fetchEventSources(ctx context.Context, client *http.Client, addr string) (ranks []eventSource, err error) {
	var byKey map[string]eventSource
	if err := rules.GetJSON(ctx, client, addr, "/kv_event_sources", "vLLM 0.31 or later", &byKey); err != nil {
		return nil, err
	}
	first := math.MaxInt
	for key := range byKey {
		n, err := strconv.Atoi(key)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("GET /kv_event_sources: the key %.40q is not understood (want the number of a rank)", key)
		}
		first = min(first, n)
	}
	for i := range min(len(byKey), rules.MaxClaimedRanks) {
		s, ok := byKey[strconv.Itoa(first+i)]
		if !ok {
			return nil, fmt.Errorf("GET /kv_event_sources: %d ranks from %d on, rank %d is none of them", len(byKey), first, first+i)
		}
		ranks = append(ranks, s)
	}
	return ranks, nil
}

// on returns the source with endpoints that can be dialled on host.
func (s eventSource) on(host string) (e rules.EventSource, err error) {
	if !s.Enabled || s.Publisher != "zmq" {
		return e, rules.ErrNoEvents
	}
	e.Pub, err = zmq.Claimed(s.Pub, host, 0)
	if err == nil && s.Replay != "" {
		e.Replay, err = zmq.Claimed(s.Replay, host, 0)
	}
	return e, err
}

// describe reads the labels of vllm:cache_config_info, which are the fields of CacheConfig (vllm/config/cache.py; block_size is the
// one in effect, user_specified_block_size says whether one was asked for), and asks for the event sockets. Only the usage in a
// response shows whether --enable-prompt-tokens-details was given.
func describe(ctx context.Context, client *http.Client, page []byte, f *rules.Facts) {
	if labels := rules.Labels(page, cacheInfo); labels != nil {
		f.BlockSize, f.BlockSizeGiven = rules.LabelCount(labels, "block_size"), rules.LabelBool(labels, "user_specified_block_size")
		f.Blocks, f.MatchUnit = rules.LabelCount(labels, "num_gpu_blocks"), rules.LabelCount(labels, "prefix_match_unit")
		f.PrefixCaching = rules.LabelBool(labels, "enable_prefix_caching")
		f.HashAlgo, f.MambaCacheMode = rules.Label(labels, "prefix_caching_hash_algo"), rules.Label(labels, "mamba_cache_mode")
	} else if len(page) > 0 {
		f.Lacks("block_size", errors.New("its page of metrics has no "+cacheInfo))
	}
	ranks, err := fetchEventSources(ctx, client, f.Addr)
	if err != nil {
		f.Lacks("events", err)
		return
	}
	publishes := false
	f.Publishes, f.Ranks = &publishes, len(ranks)
	for _, r := range ranks {
		s, err := r.on(f.Host())
		if errors.Is(err, rules.ErrNoEvents) {
			continue
		}
		publishes = true
		if err != nil {
			f.Lacks("events", err)
			return
		}
		f.Events = append(f.Events, s)
	}
}

// health is answered by the engine's client, not the engine: 503 once the client has found the engine dead
// (vllm/entrypoints/serve/instrumentator/health.py, read in a revision of 2026).
//
// A server sets its gauges with each scheduler step's output, including the last before it goes idle, with a series for each
// data-parallel rank, labelled engine (vllm/v1/metrics/loggers.py). A step is assumed to last two seconds at most. The
// API server's process ends with its engine's, and its page reports its start time, unless several API servers share one page:
// prometheus_client has process_* only if it does not collect from several processes, as SGLang's and TensorRT-LLM's pages do.
const health = "/health"

var load = rules.Load{Path: "/metrics", Running: "vllm:num_requests_running", Waiting: "vllm:num_requests_waiting",
	Usage: "vllm:kv_cache_usage_perc", Rank: "engine", Cache: cacheInfo, CacheBlocks: "num_gpu_blocks",
	MediaQueries: "vllm:mm_cache_queries_total", MediaHits: "vllm:mm_cache_hits_total",
	Adapters: "vllm:lora_requests_info", StartTime: "process_start_time_seconds", MaxAge: 2 * time.Second}

// cacheInfo is a gauge per rank whose labels are the cache's settings.
const cacheInfo = "vllm:cache_config_info"

// X-Vllm-Priority (0.30, entrypoints/generate/base/serving.py) replaces the body's priority: an int64, the lowest is served first, equal
// ones as they come (v1/core/sched/request_queue.py). Only --scheduling-policy priority follows it; under fcfs it changes nothing, so it
// is sent to servers that do not say. A request without it has the number 0. Where memory runs out, the running request with the
// highest number makes room.

// askOrder asks for GET /server_info, which servers with VLLM_SERVER_DEV_MODE=1 have (0.32, entrypoints/serve/dev/server_info).
func askOrder(ctx context.Context, client *http.Client, addr string) (rules.Serving, error) {
	var a struct {
		Config struct {
			Scheduler struct {
				Policy string `json:"policy"`
			} `json:"scheduler_config"`
		} `json:"vllm_config"`
	}
	err := rules.GetJSON(ctx, client, addr, "/server_info?config_format=json", "with VLLM_SERVER_DEV_MODE=1", &a)
	switch policy := a.Config.Scheduler.Policy; {
	case err != nil:
		return rules.Unsaid, err
	case policy == "priority":
		return rules.LowFirst, nil
	case policy != "":
		return rules.AsTheyCome, nil
	}
	return rules.Unsaid, nil
}
