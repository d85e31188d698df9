package vitals

import (
	"context"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/router/fleet"
)

// life is what is known about the process behind a worker's address. A new process shows by its start time, which must be later
// than any reported before: two processes behind one address, whose answers alternate, count as one. If no start time is
// reported, it shows by the address: nobody listened there for a while, and now somebody does.
type life struct {
	mu    sync.Mutex
	began float64   // the latest reported start time, Unix seconds; 0: none
	seen  time.Time // when the process was last known to be the same
	away  bool      // nobody has listened since
}

// told applies a reported start time, and returns since when the process may be another; zero: it is the same, as far as known.
func (l *life) told(began float64, asked time.Time) (was time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case began == 0:
		return was
	case began > l.began:
		if l.began > 0 {
			was = l.seen
		}
		l.began, l.seen = began, asked
	case began == l.began:
		l.seen = asked
	}
	return was
}

// answered applies whether anybody listens at the address, and returns the same as told.
func (l *life) answered(refused bool, asked time.Time) (was time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.began > 0: // the start time is more reliable
		return was
	case refused:
		l.away = !l.seen.IsZero()
		return was
	case l.away:
		was = l.seen
	}
	l.away, l.seen = false, asked
	return was
}

// reborn passes on that a worker's process may be another since a time, unless that is zero.
func (n *Nurse) reborn(w *fleet.Worker, was time.Time) {
	if !was.IsZero() && n.o.Reborn != nil {
		n.o.Reborn(w, was)
	}
}

// Birth returns a function that asks when the process serving a metrics page started: Unix seconds as text; "" if that cannot be
// read or is not reported, as with Prometheus' multiprocess mode (SGLang, and vLLM with several API servers).
func Birth(url string) func(context.Context) string {
	client, wanted := rules.NewClient(loadTime, nil), rules.Load{Began: "process_start_time_seconds"}
	return func(ctx context.Context) string {
		var t told
		_, err := get(ctx, client, url, func(page io.Reader) (err error) {
			t, err = read(&wanted, page)
			return err
		})
		if err != nil || t.began == 0 {
			return ""
		}
		return strconv.FormatFloat(t.began, 'f', -1, 64)
	}
}
