package health

import (
	"context"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/workers/fleet"
)

// processState is what is known about the process behind a worker's address. A new process shows by its start time, which must be later
// than any reported before: two processes behind one address, whose answers alternate, count as one. If no start time is
// reported, it shows by the address: nothing listened there for a while, and now something does.
type processState struct {
	mu          sync.Mutex
	startTime   float64   // the latest reported start time, Unix seconds; 0: none
	lastSame    time.Time // when the process was last known to be the same
	unreachable bool      // nothing has listened since
}

// startReported applies a reported start time, and returns since when the process may be another; zero: it is the same, as far as known.
func (l *processState) startReported(began float64, asked time.Time) (was time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case began == 0:
		return was
	case began > l.startTime:
		if l.startTime > 0 {
			was = l.lastSame
		}
		l.startTime, l.lastSame = began, asked
	case began == l.startTime:
		l.lastSame = asked
	}
	return was
}

// answered applies whether anybody listens at the address, and returns the same as startReported.
func (l *processState) answered(refused bool, asked time.Time) (was time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.startTime > 0: // the start time is more reliable
		return was
	case refused:
		l.unreachable = !l.lastSame.IsZero()
		return was
	case l.unreachable:
		was = l.lastSame
	}
	l.unreachable, l.lastSame = false, asked
	return was
}

// processRestarted passes on that a worker's process may be another since a time, unless that is zero.
func (n *Poller) processRestarted(w *fleet.Worker, was time.Time) {
	if was.IsZero() {
		return
	}
	w.ForgetOrder() // it may have other flags now
	if n.o.ProcessRestarted != nil {
		n.o.ProcessRestarted(w, was)
	}
}

// ProcessStart returns a function that asks when the process serving a metrics page started: Unix seconds as text; "" if that cannot be
// read or is not reported, as with Prometheus' multiprocess mode (SGLang, and vLLM with several API servers).
func ProcessStart(url string) func(context.Context) string {
	client, wanted := rules.NewClient(loadTime, nil), rules.Load{StartTime: "process_start_time_seconds"}
	return func(ctx context.Context) string {
		var t loadPage
		_, err := get(ctx, client, url, func(page io.Reader) (err error) {
			t, err = parsePage(&wanted, page)
			return err
		})
		if err != nil || t.startTime == 0 {
			return ""
		}
		return strconv.FormatFloat(t.startTime, 'f', -1, 64)
	}
}
