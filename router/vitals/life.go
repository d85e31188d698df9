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

// life is what is known of the process behind a worker's address. A new one shows in its time of birth, which must be later than any
// that was told: two processes behind one address, whose answers alternate, are taken for one. Where none is told, it shows in the
// address: nobody listened there, and now somebody does.
type life struct {
	mu    sync.Mutex
	began float64   // the latest that was told, Unix seconds; 0: none
	seen  time.Time // when the process was last known to be the same
	away  bool      // nobody listened since
}

// told takes a time of birth, and gives since when the process may be another; zero: it is the same, for all that is known.
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

// answered takes down whether anybody listens, and gives the same.
func (l *life) answered(refused bool, asked time.Time) (was time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.began > 0: // its birth tells more
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

// reborn passes on that a worker may be another since a time; not if that is zero.
func (n *Nurse) reborn(w *fleet.Worker, was time.Time) {
	if !was.IsZero() && n.o.Reborn != nil {
		n.o.Reborn(w, was)
	}
}

// Birth asks for when the process began that serves a metrics page, each time that it is called: Unix seconds as text; "" where that
// cannot be had or is not told, as with Prometheus' multiprocess mode (SGLang, and vLLM with several API servers).
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
