package main

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/event"
	"github.com/sightline-router/sightline/indexer/feed"
	"github.com/sightline-router/sightline/indexer/trtllm"
	"github.com/sightline-router/sightline/indexer/zmq"
	"github.com/sightline-router/sightline/internal/admin"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/fleet"
)

// listen starts the feed of one slot; nil if the worker tells nothing. drain is the one of all its ranks.
func (s *sources) listen(wc *config.Worker, drain *trtllm.Drain, slot *fleet.Slot, rank int, sink feed.Sink) (*feed.Feed, error) {
	class, _ := s.cfg.ClassOf(wc)
	size := class.BlockSize
	switch {
	case wc.Events.HTTP != "":
		o := drainOptions(drain, rank, size, s.audit != nil)
		o.Sink, o.Stored = sink, audited(s.audit, slot.Holder)
		return feed.Start(o), nil
	case wc.Events.ZMQ != "":
		src, err := zmqSource(wc.Events, rank)
		if err != nil {
			return nil, err
		}
		return feed.Start(feed.Options{Source: src, Decoder: s.decoder(wc), Sink: sink, BlockSize: size, OtherSize: s.otherSize(wc, size), Idle: idleProbe(src),
			Stored: audited(s.audit, slot.Holder)}), nil
	case wc.Events.Auto:
		src := &sglangSource{addr: slot.Worker.Addr, rank: rank, ranks: wc.Ranks, blockSize: size, log: s.log}
		return feed.Start(feed.Options{Source: src, Decoder: s.decoder(wc), Sink: sink, BlockSize: size, OtherSize: s.otherSize(wc, size), Idle: idleTime,
			Stored: audited(s.audit, slot.Holder)}), nil
	case wc.Events.NATS:
		return s.nats.listen(wc.Name, rank, feed.Options{Sink: sink, BlockSize: size, OtherSize: s.otherSize(wc, size), Stored: audited(s.audit, slot.Holder)}), nil
	}
	return nil, nil
}

// audited shows a slot's stored events to the audit.
func audited(au *audit.Auditor, h indexer.Holder) func(*event.Event) {
	if au == nil {
		return nil
	}
	return func(e *event.Event) { au.Stored(h, e) }
}

// zmqSource is a worker-rank's pair of sockets.
func zmqSource(e config.Events, rank int) (feed.ZMQ, error) {
	host := ""
	if e.Bind {
		host = "0.0.0.0"
	}
	pub, err := zmq.Address(e.ZMQ, host, rank)
	if err != nil {
		return feed.ZMQ{}, fmt.Errorf("zmq: %w", err)
	}
	z := feed.ZMQ{Endpoint: pub, Topic: e.Topic, Bind: e.Bind}
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
	return idleTime
}

const idleTime = 10 * time.Second

// rows are the workers as the admin page shows them.
func (s *sources) rows(ix *indexer.Index) (rows []admin.Worker) {
	now := time.Now()
	for _, f := range s.slotFeeds() {
		load := f.slot.Load(now)
		r := admin.Worker{Name: f.slot.Worker.Name, Addr: f.slot.Worker.Addr, Model: f.slot.Worker.Model, Class: f.slot.Worker.Class, Rank: f.slot.Rank,
			Blocks: ix.HeldBlocks(f.slot.Holder), Inflight: load.Inflight, Backlog: load.Backlog, Events: "none"}
		if f.feed != nil {
			st := f.feed.Stats()
			r.Events, r.Batches, r.Partial, r.OtherSize = "waiting", st.Batches, st.Partial || ix.Partial(f.slot.Holder), st.OtherSize
			if st.Connected {
				r.Events = "live"
			}
			if !st.LastMessage.IsZero() {
				r.LastEvent = time.Since(st.LastMessage).Round(time.Second).String() + " ago"
			}
		}
		if !f.ready {
			r.Events = "not ready"
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
	for _, f := range m.slotFeeds() {
		if f.feed == nil {
			continue
		}
		st := f.feed.Stats()
		rank := fmt.Sprint(max(f.slot.Rank, 0))
		for what, n := range map[string]uint64{
			"batches": st.Batches, "events": st.Events, "blocks": st.Blocks, "unknown": st.Unknown, "unreadable": st.Bad, "gaps": st.Gaps, "restarts": st.Restarts,
			"duplicates": st.Duplicates, "dropped": st.Drops, "stale": st.Stale, "replays": st.Replays, "decode_errors": st.DecodeErrors,
			"replay_errors": st.ReplayErrors, "unknown_parents": st.UnknownParents, "unknown_blocks": st.UnknownBlocks,
			"refused": st.Refused, "unresolved": st.Unresolved, "other_block_size": st.OtherBlockSize,
		} {
			ch <- prometheus.MustNewConstMetric(feedDesc, prometheus.CounterValue, float64(n), f.slot.Worker.Name, rank, what)
		}
	}
}
