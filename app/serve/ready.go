package serve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/retry"
)

// readyGate keeps Envoy from sending requests to a router that has just started and does not know yet what the workers hold: it would
// send prompts away from the workers that have them. It opens when every event stream of a ready worker that can be reached has
// been replayed, or 30 s have passed, and stays open. Requests that come earlier are decided by what is known.
type readyGate struct {
	sources *sources
	after   time.Duration // how long at most; 0: not at all
	began   time.Time
	ctx     context.Context        // ended: the server is stopping
	how     atomic.Pointer[string] // why it opened; nil: it is shut
}

// reachTime is how long to wait for a stream whose worker refuses connections: a pod's network may come up after it.
const reachTime = 2 * time.Second

// look returns why the gate is open, or an error with the reason why it is shut.
func (g *readyGate) look(now time.Time) (how string, err error) {
	if g.ctx.Err() != nil {
		return "", errors.New("stopping; arriving requests are still decided")
	}
	if how := g.how.Load(); how != nil {
		return *how, nil
	}
	slots := g.sources.set.Slots()
	silent, finders := g.sources.unreported()
	if len(slots) == 0 && silent > 0 { // once the finders have reported, the fleet may really be empty
		return "", errors.New("no worker has been found yet")
	}
	waited := now.Sub(g.began)
	streams, caughtUp, reached := 0, 0, silent == 0
	var behind []string
	for _, slot := range slots {
		if slot.Feed == nil || !slot.Ready {
			continue
		}
		streams++
		st := slot.Feed.Stats()
		if st.CaughtUp {
			caughtUp++
			continue
		}
		behind = append(behind, fmt.Sprintf("%s/%d", slot.Worker.Name, max(slot.Rank, 0)))
		if st.Connected || st.LastError == "" || waited < reachTime {
			reached = false
		}
	}
	known := fmt.Sprintf("%d of %d event streams have caught up", caughtUp, streams)
	if len(behind) > 0 {
		known += "; not " + strings.Join(behind[:min(len(behind), shownBehind)], ", ")
	}
	if silent > 0 {
		known += fmt.Sprintf("; %d of %d worker discoveries have reported nothing", silent, finders)
	}
	switch {
	case reached && streams == 0:
		how = "no worker sends events"
	case reached && len(behind) == 0:
		how = known
	case reached:
		how = known + ", which cannot be reached"
	case waited >= g.after:
		how = fmt.Sprintf("%v have passed: %s", g.after, known)
	default:
		return "", fmt.Errorf("catching up, for %v at most: %s", g.after, known)
	}
	opened := how // the named result is assigned again
	g.how.CompareAndSwap(nil, &opened)
	return *g.how.Load(), nil
}

// shownBehind is the number of streams that are named.
const shownBehind = 5

// gateEvery is the interval of checking a shut gate.
const gateEvery = 50 * time.Millisecond

// await calls open when the gate opens.
func (g *readyGate) await(ctx context.Context, log *zap.Logger, open func()) {
	for {
		if how, err := g.look(time.Now()); err == nil {
			log.Info("ready", zap.String("why", how), zap.Duration("after", time.Since(g.began)))
			open()
			return
		}
		if !retry.Sleep(ctx, gateEvery) {
			return
		}
	}
}
