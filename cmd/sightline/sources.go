package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/feed"
	"github.com/sightline-router/sightline/indexer/vllm"
	"github.com/sightline-router/sightline/indexer/zmq"
	"github.com/sightline-router/sightline/internal/admin"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/router/fleet"
)

// sources are the workers and, for each slot, the feed that keeps the index true to it.
type sources struct {
	workers []*fleet.Worker
	slots   []slotFeed
	nats    *natsLink // nil: none is used
}

type slotFeed struct {
	slot *fleet.Slot
	feed *feed.Feed // nil: the worker tells nothing
}

// startSources makes the workers of a configuration and starts listening to them. Close it.
func startSources(ctx context.Context, cfg config.Config, ix *indexer.Index, log *zap.Logger) (*sources, error) {
	s := new(sources)
	var err error
	if s.nats, err = startNATS(cfg, log); err != nil {
		return nil, err
	}
	for i, wc := range cfg.Workers {
		addr, err := netip.ParseAddrPort(wc.Addr)
		if err != nil {
			return nil, fmt.Errorf("workers[%d].addr: %w", i, err)
		}
		size := 0
		for _, m := range cfg.Models {
			if m.Name == wc.Model {
				size = m.BlockSize
			}
		}
		var sinks []*feed.IndexSink
		w := fleet.NewWorker(wc.Name, addr, wc.Model, wc.Ranks, func(int) indexer.Holder {
			sinks = append(sinks, feed.Join(ix, true, 0))
			return sinks[len(sinks)-1].Holder()
		})
		s.workers = append(s.workers, w)
		for r, slot := range w.Slots {
			sf := slotFeed{slot: slot}
			switch {
			case wc.Events.ZMQ != "":
				src, err := zmqSource(wc.Events, r)
				if err != nil {
					return nil, fmt.Errorf("workers[%d].events: %w", i, err)
				}
				sf.feed = feed.Start(feed.Options{Source: src, Decoder: new(vllm.Decoder), Sink: sinks[r], BlockSize: size, Idle: idleProbe(src)})
			case wc.Events.NATS:
				sf.feed = s.nats.listen(wc.Name, r, sinks[r], size)
			}
			s.slots = append(s.slots, sf)
		}
	}
	return s, nil
}

// zmqSource is a worker-rank's pair of sockets.
func zmqSource(e config.Events, rank int) (feed.ZMQ, error) {
	pub, err := zmq.Address(e.ZMQ, "", rank)
	if err != nil {
		return feed.ZMQ{}, fmt.Errorf("zmq: %w", err)
	}
	z := feed.ZMQ{Endpoint: pub, Topic: e.Topic}
	if e.Replay != "" {
		if z.Replayed, err = zmq.Address(e.Replay, "", rank); err != nil {
			return z, fmt.Errorf("replay: %w", err)
		}
	}
	return z, nil
}

// idleProbe is how long a silent worker with a replay socket is believed to be unchanged.
func idleProbe(z feed.ZMQ) time.Duration {
	if z.Replayed == "" {
		return 0
	}
	return 10 * time.Second
}

func (s *sources) close() {
	for _, f := range s.slots {
		if f.feed != nil {
			f.feed.Close()
		}
	}
	s.nats.close()
}

// rows are the workers as the admin page shows them.
func (s *sources) rows(ix *indexer.Index) (rows []admin.Worker) {
	now := time.Now()
	for _, f := range s.slots {
		load := f.slot.Load(now)
		r := admin.Worker{Name: f.slot.Worker.Name, Addr: f.slot.Worker.Addr, Model: f.slot.Worker.Model, Rank: f.slot.Rank,
			Blocks: ix.HeldBlocks(f.slot.Holder), Inflight: load.Inflight, Backlog: load.Backlog, Events: "none"}
		if f.feed != nil {
			st := f.feed.Stats()
			r.Events, r.Batches, r.Partial = "waiting", st.Batches, st.Partial
			if st.Connected {
				r.Events = "live"
			}
			if !st.LastMessage.IsZero() {
				r.LastEvent = time.Since(st.LastMessage).Round(time.Second).String() + " ago"
			}
		}
		rows = append(rows, r)
	}
	return rows
}

// register shows what the feeds see as metrics.
func (s *sources) register(reg prometheus.Registerer) {
	reg.MustRegister(feedMetrics{s})
}

// feedMetrics collects every feed's counters when asked.
type feedMetrics struct{ *sources }

var feedDesc = prometheus.NewDesc("sightline_events_total", "What became of each worker's KV events.", []string{"worker", "rank", "what"}, nil)

func (m feedMetrics) Describe(ch chan<- *prometheus.Desc) { ch <- feedDesc }

func (m feedMetrics) Collect(ch chan<- prometheus.Metric) {
	for _, f := range m.slots {
		if f.feed == nil {
			continue
		}
		st := f.feed.Stats()
		rank := fmt.Sprint(max(f.slot.Rank, 0))
		for what, n := range map[string]uint64{
			"batches": st.Batches, "events": st.Events, "blocks": st.Blocks, "gaps": st.Gaps, "restarts": st.Restarts,
			"duplicates": st.Duplicates, "dropped": st.Drops, "stale": st.Stale, "replays": st.Replays, "decode_errors": st.DecodeErrors,
			"replay_errors": st.ReplayErrors, "unknown_parents": st.UnknownParents, "unknown_blocks": st.UnknownBlocks,
			"refused": st.Refused, "unresolved": st.Unresolved, "other_block_size": st.OtherBlockSize,
		} {
			ch <- prometheus.MustNewConstMetric(feedDesc, prometheus.CounterValue, float64(n), f.slot.Worker.Name, rank, what)
		}
	}
}
