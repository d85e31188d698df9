package serve

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine/dynamo"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/router/fleet"
	"github.com/sightline-router/sightline/router/members"
)

// dynamoLink ties the members to one component of an NVIDIA Dynamo deployment. A worker is known by its instance id, which
// its events carry and its front ends take as a header; a new id, or another shape (ranks, model card), is a new worker.
type dynamoLink struct {
	*sources
	plane   *dynamo.Plane
	finder  int
	prefill bool
}

// dynamoComponents are those whose workers are followed: of the component, and of the one that prefills for it.
func dynamoComponents(c *config.Dynamo) []string {
	switch {
	case c.Plane == "":
		return nil
	case c.PrefillComponent == "":
		return []string{c.Component}
	}
	return []string{c.Component, c.PrefillComponent}
}

// startDynamo begins to follow one of dynamoComponents; it ends with ctx, when running is done.
func (s *sources) startDynamo(ctx context.Context, metrics prometheus.Registerer, finder int, component string) error {
	c := &s.cfg.Dynamo
	l := &dynamoLink{sources: s, plane: &dynamo.Plane{}, finder: finder, prefill: component != c.Component}
	l.plane.Full = func() {
		s.log.Warn("Dynamo's plane has events of more workers that discovery does not know than are kept for it; they are dropped "+
			"(dynamo.discovery is another deployment's?)", zap.String("component", component))
	}
	err := metrics.Register(prometheus.NewCounterFunc(prometheus.CounterOpts{Namespace: "sightline", Name: "dynamo_events_refused_total",
		Help:        "Messages of Dynamo's plane that were dropped: of workers that discovery does not know, beyond those that are kept for it.",
		ConstLabels: prometheus.Labels{"component": component}}, func() float64 { return float64(l.plane.Refused()) }))
	if err != nil {
		return err
	}
	scope := dynamo.Scope{Namespace: c.Namespace, Component: component, Endpoint: c.Endpoint}
	follow := dynamo.Follower{Root: c.Discovery, Scope: scope, Plane: l.plane, Found: l.found,
		Failed: func(err error) {
			l.log.Warn("Dynamo's deployment cannot be followed; what is known stays", zap.Error(err))
		}}
	if c.Plane != "zmq" {
		conn, err := c.NATS.Connect(bus.ConnectOptions{Name: "sightline", Log: s.log, Refused: s.refused.WithLabelValues("plane").Inc})
		if err != nil {
			return fmt.Errorf("dynamo.nats.%w", err)
		}
		context.AfterFunc(ctx, conn.Close)
		follow.Plane = nil
		if err := l.plane.SubscribeNATS(conn, scope); err != nil {
			return err
		}
	}
	s.running.Go(func() { follow.Run(ctx) })
	return nil
}

func (l *dynamoLink) found(workers []dynamo.Worker) {
	specs := make([]members.Spec, len(workers))
	for i, w := range workers {
		specs[i] = l.spec(w)
		specs[i].ID = w
	}
	l.update(l.finder, specs)
}

// spec says how a worker is reached and heard.
func (l *dynamoLink) spec(w dynamo.Worker) members.Spec {
	c := &l.cfg.Dynamo
	class, _ := l.cfg.ClassOf(&config.Worker{Model: c.Model, Class: c.Class})
	id := strconv.FormatUint(w.ID, 10)
	spec := members.Spec{Name: "dynamo-" + id, Model: c.Model, Class: c.Class, Ranks: w.Ranks}
	if w.Ranks == 1 {
		spec.Ranks = 0
	}
	switch ip, err := netip.ParseAddr(w.Host); {
	case len(c.Frontends) > 0:
		spec.Addr, _ = netip.ParseAddrPort(c.Frontends[0]) // the configuration checks it
		spec.Instance, spec.Frontends, spec.Prefill = id, c.Frontends, l.prefill
	case c.EnginePort > 0 && err == nil:
		spec.Addr = netip.AddrPortFrom(ip, uint16(c.EnginePort))
		spec.WhileMember = func(ctx context.Context, w *fleet.Worker) { l.nurse.Watch(ctx, w, class.Rules(), true) }
	}
	spec.Ready = spec.Addr.IsValid()
	size := w.BlockSize
	if size == 0 { // not told
		size = class.BlockSize
	} else if size != class.BlockSize {
		l.log.Warn("Dynamo's worker has another block size than its model is configured with: nothing of it will match",
			zap.String("worker", spec.Name), zap.Int("worker_has", size), zap.Int("configured", class.BlockSize))
	}
	spec.Listen = func(_ *fleet.Slot, rank int, o *stream.Options) (bool, error) {
		k := dynamo.Key{Worker: w.ID, Rank: uint32(rank)}
		o.Source, o.Decoder, o.BlockSize = l.plane.Source(k), &dynamo.Decoder{Key: k, BlockSize: size}, class.BlockSize
		o.UnknownKey = unknownKey(l.log.With(zap.String("worker", spec.Name), zap.Int("rank", rank)))
		return true, nil
	}
	return spec
}
