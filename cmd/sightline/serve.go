package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
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

type serveCmd struct {
	Config      string `short:"c" type:"existingfile" required:"" help:"Configuration file (YAML)."`
	PrintConfig bool   `help:"Print the effective configuration and exit."`
	Check       bool   `help:"Load everything, say what is wrong, and exit."`
}

func (c *serveCmd) Run(ctx context.Context) error {
	cfg, err := config.Load(c.Config)
	if err != nil {
		return err
	}
	if c.PrintConfig {
		text, err := cfg.YAML()
		if err == nil {
			_, err = os.Stdout.Write(text)
		}
		return err
	}
	if err := cfg.CheckServe(); err != nil {
		return fmt.Errorf("%s: %w", c.Config, err)
	}
	log, err := newLog(cfg.LogLevel)
	if err != nil {
		return err
	}
	defer log.Sync()
	if _, _, err := (&sources{cfg: cfg, log: log}).finders(); err != nil {
		return err
	}
	media, err := newMedia(cfg.Media)
	if err != nil {
		return err
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
		return err
	}
	if c.Check {
		fmt.Printf("%s: %d models, %d workers: good\n", c.Config, len(models), len(cfg.Workers))
		return nil
	}
	return serve(ctx, cfg, models, media, panics, log)
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

// serve runs the router until ctx ends.
func serve(ctx context.Context, cfg config.Config, models []router.Model, media *engine.Media, panics prometheus.Collector, log *zap.Logger) error {
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
			sources.set.Resync(func(s *fleet.Slot) bool { return s == slot }, "fewer_cached")
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
	reg.MustRegister(stateMetrics{ix, media}, panics)
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
				return sources.set.Resync(func(s *fleet.Slot) bool { return s.Worker.Name == worker }, "asked")
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

// parsePrefixes reads networks that config has checked.
func parsePrefixes(list []string) (out []netip.Prefix) {
	for _, s := range list {
		if p, err := netip.ParsePrefix(s); err == nil {
			out = append(out, p)
		}
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
