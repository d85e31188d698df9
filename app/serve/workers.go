package serve

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/registry"
	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/speculative"
	"github.com/sightline-router/sightline/workers/discover"
	"github.com/sightline-router/sightline/workers/fleet"
	"github.com/sightline-router/sightline/workers/health"
)

// sources know who the workers are, and for each slot how its events come: workers of the configuration, and those that finders
// (package discover, a Dynamo deployment) find at run time. The set keeps feeds, index, fleet and audit consistent.
type sources struct {
	secret  *block.Secret // of the block hashes
	now     *atomic.Pointer[state]
	log     *zap.Logger
	keep    bool                   // events keep what audit and learning need
	nats    *bus.Link              // nil: none is used
	refused *prometheus.CounterVec // by purpose of the NATS connection
	denied  atomic.Uint64          // the same, of all
	dynamo  []*dynamoLink          // one for each component that is followed
	turns   chan struct{}          // limits the agents' snapshots in memory
	poller  *health.Poller
	as      *secure.Client // TLS settings and key for workers, or nil
	peers   *replicas      // to ask for what a worker cannot replay any more; nil: none
	set     *registry.Set
	models  chan reportedModels // to be served
	end     func(error)         // ends the server
	longest atomic.Int64        // longest lifetime of a prediction so far, in ns
	// what the objects of the followed pool say; nil: nothing, or no pool is followed
	objectives atomic.Pointer[discover.Objectives]
	unlimited  sync.Once // that priorities need a limit of requests in flight is logged

	costs        *discover.DeletionCosts // how pods are annotated where that is asked for
	costsFailing atomic.Pointer[string]  // why they are not; nil or "": they are

	mu        sync.Mutex
	followers []*runningFinder
	numbers   int // number of finders so far

	ctx     context.Context // of the finders and watches
	stop    context.CancelFunc
	running sync.WaitGroup
}

// finder is implemented by package discover: it reports the whole set of endpoints after each change.
type finder interface {
	Follow(ctx context.Context, found func([]discover.Endpoint))
}

// runningFinder is a running finder.
type runningFinder struct {
	number     int
	key        string // what it looks for, as a key; "": a Dynamo component
	finder     finder
	objectives *discover.Pool // whose objectives count; nil: none
	stop       context.CancelFunc
	repeat     func() // reports the last findings again
	reported   atomic.Bool

	mu     sync.Mutex
	worker config.Worker // configuration of its workers
	found  []discover.Endpoint
	gone   bool
}

// startSources adds the workers of a configuration and starts its finders. o has the parts that are told of workers. The caller must
// close the sources.
func startSources(ctx context.Context, r *running, o registry.Options) (s *sources, err error) {
	cfg, secret := &r.now.Load().cfg, r.media.Secret
	s = &sources{secret: secret, now: &r.now, poller: r.poller, peers: r.peers, log: o.Log, keep: o.Audit != nil,
		turns: make(chan struct{}, snapshotsAtOnce), models: make(chan reportedModels)}
	s.end = func(err error) {
		select {
		case r.done <- err:
		default: // it ends already
		}
	}
	s.ctx, s.stop = context.WithCancel(ctx)
	s.as, err = cfg.WorkerAccess.Open(o.Log)
	if err != nil {
		return nil, fmt.Errorf("worker_access: %w", err)
	}
	o.Linger = func() time.Duration { return time.Duration(s.longest.Load()) + time.Minute }
	s.set, s.costs = registry.New(o), r.deletionCosts()
	s.refused = meter.At(o.Metrics).Counters("nats_refused_total",
		"Credentials rejected and subjects denied by NATS, by use.", "of")
	refused := s.countRefused("agents") // start at 0: an alert sees no increase in a counter that first appears as 1
	if cfg.NATS.Given() {
		link := cfg.NATS.Link()
		link.Refused, link.Log = refused, o.Log
		link.Secret, link.FixedSecret, link.Replaced = secret, cfg.Index.KeyFile != "", s.rehash
		s.nats, err = bus.StartLink(link)
		if err != nil {
			return nil, err
		}
	}
	wanted, err := r.wantedFinders(cfg)
	components := dynamoComponents(&cfg.Dynamo)
	for _, spec := range s.configured(cfg) {
		if err == nil {
			err = s.set.Add(0, spec)
		}
	}
	for i := 0; i < len(components) && err == nil; i++ {
		err = s.startDynamo(o.Metrics, components[i])
	}
	if err != nil {
		s.close()
		return nil, err
	}
	s.follow(wanted)
	return s, nil
}

// countRefused returns what counts refusals of a NATS connection with this purpose.
func (s *sources) countRefused(of string) func() {
	n := s.refused.WithLabelValues(of)
	return func() { n.Inc(); s.denied.Add(1) }
}

// natsAway returns the key of a NATS server to which there is no connection, and why; "": there is one, or none is used.
func (s *sources) natsAway() string {
	if why := s.nats.Away(); why != "" {
		return "nats: " + why
	}
	for _, l := range s.dynamo {
		if l.conn != nil && !l.conn.IsConnected() {
			return "dynamo.nats: " + away(&l.failing)
		}
	}
	return ""
}

// away returns why there is no connection to NATS.
func away(f *bus.Failing) string {
	why, _ := f.Why()
	return cmp.Or(why, "no server has answered yet")
}

// follow applies the current configuration to the workers; wanted are its finders. Finders that look for the same as before
// continue, and their last findings are reported again.
func (s *sources) follow(wanted []*runningFinder) {
	cfg := &s.now.Load().cfg
	s.longest.Store(max(s.longest.Load(), int64(speculative.Longest(cfg.Fixed.PredictedTTL))))
	s.mu.Lock()
	defer s.mu.Unlock()
	var stay, fresh []*runningFinder
	for _, w := range wanted {
		at := slices.IndexFunc(s.followers, func(f *runningFinder) bool { return f.key == w.key })
		if at < 0 {
			fresh = append(fresh, w)
			continue
		}
		old := s.followers[at]
		s.followers = slices.Delete(s.followers, at, at+1)
		old.mu.Lock()
		old.worker = w.worker
		old.mu.Unlock()
		stay = append(stay, old)
	}
	var gone []int
	for _, f := range s.followers {
		if f.key == "" {
			stay = append(stay, f)
			continue
		}
		f.stop()
		f.mu.Lock() // waits for a report that is under way
		f.gone = true
		if f.objectives != nil {
			s.objectives.Store(nil)
		}
		f.mu.Unlock()
		gone = append(gone, f.number)
	}
	s.set.Update(0, s.configured(cfg), gone...)
	for _, f := range stay {
		if f.reported.Load() {
			f.repeat()
		}
	}
	for _, f := range fresh {
		s.start(f)
	}
	s.followers = append(stay, fresh...)
}

// start starts a finder.
func (s *sources) start(f *runningFinder) {
	ctx, stop := context.WithCancel(s.ctx)
	s.numbers++
	f.number, f.stop = s.numbers, stop
	asking, _ := f.finder.(*askingFinder)
	if asking != nil {
		asking.connect(s.as, s.serveAsked, s.end)
	}
	if f.objectives != nil {
		if s.now.Load().cfg.Kubernetes.DeletionCost {
			f.objectives.Costs = s.costs
		}
		f.objectives.Objectives = func(p *discover.Objectives) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if f.gone {
				return
			}
			s.objectives.Store(p)
			if p.Ranks() && s.now.Load().cfg.MaxInFlight == 0 {
				s.unlimited.Do(func() {
					s.log.Warn("priorities of InferenceObjectives keep no places without a limit of requests in flight: set max_in_flight " +
						"(--max-in-flight with --pool)")
				})
			}
		}
	}
	tell := func() {
		specs := make([]registry.Spec, len(f.found))
		for i, e := range f.found {
			like := f.worker
			if asking != nil {
				like, _ = asking.worker(e)
			}
			specs[i] = s.spec(&like, e)
		}
		s.update(f, specs)
	}
	f.repeat = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		tell()
	}
	s.running.Go(func() {
		f.finder.Follow(ctx, func(now []discover.Endpoint) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if !f.gone {
				f.found = now
				tell()
			}
		})
	})
}

// unreported returns how many of the finders have not reported yet.
func (s *sources) unreported() (silent, all int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.followers {
		if !f.reported.Load() {
			silent++
		}
	}
	return silent, len(s.followers)
}

// unresolved returns why workers' names do not resolve, by worker.
func (s *sources) unresolved() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	why := make(map[string]string)
	for _, f := range s.followers {
		d, ok := f.finder.(*discover.DNS)
		if !ok {
			continue
		}
		if err := d.Failing(); err != nil {
			f.mu.Lock()
			why[f.worker.Name] = err.Error()
			f.mu.Unlock()
		}
	}
	return why
}

// configured returns the workers that are configured by address.
func (s *sources) configured(cfg *config.Config) (list []registry.Spec) {
	for i := range cfg.Workers {
		wc := &cfg.Workers[i]
		if addr, host, _, _ := config.SplitAddr(wc.Addr); host == "" { // else a finder follows the name
			list = append(list, s.spec(wc, discover.Endpoint{Name: wc.Name, Addr: addr, Ready: true}))
		}
	}
	return list
}

// wantedFinders returns the finders of a configuration, not started yet.
func (s *Server) wantedFinders(cfg *config.Config) (list []*runningFinder, err error) {
	log := s.log
	if s.Given != nil {
		list = append(list, &runningFinder{key: "given", finder: &askingFinder{Asking: s.Given, log: log}})
	}
	for i := range cfg.Workers {
		wc := &cfg.Workers[i]
		_, host, port, err := config.SplitAddr(wc.Addr)
		if err != nil {
			return nil, fmt.Errorf("workers[%d]: %w", i, err)
		}
		if host != "" {
			list = append(list, &runningFinder{key: wc.Addr, worker: *wc, finder: &discover.DNS{Host: host, Port: port,
				Log: log.With(zap.String("worker", wc.Name))}})
		}
	}
	k := &cfg.Kubernetes
	at := func(key, namespace string) (c discover.Cluster, err error) {
		c, err = discover.Cluster{API: k.API, CAFile: filepath.Join(cfg.Fixed.ServiceAccount, "ca.crt"),
			TokenFile: filepath.Join(cfg.Fixed.ServiceAccount, "token"), Namespace: namespace}.Complete()
		if err != nil {
			err = fmt.Errorf("kubernetes.%s: %w (give namespace, and kubernetes.api: kubectl proxy's)", key, err)
		}
		return c, err
	}
	for i := range k.Workers {
		g := &k.Workers[i]
		cluster, err := at(fmt.Sprintf("workers[%d]", i), g.Namespace)
		if err != nil {
			return nil, err
		}
		f := discover.Kubernetes{Cluster: cluster, Selector: g.LabelSelector(), Port: g.Port}
		looks := fmt.Sprintf("%+v", f)
		f.Log = log
		list = append(list, &runningFinder{key: looks, worker: g.Worker, finder: &f})
	}
	if k.Pool != "" {
		namespace, name := k.InferencePool()
		cluster, err := at("pool", namespace)
		if err != nil {
			return nil, err
		}
		p := discover.Pool{Cluster: cluster, Name: name}
		looks := fmt.Sprintf("%+v %t", p, k.DeletionCost)
		p.Log = log
		list = append(list, &runningFinder{key: looks, objectives: &p, finder: &askingFinder{Asking: ofPool(&p, s.Fit), log: log}})
	}
	return list, nil
}

// reportedModels asks the reloader to serve the models that workers report.
type reportedModels struct {
	models []config.Model
	done   chan<- servedModels
}

type servedModels struct {
	renamed map[string]string // names of models in the configuration's file, by those that the workers report
	err     error
}

// serveAsked has the models of asked workers served.
func (s *sources) serveAsked(ctx context.Context, models []config.Model) (map[string]string, error) {
	done := make(chan servedModels, 1)
	select {
	case s.models <- reportedModels{models, done}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	select {
	case served := <-done:
		return served.renamed, served.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// spec returns the Spec of the worker at an endpoint, with its configuration.
func (s *sources) spec(like *config.Worker, e discover.Endpoint) registry.Spec {
	wc, host := *like, e.Addr.Addr().String()
	if e.Addr.Addr().Is6() {
		host = "[" + host + "]"
	}
	for _, u := range []*string{&wc.Events.ZMQ, &wc.Events.Replay, &wc.Events.Load, &wc.Events.HTTP} {
		*u = strings.ReplaceAll(*u, "{ip}", host)
	}
	known := cmp.Or(e.Name, wc.Name+"/"+e.Addr.String())
	wc.Addr, wc.Name = e.Addr.String(), cmp.Or(e.Name, wc.Name)
	wc.Role = cmp.Or(wc.Role, e.Role)
	role, _ := fleet.RoleOf(wc.Role) // the configuration is checked; an unknown label is no role
	class, _ := s.now.Load().cfg.ClassOf(&wc)
	from := allRanks{trtllm.NewDrain(wc.Events.HTTP, wc.Ranks, s.as), s.newAskedEvents(wc.Addr, class.Rules(), wc.Ranks)}
	away := s.now.Load().cfg.Zones.DelayTo(cmp.Or(wc.Zone, e.Zone))
	type worker struct { // another pod at a reused address is another worker
		addr netip.AddrPort
		pod  string
		role fleet.Role
		is   string
		away time.Duration
		config.Worker
		feedSettings
	}
	spec := registry.Spec{ID: worker{e.Addr, e.Name, role, e.Revision, away, *like, feedSettingsOf(&class)}, Name: wc.Name,
		StableName: known, Addr: e.Addr, Ready: e.Ready, Terminating: e.Terminating, Model: wc.Model, Class: wc.Class,
		Role: role, Revision: e.Revision, ZoneDelay: away, MaxInFlight: wc.MaxInFlight, Ranks: wc.Ranks,
		CountsCopies: class.Rules().CountsCopies,
		Listen: func(slot *fleet.Slot, rank int, o *stream.Options) (bool, error) {
			return s.listen(&wc, from, slot, rank, o)
		}}
	spec.WhileMember = func(ctx context.Context, w *fleet.Worker) {
		if wc.Events.Load == "" {
			s.poller.Watch(ctx, w, class.Rules(), true)
			return
		}
		var both sync.WaitGroup
		both.Go(func() { s.poller.Watch(ctx, w, class.Rules(), false) })
		readLoadMessages(ctx, wc.Events.Load, w.Slots[0], s.log)
		both.Wait()
	}
	return spec
}

// feedSettings is the part of a class that its workers' feeds depend on: if it changes, the worker is replaced.
type feedSettings struct {
	engine, version string
	blockSize       int
}

func feedSettingsOf(c *config.Class) feedSettings {
	return feedSettings{c.Engine, c.EngineVersion, c.BlockSize}
}

// update sets the workers of one finder to what it found.
func (s *sources) update(f *runningFinder, found []registry.Spec) {
	s.set.Update(f.number, found)
	f.reported.Store(true)
}

func (s *sources) close() {
	s.stop()
	s.running.Wait()
	s.set.Close()
	s.nats.Close()
}
