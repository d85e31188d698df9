package serve

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/registry"
	"github.com/sightline-router/sightline/engine/dynamo"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/workers/fleet"
)

// dynamoLink connects the members to one component of an NVIDIA Dynamo deployment. A worker is identified by its instance id,
// which is in its events and which its front ends take as a header; a new id, or a different shape (ranks, model card), is a new
// worker.
type dynamoLink struct {
	*sources
	runningFinder
	plane   *dynamo.Plane
	conn    *nats.Conn  // nil: the plane is ZeroMQ
	failing bus.Failing // of conn
	prefill bool
	workers []dynamo.Worker // last found
}

// dynamoComponents returns the components whose workers are followed: the configured one, and the one that prefills for it.
func dynamoComponents(c *config.Dynamo) []string {
	component, _ := c.Answers()
	switch {
	case c.Discovery == "":
		return nil
	case c.PrefillComponent == "":
		return []string{component}
	}
	return []string{component, c.PrefillComponent}
}

// startDynamo starts following one of dynamoComponents.
func (s *sources) startDynamo(metrics prometheus.Registerer, component string) error {
	c := &s.now.Load().cfg.Dynamo
	answers, endpoint := c.Answers()
	l := &dynamoLink{sources: s, plane: &dynamo.Plane{}, prefill: component != answers}
	s.numbers++
	l.number, l.repeat = s.numbers, l.tell
	s.dynamo = append(s.dynamo, l)
	s.followers = append(s.followers, &l.runningFinder)
	l.plane.OnFull = func() {
		s.log.Warn("Dynamo's event plane has events of too many workers that discovery does not know; they are dropped "+
			"(dynamo.discovery is another deployment's?)", zap.String("component", component))
	}
	l.plane.OnUnreadable = func(from string, err error) {
		s.log.Warn("unreadable events of Dynamo (SL0309), logged once", zap.String("component", component), zap.String("from", from),
			zap.Error(err))
	}
	count := func(name, help string, now func() uint64) error {
		return metrics.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "sightline", Name: name, Help: help,
			ConstLabels: prometheus.Labels{"component": component}}, func() float64 { return float64(now()) }))
	}
	err := errors.Join(
		count("dynamo_events_unreadable_total", "Dynamo's event messages that cannot be read.", l.plane.Unreadable),
		count("dynamo_events_refused_total", "Dynamo's event messages dropped: too many unknown workers.",
			l.plane.Refused))
	if err != nil {
		return err
	}
	scope := dynamo.Scope{Namespace: c.Namespace, Component: component, Endpoint: endpoint}
	follow := dynamo.Follower{Root: c.Discovery, Scope: scope, Plane: l.plane, Found: l.found,
		Failed: func(err error) {
			l.log.Warn("Dynamo's discovery cannot be read; the known workers stay", zap.Error(err))
		}}
	if c.NATS.URL != "" {
		l.conn, err = c.NATS.Connect(bus.ConnectOptions{Name: "sightline", Log: s.log, Refused: s.countRefused("plane"),
			Failing: &l.failing})
		if err != nil {
			return fmt.Errorf("dynamo.nats.%w", err)
		}
		context.AfterFunc(s.ctx, l.conn.Close)
		follow.Plane = nil
		if err := l.plane.SubscribeNATS(l.conn, scope); err != nil {
			return err
		}
	}
	s.running.Go(func() { follow.Run(s.ctx) })
	return nil
}

func (l *dynamoLink) found(workers []dynamo.Worker) {
	l.runningFinder.mu.Lock()
	l.workers = workers
	l.runningFinder.mu.Unlock()
	l.tell()
}

func (l *dynamoLink) tell() {
	l.runningFinder.mu.Lock()
	defer l.runningFinder.mu.Unlock()
	specs := make([]registry.Spec, len(l.workers))
	for i, w := range l.workers {
		specs[i] = l.spec(w)
	}
	l.update(&l.runningFinder, specs)
}

// spec returns the Spec of a worker.
func (l *dynamoLink) spec(w dynamo.Worker) registry.Spec {
	cfg := &l.now.Load().cfg
	c := &cfg.Dynamo
	class, _ := cfg.ClassOf(&config.Worker{Model: c.Model, Class: c.Class})
	id := strconv.FormatUint(w.ID, 10)
	type worker struct {
		dynamo.Worker
		feedSettings
	}
	spec := registry.Spec{ID: worker{w, feedSettingsOf(&class)}, Name: "dynamo-" + id, Model: c.Model, Class: c.Class, Ranks: w.Ranks}
	if w.Ranks == 1 && w.FirstRank == 0 {
		spec.Ranks = 0
	}
	switch ip, err := netip.ParseAddr(w.Host); {
	case len(c.Frontends) > 0:
		spec.Addr, _ = netip.ParseAddrPort(c.Frontends[0])                           // the configuration checks it
		spec.Instance, spec.Frontends, spec.FirstRank = id, c.Frontends, w.FirstRank // an engine itself numbers its ranks from 0
		if l.prefill {
			spec.Role = fleet.Prefill
		}
	case c.EnginePort > 0 && err == nil:
		spec.Addr = netip.AddrPortFrom(ip, uint16(c.EnginePort))
		spec.WhileMember = func(ctx context.Context, w *fleet.Worker) { l.poller.Watch(ctx, w, class.Rules(), true) }
	}
	spec.Ready = spec.Addr.IsValid()
	size := w.BlockSize
	if size == 0 { // not reported
		size = class.BlockSize
	} else if given := class.ConfiguredBlockSize(); given != 0 && size != given {
		l.log.Warn("a Dynamo worker's block size is not its model's block_size; the worker's is used",
			zap.String("worker", spec.Name), zap.Int("worker_has", size), zap.Int("configured", class.BlockSize))
	}
	spec.Listen = func(_ *fleet.Slot, rank int, o *stream.Options) (bool, error) {
		k := dynamo.Key{Worker: w.ID, Rank: uint32(w.FirstRank + rank)}
		o.Source, o.Decoder, o.BlockSize = l.plane.Source(k), &dynamo.Decoder{Key: k, BlockSize: size}, class.ConfiguredBlockSize()
		return true, nil
	}
	return spec
}
