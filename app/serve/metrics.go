package serve

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/internal/meter"
)

// stateMetrics collects the gauges and counters of the index, the relay and the image fetcher.
type stateMetrics struct {
	index *indexer.Index
	media *engine.Media

	blocks, resident          *prometheus.Desc // of the index
	relayed, images           *prometheus.Desc // of the relay: bytes, images
	lost, relayTotal, fetched *prometheus.Desc // counters
}

func showState(of meter.Metrics, index *indexer.Index, media *engine.Media) {
	m := &stateMetrics{index: index, media: media,
		blocks:     meter.Desc("index_blocks", "Blocks in the index, summed over ranks."),
		resident:   meter.Desc("index_bytes", "Memory of the index, in bytes."),
		relayed:    meter.Desc("relay_bytes", "Images in the relay, in bytes."),
		images:     meter.Desc("relay_images", "Images in the relay."),
		lost:       meter.Desc("index_lost_blocks_total", "Blocks without room in the index: evicted, or not_taken.", "what"),
		relayTotal: meter.Desc("relay_total", "The relay's images.", "what"),
		fetched:    meter.Desc("fetch_total", "Images requested by URL.", "what"),
	}
	of.ReadAll(m.collect, m.blocks, m.resident, m.relayed, m.images, m.lost, m.relayTotal, m.fetched)
}

func (m *stateMetrics) collect(ch chan<- prometheus.Metric) {
	count := func(desc *prometheus.Desc, values map[string]float64) {
		for what, n := range values {
			meter.Counter(ch, desc, n, what)
		}
	}
	s := m.index.Stats()
	meter.Gauge(ch, m.blocks, float64(s.Blocks))
	meter.Gauge(ch, m.resident, float64(s.Resident))
	count(m.lost, map[string]float64{"evicted": float64(s.Evicted), "not_taken": float64(s.Dropped)})
	if m.media.Relay != nil {
		r := m.media.Relay.Stats()
		meter.Gauge(ch, m.relayed, float64(r.Bytes))
		meter.Gauge(ch, m.images, float64(r.Images))
		count(m.relayTotal, map[string]float64{"offered": float64(r.Offered), "full": float64(r.Full),
			"served": float64(r.Served), "passed": float64(r.Passed), "expired": float64(r.Expired), "gone": float64(r.Gone),
			"forbidden": float64(r.Forbidden)})
	}
	f := m.media.Fetched()
	counts := map[string]float64{"hits": float64(f.Hits), "downloads": float64(f.Downloads), "unchanged": float64(f.Unchanged)}
	for kind, n := range f.Failed {
		counts[kind.String()] = float64(n)
	}
	count(m.fetched, counts)
}
