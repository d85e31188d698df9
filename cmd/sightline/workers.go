package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/dynamo"
	"github.com/sightline-router/sightline/indexer/feed"
	"github.com/sightline-router/sightline/indexer/trtllm"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/discover"
	"github.com/sightline-router/sightline/router/fleet"
)

// sources are the workers that are known and, for each slot, the feed that keeps the index true to it. The set changes
// while we run: a finder (package discover) tells its workers, and update brings members, feeds and fleet in line.
//
//	found, ready      ─ in the fleet, its events heard
//	found, not ready  ─ out of the fleet at once; its events are still heard, so that it comes back with what it holds
//	no longer found   ─ its feed ends, and the index forgets it
type sources struct {
	cfg     config.Config
	models  []router.Model
	index   *indexer.Index
	fleet   *fleet.Fleet
	log     *zap.Logger
	changed func([]*fleet.Worker) // told of every worker set that the fleet gets
	audit   *audit.Auditor        // nil: none
	nats    *natsLink             // nil: none is used
	resyncs *prometheus.CounterVec

	stop    context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	members []*member // in the order of their joining
	silent  int       // finders that have not told anything yet
}

type member struct {
	origin int // which finder's; 0: the configuration's own; dynamoOrigin
	dynamo dynamo.Worker
	at     discover.Endpoint
	worker *fleet.Worker
	slots  []slotFeed
	quiet  context.CancelFunc // ends what hears its load; nil: nothing does
	sinks  []feed.Sink
}

type slotFeed struct {
	slot  *fleet.Slot
	feed  *feed.Feed // nil: the worker tells nothing
	ready bool
}

// finder is package discover's: it tells the whole set of endpoints after each change.
type finder interface {
	Follow(ctx context.Context, found func([]discover.Endpoint))
}

// startSources takes up the workers of a configuration and starts the finders of the others. Close it.
func startSources(ctx context.Context, cfg config.Config, models []router.Model, ix *indexer.Index, fl *fleet.Fleet, au *audit.Auditor, reg prometheus.Registerer, log *zap.Logger, changed func([]*fleet.Worker)) (*sources, error) {
	s := &sources{cfg: cfg, models: models, index: ix, fleet: fl, audit: au, log: log, changed: changed, resyncs: newResyncs(reg)}
	ctx, s.stop = context.WithCancel(ctx)
	var err error
	if s.nats, err = startNATS(cfg, log); err != nil {
		return nil, err
	}
	var finders []finder
	var like []config.Worker // what each finder's workers are
	for i := range cfg.Workers {
		wc := &cfg.Workers[i]
		addr, host, port, err := config.SplitAddr(wc.Addr)
		if err == nil && host == "" {
			err = s.join(0, wc, discover.Endpoint{Name: wc.Name, Addr: addr, Ready: true})
		}
		if err != nil {
			s.close()
			return nil, fmt.Errorf("workers[%d]: %w", i, err)
		}
		if host != "" {
			finders, like = append(finders, &discover.DNS{Host: host, Port: port, Log: log}), append(like, *wc)
		}
	}
	api, namespace := discover.InCluster()
	for i := range cfg.Kubernetes.Workers {
		g, k := &cfg.Kubernetes.Workers[i], &cfg.Kubernetes
		f := &discover.Kubernetes{API: cmp.Or(k.API, api), CAFile: cmp.Or(k.CAFile, discover.DefaultCAFile), TokenFile: cmp.Or(k.TokenFile, discover.DefaultTokenFile),
			Namespace: cmp.Or(g.Namespace, namespace), Selector: g.LabelSelector(), Port: g.Port, Log: log}
		if f.API == "" || f.Namespace == "" {
			s.close()
			return nil, fmt.Errorf("kubernetes.workers[%d]: this is no pod with a ServiceAccount's token (give kubernetes.api, ca_file, token_file and the group's namespace)", i)
		}
		finders, like = append(finders, f), append(like, g.Worker)
	}
	s.silent = len(finders)
	s.mu.Lock()
	s.publish()
	s.mu.Unlock()
	if err := s.startDynamo(ctx); err != nil {
		s.close()
		return nil, err
	}
	for i, f := range finders {
		first := true
		s.running.Go(func() {
			f.Follow(ctx, func(now []discover.Endpoint) {
				s.update(i+1, &like[i], now, first)
				first = false
			})
		})
	}
	return s, nil
}

// update brings the workers of one finder in line with what it found.
func (s *sources) update(origin int, wc *config.Worker, found []discover.Endpoint, first bool) {
	s.mu.Lock()
	if first {
		s.silent--
	}
	var left []*member
	stay := make(map[netip.AddrPort]bool, len(found))
	s.members = slices.DeleteFunc(s.members, func(m *member) bool {
		if m.origin != origin {
			return false
		}
		// Another pod at an address that was given out again is another worker.
		at := slices.IndexFunc(found, func(e discover.Endpoint) bool { return e.Addr == m.at.Addr && e.Name == m.at.Name })
		if at < 0 {
			left = append(left, m)
			return true
		}
		m.at, stay[m.at.Addr] = found[at], true
		return false
	})
	for _, e := range found {
		if stay[e.Addr] {
			continue
		}
		if err := s.join(origin, wc, e); err != nil {
			s.log.Warn("a worker that was found is left out", zap.Stringer("addr", e.Addr), zap.Error(err))
		}
	}
	s.publish()
	s.mu.Unlock()
	for _, m := range left {
		m.close()
		for _, f := range m.slots {
			s.audit.Leave(f.slot.Holder)
		}
		s.log.Info("worker left", zap.String("worker", m.worker.Name), zap.String("addr", m.worker.Addr))
	}
}

// join takes a worker up and starts listening to it; publish puts it into the fleet.
func (s *sources) join(origin int, like *config.Worker, e discover.Endpoint) error {
	wc, host := *like, e.Addr.Addr().String()
	if e.Addr.Addr().Is6() {
		host = "[" + host + "]"
	}
	for _, u := range []*string{&wc.Events.ZMQ, &wc.Events.Replay, &wc.Events.HTTP} {
		*u = strings.ReplaceAll(*u, "{ip}", host)
	}
	wc.Addr, wc.Name = e.Addr.String(), cmp.Or(e.Name, wc.Name)
	for _, m := range s.members {
		if m.worker.Addr == wc.Addr {
			return fmt.Errorf("%s is already known as worker %q (name each address once)", wc.Addr, m.worker.Name)
		}
		if m.worker.Name == wc.Name { // several addresses behind one name, or pods of two namespaces
			wc.Name += "/" + wc.Addr
		}
	}
	m := &member{origin: origin, at: e}
	class, _ := s.cfg.ClassOf(&wc)
	m.worker = fleet.NewWorker(wc.Name, e.Addr, wc.Model, wc.Ranks, func(int) indexer.Holder {
		sink := feed.Join(s.index, countsCopies(class.Engine), 0)
		m.sinks = append(m.sinks, leaving{sink, s.cfg.Index.PredictedTTL})
		return sink.Holder()
	})
	m.worker.Class = wc.Class
	drain := trtllm.NewDrain(wc.Events.HTTP, wc.Ranks)
	for r, slot := range m.worker.Slots {
		f, err := s.listen(&wc, drain, slot, r, m.sinks[r])
		if err != nil {
			m.close()
			return fmt.Errorf("events: %w", err)
		}
		m.slots = append(m.slots, slotFeed{slot, f, e.Ready})
	}
	if wc.Events.Load != "" {
		var ctx context.Context
		ctx, m.quiet = context.WithCancel(context.Background())
		go hearLoad(ctx, wc.Events.Load, m.worker.Slots[0], s.log)
	}
	s.members = append(s.members, m)
	if origin > 0 {
		s.log.Info("worker joined", zap.String("worker", wc.Name), zap.String("addr", wc.Addr), zap.Bool("ready", e.Ready))
	}
	return nil
}

// publish gives the fleet the workers that are ready.
func (s *sources) publish() {
	var now []*fleet.Worker
	for _, m := range s.members {
		for i := range m.slots {
			m.slots[i].ready = m.at.Ready
		}
		if m.at.Ready {
			now = append(now, m.worker)
		}
	}
	if slices.Equal(now, s.fleet.Workers()) {
		return
	}
	s.fleet.Set(now)
	s.changed(now)
}

// slotFeeds lists the slots of all members, as they are now.
func (s *sources) slotFeeds() (list []slotFeed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		list = append(list, m.slots...)
	}
	return list
}

// ready says why requests cannot be decided yet. Once the finders have told, an empty fleet is their word, not our fault.
func (s *sources) ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case len(s.cfg.Workers)+len(s.cfg.Kubernetes.Workers) == 0 && s.cfg.Dynamo.Plane == "":
		return errors.New("no workers are configured")
	case len(s.members) == 0 && s.silent > 0:
		return errors.New("no worker has been found yet")
	}
	return nil
}

func (s *sources) close() {
	s.stop()
	s.running.Wait()
	for _, m := range s.members {
		m.close()
	}
	s.nats.close()
}

func (m *member) close() {
	if m.quiet != nil {
		m.quiet()
	}
	for i, sink := range m.sinks {
		if i < len(m.slots) && m.slots[i].feed != nil {
			m.slots[i].feed.Close() // the sink leaves with it
		} else {
			sink.Leave()
		}
	}
}

// leaving is a sink that is emptied at once when it leaves, but keeps its number in the index for a while: what the
// router predicted under it must not count for the worker that gets the number next.
type leaving struct {
	*feed.IndexSink
	after time.Duration
}

// Leave implements feed.Sink.
func (l leaving) Leave() {
	l.Clear()
	time.AfterFunc(l.after, l.IndexSink.Leave)
}
