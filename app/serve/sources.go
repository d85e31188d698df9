package serve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/app/registry"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/source/zmq"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/workers/fleet"
)

// snapshotsAtOnce limits the agents' snapshots in memory: 256 MiB each at most, 32 MB for 2 M blocks. A thousand ranks that all
// ask at a start would need 32 GB.
const snapshotsAtOnce = 8

// allRanks is what the ranks of a worker share to receive its events.
type allRanks struct {
	drain *trtllm.Drain
	ask   *askedEvents
}

// listen sets how the events of one slot come; it returns false if the worker sends none.
func (s *sources) listen(wc *config.Worker, from allRanks, slot *fleet.Slot, rank int, o *stream.Options) (_ bool, err error) {
	class, _ := s.now.Load().cfg.ClassOf(wc)
	o.BlockSize = class.ConfiguredBlockSize()
	if p := s.prompts(wc); p != nil {
		o.Chunk = p.Model().Chunk()
	}
	switch {
	case wc.Events.HTTP != "":
		readDrain(o, s.secret, from.drain, rank, class.BlockSize, s.keep)
	case wc.Events.ZMQ != "":
		slot.EarlyEvents = class.Rules().StoredEarly && wc.Events.Load == ""
		addr, _ := netip.ParseAddrPort(wc.Addr)
		err = readSockets(o, wc.Events, publisherOf(addr), rank, s.decoder(wc, slot.Worker.Name))
		if wc.Events.Replay != "" {
			s.peers.backfill(o, s.secret, slot.Worker.StableName, slot.Rank, s.log)
		}
	case wc.Events.Auto:
		o.Decoder, o.Idle = s.decoder(wc, slot.Worker.Name), idleTime
		o.Source, err = from.ask.source(slot.Worker.Addr, rank)
		s.peers.backfill(o, s.secret, slot.Worker.StableName, slot.Rank, s.log)
	case wc.Events.NATS:
		// A message that the stream accepts while the consumer starts may not reach it (nats-server 2.15), so it is requested
		// after idleTime.
		o.Source, o.Decoder, o.ReplaySlots, o.Idle = s.nats.Source(slot.Worker.Name, rank), &bus.Decoder{Secret: s.secret}, s.turns, idleTime
	default:
		return false, nil
	}
	return err == nil, err
}

// readDrain reads a rank's events from TensorRT-LLM's HTTP server.
func readDrain(o *stream.Options, secret *block.Secret, drain *trtllm.Drain, rank, blockSize int, keep bool) {
	o.Source, o.Decoder = drain.Source(), &trtllm.Decoder{Secret: secret, Rank: rank, BlockSize: blockSize, Keep: keep}
}

// publisherOf returns from where a worker's publisher may connect: its address.
func publisherOf(addr netip.AddrPort) netip.Prefix {
	a := addr.Addr().Unmap().WithZone("")
	return netip.PrefixFrom(a, a.BitLen())
}

// readSockets reads a rank's events from its ZeroMQ sockets.
func readSockets(o *stream.Options, e config.Events, from netip.Prefix, rank int, d kvevent.Decoder) (err error) {
	host := ""
	if e.Bind {
		host = "0.0.0.0"
	}
	z := stream.ZMQ{Bind: e.Bind, From: from, Host: e.Host, Replayed: o.Budget.Received(o.Worker)}
	z.Endpoint, err = zmq.Address(e.ZMQ, host, rank)
	if err != nil {
		return fmt.Errorf("zmq: %w", err)
	}
	if e.Replay != "" {
		o.Idle = idleTime
		z.ReplayEndpoint, err = zmq.Address(e.Replay, "", rank)
		if err != nil {
			return fmt.Errorf("replay: %w", err)
		}
	}
	o.Source, o.Decoder = z, d
	return nil
}

// idleTime is the silence after which a worker that can replay is asked for its last message.
const idleTime = 10 * time.Second

// decoder returns the decoder of what a worker publishes. Pad tokens of images in events are passed to the model, which learns
// from them how SGLang's workers name images.
func (s *sources) decoder(wc *config.Worker, worker string) kvevent.Decoder {
	class, _ := s.now.Load().cfg.ClassOf(wc)
	d := rules.Decoding{Secret: s.secret, KeepTokens: s.keep, Standalone: wc.Events.Load != ""}
	d.Pad = func(pad uint64) {
		if p := s.prompts(wc); p != nil {
			p.SawPad(worker, pad)
		}
	}
	return class.Rules().Decoder(d)
}

// prompts returns the model of a worker's class as it is now; nil: the configuration has it no more.
func (s *sources) prompts(wc *config.Worker) *engine.LiveModel {
	models := s.now.Load().models
	for i := range models {
		if m := &models[i]; m.Name == wc.Model {
			return m.Class(wc.Class).Prompts
		}
	}
	return nil
}

// whyNothing says why a slot's events do not come, as far as its stream shows.
func (s *sources) whyNothing(slot indexer.SlotID) string {
	for _, f := range s.set.Slots() {
		if f.ID == slot && f.Feed != nil {
			st := f.Feed.Stats()
			return nothingReported(&st)
		}
	}
	return ""
}

// workerOf returns the name of a slot's worker; "": it has left.
func (s *sources) workerOf(slot indexer.SlotID) string {
	for _, f := range s.set.Slots() {
		if f.ID == slot {
			return f.Worker.Name
		}
	}
	return ""
}

// nothingReported says what a stream's state shows about blocks that were not reported.
func nothingReported(st *stream.Stats) string {
	switch {
	case st.Unreadable != "":
		return "its KV events cannot be read: " + st.Unreadable
	case !st.Connected || st.Away:
		return "its KV events are not connected: " + cmp.Or(st.LastError, "no reason is known")
	case st.Mute:
		return "its publisher does not answer any more"
	case st.Batches == 0:
		return "it is connected and has never sent an event: are its KV events on, is this its socket?"
	case st.Blocks == 0:
		return "its events come and store no block that counts: is its prefix cache on?"
	}
	return "it has reported blocks before: is its prefix cache still on, and does another process answer at its address?"
}

// rows returns the workers for the admin page.
func (s *sources) rows(ix *indexer.Index) (rows []findings.Worker) {
	now := time.Now()
	list, cfg := s.set.Slots(), &s.now.Load().cfg
	shared := registry.Shared(list)
	for _, f := range list {
		load := f.Load(now)
		r := findings.Worker{Name: f.Worker.Name, Addr: f.Worker.Addr, Model: f.Worker.Model, Class: f.Worker.Class, Rank: f.Rank,
			Blocks: ix.HeldBlocks(f.ID), Inflight: load.Inflight, Backlog: load.Backlog, Health: f.Worker.OutReason(now),
			Events: "none", Role: f.Worker.Role.String(), Rate: load.Rate, Slow: f.Slow()}
		if is, since := f.Worker.Service(); is != fleet.InService {
			r.Service, r.ServiceSince = &is, since
		}
		class, _ := cfg.ClassOf(&config.Worker{Model: r.Model, Class: r.Class})
		r.Engine = class.Engine
		if serves, observed := f.Serves(); observed {
			r.Serves = serves.String() + ", as observed"
		} else if serves != rules.Unsaid {
			r.Serves = serves.String()
		}
		r.Unordered = f.Observed() == rules.AsTheyCome
		if f.EventAge != nil {
			r.EventAge = f.EventAge(now).Seconds()
		}
		if others, usage, age, ok := f.CurrentReport(now); ok {
			r.Report = &findings.LoadReport{Others: others, Age: age.Round(100 * time.Millisecond).String()}
			if usage >= 0 {
				r.Report.Usage = &usage
			}
		}
		if ix.OneGroup(f.ID) { // else a block of its memory is not one of a prompt
			r.CacheTokens = f.CacheTokens()
		}
		if f.Feed != nil {
			st := f.Feed.Stats()
			r.SameEvents = shared[f.Feed]
			r.Events, r.Batches, r.Partial, r.OtherSize = "waiting", st.Batches, st.Partial || ix.Partial(f.ID), st.OtherSize
			r.BlockSize = ix.Form(f.ID).Size
			r.UpperBound = st.UpperBound
			if ix.FindsParts(f.ID) {
				r.LowerBound = "its engine also finds parts of blocks (prefix_match_unit), and events do not say where these end"
			}
			switch {
			case r.UpperBound != "" || !ix.UpperBound(f.ID):
			case ix.WindowsMayWithhold(f.ID):
				r.UpperBound = "it drafts, and events do not say whether its layers with windows then need a block more"
			default:
				r.UpperBound = "its KV cache groups are of forms that are not followed"
			}
			r.Orphans, r.Doubtful, r.Unfilled, r.UnknownKey = st.Orphans, st.Doubtful, st.Unfilled, st.UnknownKey
			r.Unresolved, r.Garbled, r.UnknownKeys = st.Unresolved, st.Malformed+st.DecodeErrors+st.Bad+st.Panics, st.UnknownKeys
			if st.Live() {
				r.Events = "live"
			} else if st.Connected && !st.Away {
				r.Events = "catching up"
			}
			if r.Events != "live" {
				r.EventsError = findings.Failure{Text: st.LastError, Cause: st.Lost}
			}
			if st.Away {
				r.EventsError.Text = "its agent has no connection to the engine, or cannot read its events: see the agent's log and /state"
			}
			if st.Connected && st.Unreadable != "" {
				r.Events, r.EventsError = "unreadable", findings.Failure{Text: st.Unreadable}
			}
			if !st.LastMessage.IsZero() {
				r.EventAt, r.LastEvent = st.LastMessage, "within a second"
				if ago := now.Sub(st.LastMessage).Truncate(time.Second); ago > 0 {
					r.LastEvent = ago.String() + " ago"
				}
			}
		}
		if !f.Ready {
			r.Events = "not ready"
		}
		rows = append(rows, r)
	}
	return rows
}

// A load message of NVIDIA's standalone example is made in one iteration of the worker and sent in the next. A worker that sends
// none for loadLasts is idle or hangs.
const loadOld, loadLasts = time.Second, 5 * time.Second

// readLoadMessages follows the load messages of a worker of NVIDIA's standalone example, until ctx ends. While it is not connected only
// our own requests are counted.
func readLoadMessages(ctx context.Context, endpoint string, slot *fleet.Slot, log *zap.Logger) {
	sub := zmq.Sub{Endpoint: endpoint, Bare: true, Most: 1 << 16, Down: func(error) { slot.SetReport(fleet.LoadReport{}, time.Now()) }}
	err := sub.Run(ctx, func(m zmq.Message) {
		told, err := fleet.ParseLoadReport(m.Payload)
		if err != nil {
			log.Warn("a worker's load message cannot be read", zap.String("worker", slot.Worker.Name), zap.Error(err))
			return
		}
		told.MaxAge, told.ValidFor = loadOld, loadLasts
		slot.SetReport(told, time.Now())
	})
	if err != nil && !errors.Is(err, context.Canceled) {
		log.Error("cannot receive the worker's load", zap.String("worker", slot.Worker.Name), zap.Error(err))
	}
}
