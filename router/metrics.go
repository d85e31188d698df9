package router

import (
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/router/ledger"
)

// metrics are the router's own counters. Labels hold configured names and fixed words, never client text.
type metrics struct {
	totals          totals
	decisions       *prometheus.CounterVec // by model and reason (with refused)
	stepsDown       *prometheus.CounterVec // by what kept the decision from being exact
	decisionSeconds prometheus.Histogram
	prompt          *prometheus.CounterVec // tokens by model
	cached          *prometheus.CounterVec // tokens predicted to be cached, by model and reason
	held            *prometheus.CounterVec // tokens held by the worker that held most, by model
	regret          *prometheus.CounterVec // the part of held that the chosen worker lacked, by model and why it was chosen
	uncached        *prometheus.CounterVec // prompt tokens of answered requests that were not cached, by model and cause
	enginePrompt    *prometheus.CounterVec // prompt tokens of the answers counted in engineCached, by the engines' count
	engineCached    *prometheus.CounterVec // cached tokens by the engines' count
	outcomes        *prometheus.CounterVec // by worker and status class
	// the engine's count of cached tokens against ours: equal, fewer, fewer_than_bound, more, more_than_bound
	cachedComparison *prometheus.CounterVec
	promptComparison *prometheus.CounterVec // the engine's count of prompt tokens against ours: equal, differs
	removed          *prometheus.CounterVec // fields removed from bodies, by the table's name
	storedAnswers    *prometheus.CounterVec // by what: learned, found, unknown
	movedRequests    prometheus.Counter
	correctedBlocks  prometheus.Counter
	uncorrected      prometheus.Counter
	unmatchedReports prometheus.Counter
	failures         *prometheus.CounterVec // by worker and what
	roleMissing      *prometheus.CounterVec // by model and role
	deadlines        *prometheus.CounterVec // by model and outcome
	shed             *prometheus.CounterVec // by model and why
	learnedRequests  *prometheus.CounterVec // by outcome
}

// learned counts a request that was watched.
func (m *metrics) learned(o learned.Outcome) { m.learnedRequests.WithLabelValues(string(o)).Inc() }

func newMetrics(reg prometheus.Registerer, r *Router) *metrics {
	of := meter.At(reg)
	m := &metrics{
		decisions: of.Counters("decisions_total",
			"Decisions by how exact they were; refused: an error at once.", "model", "reason"),
		stepsDown: of.Counters("steps_down_total", "Decisions by the reason that they were not exact.", "why"),
		decisionSeconds: of.Histogram("decision_seconds", "Time to decide, once the body is complete.",
			prometheus.ExponentialBuckets(50e-6, 2, 14)),
		prompt: of.Counters("prompt_tokens_total", "Prompt tokens of decided requests.", "model"),
		cached: of.Counters("predicted_cached_tokens_total",
			"Prompt tokens predicted to be cached on the chosen worker.", "model", "reason"),
		held: of.Counters("held_tokens_total", "Prompt tokens that the worker with most of them held.", "model"),
		regret: of.Counters("regret_tokens_total", "Prompt tokens that another worker held and the chosen one did not.",
			"model", "why"),
		uncached: of.Counters("uncached_tokens_total",
			"Prompt tokens of answered requests that were not cached, by cause.", "model", "cause"),
		enginePrompt: of.Counters("engine_prompt_tokens_total",
			"Prompt tokens of answers that report cached ones; needs envoy.token_usage.", "model"),
		engineCached: of.Counters("engine_cached_tokens_total", "Cached tokens of answers, by the engine's count.", "model"),
		outcomes: of.Counters("outcomes_total", "Ended requests by their last worker and status class; other: no known worker.",
			"worker", "code"),
		cachedComparison: of.Counters("cached_tokens_reported_total",
			"Answers by the engine's count of cached tokens against ours.",
			"model", "verdict"),
		promptComparison: of.Counters("prompt_tokens_reported_total",
			"Exact prompts by the engine's count of their tokens against ours.", "model", "verdict"),
		removed: of.Counters("removed_fields_total", "Forbidden fields removed from bodies.", "field"),
		storedAnswers: of.Counters("stored_answers_total",
			"Answers of /v1/responses recorded; requests that refer to one: found, unknown.", "what"),
		movedRequests: of.Counter("moved_total",
			"Requests that Envoy sent to another than the first choice."),
		uncorrected: of.Counter("corrections_refused_total",
			"Corrections refused: their client had caused too many."),
		correctedBlocks: of.Counter("blocks_corrected_total",
			"Blocks removed since an engine did not find them."),
		failures: of.Counters("worker_failures_total",
			"Requests that failed at a worker, by how or by status.",
			"worker", "what"),
		roleMissing: of.Counters("role_missing_total", "Requests without an available worker of a role.", "model", "role"),
		deadlines: of.Counters("slo_decisions_total",
			"Requests with x-slo-ttft-ms: expected in time, or late.",
			"model", "outcome"),
		shed: of.Counters("requests_shed_total",
			"Requests answered 429 at max_in_flight.", "model", "why"),
		learnedRequests: of.Counters("learned_requests_total",
			"Ended requests by what their events taught: learned; guessed (predicted until another agrees); no_events (nothing new); "+
				"unattributed; doubtful (not the length that the engine reported); no_room.", "outcome"),
		unmatchedReports: of.Counter("outcomes_unmatched_total",
			"Access log entries without an open decision."),
	}
	r.opt.Report.Show(of)
	showForecasts(of, r)
	of.ReadGauge("learned_bytes", "Bytes of what is remembered of requests.",
		func() float64 { return float64(r.learning.stats().Bytes) })
	of.ReadCounter("learned_forgotten_total", "Beginnings forgotten for lack of room.", func() uint64 {
		return r.learning.stats().Forgotten
	})
	of.ReadGauge("requests_open", "Decided requests that have not ended.", func() float64 { return float64(r.opt.Ledger.Open()) })
	of.ReadCounter("bookings_expired_total", "Requests that ended without a report from Envoy.", r.opt.Ledger.Expired)
	of.ReadGauge("workers_out", "Workers that are out: requests or health checks fail.",
		func() (n float64) {
			for _, w := range r.opt.Fleet.Workers() {
				n += meter.Flag(!w.IsHealthy())
			}
			return n
		})
	of.ReadGauge("access_log_silent", "1 while requests are decided and Envoy's access log reports none.",
		silenceGauge(r.opt.Ledger, ledger.NoReports))
	of.ReadGauge("access_log_ends_missing", "1 while Envoy's access log reports no ends of requests.",
		silenceGauge(r.opt.Ledger, ledger.NoEnds))
	of.ReadGauge("unserved_models", "Model names of the last hour that no worker serves.", func() float64 {
		return float64(len(r.Unserved()))
	})
	of.ReadCounter("predictions_dropped_total", "Predicted blocks dropped early for lack of room.", r.predicted.Dropped)
	of.ReadGauge("requests_waiting_to_be_read", "Requests that wait, as too many bytes are being read.",
		func() float64 { return float64(r.lanes.small.Waiting() + r.lanes.large.Waiting()) })
	of.ReadGauge("workers", "Workers known.", func() float64 { return float64(len(r.opt.Fleet.Workers())) })
	return m
}

func (m *metrics) countDecision(d *Decision, took time.Duration) {
	m.decisionSeconds.(prometheus.ExemplarObserver).ObserveWithExemplar(took.Seconds(), prometheus.Labels{"decision_id": d.ID})
	m.decisions.WithLabelValues(d.Model, string(d.Reason)).Inc()
	if d.Why != "" {
		m.stepsDown.WithLabelValues(d.Why).Inc()
	}
	m.prompt.WithLabelValues(d.Model).Add(float64(d.PromptTokens))
	m.cached.WithLabelValues(d.Model, string(d.Reason)).Add(float64(d.CachedTokens))
	m.held.WithLabelValues(d.Model).Add(float64(d.HeldTokens))
	m.totals.decisions.Add(1)
	m.totals.prompt.Add(uint64(d.PromptTokens))
	m.totals.held.Add(uint64(max(d.HeldTokens, d.CachedTokens)))
	m.totals.cached.Add(uint64(d.CachedTokens))
	if d.Regret != "" {
		m.regret.WithLabelValues(d.Model, d.Regret).Add(float64(d.HeldTokens - d.CachedTokens))
	}
}

// Forget removes a worker's outcomes from the metrics.
func (r *Router) Forget(worker string) {
	r.metrics.outcomes.DeletePartialMatch(prometheus.Labels{"worker": worker})
	r.metrics.failures.DeletePartialMatch(prometheus.Labels{"worker": worker})
}

// ended counts the end of a request.
func (m *metrics) ended(e *end) {
	o := &e.o
	m.outcomes.WithLabelValues(e.worker, strconv.Itoa(o.Code/100)+"xx").Inc()
	if e.account != nil {
		e.account.Uncached.Each(func(c account.Cause, tokens int) {
			m.uncached.WithLabelValues(e.model, c.String()).Add(float64(tokens))
		})
	}
	if o.Code != http.StatusOK {
		return
	}
	if o.CachedTokens >= 0 && o.PromptTokens > 0 { // whichever worker reported it
		cached := min(o.CachedTokens, o.PromptTokens)
		m.enginePrompt.WithLabelValues(e.model).Add(float64(o.PromptTokens))
		m.engineCached.WithLabelValues(e.model).Add(float64(cached))
		m.totals.enginePrompt.Add(uint64(o.PromptTokens))
		m.totals.engineCached.Add(uint64(cached))
	}
	if e.found >= 0 {
		m.cachedComparison.WithLabelValues(e.model, e.verdict()).Inc()
	}
	if o.PromptTokens > 0 && e.engineTokens > 0 {
		verdict := "equal"
		if o.PromptTokens != e.engineTokens {
			verdict = "differs"
		}
		m.promptComparison.WithLabelValues(e.model, verdict).Inc()
	}
}

// verdict compares the cached tokens found with the prediction. A bound allows fewer, or more.
func (e *end) verdict() string {
	switch {
	case e.found < e.cachedTokens && e.upperBound:
		return "fewer_than_bound"
	case e.found < e.cachedTokens:
		return "fewer"
	case e.found > e.cachedTokens && e.lowerBound:
		return "more_than_bound"
	case e.found > e.cachedTokens:
		return "more"
	}
	return "equal"
}

// Totals are sums over all decisions of all models since the start; Prometheus has them by model. All but Decisions are tokens.
type Totals struct {
	Decisions                  uint64
	Prompt, Cached, Held       uint64 // of prompts; predicted to be cached on the chosen worker; held by the worker that held most
	EnginePrompt, EngineCached uint64 // by the engines' count, for answers that report it
}

// Less returns the difference to an earlier value.
func (t Totals) Less(before Totals) Totals {
	return Totals{t.Decisions - before.Decisions, t.Prompt - before.Prompt, t.Cached - before.Cached, t.Held - before.Held,
		t.EnginePrompt - before.EnginePrompt, t.EngineCached - before.EngineCached}
}

// Plus returns the sum of both.
func (t Totals) Plus(o Totals) Totals {
	return Totals{t.Decisions + o.Decisions, t.Prompt + o.Prompt, t.Cached + o.Cached, t.Held + o.Held,
		t.EnginePrompt + o.EnginePrompt, t.EngineCached + o.EngineCached}
}

// totals are summed up by concurrent decisions. A part is added after its whole and read before it, so that no ratio exceeds one.
type totals struct{ decisions, prompt, cached, held, enginePrompt, engineCached atomic.Uint64 }

// Totals returns the current sums.
func (r *Router) Totals() (t Totals) {
	s := &r.metrics.totals
	t.EngineCached, t.Cached = s.engineCached.Load(), s.cached.Load()
	t.Held = s.held.Load()
	t.EnginePrompt, t.Prompt, t.Decisions = s.enginePrompt.Load(), s.prompt.Load(), s.decisions.Load()
	return t
}
