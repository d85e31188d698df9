package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/dynamo"
	"github.com/sightline-router/sightline/indexer/feed"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/router/discover"
	"github.com/sightline-router/sightline/router/fleet"
)

// dynamoOrigin marks the members that came from Dynamo's discovery, or from events alone (before 1.6).
const dynamoOrigin = -1

// discoverEvery is how often Dynamo's discovery folder is read: about 0.1 ms a record.
const discoverEvery = time.Second

// dynamoLink keeps the members in line with an NVIDIA Dynamo deployment. A worker is known by its instance id, which its
// events carry and its front ends take as a header; a new id is a new worker.
type dynamoLink struct {
	*sources
	plane *dynamo.Plane
	scope dynamo.Scope
	nats  *nats.Conn // nil: the ZMQ plane
	dials map[string]context.CancelFunc
	wait  sync.WaitGroup
}

// startDynamo begins to follow the deployment; it ends with ctx, when running is done.
func (s *sources) startDynamo(ctx context.Context) error {
	c := &s.cfg.Dynamo
	if c.Plane == "" {
		return nil
	}
	l := &dynamoLink{sources: s, plane: new(dynamo.Plane), scope: dynamo.Scope{Namespace: c.Namespace, Component: c.Component, Endpoint: c.Endpoint},
		dials: map[string]context.CancelFunc{}}
	if c.Plane != "zmq" {
		var err error
		if l.nats, err = connectNATS(c.NATS, "sightline", s.log); err != nil {
			return fmt.Errorf("dynamo.nats: %w", err)
		}
		context.AfterFunc(ctx, l.nats.Close)
	}
	switch c.Plane {
	case "nats":
		if err := l.plane.SubscribeNATS(l.nats, l.scope); err != nil {
			return err
		}
	case "jetstream":
		l.plane.Unknown = l.heard
		s.running.Go(func() { _ = l.plane.ConsumeJetStream(ctx, l.nats, l.scope) }) // ends with ctx only
	}
	if c.Discovery != "" {
		s.running.Go(func() { l.follow(ctx) })
	}
	return nil
}

// follow reads the discovery folder until ctx ends.
func (l *dynamoLink) follow(ctx context.Context) {
	tick := time.NewTicker(discoverEvery)
	defer tick.Stop()
	defer l.wait.Wait()
	failed := ""
	for {
		d, err := dynamo.Discover(l.cfg.Dynamo.Discovery, l.scope, time.Now())
		if err == nil {
			l.update(ctx, d)
			failed = ""
		} else if failed != err.Error() {
			failed = err.Error()
			l.log.Warn("Dynamo's workers cannot be found; those known stay", zap.Error(err))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// update takes up workers that came, lets go of those that went, and listens to every publisher.
func (l *dynamoLink) update(ctx context.Context, d dynamo.Deployment) {
	if l.nats == nil {
		for _, at := range d.Endpoints {
			if l.dials[at] == nil {
				dial, stop := context.WithCancel(ctx)
				l.dials[at] = stop
				l.wait.Go(func() {
					if err := l.plane.DialZMQ(dial, at); err != nil && dial.Err() == nil {
						l.log.Warn("a publisher of Dynamo's cannot be dialled", zap.String("endpoint", at), zap.Error(err))
					}
				})
			}
		}
		for at, stop := range l.dials {
			if !slices.Contains(d.Endpoints, at) {
				stop()
				delete(l.dials, at)
			}
		}
	}
	l.mu.Lock()
	var left []*member
	stay := map[uint64]bool{}
	l.members = slices.DeleteFunc(l.members, func(m *member) bool {
		if m.origin != dynamoOrigin {
			return false
		}
		if slices.Contains(d.Workers, m.dynamo) {
			stay[m.dynamo.ID] = true
			return false
		}
		left = append(left, m) // gone, or changed: more ranks, its model card come
		return true
	})
	for _, w := range d.Workers {
		if !stay[w.ID] {
			l.join(w)
		}
	}
	l.publish()
	l.mu.Unlock()
	for _, m := range left {
		m.close()
		l.log.Info("worker left", zap.String("worker", m.worker.Name))
	}
}

// heard takes up a worker that only its events tell of. Requests cannot be sent to it.
func (l *dynamoLink) heard(k dynamo.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := dynamo.Worker{ID: k.Worker, Ranks: int(min(k.Rank, 1023)) + 1}
	for _, m := range l.members {
		if m.origin == dynamoOrigin && m.dynamo.ID == k.Worker {
			return // its further ranks are not shown
		}
	}
	l.join(w)
	l.log.Warn("a worker of Dynamo before 1.6 was heard of: it has no HTTP address, so it is shown and gets no requests", zap.Uint64("instance", k.Worker))
}

// join takes a worker up. The caller holds mu.
func (l *dynamoLink) join(w dynamo.Worker) {
	c := &l.cfg.Dynamo
	wc := config.Worker{Model: c.Model, Class: c.Class}
	class, _ := l.cfg.ClassOf(&wc)
	id, ranks := strconv.FormatUint(w.ID, 10), w.Ranks
	if ranks == 1 {
		ranks = 0
	}
	m := &member{origin: dynamoOrigin, dynamo: w}
	var addr netip.AddrPort
	switch ip, err := netip.ParseAddr(w.Host); {
	case len(c.Frontends) > 0:
		addr, _ = netip.ParseAddrPort(c.Frontends[0]) // the configuration checks it
	case c.EnginePort > 0 && err == nil:
		addr = netip.AddrPortFrom(ip, uint16(c.EnginePort))
	}
	m.at = discover.Endpoint{Name: "dynamo-" + id, Addr: addr, Ready: addr.IsValid() && c.Plane != "jetstream"}
	m.worker = fleet.NewWorker(m.at.Name, addr, wc.Model, ranks, func(int) indexer.Holder {
		sink := feed.Join(l.index, false, 0) // Dynamo tells a block once, however many copies there are
		m.sinks = append(m.sinks, leaving{sink, l.cfg.Index.PredictedTTL})
		return sink.Holder()
	})
	m.worker.Class = wc.Class
	if len(c.Frontends) > 0 {
		m.worker.Instance, m.worker.Frontends = id, c.Frontends
	} else if !addr.IsValid() {
		m.worker.Addr = ""
	}
	size := w.BlockSize
	if size == 0 { // not told
		size = class.BlockSize
	} else if size != class.BlockSize {
		l.log.Warn("Dynamo's worker has another block size than its model is configured with: nothing of it will match", zap.String("worker", m.at.Name), zap.Int("worker_has", size), zap.Int("configured", class.BlockSize))
	}
	for r, slot := range m.worker.Slots {
		k := dynamo.Key{Worker: w.ID, Rank: uint32(r)}
		f := feed.Start(feed.Options{Source: l.plane.Source(k), Decoder: &dynamo.Decoder{Key: k, BlockSize: size}, Sink: m.sinks[r], BlockSize: class.BlockSize})
		m.slots = append(m.slots, slotFeed{slot, f, m.at.Ready})
	}
	l.members = append(l.members, m)
	l.log.Info("worker joined", zap.String("worker", m.at.Name), zap.Int("ranks", w.Ranks), zap.Bool("routed", m.at.Ready))
}
