// Package serve makes a running server of a configuration: Load reads it, Run starts, in this order, the index, the fleet, the
// sources of events, the router, the listeners and the admin page.
package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/internal/admin"
	"github.com/sightline-router/sightline/internal/config"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/router/fleet"
)

// Server is what a configuration asks for, read and not yet started.
type Server struct {
	cfg    config.Config
	log    *zap.Logger
	media  *engine.Media
	models []router.Model
	panics prometheus.Collector
}

// Load checks a configuration and reads all files that it names; an error says what is wrong.
func Load(cfg config.Config) (*Server, error) {
	if err := cfg.CheckServe(); err != nil {
		return nil, err
	}
	log, err := newLog(cfg.LogLevel)
	if err != nil {
		return nil, err
	}
	if _, _, err := (&sources{cfg: cfg, log: log}).finders(); err != nil {
		return nil, err
	}
	media, err := NewMedia(cfg.Media)
	if err != nil {
		return nil, err
	}
	media.Pinned = func(model, fingerprint string) { // to be configured, where somebody reads it
		log.Info("images of this model are named by its workers' rule from now on", zap.String("model", model), zap.String("processor_fingerprint", fingerprint))
	}
	panics := prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sightline", Name: "media_panics_total",
		Help: "Media, by where, that could not be read because of a fault of ours; the log says where it lies."}, []string{"where"})
	media.Panicked = func(where string, err error) {
		panics.WithLabelValues(where).Inc()
		log.Error("a panic in reading media; the request goes on without", zap.String("where", where), zap.Error(err))
	}
	models, err := loadModels(cfg, media, log)
	if err != nil {
		return nil, err
	}
	return &Server{cfg, log, media, models, panics}, nil
}

func newLog(level string) (*zap.Logger, error) {
	l, err := zapcore.ParseLevel(level)
	if err != nil {
		return nil, err
	}
	zc := zap.NewProductionConfig()
	zc.Level = zap.NewAtomicLevelAt(l)
	zc.EncoderConfig.EncodeTime = zapcore.RFC3339TimeEncoder
	zc.DisableStacktrace = true
	return zc.Build()
}

// Run serves until ctx ends; version is shown on the admin page.
func (s *Server) Run(ctx context.Context, version string) error {
	cfg, log, media, models := s.cfg, s.log, s.media, s.models
	defer log.Sync()
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	ix := indexer.New(indexer.Options{MaxBytes: int64(cfg.Index.MaxBytes)})
	go paceHeap(ctx, ix)
	fl := fleet.New(nil)
	var au *audit.Auditor
	if cfg.Audit {
		au = audit.New(audit.Options{Index: ix, Log: log, Metrics: reg, Text: cfg.AuditText})
		go au.Run(ctx)
	}
	prober := startProbe(ctx, cfg, reg, log)
	roster := extproc.NewRoster()
	var sources *sources
	var err error
	r := router.New(router.Options{Models: models, Fleet: fl, Index: ix, Audit: au, PredictedTTL: cfg.Index.PredictedTTL, MaxInFlight: cfg.MaxInFlight, Log: log, Metrics: reg,
		Resync: func(slot *fleet.Slot) {
			sources.set.Resync(func(f *fleet.Slot) bool { return f == slot }, "fewer_cached")
		}})
	go r.Run(ctx)
	sources, err = startSources(ctx, cfg, models, ix, fl, au, reg, log, func(now []*fleet.Worker) {
		prober.Set(probed(models, now))
		roster.Set(endpoints(now))
	}, func(worker string) {
		au.Forget(worker)
		r.Forget(worker)
	})
	if err != nil {
		return err
	}
	defer sources.close()
	reg.MustRegister(stateMetrics{ix, media}, s.panics)
	done := make(chan error, 3)
	relayed, err := startRelay(cfg.Media.Relay, media, done)
	if err != nil {
		return err
	}
	defer relayed.Close()
	watchModels(ctx, models, reg, log, prober.Again)
	secure, err := cfg.TLS.Server()
	if err != nil {
		return err
	}
	srv, err := extproc.New(r.Decide, r.Observe, extproc.Options{MaxBody: int(cfg.BodyLimit), BodyTimeout: cfg.BodyTimeout, EnvoyWaits: cfg.Envoy.MessageTimeout, Models: modelNames(cfg), TLS: secure, Roster: roster, Log: log, Metrics: reg,
		Route: extproc.Route{Mode: extproc.Mode(cfg.Route.Mode), Pool: cfg.Route.Pool, Header: cfg.Route.Header}})
	if err != nil {
		return err
	}
	lis, err := extproc.Listen(cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	serving, stop := context.WithCancel(ctx)
	defer stop()
	go func() { done <- srv.Serve(serving, lis) }()
	if cfg.Admin != "" {
		web := &http.Server{ReadHeaderTimeout: 5 * time.Second, Handler: admin.Handler(admin.State{
			Version: version, Router: r, Gatherer: reg, Hosts: media.Hosts, Workers: func() []admin.Worker { return sources.rows(ix) }, Probe: prober, Audit: au,
			Ready: sources.ready, Snapshot: sources.set.Snapshot,
			Resync: func(worker string) int {
				return sources.set.Resync(func(f *fleet.Slot) bool { return f.Worker.Name == worker }, "asked")
			},
		})}
		alis, err := net.Listen("tcp", cfg.Admin)
		if err != nil {
			return fmt.Errorf("admin: %w", err)
		}
		go func() {
			if err := web.Serve(alis); !errors.Is(err, http.ErrServerClosed) {
				done <- fmt.Errorf("admin: %w", err)
			}
		}()
		defer web.Close()
	}
	log.Info("serving", zap.String("listen", cfg.Listen), zap.String("admin", cfg.Admin), zap.Int("models", len(models)), zap.Int("workers", len(cfg.Workers)), zap.String("version", version))
	err = <-done // a failure, or the end of a graceful stop
	log.Info("stopped")
	return err
}

// endpoints are the workers as Envoy's fallback clusters are told of them.
func endpoints(now []*fleet.Worker) []extproc.Endpoint {
	var out []extproc.Endpoint
	for _, w := range now {
		out = append(out, extproc.Endpoint{Addr: w.Addr, Model: w.Model})
	}
	return out
}

// stateDir is where an embedded NATS server keeps its streams if no place is configured.
func stateDir(cfg config.Config) string {
	if cfg.NATS.Dir != "" {
		return cfg.NATS.Dir
	}
	return filepath.Join(os.TempDir(), fmt.Sprintf("sightline-nats-%d", os.Getuid()))
}
