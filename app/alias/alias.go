// Package alias exposes some of the router's metrics under the names that other routers use, for existing dashboards and
// autoscalers. Names, labels and buckets are those of
//
//	llm-d       llm-d-router v0.10.0: pkg/epp/metrics/llm_d_router_metrics.go, pkg/epp/datalayer/logger/logger.go
//	gateway-api gateway-api-inference-extension v1.5.0: pkg/epp/metrics/metrics.go, which llm-d exposes beside its own
//	dynamo      Dynamo 1.6: lib/runtime/src/metrics/prometheus_names.rs
//
// Labels without a counterpart in Sightline, such as fairness_id and priority, are omitted; a query treats them as empty. A pool is
// a model. All aliases are off by default.
package alias

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/internal/buildinfo"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/workers/fleet"
)

// Of lists the supported routers.
var Of = []string{"llm-d", "gateway-api", "dynamo"}

// alias is one metric with its names in other routers.
type alias struct {
	names   map[string]string // by router
	help    string
	labels  []string  // except for Dynamo's names, where the model's label is "model"
	buckets []float64 // nil: a counter, or a gauge if pool is set
	decided func(d *router.Decision, took time.Duration) (float64, bool)
	ended   func(o *router.Outcome, took time.Duration) (float64, bool)
	pool    func(p *pool) (float64, bool)
	queues  bool // a gauge for each worker of a pool
	build   bool // a gauge that is 1
}

// both returns the names for llm-d and for gateway-api, which differ by subsystem.
func both(llmd, gateway string) map[string]string {
	return map[string]string{"llm-d": "llm_d_epp_" + llmd, "gateway-api": "inference_" + gateway}
}

func names(llmd, gateway, dynamo string) map[string]string {
	m := both(llmd, gateway)
	m["dynamo"] = "dynamo_" + dynamo
	return m
}

var (
	models  = []string{"model_name", "target_model_name"} // both have the same value here
	tokens  = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32778, 65536, 131072, 262144, 524288, 1048576}
	seconds = []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45,
		60, 120, 180, 240, 300, 360, 480, 600, 900,
		1200, 1800, 2700, 3600}
	shares = prometheus.LinearBuckets(0, 0.05, 21)
	sizes  = prometheus.ExponentialBuckets(64, 2, 25)
)

func counted(n int, o *router.Outcome) (float64, bool) {
	return float64(n), o.Code == http.StatusOK && n >= 0 && o.PromptTokens > 0
}

func failed(o *router.Outcome) bool { return o.Code < 200 || o.Code >= 400 }

func hitRate(d *router.Decision, _ time.Duration) (float64, bool) {
	return float64(d.CachedTokens) / float64(max(1, d.PromptTokens)), d.PromptTokens > 0
}

var aliases = []alias{
	{names: both("request_total", "objective_request_total"), help: "Decided requests.", labels: models,
		decided: func(*router.Decision, time.Duration) (float64, bool) { return 1, true }},
	{names: both("request_error_total", "objective_request_error_total"), help: "Ended requests without an answer, or with an error.",
		labels: append(slices.Clip(models), "error_code"),
		ended:  func(o *router.Outcome, _ time.Duration) (float64, bool) { return 1, failed(o) }},
	{names: both("request_size_bytes", "objective_request_sizes"), help: "Bytes of the bodies of decided requests.", labels: models,
		buckets: sizes,
		decided: func(d *router.Decision, _ time.Duration) (float64, bool) {
			return float64(d.BodyBytes), d.BodyBytes > 0
		}},
	{names: map[string]string{"dynamo": "dynamo_frontend_requests_total"}, help: "Ended requests; status is success or error.",
		labels: append(slices.Clip(models), "status"),
		ended:  func(*router.Outcome, time.Duration) (float64, bool) { return 1, true }},
	{names: names("request_duration_seconds", "objective_request_duration_seconds", "frontend_request_duration_seconds"),
		help: "From the decision to the answer's end.", labels: models, buckets: seconds,
		ended: func(o *router.Outcome, took time.Duration) (float64, bool) {
			return took.Seconds(), o.Code == http.StatusOK
		}},
	{names: names("request_ttft_seconds", "objective_request_ttft_seconds", "frontend_time_to_first_token_seconds"),
		help: "From the request's arrival to the answer's first byte.", labels: models, buckets: seconds,
		ended: func(o *router.Outcome, _ time.Duration) (float64, bool) {
			return o.FirstByte.Seconds(), o.FirstByte > 0
		}},
	{names: both("request_ntpot_seconds", "objective_normalized_time_per_output_token_seconds"),
		help: "From the decision to the answer's end, for each generated token.", labels: models,
		buckets: []float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10},
		ended: func(o *router.Outcome, took time.Duration) (float64, bool) {
			return took.Seconds() / float64(max(1, o.OutputTokens)), o.Code == http.StatusOK && o.OutputTokens > 0
		}},
	{names: map[string]string{"llm-d": "llm_d_epp_request_streaming_tpot_seconds"},
		help: "From the first byte to the answer's end, for each generated token after the first, of requests that stream.", labels: models,
		buckets: []float64{0.0005, 0.00205, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.125, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1, 2},
		ended: func(o *router.Outcome, took time.Duration) (float64, bool) {
			return max(0, (took-o.FirstByte).Seconds()) / float64(max(1, o.OutputTokens-1)),
				o.Streamed && o.Code == http.StatusOK && o.FirstByte > 0 && o.OutputTokens > 1
		}},
	{names: names("request_input_tokens", "objective_input_tokens", "frontend_input_sequence_tokens"),
		help: "Prompt tokens, as the engine counted.", labels: models, buckets: tokens,
		ended: func(o *router.Outcome, _ time.Duration) (float64, bool) { return counted(o.PromptTokens, o) }},
	{names: names("request_output_tokens", "objective_output_tokens", "frontend_output_sequence_tokens"),
		help: "Generated tokens, as the engine counted.", labels: models, buckets: tokens,
		ended: func(o *router.Outcome, _ time.Duration) (float64, bool) { return counted(o.OutputTokens, o) }},
	{names: names("request_cached_tokens", "objective_prompt_cached_tokens", "frontend_cached_tokens"),
		help: "Of the prompt tokens, those that were cached, as the engine counted.", labels: models, buckets: tokens,
		ended: func(o *router.Outcome, _ time.Duration) (float64, bool) { return counted(o.CachedTokens, o) }},
	{names: both("scheduler_e2e_duration_seconds", "extension_scheduler_e2e_duration_seconds"), help: "Time to decide.",
		buckets: []float64{1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1},
		decided: func(_ *router.Decision, took time.Duration) (float64, bool) { return took.Seconds(), true }},
	{names: map[string]string{"llm-d": "llm_d_epp_request_processing_duration_seconds"},
		help:    "Time to decide once the body is complete, with the time that the request waited for a worker or a place.",
		buckets: []float64{0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.025, 0.04, 0.06, 0.1, 0.25, 0.5, 1, 2.5, 5, 10},
		decided: func(_ *router.Decision, took time.Duration) (float64, bool) { return took.Seconds(), true }},
	{names: map[string]string{"llm-d": "llm_d_epp_disagg_decision_total"}, help: "Decisions by the stages that other workers take.",
		labels:  []string{"model_name", "decision_type"},
		decided: func(d *router.Decision, _ time.Duration) (float64, bool) { return 1, len(d.Targets) > 0 }},
	{names: map[string]string{"llm-d": "llm_d_epp_encoder_cache_queries_total"}, help: "Images of requests that were read.",
		labels:  []string{"modality"},
		decided: func(d *router.Decision, _ time.Duration) (float64, bool) { return float64(d.Images), d.Images > 0 }},
	{names: map[string]string{"llm-d": "llm_d_epp_encoder_cache_hits_total"},
		help:   "Images of requests that were read, and that the chosen worker is predicted to have in its encoder cache or KV cache.",
		labels: []string{"pod", "modality"},
		decided: func(d *router.Decision, _ time.Duration) (float64, bool) {
			return float64(d.ImagesHeld), d.Images > 0
		}},
	{names: map[string]string{"dynamo": "dynamo_router_overhead_total_ms"}, help: "Milliseconds to decide.",
		buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		decided: func(_ *router.Decision, took time.Duration) (float64, bool) { return 1e3 * took.Seconds(), true }},
	{names: both("scheduler_attempts_total", "extension_scheduler_attempts_total"),
		help: "Decisions; status is success, or failure if no worker could be named.", labels: []string{"status", "target_model_name"},
		decided: func(*router.Decision, time.Duration) (float64, bool) { return 1, true }},
	{names: both("prefix_indexer_hit_ratio", "extension_prefix_indexer_hit_ratio"),
		help:    "Share of the prompt that the chosen worker is predicted to hold.",
		buckets: prometheus.LinearBuckets(0, 0.1, 11), decided: hitRate},
	{names: map[string]string{"dynamo": "dynamo_component_router_kv_hit_rate"},
		help: "Share of the prompt that the chosen worker is predicted to hold.", labels: models, buckets: shares, decided: hitRate},

	{names: names("request_running", "objective_running_requests", "frontend_inflight_requests"),
		help: "Requests in flight that were decided here.", labels: models,
		pool: func(p *pool) (float64, bool) { return float64(p.inflight), true }},
	{names: both("ready_endpoints", "pool_ready_pods"), help: "Workers that get requests.", labels: []string{"name"},
		pool: func(p *pool) (float64, bool) { return float64(p.ready), true }},
	{names: both("average_kv_cache_utilization", "pool_average_kv_cache_utilization"),
		help: "Mean share of the KV cache in use that workers report.", labels: []string{"name"},
		pool: func(p *pool) (float64, bool) { return mean(p.usage) }},
	{names: both("average_queue_size", "pool_average_queue_size"), help: "Mean of the waiting requests that workers report.",
		labels: []string{"name"},
		pool:   func(p *pool) (float64, bool) { return mean(p.waiting) }},
	{names: both("average_running_requests", "pool_average_running_requests"),
		help: "Mean of the running requests that workers report.", labels: []string{"name"},
		pool: func(p *pool) (float64, bool) { return mean(p.running) }},
	{names: map[string]string{"llm-d": "llm_d_epp_std_dev_kv_cache_utilization"},
		help: "Standard deviation of the KV cache usage that workers report.", labels: []string{"name"},
		pool: func(p *pool) (float64, bool) { return deviation(p.usage) }},
	{names: map[string]string{"llm-d": "llm_d_epp_std_dev_queue_size"},
		help: "Standard deviation of the waiting requests that workers report.", labels: []string{"name"},
		pool: func(p *pool) (float64, bool) { return deviation(p.waiting) }},
	{names: map[string]string{"llm-d": "llm_d_epp_std_dev_running_requests"},
		help: "Standard deviation of the running requests that workers report.", labels: []string{"name"},
		pool: func(p *pool) (float64, bool) { return deviation(p.running) }},
	{names: both("info", "extension_info"), help: "What this binary was built from; always 1.",
		labels: []string{"commit", "build_ref"}, build: true},
	{names: map[string]string{"llm-d": "llm_d_epp_per_endpoint_queue_size"}, help: "Waiting requests that each worker reports.",
		labels: []string{"name", "model_server_endpoint"}, queues: true},
	{names: map[string]string{"gateway-api": "inference_pool_per_pod_queue_size"},
		help: "Waiting requests that each worker reports.", labels: []string{"name", "model_server_pod"}, queues: true},
}

// Set is the set of exposed aliases.
type Set []shown

type shown struct {
	*alias
	labels []string
	add    func(value float64, labels ...string)
}

// labelsOf returns an alias's labels under one router's name.
func (a *alias) labelsOf(of string) []string {
	if of != "dynamo" || len(a.labels) < 2 {
		return a.labels
	}
	return append([]string{"model"}, a.labels[2:]...)
}

// New registers the names of some routers. fl is the source of the workers' gauges; nil: none.
func New(reg prometheus.Registerer, of []string, fl *fleet.Fleet) (set Set) {
	now := &pools{fleet: fl}
	for i := range aliases {
		for _, by := range Of {
			a := &aliases[i]
			name, labels := a.names[by], a.labelsOf(by)
			switch {
			case name == "" || !slices.Contains(of, by):
			case a.pool != nil || a.queues:
				now.gauges = append(now.gauges, gauge{a, labels, prometheus.NewDesc(name, a.help, labels, nil)})
			case a.build:
				vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: a.help}, labels)
				reg.MustRegister(vec)
				is := buildinfo.Read()
				vec.WithLabelValues(is.Commit, is.Version).Set(1)
			case a.buckets == nil:
				vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: a.help}, labels)
				reg.MustRegister(vec)
				set = append(set, shown{a, labels, func(n float64, values ...string) { vec.WithLabelValues(values...).Add(n) }})
			default:
				vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: a.help, Buckets: a.buckets}, labels)
				reg.MustRegister(vec)
				set = append(set, shown{a, labels, func(n float64, values ...string) { vec.WithLabelValues(values...).Observe(n) }})
			}
		}
	}
	if len(now.gauges) > 0 {
		reg.MustRegister(now)
	}
	return set
}

// Decided counts a decision that took this long.
func (set Set) Decided(d *router.Decision, took time.Duration) {
	is := said{model: d.Model, status: "success", stages: "decode-only"}
	switch {
	case len(d.Targets) == 0:
		is.status = "failure"
	case d.Targets[0].Prefill != "" && d.Encoder != "":
		is.stages = "encode-prefill-decode"
	case d.Targets[0].Prefill != "":
		is.stages = "prefill-decode"
	case d.Encoder != "":
		is.stages = "encode-decode"
	}
	if len(d.Targets) > 0 {
		is.pod = d.Targets[0].Worker
	}
	for _, a := range set {
		if a.decided == nil {
			continue
		}
		if n, ok := a.decided(d, took); ok {
			a.add(n, is.values(a.labels)...)
		}
	}
}

// Ended counts the end of a request for a model, this long after its decision.
func (set Set) Ended(model string, o *router.Outcome, took time.Duration) {
	is := said{model: model, status: "success", code: strconv.Itoa(o.Code)}
	if failed(o) {
		is.status = "error"
	}
	for _, a := range set {
		if a.ended == nil {
			continue
		}
		if n, ok := a.ended(o, took); ok {
			a.add(n, is.values(a.labels)...)
		}
	}
}

// said are the values of labels.
type said struct{ model, code, status, pod, stages string }

// values returns the values of some labels: those that are not listed here are the model or its pool.
func (is *said) values(labels []string) []string {
	list := make([]string, len(labels))
	for i, l := range labels {
		switch l {
		case "error_code":
			list[i] = is.code
		case "status":
			list[i] = is.status
		case "pod":
			list[i] = is.pod
		case "decision_type":
			list[i] = is.stages
		case "modality":
			list[i] = "image" // a learned video counts as one
		default:
			list[i] = is.model
		}
	}
	return list
}
