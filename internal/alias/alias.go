// Package alias shows some of what the router tells under the names that other routers give it, for dashboards and autoscalers that
// are there. Names and labels are as in llm-d's endpoint picker (pkg/epp/metrics/llm_d_router_metrics.go of llm-d-router,
// 2026) and Dynamo's router (1.6); labels of what Sightline has not, such as fairness_id and priority, are left out, which a query
// takes for empty. Buckets of times are those of llm-d, and two beyond. All are off unless asked for.
package alias

import (
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/router"
)

// Of are the routers whose names there are.
var Of = []string{"llm-d", "dynamo"}

// alias is one metric.
type alias struct {
	of, name, help string
	labels         []string  // the first is the model's name, which llm-d tells twice
	buckets        []float64 // nil: a counter
	decided        func(d *router.Decision, took time.Duration) (float64, bool)
	ended          func(o *router.Outcome, took time.Duration) (float64, bool)
}

var (
	llmdLabels  = []string{"model_name", "target_model_name"}
	llmdTokens  = []float64{1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32778, 65536, 131072, 262144, 524288, 1048576}
	llmdSeconds = []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 120, 300, 600}
)

func tokens(n int, o *router.Outcome) (float64, bool) {
	return float64(n), o.Code == http.StatusOK && n >= 0 && o.PromptTokens > 0
}

var aliases = []alias{
	{of: "llm-d", name: "llm_d_epp_request_total", help: "Decided requests.", labels: llmdLabels,
		decided: func(*router.Decision, time.Duration) (float64, bool) { return 1, true }},
	{of: "llm-d", name: "llm_d_epp_request_error_total", help: "Ended requests without an answer, or with an error.", labels: append(slices.Clip(llmdLabels), "error_code"),
		ended: func(o *router.Outcome, _ time.Duration) (float64, bool) { return 1, o.Code < 200 || o.Code >= 400 }},
	{of: "llm-d", name: "llm_d_epp_request_duration_seconds", help: "From the decision to the answer's end.", labels: llmdLabels, buckets: llmdSeconds,
		ended: func(o *router.Outcome, took time.Duration) (float64, bool) {
			return took.Seconds(), o.Code == http.StatusOK
		}},
	{of: "llm-d", name: "llm_d_epp_request_ttft_seconds", help: "From the request's arrival to the answer's first byte.", labels: llmdLabels, buckets: llmdSeconds,
		ended: func(o *router.Outcome, _ time.Duration) (float64, bool) {
			return o.FirstByte.Seconds(), o.FirstByte > 0
		}},
	{of: "llm-d", name: "llm_d_epp_request_input_tokens", help: "Prompt tokens, as the engine counted.", labels: llmdLabels, buckets: llmdTokens,
		ended: func(o *router.Outcome, _ time.Duration) (float64, bool) { return tokens(o.PromptTokens, o) }},
	{of: "llm-d", name: "llm_d_epp_request_output_tokens", help: "Generated tokens, as the engine counted.", labels: llmdLabels, buckets: llmdTokens[:12],
		ended: func(o *router.Outcome, _ time.Duration) (float64, bool) { return tokens(o.OutputTokens, o) }},
	{of: "llm-d", name: "llm_d_epp_request_cached_tokens", help: "Of the prompt tokens, those that were cached, as the engine counted.", labels: llmdLabels, buckets: llmdTokens,
		ended: func(o *router.Outcome, _ time.Duration) (float64, bool) { return tokens(o.CachedTokens, o) }},
	{of: "llm-d", name: "llm_d_epp_scheduler_e2e_duration_seconds", help: "Time to decide.", buckets: []float64{1e-4, 2e-4, 5e-4, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1},
		decided: func(_ *router.Decision, took time.Duration) (float64, bool) { return took.Seconds(), true }},
	{of: "dynamo", name: "dynamo_component_router_kv_hit_rate", help: "Share of the prompt that the chosen worker is predicted to hold.", labels: []string{"model"},
		buckets: prometheus.LinearBuckets(0, 0.05, 21),
		decided: func(d *router.Decision, _ time.Duration) (float64, bool) {
			return float64(d.CachedTokens) / float64(max(1, d.PromptTokens)), d.PromptTokens > 0
		}},
}

// Set is what is shown.
type Set []shown

type shown struct {
	*alias
	add func(value float64, labels ...string)
}

// New registers the names of some routers.
func New(reg prometheus.Registerer, of []string) (set Set) {
	for i := range aliases {
		a := &aliases[i]
		switch {
		case !slices.Contains(of, a.of):
		case a.buckets == nil:
			vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: a.name, Help: a.help}, a.labels)
			reg.MustRegister(vec)
			set = append(set, shown{a, func(n float64, labels ...string) { vec.WithLabelValues(labels...).Add(n) }})
		default:
			vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: a.name, Help: a.help, Buckets: a.buckets}, a.labels)
			reg.MustRegister(vec)
			set = append(set, shown{a, func(n float64, labels ...string) { vec.WithLabelValues(labels...).Observe(n) }})
		}
	}
	return set
}

// Decided takes a decision, which took so long.
func (set Set) Decided(d *router.Decision, took time.Duration) {
	for _, a := range set {
		if a.decided == nil {
			continue
		}
		if n, ok := a.decided(d, took); ok {
			a.add(n, a.values(d.Model, 0)...)
		}
	}
}

// Ended takes how a request for a model ended, so long after its decision.
func (set Set) Ended(model string, o *router.Outcome, took time.Duration) {
	for _, a := range set {
		if a.ended == nil {
			continue
		}
		if n, ok := a.ended(o, took); ok {
			a.add(n, a.values(model, o.Code)...)
		}
	}
}

// values are those of the alias's labels.
func (a *alias) values(model string, code int) []string {
	return []string{model, model, strconv.Itoa(code)}[:len(a.labels)]
}
