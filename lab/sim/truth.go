package sim

// What a worker really holds and did: for tests, and as vLLM's metrics.

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/lab/vllmid"
)

// Counters count since the start. Sequences count, so a request with two prompts counts twice.
type Counters struct {
	Requests        int `json:"requests"`
	Aborted         int `json:"aborted"`
	Preempted       int `json:"preempted"`
	PromptTokens    int `json:"prompt_tokens"`
	CachedTokens    int `json:"cached_tokens"`
	PrefilledTokens int `json:"prefilled_tokens"`
	GeneratedTokens int `json:"generated_tokens"`
	ImagesEncoded   int `json:"images_encoded"`
}

// Stats is a worker's state: the sum over its ranks.
type Stats struct {
	Counters
	// Asked counts the HTTP requests to generate, those that a Fault took among them.
	Asked   int `json:"asked"`
	Running int `json:"running"`
	Waiting int `json:"waiting"`
	// Blocks is the number of distinct blocks held, Batches that of event batches published.
	Blocks  int `json:"blocks"`
	Batches int `json:"batches"`
	// Subscribed: every rank has a subscriber that would get its next batch.
	Subscribed bool `json:"subscribed"`
}

// Stats gives the counters of all ranks together.
func (w *Worker) Stats() Stats {
	s := Stats{Asked: int(w.asked.Load()), Subscribed: true}
	for _, e := range w.engines {
		e.mu.Lock()
		c := e.counters
		s.Running += len(e.running)
		s.Waiting += len(e.waiting)
		s.Blocks += len(e.pool.Held())
		e.mu.Unlock()
		s.Requests += c.Requests
		s.Aborted += c.Aborted
		s.Preempted += c.Preempted
		s.PromptTokens += c.PromptTokens
		s.CachedTokens += c.CachedTokens
		s.PrefilledTokens += c.PrefilledTokens
		s.GeneratedTokens += c.GeneratedTokens
		s.ImagesEncoded += c.ImagesEncoded
		batches, heard := e.pub.told()
		s.Batches += int(batches)
		s.Subscribed = s.Subscribed && heard
	}
	return s
}

// HeldBlock is one block that a rank holds, as events name it.
type HeldBlock struct {
	Rank   int      `json:"rank"`
	Group  int      `json:"group"`
	Hash   uint64   `json:"hash"`
	Parent *uint64  `json:"parent"`
	Tokens []uint32 `json:"tokens"`
	// ExtraKeys has the events' form: a string, or [identifier, offset].
	ExtraKeys []any `json:"extra_keys"`
	Copies    int   `json:"copies"`
}

// Blocks gives everything that is held, by rank, group and hash.
func (w *Worker) Blocks() []HeldBlock {
	blocks := []HeldBlock{}
	for _, e := range w.engines {
		e.mu.Lock()
		for key, held := range e.pool.Held() {
			c := held.Content
			b := HeldBlock{Rank: e.rank, Group: key.Group, Hash: c.hash.Uint64(), Tokens: c.tokens, Copies: len(held.Blocks)}
			if c.parent != "" {
				parent := c.parent.Uint64()
				b.Parent = &parent
			}
			for _, k := range c.keys {
				if k.Kind == vllmid.KeyMedia {
					b.ExtraKeys = append(b.ExtraKeys, []any{k.Text, k.Rel})
				} else {
					b.ExtraKeys = append(b.ExtraKeys, k.Text)
				}
			}
			blocks = append(blocks, b)
		}
		e.mu.Unlock()
	}
	slices.SortFunc(blocks, func(a, b HeldBlock) int {
		if a.Rank != b.Rank {
			return a.Rank - b.Rank
		}
		if a.Group != b.Group {
			return a.Group - b.Group
		}
		if a.Hash < b.Hash {
			return -1
		}
		return 1
	})
	return blocks
}

// histogram counts times to the first token, in vLLM's buckets.
type histogram struct {
	buckets [len(ttftBounds)]int
	sum     float64
	count   int
}

var ttftBounds = [...]float64{0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
	20, 40, 80, 160, 640, 2560}

func (h *histogram) observe(seconds float64) {
	h.sum += seconds
	h.count++
	for i, bound := range ttftBounds {
		if seconds <= bound {
			h.buckets[i]++
		}
	}
}

// metrics writes Prometheus text with vLLM's names and labels.
func (w *Worker) metrics(rw http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	family := func(name, kind string, value func(e *scheduler) float64) {
		fmt.Fprintf(&b, "# TYPE vllm:%s %s\n", strings.TrimSuffix(name, "_total"), kind)
		for _, e := range w.engines {
			e.mu.Lock()
			v := value(e)
			e.mu.Unlock()
			fmt.Fprintf(&b, "vllm:%s{engine=\"%d\",model_name=%q} %g\n", name, w.cfg.FirstRank+e.rank, w.cfg.ServedName, v)
		}
	}
	family("num_requests_running", "gauge", func(e *scheduler) float64 { return float64(len(e.running)) })
	family("num_requests_waiting", "gauge", func(e *scheduler) float64 { return float64(len(e.waiting)) })
	family("kv_cache_usage_perc", "gauge", func(e *scheduler) float64 { return e.pool.Usage() })
	family("prefix_cache_queries_total", "counter", func(e *scheduler) float64 { return float64(e.counters.PromptTokens) })
	family("prefix_cache_hits_total", "counter", func(e *scheduler) float64 { return float64(e.counters.CachedTokens) })
	family("prompt_tokens_total", "counter", func(e *scheduler) float64 { return float64(e.counters.PromptTokens) })
	family("generation_tokens_total", "counter", func(e *scheduler) float64 { return float64(e.counters.GeneratedTokens) })
	family("num_preemptions_total", "counter", func(e *scheduler) float64 { return float64(e.counters.Preempted) })
	w.mediaMu.Lock()
	asked, hit := w.mediaAsked, w.mediaHit
	w.mediaMu.Unlock()
	once := func(n int) func(*scheduler) float64 { // the processor cache belongs to the process; rank 0 shows it
		return func(e *scheduler) float64 {
			if e.rank > 0 {
				return 0
			}
			return float64(n)
		}
	}
	family("mm_cache_queries_total", "counter", once(asked))
	family("mm_cache_hits_total", "counter", once(hit))
	fmt.Fprintf(&b, "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %.2f\n", float64(w.began.UnixMilli())/1000)
	fmt.Fprintf(&b, "# TYPE vllm:cache_config_info gauge\n")
	for _, e := range w.engines {
		fmt.Fprintf(&b,
			`vllm:cache_config_info{_block_size_resolved="True",block_size="%d",cache_dtype="auto",enable_prefix_caching="%s",engine="%d",`+
				`kv_offloading_size="None",mamba_block_size="None",mamba_cache_mode="none",num_gpu_blocks="%d",num_gpu_blocks_override="None",`+
				`prefix_caching_hash_algo="%s",prefix_match_unit="None",user_specified_block_size="True"} 1.0`+"\n",
			w.cfg.BlockSize, map[bool]string{true: "False", false: "True"}[w.cfg.NoPrefixCache], w.cfg.FirstRank+e.rank, w.cfg.Blocks,
			w.cfg.HashAlgo)
	}
	fmt.Fprintf(&b, "# TYPE vllm:time_to_first_token_seconds histogram\n")
	for _, e := range w.engines {
		e.mu.Lock()
		h := e.ttft
		e.mu.Unlock()
		labels := fmt.Sprintf("engine=\"%d\",model_name=%q", w.cfg.FirstRank+e.rank, w.cfg.ServedName)
		for i, bound := range ttftBounds {
			fmt.Fprintf(&b, "vllm:time_to_first_token_seconds_bucket{%s,le=\"%g\"} %d\n", labels, bound, h.buckets[i])
		}
		fmt.Fprintf(&b, "vllm:time_to_first_token_seconds_bucket{%s,le=\"+Inf\"} %d\n", labels, h.count)
		fmt.Fprintf(&b, "vllm:time_to_first_token_seconds_sum{%s} %g\nvllm:time_to_first_token_seconds_count{%s} %d\n",
			labels, h.sum, labels, h.count)
	}
	writeMetrics(rw, b.String())
}

func writeMetrics(rw http.ResponseWriter, text string) {
	rw.Header().Set("Content-Type", "text/plain; version=0.0.4")
	_, _ = rw.Write([]byte(text))
}

// sglangMetrics are those of SGLang 0.5.23 that tell of load (observability/metrics_collector.py), one series a rank.
func (w *Worker) sglangMetrics(rw http.ResponseWriter, _ *http.Request) {
	var b strings.Builder
	for _, e := range w.engines {
		e.mu.Lock()
		running, waiting, usage := len(e.running), len(e.waiting), e.pool.Usage()
		e.mu.Unlock()
		labels := fmt.Sprintf(`engine_type="unified",model_name=%q,moe_ep_rank="0",pp_rank="0",tp_rank="0"`, w.cfg.ServedName)
		if len(w.engines) > 1 {
			labels = fmt.Sprintf(`dp_rank="%d",`, e.rank) + labels
		}
		fmt.Fprintf(&b, "sglang:num_running_reqs{%s} %d\nsglang:num_queue_reqs{%s} %d\nsglang:token_usage{%s} %g\n", labels,
			running, labels, waiting, labels, usage)
	}
	writeMetrics(rw, b.String())
}

// trtllmMetrics are those of TensorRT-LLM 1.3 that tell of load (metrics/collector.py): one series for all ranks.
func (w *Worker) trtllmMetrics(rw http.ResponseWriter, _ *http.Request) {
	s, usage := w.Stats(), 0.0
	for _, e := range w.engines {
		e.mu.Lock()
		usage += e.pool.Usage() / float64(len(w.engines))
		e.mu.Unlock()
	}
	labels := fmt.Sprintf(`engine_type="trtllm",model_name=%q`, w.cfg.ServedName)
	writeMetrics(rw,
		fmt.Sprintf("trtllm_num_requests_running{%s} %d\ntrtllm_num_requests_waiting{%s} %d\ntrtllm_kv_cache_utilization{%s} %g\n",
			labels, s.Running, labels, s.Waiting, labels, usage))
}
