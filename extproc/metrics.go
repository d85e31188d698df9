package extproc

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/router"
)

// metrics are this package's counters. Every label value is a constant or a decision's reason, never client text.
type metrics struct {
	streams   prometheus.Counter
	gates     *prometheus.CounterVec
	answers   *prometheus.CounterVec
	bytesRead prometheus.Counter
	errors    *prometheus.CounterVec
	entries   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	of := meter.At(reg)
	m := &metrics{
		streams:   of.Counter("extproc_streams_total", "ext_proc streams that Envoy opened, one per request."),
		bytesRead: of.Counter("extproc_body_bytes_total", "Request body bytes read."),
		gates: of.Counters("extproc_gate_total", "Requests by their headers: readable, unreadable (refused), not ours.",
			"verdict", "why"),
		answers: of.Counters("extproc_answers_total",
			"Answers to Envoy by the decision's reason.", "reason"),
		errors: of.Counters("extproc_errors_total",
			"Streams that ended without a decision; decided too late: after envoy.message_timeout.",
			"what"),
		entries: of.Counters("access_log_entries_total", "Entries of Envoy's access log.", "kind"),
	}
	m.errors.WithLabelValues(tooSlow) // start at 0: an alert sees no increase in a counter that first appears as 1
	m.gates.WithLabelValues(string(unreadable), busy)
	m.gates.WithLabelValues(string(unreadable), late)
	return m
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
