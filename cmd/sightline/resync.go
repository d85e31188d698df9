package main

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/router/fleet"
)

// A resync has a worker tell everything anew. It is started when a worker finds less than it told (router), or by hand.
const (
	fewerCached = "fewer_cached"
	byHand      = "asked"
)

func newResyncs(reg prometheus.Registerer) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sightline", Name: "resyncs_total",
		Help: "Times that a worker was asked to tell everything anew, by why: fewer_cached (it found less than it told), asked (by hand)."}, []string{"worker", "why"})
	reg.MustRegister(c)
	return c
}

// resync starts the feeds anew that match, and reports how many those are.
func (s *sources) resync(match func(*fleet.Slot) bool, why string) (n int) {
	for _, f := range s.slotFeeds() {
		if f.feed == nil || !match(f.slot) {
			continue
		}
		n++
		f.feed.Resync()
		s.resyncs.WithLabelValues(f.slot.Worker.Name, why).Inc()
		s.log.Warn("a worker is asked to tell its blocks anew", zap.String("worker", f.slot.Worker.Name), zap.Int("rank", f.slot.Rank), zap.String("why", why))
	}
	return n
}

// otherSize tells at once of a worker whose blocks are not as configured: nothing of what it holds can be found.
func (s *sources) otherSize(wc *config.Worker, want int) func(int) {
	return func(got int) {
		s.log.Error("a worker's events carry blocks of another size than configured; they are left out, and nothing it holds is found: set block_size of its model, or give the worker a class with that block_size",
			zap.String("worker", wc.Name), zap.String("model", wc.Model), zap.String("class", wc.Class), zap.Int("events_block_size", got), zap.Int("configured_block_size", want))
	}
}

// snapshot is what the index has of a worker-rank.
func (s *sources) snapshot(worker string, rank int) ([]byte, error) {
	for _, f := range s.slotFeeds() {
		if f.slot.Worker.Name == worker && max(f.slot.Rank, 0) == rank {
			return s.index.AppendSnapshot(nil, f.slot.Holder)
		}
	}
	return nil, fmt.Errorf("no worker %q with rank %d", worker, rank)
}
