package mmhash

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
	loaded    state // what now was read from; Watch's alone after LoadLive
}

// LoadLive is Load for a model that will be watched.
func LoadLive(name, dir string, s Server, media *Media) (*Live, error) {
	l := &Live{name: name, dir: dir, server: s, media: media, loaded: inspect(dir, s)}
	m, err := load(name, &l.loaded, s, media, new(firstSeen))
	if err != nil {
		return nil, err
	}
	l.now.Store(m)
	return l, nil
}

// Model is the model as it was last read. One request should ask once.
func (l *Live) Model() *Model { return l.now.Load() }

// Server says how the model's engine servers were started: the same for every reading.
func (l *Live) Server() *Server { return &l.server }

// retryAfter is how many looks a directory that did not load is left alone, unless it changes.
const retryAfter = 12

// Watch looks at the directory at each tick of every until ctx ends, and reads it again when it has changed and stands
// still for one tick, so that a download is not read half. report is told of each new model, and of each directory that
// does not load: then the old model stays, and report hears of the same error once. A look is a list of names, sizes and
// times, no reading. Call it once.
func (l *Live) Watch(ctx context.Context, every time.Duration, report func(*Model, error)) {
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
		m, err := load(l.name, &st, l.server, l.media, l.Model().first)
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
		l.now.Store(m)
		report(m, nil)
	}
}
