package serve

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/internal/sockets"
	"github.com/sightline-router/sightline/router"
)

// state is what is served: one configuration and the models that were loaded for it. It is immutable; a reload replaces it.
type state struct {
	cfg    config.Config
	models []router.Model
}

// reloader applies a changed configuration while requests go on: on SIGHUP, on POST /reload, when its files have changed and are no
// longer being written, and when workers that are asked serve other models. An invalid configuration changes nothing.
type reloader struct {
	*running
	ctx    context.Context
	envoy  *extproc.Server
	watch  *modelWatch
	hangup chan os.Signal // SIGHUP; nil: there is no file to read again
	ended  chan struct{}  // closed when run has returned

	mu       sync.Mutex        // held during a reload
	base     config.Config     // what is served, without the models of workers that are asked
	reported []config.Model    // the models of workers that are asked
	files    []string          // the configuration file, and those that its values refer to
	seen     [sha256.Size]byte // sum of files when they were last read

	toldMu   sync.Mutex
	problem  string
	restart  []string // keys whose new value needs one
	applied  time.Time
	success  prometheus.Gauge
	reloads  *prometheus.CounterVec
	restarts *prometheus.GaugeVec
}

// filesEvery is the interval of checking the configuration's files.
const filesEvery = 2 * time.Second

// newReloader starts with the configuration that is served.
func newReloader(ctx context.Context, r *running, envoy *extproc.Server) *reloader {
	of := meter.At(r.metrics)
	x := &reloader{running: r, ctx: ctx, envoy: envoy, ended: make(chan struct{}), watch: newModelWatch(r.metrics, r.log, r.modelRead),
		success:  of.Gauge("config_reload_success", "1 unless the last reload of the configuration failed."),
		reloads:  of.Counters("config_reloads_total", "Reloads of the configuration.", "result"),
		restarts: of.Gauges("config_needs_restart", "1 for each key whose new value needs a restart.", "key")}
	x.success.Set(1)
	x.applied = time.Now()
	for _, result := range []string{"success", "failure"} {
		x.reloads.WithLabelValues(result)
	}
	x.watch.set(ctx, r.now.Load().models)
	x.files, x.seen, x.base = r.cfg.Files(), r.read, r.cfg
	if x.cfg.File != "" { // before the start is reported: an unhandled SIGHUP ends the process
		x.hangup = make(chan os.Signal, 1)
		signal.Notify(x.hangup, syscall.SIGHUP)
	}
	go func() {
		defer close(x.ended)
		x.run()
	}()
	return x
}

// run reloads on a signal, when files have changed, or when workers that are asked serve other models, until its context ends.
func (x *reloader) run() {
	if x.hangup != nil {
		defer signal.Stop(x.hangup)
	}
	x.mu.Lock()
	last := x.seen
	x.mu.Unlock()
	for {
		var look <-chan time.Time
		if x.hangup != nil {
			look = time.After(retry.UntilBeat(time.Now(), filesEvery, 0))
		}
		select {
		case <-x.ctx.Done():
			return
		case found := <-x.sources.models:
			found.done <- x.serveAsked(found.models)
			continue
		case <-x.hangup:
			_, _ = x.reload()
			continue
		case <-look:
		}
		x.mu.Lock()
		now := sumOf(x.files)
		changed := now != x.seen
		x.mu.Unlock()
		if changed && now == last { // unchanged since the last check: it is not being written
			_, _ = x.reload()
		}
		last = now
	}
}

// sumOf returns a checksum of files, following symbolic links.
func sumOf(files []string) (sum [sha256.Size]byte) {
	h := sha256.New()
	for _, name := range files {
		info, err := os.Stat(name)
		if err != nil || !info.Mode().IsRegular() { // reading a pipe would empty it
			fmt.Fprintln(h, name, err)
			continue
		}
		f, err := os.Open(name)
		if err == nil {
			_, err = io.Copy(h, f)
			f.Close()
		}
		fmt.Fprintln(h, name, err)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// reload reads the configuration and applies it; said is what an operator should know. With an error nothing has changed.
func (x *reloader) reload() (said string, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.cfg.File == "":
		return "", errors.New("the configuration came from no file (workers given by --worker are asked again without this)")
	case x.ctx.Err() != nil:
		return "", x.ctx.Err()
	}
	x.seen = sumOf(x.files)
	next, err := config.Load(x.cfg.File)
	if files := next.Files(); next.File != "" && !slices.Equal(files, x.files) {
		x.files, x.seen = files, sumOf(files)
	}
	var restart []string
	if err == nil {
		restart, err = x.take(next)
	}
	if sockets.Exhausted(err) {
		x.seen = [sha256.Size]byte{} // run tries again soon
		err = fmt.Errorf("%w (it is tried again: %s)", err, sockets.RaiseLimit)
	}
	x.reportResult(restart, err)
	if err != nil {
		return "", err
	}
	if len(restart) > 0 {
		said = "needs a restart: " + strings.Join(restart, ", ")
	}
	return said, nil
}

// serveAsked serves the models of workers that are asked beside those of the file.
func (x *reloader) serveAsked(models []config.Model) servedModels {
	x.mu.Lock()
	defer x.mu.Unlock()
	before := x.reported
	x.reported = models
	if _, err := x.take(x.base); err != nil {
		x.reported = before
		return servedModels{err: err}
	}
	_, renamed := withReported(x.base.Models, models)
	if names := modelsNames(models); !slices.Equal(names, modelsNames(before)) {
		x.log.Info("the workers serve", zap.Strings("models", names))
	}
	return servedModels{renamed: renamed}
}

func modelsNames(models []config.Model) (names []string) {
	for _, m := range models {
		names = append(names, m.Name)
	}
	return names
}

// withReported adds the models that workers report to those of the file, which count where both have a name: renamed says as what such a
// model is served.
func withReported(file, reported []config.Model) (all []config.Model, renamed map[string]string) {
	all, renamed = slices.Clone(file), map[string]string{}
	for _, m := range reported {
		at := slices.IndexFunc(file, func(f config.Model) bool { return sharesName(&f, &m) })
		if at < 0 {
			all = append(all, m)
			continue
		}
		renamed[m.Name] = file[at].Name
	}
	return all, renamed
}

// take applies a configuration, except for the keys that it returns, which need a restart.
func (x *reloader) take(next config.Config) (restart []string, err error) {
	live, restart, err := x.cfg.Follow(next)
	if err != nil {
		return nil, err
	}
	if err := live.CheckServe(); err != nil {
		return nil, err
	}
	live.Models, _ = withReported(live.Models, x.reported)
	level, err := zapcore.ParseLevel(live.LogLevel)
	if err != nil {
		return nil, err
	}
	finders, err := x.wantedFinders(&live)
	if err != nil {
		return nil, live.Hide(err)
	}
	models, err := loadModels(live, x.now.Load(), x.media, x.log)
	if err == nil {
		err = newFault(models, x.now.Load().models)
	}
	if err != nil {
		return nil, live.Hide(err)
	}
	if err := x.media.Change(fetching(live.Media)); err != nil {
		return nil, live.Hide(err)
	}
	x.level.SetLevel(level)
	before := x.now.Load().models
	x.now.Store(&state{live, models})
	x.router.Serve(models, live.MaxInFlight, live.Fixed.PredictedTTL) // before there are workers of new models
	unsteered, mode := live.Unsteered()
	x.router.SetUnsteered(unsteered)
	x.report.SetMode(mode)
	x.envoy.SetModels(modelNames(live))
	x.watch.set(x.ctx, models)
	x.sources.follow(finders)
	x.probe.Set(probed(models, x.fleet.Workers()))
	for _, m := range models {
		if !slices.ContainsFunc(before, func(b router.Model) bool { return slices.Equal(liveModelsOf(b), liveModelsOf(m)) }) {
			x.audit.Mended(m.Name, "")
		}
	}
	x.base = next
	return restart, nil
}

// reportResult reports the result of a reload in log and metrics, and keeps it for the page.
func (x *reloader) reportResult(restart []string, err error) {
	x.toldMu.Lock()
	defer x.toldMu.Unlock()
	if err != nil {
		what := "the configuration is invalid; keeping the old one"
		if sockets.Exhausted(err) {
			what = "the configuration cannot be read; keeping the old one"
		}
		x.problem = what + ": " + err.Error()
		x.success.Set(0)
		x.reloads.WithLabelValues("failure").Inc()
		x.log.Error(what, zap.Error(err))
		return
	}
	x.problem, x.restart = "", restart
	x.success.Set(1)
	x.applied = time.Now()
	x.reloads.WithLabelValues("success").Inc()
	x.restarts.Reset()
	for _, key := range restart {
		x.restarts.WithLabelValues(key).Set(1)
	}
	now := x.now.Load()
	_, mode := now.cfg.Unsteered()
	x.log.Info("configuration applied", zap.String("enforce", mode), zap.Int("models", len(now.models)),
		zap.Int("workers", len(now.cfg.Workers)), zap.Strings("needs_restart", restart))
}

// lastSuccess returns when the configuration was last taken up.
func (x *reloader) lastSuccess() time.Time {
	x.toldMu.Lock()
	defer x.toldMu.Unlock()
	return x.applied
}

// status returns what is wrong with the configuration as last read ("": nothing), or which keys need a restart.
func (x *reloader) status() (problem string, restart []string) {
	x.toldMu.Lock()
	defer x.toldMu.Unlock()
	return x.problem, x.restart
}
