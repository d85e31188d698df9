package engine

import (
	"context"
	"sync/atomic"
	"time"
)

// Live is a model that follows its directory: when files change, the model is read anew beside the old one and takes its
// place at once; for that moment both are in memory. What was learned of pictures survives. Safe for concurrent use.
type Live struct {
	name, dir string
	server    Server
	media     *Media
	now       atomic.Pointer[Model]
	loaded    state   // what now was read from; Watch's alone after LoadLive
	variants  []*Live // read with it
	isVariant bool    // it is one of another's
}

// Unread is a model of which nothing is read: for prompts that come read (router.Place).
func Unread(s Server) *Live { return &Live{server: s} }

// LoadLive is Load for a model that will be watched.
func LoadLive(name, dir string, s Server, media *Media) (*Live, error) {
	l := &Live{name: name, dir: dir, server: s, media: media, loaded: inspect(dir, s)}
	m, err := load(name, &l.loaded, s, media, newFirstSeen(), nil)
	if err != nil {
		return nil, err
	}
	l.now.Store(m)
	return l, nil
}

// LoadVariant loads the same directory as a server with other settings reads it: another release, other flags. Both share
// the tokenizer and what it has learned, and a changed directory replaces both at once or neither; so the new one needs no
// Watch. Where the settings name other files, it is a LoadLive. Call it before Watch.
func (l *Live) LoadVariant(s Server) (*Live, error) {
	if s.ChatTemplate != l.server.ChatTemplate || s.Revision != l.server.Revision || s.EngineModel != l.server.EngineModel {
		return LoadLive(l.name, l.dir, s, l.media)
	}
	b := &Live{name: l.name, dir: l.dir, server: s, media: l.media, isVariant: true}
	m, err := load(l.name, &l.loaded, s, l.media, l.Model().first, l.Model().prompt)
	if err != nil {
		return nil, err
	}
	b.now.Store(m)
	l.variants = append(l.variants, b)
	return b, nil
}

// read loads the directory for the model and for its variants.
func (l *Live) read(st *state) (all []*Model, err error) {
	m, err := load(l.name, st, l.server, l.media, l.Model().first, nil)
	if err != nil {
		return nil, err
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

// Model is the model as it was last read. One request should ask once.
func (l *Live) Model() *Model { return l.now.Load() }

// Server says how the model's engine servers were started: the same for every reading.
func (l *Live) Server() *Server { return &l.server }

// SawPad takes a pad from an event of one of this model's workers.
func (l *Live) SawPad(pad uint64) {
	if saw := l.Model().keys.SawPad; saw != nil {
		saw(pad)
	}
}

// retryAfter is how many looks a directory that did not load is left alone, unless it changes.
const retryAfter = 12

// Watch looks at the directory at each tick of every until ctx ends, and reads it again when it has changed and stands
// still for one tick, so that a download is not read half. report is told of each new model, and of each directory that
// does not load: then the old model stays, and report hears of the same error once. A look is a list of names, sizes and
// times, no reading. Call it once. For a model that follows another (LoadVariant) it returns at once.
func (l *Live) Watch(ctx context.Context, every time.Duration, report func(*Model, error)) {
	if l.isVariant {
		return
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	l.watch(ctx, tick.C, report)
}

func (l *Live) watch(ctx context.Context, tick <-chan time.Time, report func(*Model, error)) {
	var (
		last   = l.loaded // the look before
		failed *state     // what did not load
		told   string     // the error that was reported
		rest   int        // looks until it is tried again
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
			if rest--; rest > 0 {
				continue
			}
		}
		all, err := l.read(&st)
		if again := inspect(l.dir, l.server); !again.equal(&st) { // it changed under our hands
			last = again
			continue
		}
		if err != nil {
			if failed, rest = &st, retryAfter; err.Error() != told {
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
