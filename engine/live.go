package engine

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
)

// LiveModel is a model that follows its directory: when files change, a new model is loaded beside the old one and replaces it
// atomically; during the load both are in memory. Names learned from events survive. Safe for concurrent use.
type LiveModel struct {
	name, dir string
	server    Server
	media     *Media
	now       atomic.Pointer[Model]
	loaded    dirState     // what the current model was loaded from; after LoadLive only Watch uses it
	variants  []*LiveModel // loaded together with this one
	isVariant bool         // it is a variant of another LiveModel, which watches
}

// NewUnloaded returns a LiveModel that loads nothing, for prompts that arrive already rendered (router.DecidePrompt).
func NewUnloaded(s Server) *LiveModel { return &LiveModel{server: s} }

// LoadLive is Load for a model that will be watched.
func LoadLive(name, dir string, s Server, media *Media) (*LiveModel, error) {
	l := &LiveModel{name: name, dir: dir, server: s, media: media, loaded: inspect(dir, s)}
	m, err := load(name, &l.loaded, s, media, newFirstSeen(), nil)
	if err != nil {
		return nil, err
	}
	l.now.Store(m)
	return l, nil
}

// LoadVariant loads the same directory as a server with other settings reads it: another release, other flags. Both share the
// tokenizer and its cache, and a changed directory replaces both together or neither, so the variant needs no Watch. If the
// settings name other files, LoadVariant is a LoadLive. Call it before Watch.
func (l *LiveModel) LoadVariant(s Server) (*LiveModel, error) {
	if s.ChatTemplate != l.server.ChatTemplate || s.Revision != l.server.Revision || s.EngineModel != l.server.EngineModel {
		return LoadLive(l.name, l.dir, s, l.media)
	}
	b := &LiveModel{name: l.name, dir: l.dir, server: s, media: l.media, isVariant: true}
	m, err := load(l.name, &l.loaded, s, l.media, l.Model().first, l.Model().prompt)
	if err != nil {
		return nil, err
	}
	b.now.Store(m)
	l.variants = append(l.variants, b)
	return b, nil
}

// read loads the directory for the model and its variants.
func (l *LiveModel) read(st *dirState) (all []*Model, err error) {
	m, err := load(l.name, st, l.server, l.media, l.Model().first, nil)
	if err != nil {
		return nil, err
	}
	if fault := m.prompt.Fault(); fault != nil && l.Model().prompt.Fault() == nil {
		return nil, fmt.Errorf("model %s: %w", l.name, fault) // half a download: the files that loaded are better
	}
	all = append(all, m)
	for _, b := range l.variants {
		one, err := load(b.name, st, b.server, b.media, m.first, m.prompt)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// Model returns the current model. Call it once per request, since it may change in between.
func (l *LiveModel) Model() *Model { return l.now.Load() }

// Server returns the settings of the model's engine servers. They do not change on a reload.
func (l *LiveModel) Server() *Server { return &l.server }

// SawPad passes on a pad value from an event of one of this model's workers (see rules.Keys).
func (l *LiveModel) SawPad(worker string, pad uint64) {
	if saw := l.Model().keys.SawPad; saw != nil {
		saw(worker, pad)
	}
}

// retryAfter is the number of looks before a directory that failed to load and has not changed is tried again.
const retryAfter = 12

// Watch looks at the directory at each tick of every until ctx ends. It reloads the directory when it has changed and then stayed
// the same for one tick, so that a download is not read half. It calls report for each new model and for each failed load; after a
// failure the old model stays, and the same error is reported once. A look lists names, sizes and times and reads no file. Call it
// once. For a variant (LoadVariant) it returns at once.
func (l *LiveModel) Watch(ctx context.Context, every time.Duration, report func(*Model, error)) {
	if l.isVariant {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	l.watch(ctx, tick.C, report)
}

func (l *LiveModel) watch(ctx context.Context, tick <-chan time.Time, report func(*Model, error)) {
	var (
		last   = l.loaded // the previous look
		failed *dirState  // the state that did not load
		told   string     // the last error reported
		rest   int        // looks left before the next retry
	)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick:
		}
		st := inspect(l.dir, l.server)
		still := st.equal(&last)
		last = st
		if st.equal(&l.loaded) {
			failed, told = nil, ""
			continue
		}
		if !still {
			continue
		}
		if failed != nil && failed.equal(&st) {
			rest--
			if rest > 0 {
				continue
			}
		}
		all, err := l.read(&st)
		if again := inspect(l.dir, l.server); !again.equal(&st) { // it changed while it was read
			last = again
			continue
		}
		if err != nil {
			failed, rest = &st, retryAfter
			if err.Error() != told {
				told = err.Error()
				report(nil, err)
			}
			continue
		}
		failed, told, l.loaded = nil, "", st
		l.now.Store(all[0])
		for i, b := range l.variants {
			b.now.Store(all[i+1])
		}
		report(all[0], nil)
	}
}
