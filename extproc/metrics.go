package extproc

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/router"
)

// observeDecision records how long a decision took, with its id as exemplar.
func (m *metrics) observeDecision(id string, d time.Duration) {
	m.latency.(prometheus.ExemplarObserver).ObserveWithExemplar(d.Seconds(), prometheus.Labels{"decision_id": id})
}

// metrics are this package's counters. Every label value is a constant or a decision's reason, never client text.
type metrics struct {
	streams   prometheus.Counter
	gates     *prometheus.CounterVec
	answers   *prometheus.CounterVec
	bodyBytes prometheus.Counter
	errors    *prometheus.CounterVec
	latency   prometheus.Histogram
	entries   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sightline", Name: name, Help: help}, labels)
	}
	streams := counter("extproc_streams_total", "ext_proc streams that Envoy opened, one per request.")
	bodyBytes := counter("extproc_body_bytes_total", "Request body bytes read.")
	m := &metrics{
		gates: counter("extproc_gate_total", "Requests by the verdict on their headers: readable, unreadable (refused), not ours (passed).",
			"verdict", "why"),
		answers: counter("extproc_answers_total",
			"Answers to Envoy by the decision's reason.", "reason"),
		errors: counter("extproc_errors_total",
			"Streams that ended without a decision, by cause; decided too late: Envoy had forwarded the request after envoy.message_timeout.",
			"what"),
		latency: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "sightline", Name: "extproc_decision_seconds",
			Help:    "Time from the end of the body to the sending of the answer.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2},
		}),
		entries: counter("access_log_entries_total", "Entries of Envoy's access log, by outcome.", "kind"),
	}
	m.errors.WithLabelValues(tooSlow) // start at 0: an alert sees no increase in a counter that first appears as 1
	m.gates.WithLabelValues(string(unreadable), busy)
	m.gates.WithLabelValues(string(unreadable), late)
	m.streams, m.bodyBytes = streams.WithLabelValues(), bodyBytes.WithLabelValues()
	if reg == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{streams, m.gates, m.answers, bodyBytes, m.errors, m.latency, m.entries} {
		errs = append(errs, reg.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("ext_proc metrics: %w (one registry serves one server)", err)
	}
	return m, nil
}

func (m *metrics) gate(g gate, why string) {
	m.gates.WithLabelValues(string(g), why).Inc()
}

func (m *metrics) answered(d router.Decision) {
	reason := string(d.Reason)
	if d.Refuse != nil {
		reason = refused
	}
	m.answers.WithLabelValues(reason).Inc()
}
