package findings

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/retry"
)

// Watch looks at the facts of a running Sightline again and again. It keeps since when each finding is there, logs those that begin and
// end, and counts them for alerts.
type Watch struct {
	facts func(now time.Time) Facts
	log   *zap.Logger

	mu    sync.Mutex
	since map[string]time.Time // by key
	said  map[string]time.Time // by key: the time of the last line that says that it is there
	there map[string]causes    // by key: of a finding that was logged and has not ended
}

// causes are the workers that the last log line of a finding named, and whether a line has told what each shows.
type causes map[string]bool

const (
	lookPeriod = 2 * time.Second
	logAgain   = time.Minute // from a line that says that a finding is there to the next one, and to the one that says that it is over
)

// NewWatch returns a Watch; facts is called by several goroutines.
func NewWatch(facts func(now time.Time) Facts, log *zap.Logger, of meter.Metrics) *Watch {
	w := &Watch{facts: facts, log: log, since: map[string]time.Time{}, said: map[string]time.Time{}, there: map[string]causes{}}
	desc := meter.Desc("findings", "Findings of docs/doctor.md, as /problems lists them.", "code", "severity")
	of.ReadAll(func(ch chan<- prometheus.Metric) {
		count := map[[2]string]float64{}
		for _, f := range w.List(time.Now()) {
			count[[2]string{f.Code, f.Severity}]++
		}
		for of, n := range count {
			meter.Gauge(ch, desc, n, of[0], of[1])
		}
	}, desc)
	return w
}

// Run looks until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	for range retry.Every(ctx, lookPeriod) {
		w.List(time.Now())
	}
}

// List returns the findings that have been there for long enough, worst first, with the time when each was first seen.
func (w *Watch) List(now time.Time) []Finding {
	facts := w.facts(now)
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.lasting(now, facts.All())
	w.write(now, out)
	return out
}

// Key tells it from all others, as long as it lasts.
func (f *Finding) Key() string { return f.Code + " " + f.kind }

// lasting drops the findings that are too new, and dates the others.
func (w *Watch) lasting(now time.Time, list []Finding) []Finding {
	there := make(map[string]bool, len(list))
	out := list[:0]
	for _, f := range list {
		key := f.Key()
		there[key] = true
		if first, ok := w.since[key]; !ok {
			w.since[key] = f.Since
		} else if first.Before(f.Since) {
			f.Since = first
		}
		if now.Sub(f.Since) >= f.after {
			out = append(out, f)
		}
	}
	for key := range w.since {
		if !there[key] {
			delete(w.since, key)
		}
	}
	return out
}

// write logs the errors and warnings that have begun, have spread to further workers, or whose cause has become known since the last line,
// and those that have ended, a minute after their line at the earliest: the last line about one that comes and goes does not say that it
// is over.
func (w *Watch) write(now time.Time, list []Finding) {
	there := make(map[string]bool, len(list))
	for i := range list {
		f, key := &list[i], list[i].Key()
		if f.Severity == "note" {
			continue
		}
		there[key] = true
		before, logged := w.there[key]
		more, explained, all, told := !logged, false, true, make(causes, len(f.Workers))
		for k, worker := range f.Workers {
			had, named := before[worker]
			told[worker] = had || f.details[k] != ""
			more = more || !named
			explained = explained || named && !had && told[worker]
			all = all && told[worker]
		}
		last, said := w.said[key]
		if quiet := !said || now.Sub(last) >= logAgain; (more || explained) && quiet || explained && all {
			write := w.log.Warn
			if f.Severity == "error" {
				write = w.log.Error
			}
			of := zap.Skip()
			if len(f.Workers) > 0 {
				of = zap.Strings("workers", f.Workers)
			}
			write(f.Code+": "+f.What, zap.String("fix", f.Fix), zap.Time("since", f.Since), of)
			w.said[key], w.there[key] = now, told
		}
	}
	for key, last := range w.said {
		_, logged := w.there[key]
		switch {
		case there[key] || now.Sub(last) < logAgain: // it may come again
		case logged:
			w.log.Info(key[:len("SL0000")]+": no more", zap.String("what", key[len("SL0000 "):]))
			delete(w.there, key)
		default:
			delete(w.said, key)
		}
	}
}
