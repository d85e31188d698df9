// Package meter makes Sightline's metrics and registers them. Their names are written without the sightline_ that each begins with.
package meter

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics makes metrics that are registered at once. A name that is registered already panics.
type Metrics struct{ registry prometheus.Registerer }

// At returns the Metrics of a registry; nil: what they count is shown nowhere.
func At(registry prometheus.Registerer) Metrics { return Metrics{registry} }

// Counter makes a counter.
func (m Metrics) Counter(name, help string) prometheus.Counter {
	return promauto.With(m.registry).NewCounter(prometheus.CounterOpts{Namespace: "sightline", Name: name, Help: help})
}

// Counters makes counters that labels distinguish.
func (m Metrics) Counters(name, help string, labels ...string) *prometheus.CounterVec {
	return promauto.With(m.registry).NewCounterVec(prometheus.CounterOpts{Namespace: "sightline", Name: name, Help: help}, labels)
}

// Gauge makes a gauge.
func (m Metrics) Gauge(name, help string) prometheus.Gauge {
	return m.Gauges(name, help).WithLabelValues()
}

// Gauges makes gauges that labels distinguish.
func (m Metrics) Gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return promauto.With(m.registry).NewGaugeVec(prometheus.GaugeOpts{Namespace: "sightline", Name: name, Help: help}, labels)
}

// Histogram makes a histogram.
func (m Metrics) Histogram(name, help string, buckets []float64) prometheus.Histogram {
	return promauto.With(m.registry).NewHistogram(
		prometheus.HistogramOpts{Namespace: "sightline", Name: name, Help: help, Buckets: buckets})
}

// ReadCounter makes a counter whose value is read when it is scraped.
func (m Metrics) ReadCounter(name, help string, read func() uint64) {
	promauto.With(m.registry).NewCounterFunc(prometheus.CounterOpts{Namespace: "sightline", Name: name, Help: help},
		func() float64 { return float64(read()) })
}

// ReadGauge makes a gauge whose value is read when it is scraped.
func (m Metrics) ReadGauge(name, help string, read func() float64) {
	promauto.With(m.registry).NewGaugeFunc(prometheus.GaugeOpts{Namespace: "sightline", Name: name, Help: help}, read)
}

// Desc describes a metric of ReadAll.
func Desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("sightline_"+name, help, labels, nil)
}

// ReadAll makes the metrics of some descriptions, which read passes to its argument when they are scraped.
func (m Metrics) ReadAll(read func(chan<- prometheus.Metric), of ...*prometheus.Desc) {
	if m.registry != nil {
		m.registry.MustRegister(collector{read, of})
	}
}

type collector struct {
	read func(chan<- prometheus.Metric)
	of   []*prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.of {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) { c.read(ch) }

// Gauge passes on the value of a gauge.
func Gauge(ch chan<- prometheus.Metric, of *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(of, prometheus.GaugeValue, value, labels...)
}

// Counter passes on the value of a counter.
func Counter(ch chan<- prometheus.Metric, of *prometheus.Desc, value float64, labels ...string) {
	ch <- prometheus.MustNewConstMetric(of, prometheus.CounterValue, value, labels...)
}

// Flag is 1 for true and 0 for false, as gauges show it.
func Flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
