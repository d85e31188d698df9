package serve

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/prompt"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/forecast"
	"github.com/sightline-router/sightline/workers/fleet"
	"github.com/sightline-router/sightline/workers/probe"
)

// lookEvery is the interval of checking model directories for changes.
const lookEvery = 3 * time.Second

// loadModels reads the model directories, reusing models that now (nil: none) has already read with the same settings. What keeps a
// model from being exact, files that do not load or are not there included, is logged. An error is about a flag.
func loadModels(cfg config.Config, now *state, media *engine.Media, log *zap.Logger) ([]router.Model, error) {
	var out []router.Model
	for i, mc := range cfg.Models {
		if m, read := now.model(mc); read {
			out = append(out, m)
			continue
		}
		start := time.Now()
		live, err := engine.LoadLive(mc.Name, mc.Dir, mc.Server, media)
		if err != nil {
			return nil, atKey(fmt.Sprintf("models[%d]", i), err)
		}
		logModel(log, live.Model())
		log.Debug("model directory read", zap.String("model", mc.Name), zap.Duration("took", time.Since(start)))
		m := router.Model{Name: mc.Name, Aliases: mc.Aliases, Adapters: mc.Adapters, MaxLoRAs: mc.Rules().Adapters, FetchKV: mc.FetchKV,
			NoOrder: mc.EngineOrder == "off",
			Unit:    mc.OffloadUnit, Prompts: live}
		if err := loadClasses(&m, mc, media); err != nil {
			return nil, fmt.Errorf("models[%d].%w", i, err)
		}
		out = append(out, m)
	}
	return out, nil
}

// loadClasses adds the model's classes. Classes that differ only in block size share a Live, those of one directory the
// tokenizer.
func loadClasses(m *router.Model, mc config.Model, media *engine.Media) error {
	type loaded struct {
		dir string
		engine.Server
		live *engine.LiveModel
	}
	have := []loaded{{mc.Dir, mc.Server, m.Prompts}}
	for i, c := range mc.Classes {
		var live *engine.LiveModel
		var err error
		for _, h := range have {
			h.Server.BlockSize = c.BlockSize
			if h.dir == c.Dir && reflect.DeepEqual(h.Server, c.Server) {
				live = h.live
			}
		}
		if live == nil {
			if c.Dir == mc.Dir {
				live, err = m.Prompts.LoadVariant(c.Server)
			} else {
				live, err = engine.LoadLive(mc.Name, c.Dir, c.Server, media)
			}
			if err != nil {
				return atKey(fmt.Sprintf("classes[%d]", i), err)
			}
			have = append(have, loaded{c.Dir, c.Server, live})
		}
		m.Classes = append(m.Classes, router.Class{Name: c.Name, Prompts: live, BlockSize: c.BlockSize, Unit: c.OffloadUnit})
	}
	return nil
}

// atKey adds to an error of loading the key that it is about: one of the engine's flags, or the directory.
func atKey(path string, err error) error {
	var one *prompt.KeyError
	if errors.As(err, &one) {
		return fmt.Errorf("%s.%s: %w", path, one.Key, one.Err)
	}
	return fmt.Errorf("%s.dir: %w", path, err)
}

// model returns the loaded model of mc if no setting has changed that affects reading its directory.
func (s *state) model(mc config.Model) (m router.Model, found bool) {
	if s == nil {
		return m, false
	}
	named := func(c config.Model) config.Model {
		c.Aliases, c.Adapters, c.FetchKV, c.EngineOrder = mc.Aliases, mc.Adapters, mc.FetchKV, mc.EngineOrder
		return c
	}
	at := slices.IndexFunc(s.cfg.Models, func(c config.Model) bool { return reflect.DeepEqual(named(c), mc) })
	if at < 0 {
		return m, false
	}
	m = s.models[at]
	m.Aliases, m.Adapters, m.FetchKV, m.NoOrder = mc.Aliases, mc.Adapters, mc.FetchKV, mc.EngineOrder == "off"
	return m, true
}

// liveModelsOf returns a model's distinct readings.
func liveModelsOf(m router.Model) []*engine.LiveModel {
	out := []*engine.LiveModel{m.Prompts}
	for _, c := range m.Classes {
		if !slices.Contains(out, c.Prompts) {
			out = append(out, c.Prompts)
		}
	}
	return out
}

// Readings says of each class of workers how their requests are read: by rule or learned, and why.
func (s *Server) Readings() (list []string) {
	for _, m := range s.now.Load().models {
		list = append(list, m.Name+": "+m.Prompts.Model().ReadBy())
		for _, c := range m.Classes {
			list = append(list, m.Name+", class "+c.Name+": "+c.Prompts.Model().ReadBy())
		}
	}
	return list
}

// Faults returns which of the models' files do not load, each with its key, joined; nil if all of them do. They stop no Server.
func (s *Server) Faults() error {
	var all []error
	for i, m := range s.now.Load().models {
		all = append(all, faultsOf(&m, fmt.Sprintf("models[%d]", i)))
	}
	return errors.Join(all...)
}

// faultsOf returns which of a model's files do not load; path is its key.
func faultsOf(m *router.Model, path string) error {
	var all []error
	seen := []*engine.LiveModel{}
	add := func(path string, live *engine.LiveModel) {
		if fault := live.Model().Fault(); fault != nil && !slices.Contains(seen, live) {
			all = append(all, atKey(path, fault))
		}
		seen = append(seen, live)
	}
	add(path, m.Prompts)
	for i, c := range m.Classes {
		add(fmt.Sprintf("%s.classes[%d]", path, i), c.Prompts)
	}
	return errors.Join(all...)
}

// newFault returns which files do not load of a model that was read by others: those are better.
func newFault(models, before []router.Model) error {
	for i, m := range models {
		at := slices.IndexFunc(before, func(b router.Model) bool { return b.Name == m.Name })
		fault := faultsOf(&m, fmt.Sprintf("models[%d]", i))
		if at >= 0 && fault != nil && faultsOf(&before[at], "") == nil {
			return fault
		}
	}
	return nil
}

func logModel(log *zap.Logger, m *engine.Model) {
	for _, w := range m.Warnings() {
		log.Warn("some requests of this model cannot be predicted exactly", zap.String("model", m.Name), zap.String("why", w))
	}
	log.Info("model loaded", zap.String("model", m.Name), zap.String("family", m.Family()))
}

// modelWatch reads model directories again when their files change. changed is called with the model's name after each new one.
type modelWatch struct {
	log     *zap.Logger
	changed func(model string)
	reloads *prometheus.CounterVec
	watched map[*engine.LiveModel]context.CancelFunc
}

func newModelWatch(reg prometheus.Registerer, log *zap.Logger, changed func(model string)) *modelWatch {
	return &modelWatch{log: log, changed: changed, watched: map[*engine.LiveModel]context.CancelFunc{},
		reloads: meter.At(reg).Counters("model_reloads_total",
			"Model directories that changed while running.", "model", "verdict")}
}

// modelRead has the workers of a model that was read anew compared again.
func (r *running) modelRead(model string) {
	r.audit.Mended(model, "")
	r.probe.Again()
}

// set watches exactly these models, until ctx ends.
func (w *modelWatch) set(ctx context.Context, models []router.Model) {
	old := w.watched
	w.watched = map[*engine.LiveModel]context.CancelFunc{}
	for _, m := range models {
		for _, live := range liveModelsOf(m) {
			w.watched[live] = old[live]
			if old[live] == nil {
				var one context.Context
				one, w.watched[live] = context.WithCancel(ctx)
				go live.Watch(one, lookEvery, w.report(m.Name))
			}
			delete(old, live)
		}
	}
	for _, stop := range old {
		stop()
	}
}

func (w *modelWatch) report(model string) func(*engine.Model, error) {
	loaded, failed := w.reloads.WithLabelValues(model, "loaded"), w.reloads.WithLabelValues(model, "failed")
	return func(now *engine.Model, err error) {
		if err != nil {
			failed.Inc()
			w.log.Error("a changed model directory does not load; the old model stays", zap.String("model", model), zap.Error(err))
			return
		}
		loaded.Inc()
		logModel(w.log, now)
		w.changed(model)
	}
}

// workers returns the workers for the admin page.
func (r *running) workers() []findings.Worker {
	rows, models := r.sources.rows(r.index), r.now.Load().models
	removals := make(map[string]forecast.Removal)
	for w, one := range r.router.Removals() {
		removals[w.Name] = one
	}
	releases := make(map[string]string)
	for _, one := range r.probe.Results() {
		releases[one.Worker] = one.Release
	}
	for i := range rows {
		w := &rows[i]
		w.Release = releases[w.Name]
		if one, known := removals[w.Name]; known {
			w.Removal = &one
		}
		w.RulesAside = r.audit.AsideFor(w.Model, w.Class, w.Name)
		for _, m := range models {
			if m.Name == w.Model && w.UpperBound == "" && m.Class(w.Class).Prompts.Model().UpperBound() {
				w.UpperBound = engine.WhyUpperBound
			}
		}
	}
	return rows
}

// probed returns the workers for the prober.
func probed(models []router.Model, workers []*fleet.Worker) (list []probe.Worker) {
	for _, w := range workers {
		if p, ok := probeOf(models, w.Name, w.Addr, w.Model, w.Class); ok && w.Instance == "" { // a front end's answers are not the worker's
			p.Ranks = len(w.Slots)
			list = append(list, p)
		}
	}
	return list
}

func probeOf(models []router.Model, name, addr, model, class string) (probe.Worker, bool) {
	for _, m := range models {
		if m.Name == model {
			c := m.Class(class)
			return probe.Worker{Name: name, Addr: addr, Model: m.Name, Names: append([]string{m.Name}, m.Aliases...),
				Ours: c.Prompts, Adapters: m.Adapters}, true
		}
	}
	return probe.Worker{}, false
}

// ProbeOf returns a worker for package probe; false: there is no such model.
func (s *Server) ProbeOf(name, addr, model, class string) (probe.Worker, bool) {
	return probeOf(s.now.Load().models, name, addr, model, class)
}

// modelNames returns the answer to GET /v1/models: nothing for a single model, whose workers know all its names.
func modelNames(cfg config.Config) (names []string) {
	if len(cfg.Models) < 2 {
		return nil
	}
	for _, m := range cfg.Models {
		names = append(append(append(names, m.Name), m.Aliases...), m.Adapters...)
	}
	return names
}
