package health

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestServing checks that what a worker says of its order stays while it does not answer, and ends with its process, or when it no longer
// says so.
func TestServing(t *testing.T) {
	w := fleet.NewWorker("w", netip.MustParseAddrPort("127.0.0.1:1"), "m", 0, func(int) indexer.SlotID { return 0 })
	says, fails, asked := rules.LowFirst, error(nil), 0
	n := &Poller{o: Options{Log: zap.NewNop()}}
	l := &orderPoll{Poller: n, worker: w, order: rules.Order{Ask: func(context.Context, *http.Client, string) (rules.Serving, error) {
		asked++
		return says, fails
	}}}
	step := func(what string, want rules.Serving, asks int) {
		t.Helper()
		asked = 0
		l.ask(t.Context())
		if got := w.Serving(); got != want || asked != asks {
			t.Errorf("%s: got %v, asked %d times, want %v, %d times", what, got, asked, want, asks)
		}
	}
	step("at first", rules.LowFirst, 1)
	step("soon after", rules.LowFirst, 0)
	l.next, fails = time.Time{}, errors.New("no answer")
	step("without an answer", rules.LowFirst, 1)
	n.processRestarted(w, time.Now())
	step("another process, without an answer", rules.Unsaid, 1)
	says, fails = rules.HighFirst, nil
	step("another process", rules.HighFirst, 1)
	l.next, fails = time.Time{}, &rules.StatusError{Status: http.StatusNotFound}
	step("a server that does not say", rules.Unsaid, 1)
}
