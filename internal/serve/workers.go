package serve

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/discover"
	"github.com/sightline-router/sightline/router/fleet"
	"github.com/sightline-router/sightline/router/members"
	"github.com/sightline-router/sightline/router/vitals"
)

// sources say who the workers are, and for each slot how its events come: what the configuration names, and what finders
// (package discover, a Dynamo deployment) find while we run. The set keeps feeds, index, fleet and audit in line.
type sources struct {
	cfg     config.Config
	models  []router.Model
	log     *zap.Logger
	keep    bool                   // events keep what audit and learning read of them
	nats    *bus.Link              // nil: none is used
	refused *prometheus.CounterVec // by whose NATS
	turns   chan struct{}          // agents' snapshots that are here at once
	nurse   *vitals.Nurse
	set     *members.Set
	told    []atomic.Bool // by finder: it has said who is there

	stop    context.CancelFunc
	running sync.WaitGroup
}

// finder is package discover's: it tells the whole set of endpoints after each change.
type finder interface {
	Follow(ctx context.Context, found func([]discover.Endpoint))
}

// startSources takes up the workers of a configuration and starts the finders of the others. o says who is told of them.
// Close what it gives.
func startSources(ctx context.Context, cfg config.Config, models []router.Model, nurse *vitals.Nurse, o members.Options) (s *sources, err error) {
	s = &sources{cfg: cfg, models: models, nurse: nurse, log: o.Log, keep: o.Audit != nil, turns: make(chan struct{}, snapshotsAtOnce)}
	ctx, s.stop = context.WithCancel(ctx)
	refused, err := natsRefused(o.Metrics)
	if err != nil {
		return nil, err
	}
	if s.refused = refused; cfg.NATS.Given() {
		link := cfg.NATS.Link()
		link.Refused, link.Log = refused.WithLabelValues("agents").Inc, o.Log
		if s.nats, err = bus.StartLink(link); err != nil {
			return nil, err
		}
	}
	finders, like, err := s.finders()
	components := dynamoComponents(&cfg.Dynamo)
	s.told = make([]atomic.Bool, len(finders)+len(components))
	o.Finders, o.Linger = len(s.told), router.LongestPrediction(cfg.Index.PredictedTTL)+time.Minute
	s.set = members.New(o)
	if err == nil {
		err = s.addConfigured()
	}
	for i := 0; i < len(components) && err == nil; i++ {
		err = s.startDynamo(ctx, o.Metrics, len(finders)+1+i, components[i])
	}
	if err != nil {
		s.close()
		return nil, err
	}
	for i, f := range finders {
		s.running.Go(func() {
			f.Follow(ctx, func(now []discover.Endpoint) {
				specs := make([]members.Spec, len(now))
				for j, e := range now {
					specs[j] = s.spec(&like[i], e)
				}
				s.update(i+1, specs)
			})
		})
	}
	return s, nil
}

// natsRefused counts what NATS servers did not let us do.
func natsRefused(metrics prometheus.Registerer) (*prometheus.CounterVec, error) {
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sightline", Name: "nats_refused_total",
		Help: "Times that a NATS server did not let us in, or refused a subject, by what it is for."}, []string{"of"})
	return v, metrics.Register(v)
}

// addConfigured takes up the workers that are configured by address.
func (s *sources) addConfigured() error {
	for i := range s.cfg.Workers {
		wc := &s.cfg.Workers[i]
		addr, host, _, _ := config.SplitAddr(wc.Addr)
		if host != "" { // a finder follows the name
			continue
		}
		if err := s.set.Add(0, s.spec(wc, discover.Endpoint{Name: wc.Name, Addr: addr, Ready: true})); err != nil {
			return fmt.Errorf("workers[%d]: %w", i, err)
		}
	}
	return nil
}

// finders are those that the configuration asks for, each with what its workers are like.
func (s *sources) finders() (list []finder, like []config.Worker, err error) {
	for i := range s.cfg.Workers {
		wc := &s.cfg.Workers[i]
		_, host, port, err := config.SplitAddr(wc.Addr)
		if err != nil {
			return list, like, fmt.Errorf("workers[%d]: %w", i, err)
		}
		if host != "" {
			list, like = append(list, &discover.DNS{Host: host, Port: port, Log: s.log}), append(like, *wc)
		}
	}
	api, namespace := discover.InCluster()
	for i := range s.cfg.Kubernetes.Workers {
		g, k := &s.cfg.Kubernetes.Workers[i], &s.cfg.Kubernetes
		f := &discover.Kubernetes{API: cmp.Or(k.API, api), CAFile: cmp.Or(k.CAFile, discover.DefaultCAFile),
			TokenFile: cmp.Or(k.TokenFile, discover.DefaultTokenFile), Namespace: cmp.Or(g.Namespace, namespace), Selector: g.LabelSelector(), Port: g.Port, Log: s.log}
		if f.API == "" || f.Namespace == "" {
			return list, like, fmt.Errorf("kubernetes.workers[%d]: this is no pod with a ServiceAccount's token "+
				"(give kubernetes.api, ca_file, token_file and the group's namespace)", i)
		}
		list, like = append(list, f), append(like, g.Worker)
	}
	return list, like, nil
}

// spec is the worker at an endpoint, as it is configured.
func (s *sources) spec(like *config.Worker, e discover.Endpoint) members.Spec {
	wc, host := *like, e.Addr.Addr().String()
	if e.Addr.Addr().Is6() {
		host = "[" + host + "]"
	}
	for _, u := range []*string{&wc.Events.ZMQ, &wc.Events.Replay, &wc.Events.Load, &wc.Events.HTTP} {
		*u = strings.ReplaceAll(*u, "{ip}", host)
	}
	wc.Addr, wc.Name = e.Addr.String(), cmp.Or(e.Name, wc.Name)
	class, _ := s.cfg.ClassOf(&wc)
	drain := trtllm.NewDrain(wc.Events.HTTP, wc.Ranks)
	type place struct { // another pod at an address that was given out again is another worker
		addr netip.AddrPort
		pod  string
	}
	spec := members.Spec{ID: place{e.Addr, e.Name}, Name: wc.Name, Addr: e.Addr, Ready: e.Ready, Model: wc.Model, Class: wc.Class,
		Ranks: wc.Ranks, Rate: class.PrefillRate, Copies: class.Rules().CountsCopies,
		Listen: func(slot *fleet.Slot, rank int, o *stream.Options) (bool, error) {
			return s.listen(&wc, drain, slot, rank, o)
		}}
	spec.WhileMember = func(ctx context.Context, w *fleet.Worker) {
		if wc.Events.Load == "" {
			s.nurse.Watch(ctx, w, class.Rules(), true)
			return
		}
		var both sync.WaitGroup
		both.Go(func() { s.nurse.Watch(ctx, w, class.Rules(), false) })
		hearLoad(ctx, wc.Events.Load, w.Slots[0], s.log)
		both.Wait()
	}
	return spec
}

// update brings the workers of one finder, from 1, in line with what it found.
func (s *sources) update(finder int, found []members.Spec) {
	s.set.Update(finder, found)
	s.told[finder-1].Store(true)
}

func (s *sources) close() {
	s.stop()
	s.running.Wait()
	s.set.Close()
	s.nats.Close()
}
