package serve

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
)

// stateMetrics collects the counters of the index, the relay and the picture fetcher.
type stateMetrics struct {
	index *indexer.Index
	media *engine.Media

	held, lost, relay, relayed, fetched *prometheus.Desc
}

func newStateMetrics(index *indexer.Index, media *engine.Media) *stateMetrics {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("sightline_"+name, help, []string{"what"}, nil)
	}
	return &stateMetrics{index, media,
		desc("index", "What the index holds: slots, partial_slots (known in part), blocks summed over them, bytes."),
		desc("index_lost_blocks_total", "Blocks that the index had no room for: evicted, or not_taken (not stored)."),
		desc("relay", "What the relay holds: bytes, pictures."),
		desc("relay_total", "The relay's images, by outcome."),
		desc("fetch_total", "Images requested by URL, by outcome."),
	}
}

// Describe implements prometheus.Collector.
func (m *stateMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.held, m.lost, m.relay, m.relayed, m.fetched} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *stateMetrics) Collect(ch chan<- prometheus.Metric) {
	show := func(desc *prometheus.Desc, kind prometheus.ValueType, values map[string]float64) {
		for what, n := range values {
			ch <- prometheus.MustNewConstMetric(desc, kind, n, what)
		}
	}
	s := m.index.Stats()
	show(m.held, prometheus.GaugeValue, map[string]float64{"slots": float64(s.Slots), "partial_slots": float64(s.Partial),
		"blocks": float64(s.Blocks), "bytes": float64(s.Resident), "bytes_used": float64(s.Used)})
	show(m.lost, prometheus.CounterValue, map[string]float64{"evicted": float64(s.Evicted), "not_taken": float64(s.Dropped)})
	if m.media.Relay != nil {
		r := m.media.Relay.Stats()
		show(m.relay, prometheus.GaugeValue, map[string]float64{"bytes": float64(r.Bytes), "pictures": float64(r.Pictures)})
		show(m.relayed, prometheus.CounterValue, map[string]float64{"offered": float64(r.Offered), "full": float64(r.Full),
			"served": float64(r.Served), "passed": float64(r.Passed), "expired": float64(r.Expired), "gone": float64(r.Gone),
			"forbidden": float64(r.Forbidden)})
	}
	f := m.media.Fetched()
	counts := map[string]float64{"hits": float64(f.Hits), "downloads": float64(f.Downloads), "unchanged": float64(f.Unchanged)}
	for kind, n := range f.Failed {
		counts[kind.String()] = float64(n)
	}
	show(m.fetched, prometheus.CounterValue, counts)
}
