// Package serve turns a configuration into a running server: Load reads all files that it names, and says which key is wrong; Run
// starts index, fleet, router, workers' events, the listener for Envoy and the admin page, and stops them. Agent is the other
// process, beside a worker; EnvoyYAML returns the matching Envoy configuration.
package serve

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/term"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/app/registry"
	"github.com/sightline-router/sightline/app/trace"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/internal/buildinfo"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/printable"
	"github.com/sightline-router/sightline/internal/secure"
	"github.com/sightline-router/sightline/internal/sockets"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/report"
	"github.com/sightline-router/sightline/workers/fleet"
	"github.com/sightline-router/sightline/workers/health"
	"github.com/sightline-router/sightline/workers/probe"
)

// Server is a configuration with all its files loaded, not yet started.
type Server struct {
	cfg     config.Config // as at the start
	log     *zap.Logger
	level   zap.AtomicLevel
	media   *engine.Media
	as      *secure.Client        // TLS settings and key for workers, or nil
	now     atomic.Pointer[state] // what is currently served
	read    [sha256.Size]byte     // sum of the files that cfg was read from
	metrics *prometheus.Registry
	noRoom  func(what string) // counts refusals and evictions for lack of room

	// Fit must be set before Run if an InferencePool is followed.
	Fit     Fit
	Given   *Asking  // workers to ask, besides those of the configuration; nil: none
	Ignored []string // flags that have no effect, to be logged at the start
}

// Load checks a configuration and reads all files that it names; an error says what is wrong. The caller must Close the Server.
func Load(cfg config.Config) (*Server, error) {
	if err := cfg.CheckServe(); err != nil {
		return nil, err
	}
	log, level, err := newLog(cfg.LogLevel)
	if err != nil {
		return nil, err
	}
	if _, err := (&Server{log: log}).wantedFinders(&cfg); err != nil {
		return nil, err
	}
	media, err := NewMedia(cfg.Media)
	if err != nil {
		return nil, err
	}
	media.Secret, err = newSecret(&cfg)
	if err != nil {
		media.Close()
		return nil, err
	}
	as, err := cfg.WorkerAccess.Open(log)
	if err != nil {
		media.Close()
		return nil, fmt.Errorf("worker_access: %w", err)
	}
	media.Pinned = func(model, fingerprint string) { // so that an operator can put it into the configuration
		log.Info("images of this model are hashed by its workers' rule from now on", zap.String("model", model),
			zap.String("processor_fingerprint", fingerprint))
	}
	metrics := prometheus.NewRegistry()
	panics := meter.At(metrics).Counters("media_panics_total", "Panics while reading media, by place.", "where")
	full := meter.At(metrics).Counters("no_room_total",
		"Entries that did not fit or evicted others, by kind (docs/bounds.md).", "what")
	noRoom := func(what string) { full.WithLabelValues(what).Inc() }
	media.NoRoom = noRoom
	media.Panicked = func(where string, err error) {
		panics.WithLabelValues(where).Inc()
		log.Error("a panic in reading media; the request goes on without", zap.String("where", where), zap.Error(err))
	}
	s := &Server{cfg: cfg, log: log, level: level, media: media, as: as, metrics: metrics, noRoom: noRoom, read: sumOf(cfg.Files())}
	models, err := loadModels(cfg, nil, media, log)
	if err != nil {
		media.Close()
		return nil, err
	}
	s.now.Store(&state{cfg, models})
	return s, nil
}

// Close releases what Load opened, after Run has returned.
func (s *Server) Close() { s.media.Close() }

// newLog returns a logger and its level, which can be changed. It silences the standard library's own, on which http.Transport writes
// what a host sends after the end of its answer: bytes of an image.
func newLog(level string) (*zap.Logger, zap.AtomicLevel, error) {
	l, err := zap.ParseAtomicLevel(level)
	if err != nil {
		return nil, l, err
	}
	stdlog.SetOutput(io.Discard)
	zc := zap.NewProductionConfig()
	zc.Level = l
	zc.EncoderConfig.EncodeTime = zapcore.RFC3339TimeEncoder
	zc.DisableStacktrace = true
	if term.IsTerminal(int(os.Stderr.Fd())) { // for people: JSON would be for programs
		zc.EncoderConfig.EncodeTime, zc.EncoderConfig.EncodeLevel = zapcore.TimeEncoderOfLayout(time.TimeOnly), zapcore.CapitalLevelEncoder
		to := zapcore.AddSync(printable.Writer(os.Stderr))
		core := zapcore.NewCore(zapcore.NewConsoleEncoder(zc.EncoderConfig), zapcore.Lock(to), l)
		return zap.New(zapcore.NewSamplerWithOptions(core, time.Second, zc.Sampling.Initial, zc.Sampling.Thereafter)), l, nil
	}
	log, err := zc.Build()
	return log, l, err
}

// running is a Server at work, with what its parts share.
type running struct {
	*Server
	index   *indexer.Index
	fleet   *fleet.Fleet
	audit   *audit.Auditor // nil: off
	probe   *probe.Prober  // nil: off
	poller  *health.Poller
	router  *router.Router
	report  *report.Totals
	roster  *extproc.Roster
	sources *sources
	peers   *replicas
	gate    *readyGate
	done    chan error // a listener's failure, or the end of a graceful stop
}

// Run serves until stopped ends; then it reports that it is not ready, and continues until extproc's Serve has drained and
// stopped.
func (s *Server) Run(stopped context.Context) error {
	defer s.log.Sync()
	for _, flag := range s.Ignored {
		s.log.Warn("a flag has no effect", zap.String("flag", flag))
	}
	capMemory(s.log)
	ctx, end := context.WithCancel(context.WithoutCancel(stopped))
	defer end()
	build := buildinfo.Read()
	decisions, err := s.openDecisionLog(s.metrics)
	if err != nil {
		return err
	}
	defer decisions.Close()
	r := s.decider(ctx, decisions)
	r.sources, err = startSources(ctx, r, r.members())
	if err != nil {
		return err
	}
	defer r.sources.close()
	r.gate = &readyGate{sources: r.sources, after: s.cfg.Fixed.ReadyAfter, began: time.Now(), ctx: stopped}
	r.metrics.MustRegister(build.Metric())
	of := meter.At(r.metrics)
	showState(of, r.index, s.media)
	of.ReadGauge("ready", "1 once the workers' contents are known, or 30 s have passed.", func() float64 {
		_, err := r.gate.look(time.Now())
		return meter.Flag(err == nil)
	})
	tracer, err := r.startTracing(build.Version)
	if err != nil {
		return err
	}
	defer tracer.Close()
	relayed, err := startRelay(s.cfg.Media.Relay, s.media, s.noRoom, s.log, r.done)
	if err != nil {
		return err
	}
	defer relayed.Close()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	envoy, err := r.serveEnvoy(stopped, tracer)
	if err != nil {
		return err
	}
	if err := r.peers.start(ctx, r, envoy); err != nil {
		return err
	}
	defer r.peers.close()
	reloads := newReloader(serving, r, envoy)
	defer func() { stop(); <-reloads.ended; reloads.mu.Lock() }() // no reload is running, and none will start
	watch := findings.NewWatch(r.facts(reloads, decisions), s.log, of)
	go watch.Run(serving)
	go r.watchDrains(serving)
	page, err := r.serveAdmin(serving, build.Version, reloads, watch)
	if err != nil {
		return err
	}
	defer page.Close()
	_, mode := s.cfg.Unsteered()
	s.log.Info("serving", zap.String("listen", s.cfg.Listen), zap.String("admin", s.cfg.Admin), zap.Int("models", len(s.cfg.Models)),
		zap.Int("workers", len(s.cfg.Workers)), zap.String("enforce", mode), zap.String("version", build.Version))
	defer context.AfterFunc(stopped, func() { s.log.Info("stopping", zap.Duration("drain", s.cfg.Drain)) })()
	err = <-r.done
	s.log.Info("stopped")
	return err
}

// decider creates the parts that decide, until ctx ends: the index, the fleet, audit and probe, and the router over them. They
// have no workers yet.
func (s *Server) decider(ctx context.Context, decisions *decisionlog.Log) *running {
	r := &running{Server: s, roster: extproc.NewRoster(), done: make(chan error, 3), peers: s.replicas(),
		index: indexer.New(indexer.Options{MaxBytes: int64(s.cfg.Index.MaxBytes)}), fleet: fleet.New(nil)}
	r.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	go paceHeap(ctx)
	r.audit = audit.New(audit.Options{Index: r.index, Log: s.log, Metrics: r.metrics,
		Verdict:      func(id string, v audit.Verdict) { r.router.Audited(id, v) },
		Contradicted: func(worker string) { r.probe.Ask(worker) },
		Why:          func(slot indexer.SlotID) string { return r.sources.whyNothing(slot) },
		WorkerOf:     func(slot indexer.SlotID) string { return r.sources.workerOf(slot) },
		Parent: func(slot indexer.SlotID, engineHash uint64, locals []uint64) {
			r.sources.set.LearnParent(slot, engineHash, locals)
		}})
	go r.audit.Run(ctx)
	if s.cfg.Fixed.Probe {
		r.probe = probe.New(probe.Options{As: s.as, Log: s.log, Metrics: r.metrics, Probed: r.audit.Probed})
		go r.probe.Run(ctx)
	}
	r.poller = health.New(health.Options{As: s.as, Health: s.cfg.Fixed.HealthEvery, Load: s.cfg.Fixed.LoadEvery, Fleet: r.fleet,
		Log: s.log, Metrics: r.metrics,
		ProcessRestarted: func(w *fleet.Worker, was time.Time) {
			r.sources.set.ProcessRestarted(w, was)
			r.probe.Ask(w.Name)
			r.audit.Mended("", w.Name)
		}})
	unsteered, mode := s.cfg.Unsteered()
	with := r.peers.hooks()
	r.report = report.New(mode, time.Now())
	r.router = router.New(router.Options{NoRoom: r.noRoom, Secret: s.media.Secret, UnsteeredShare: unsteered,
		Report: r.report, Models: s.now.Load().models, Fleet: r.fleet, Index: r.index,
		LearnedBytes: 64 << 20, Audit: r.audit,
		Decisions: decisions, Share: with.share, ShareLearned: with.shareLearned,
		PredictedTTL: s.cfg.Fixed.PredictedTTL,
		MaxInFlight:  s.cfg.MaxInFlight, Fair: s.cfg.Fair != (config.Fair{}), Hold: s.cfg.Hold, RefuseUnread: s.cfg.RefusesUnread(),
		CacheHints: s.cfg.PassCacheHints, AskUsage: s.cfg.Envoy.AskUsage, Log: s.log, Metrics: r.metrics,
		Rewrite: func(model string, share func() float64) string {
			return r.sources.objectives.Load().Rewrite(model, share)
		},
		Resync: func(slot *fleet.Slot) {
			r.sources.set.Resync(func(f *fleet.Slot) bool { return f == slot }, "fewer_cached")
		}})
	go r.router.Run(ctx)
	return r
}

// openDecisionLog returns nil if none is configured.
func (s *Server) openDecisionLog(metrics prometheus.Registerer) (*decisionlog.Log, error) {
	c := s.cfg.DecisionLog
	if c.File == "" {
		return nil, nil
	}
	key, err := s.cfg.Index.Key()
	if err != nil {
		return nil, err
	}
	l, err := decisionlog.Open(decisionlog.Options{File: c.File, Key: key, Log: s.log, Metrics: metrics})
	if err != nil {
		return nil, fmt.Errorf("decision_log.file: %w", err)
	}
	return l, nil
}

// startTracing returns nil if tracing is off.
func (r *running) startTracing(version string) (*trace.Tracer, error) {
	c := r.cfg.Tracing
	receiver, plain := c.Receiver()
	if receiver == "" {
		return nil, nil
	}
	t, err := trace.Start(trace.Options{Endpoint: receiver, Insecure: plain, Sample: c.Sample, Version: version,
		Recent: r.router.Decision, Log: r.log, Metrics: r.metrics})
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint: %w", err)
	}
	return t, nil
}

// members returns the options with the parts that are told of each worker that comes or goes.
func (r *running) members() registry.Options {
	return registry.Options{Index: r.index, Fleet: r.fleet, Audit: r.audit, Learner: r.router.Learner(), Log: r.log, Metrics: r.metrics,
		Dials: func(addr netip.AddrPort) error { return r.now.Load().cfg.Envoy.Dials(addr) },
		Changed: func(now []*fleet.Worker) {
			r.probe.Set(probed(r.now.Load().models, now))
			r.roster.Set(endpoints(now))
		},
		Forget: func(worker string) {
			r.audit.Forget(worker)
			r.router.Forget(worker)
			r.poller.Forget(worker)
		}}
}

// serveEnvoy answers Envoy until ctx ends.
func (r *running) serveEnvoy(ctx context.Context, tracer *trace.Tracer) (*extproc.Server, error) {
	under, err := r.cfg.TLS.Config(r.log, "h2")
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	tokens, err := secure.OpenTokens(r.cfg.ListenTokenFile, r.log)
	if err != nil {
		return nil, fmt.Errorf("listen_token_file: %w", err)
	}
	var admit func(string) bool
	if tokens != nil {
		admit = tokens.Admit
	}
	var traced extproc.Traced
	if tracer != nil {
		traced = tracer.Decided
	}
	var mode extproc.Mode // both
	if r.cfg.Route.Picker {
		mode = extproc.EndpointPicker
	}
	with := r.peers.hooks()
	srv, err := extproc.New(r.router.Decide, r.router.Observe, extproc.Options{Traced: traced, Instance: with.instance, Forward: with.forward,
		MaxBody: int(r.cfg.BodyLimit), BodyTimeout: r.cfg.Fixed.BodyTimeout, EnvoyWaits: r.cfg.Envoy.MessageTimeout,
		EnvoyMayWait: envoy.LongestWait(r.cfg.Envoy.MessageTimeout, int(r.cfg.BodyLimit)), Starting: true, Drain: r.cfg.Drain,
		RefuseUnread: r.cfg.RefusesUnread(), Pass: r.cfg.PassUnread,
		Route:   extproc.Route{Mode: mode, OneAddress: r.cfg.Route.OneAddress, NamePod: r.cfg.Envoy.DebugHeaders},
		Tenants: extproc.Tenants(r.cfg.Tenants), Fair: extproc.Fair{Tenant: r.cfg.Fair.Header, Priority: r.cfg.Fair.Priority},
		Objective: func(named []string) (int, bool) { return r.sources.objectives.Load().Priority(named) },
		Models:    modelNames(r.cfg), Services: with.services, TLS: under, Admit: admit, Roster: r.roster, NoRoom: r.noRoom, Log: r.log,
		Metrics: r.metrics})
	if err != nil {
		return nil, err
	}
	lis, err := extproc.Listen(r.cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if _, err := r.gate.look(time.Now()); err == nil { // before the first health check
		srv.Ready()
	}
	if err := r.serveHealth(srv); err != nil {
		lis.Close()
		return nil, err
	}
	go func() { r.done <- srv.Serve(ctx, lis) }()
	go r.gate.await(ctx, r.log, srv.Ready)
	return srv, nil
}

// serveHealth serves the health service alone, in plain text, if configured.
func (r *running) serveHealth(srv *extproc.Server) error {
	if r.cfg.GRPCHealth == "" {
		return nil
	}
	lis, err := net.Listen("tcp", r.cfg.GRPCHealth)
	if err != nil {
		return fmt.Errorf("grpc_health: %w", err)
	}
	go func() {
		if err := srv.ServeHealth(boundWeb(lis, r.noRoom, "connections to grpc_health")); err != nil {
			r.done <- fmt.Errorf("grpc_health: %w", err)
		}
	}()
	return nil
}

// serveAdmin serves the admin page, if configured. The caller must close the server.
func (r *running) serveAdmin(ctx context.Context, version string, reloads *reloader, watch *findings.Watch) (*http.Server, error) {
	web := newWeb()
	if r.cfg.Admin == "" {
		return web, nil
	}
	lis, err := net.Listen("tcp", r.cfg.Admin)
	if err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	at, _ := lis.Addr().(*net.TCPAddr)
	lis = boundWeb(lis, r.noRoom, "connections to admin")
	lis, err = r.cfg.AdminTLS.Over(lis, r.log)
	if err != nil {
		return nil, fmt.Errorf("admin_tls: %w", err)
	}
	name, _ := os.Hostname()
	web.Handler = admin.Handler(ctx, admin.State{
		Access:      admin.Access{Token: func() string { return r.now.Load().cfg.AdminToken }, Loopback: at != nil && at.IP.IsLoopback()},
		QueryLimits: admin.QueryLimits{MaxBody: int(r.cfg.BodyLimit), Budget: r.cfg.Envoy.MessageTimeout / 2},
		Version:     version, Instance: name, Began: r.gate.began, Reloaded: reloads.lastSuccess, Reload: reloads.reload,
		Router: r.router, Gatherer: r.metrics,
		Hosts: r.media.Hosts, Probe: r.probe, Audit: r.audit, Report: (&reports{own: r.report, peers: r.peers}).of,
		Own:   func(of report.Range) report.Report { return r.report.Of(of) },
		Order: r.order, Undecided: func(since time.Time) int {
			return len(slices.DeleteFunc(reloads.envoy.Strays(), func(s extproc.Stray) bool { return s.Addr == "" || s.At.Before(since) }))
		},
		NoRoom: r.noRoom, Others: r.peers.hooks().otherReplicas, Problems: watch.List,
		Ready: func() (string, error) { return r.gate.look(time.Now()) }, Blocks: r.sources.set.Blocks, Workers: r.workers,
		Resync: func(worker string) int {
			return r.sources.set.Resync(func(f *fleet.Slot) bool { return f.Worker.Name == worker }, "asked")
		},
	})
	go serveHTTP(web, lis, "admin", r.log, r.done)
	return web, nil
}

// newWeb returns an HTTP server that gives up on clients who send nothing. Its handlers bound reading and writing further.
func newWeb() *http.Server {
	return &http.Server{ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
}

// maxWebConnections bounds the connections to an HTTP server, or an eighth of the files that the process may open, if that is less.
const maxWebConnections = 512

// boundWeb bounds the connections to an HTTP server.
func boundWeb(lis net.Listener, noRoom func(what string), what string) net.Listener {
	return sockets.Limit(lis, sockets.Share(8, maxWebConnections), func() { noRoom(what) })
}

// serveHTTP serves until web is closed. A failure is sent to done, with its key. Client errors, such as failed handshakes, are
// logged at debug level, since strangers could fill the log otherwise.
func serveHTTP(web *http.Server, lis net.Listener, key string, log *zap.Logger, done chan<- error) {
	web.ErrorLog, _ = zap.NewStdLogAt(log, zap.DebugLevel)
	if err := web.Serve(lis); !errors.Is(err, http.ErrServerClosed) {
		done <- fmt.Errorf("%s: %w", key, err)
	}
}

// endpoints returns the workers for Envoy's fallback clusters: without those that are draining, unless a model has no other.
func endpoints(now []*fleet.Worker) []extproc.Endpoint {
	var out []extproc.Endpoint
	stays := make(map[string]bool)
	for _, w := range now {
		stays[w.Model] = stays[w.Model] || !w.IsDraining()
	}
	for _, w := range now {
		if !w.IsDraining() || !stays[w.Model] {
			out = append(out, extproc.Endpoint{Addr: w.Addr, Model: w.Model})
		}
	}
	return out
}
