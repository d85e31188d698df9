package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/mmhash"
)

// stateMetrics shows the index and the picture fetcher when asked; both keep their own counters.
type stateMetrics struct {
	index *indexer.Index
	media *mmhash.Media
}

var (
	indexDesc = prometheus.NewDesc("sightline_index", "What the index holds: blocks summed over holders, bytes, blocks that had to go.", []string{"what"}, nil)
	relayDesc = prometheus.NewDesc("sightline_relay", "The relay: pictures offered to workers, those that found no room, answers by kind, bytes and pictures held.", []string{"what"}, nil)
	fetchDesc = prometheus.NewDesc("sightline_fetch_total", "Pictures asked for by URL: answered from memory, downloaded, unchanged, or the kind of failure.", []string{"what"}, nil)
)

func (m stateMetrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- indexDesc
	ch <- fetchDesc
	ch <- relayDesc
}

func (m stateMetrics) Collect(ch chan<- prometheus.Metric) {
	s := m.index.Stats()
	for what, n := range map[string]int64{"holders": int64(s.Holders), "partial_holders": int64(s.Partial), "blocks": s.Blocks, "bytes": s.Resident,
		"bytes_used": s.Used, "blocks_evicted": s.Evicted, "blocks_not_taken": s.Dropped} {
		ch <- prometheus.MustNewConstMetric(indexDesc, prometheus.GaugeValue, float64(n), what)
	}
	if m.media.Relay != nil {
		r := m.media.Relay.Stats()
		for what, n := range map[string]uint64{"offered": r.Offered, "full": r.Full, "served": r.Served, "passed": r.Passed, "expired": r.Expired, "gone": r.Gone,
			"forbidden": r.Forbidden, "bytes": uint64(r.Bytes), "pictures": uint64(r.Pictures)} {
			ch <- prometheus.MustNewConstMetric(relayDesc, prometheus.GaugeValue, float64(n), what)
		}
	}
	f := m.media.Fetched()
	counts := map[string]uint64{"hits": f.Hits, "downloads": f.Downloads, "unchanged": f.Unchanged}
	for kind, n := range f.Failed {
		counts[kind.String()] = n
	}
	for what, n := range counts {
		ch <- prometheus.MustNewConstMetric(fetchDesc, prometheus.CounterValue, float64(n), what)
	}
}
