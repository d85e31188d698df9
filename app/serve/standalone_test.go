package serve

import (
	"net/netip"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestLoadIsHeard checks that load that a worker publishes is its load here, and forgotten when it is no longer heard.
func TestLoadIsHeard(t *testing.T) {
	pub := zmq4.NewPub(t.Context())
	if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	w := fleet.NewWorker("w", netip.MustParseAddrPort("10.0.0.1:80"), "m", 0, func(int) indexer.SlotID { return 0 })
	go readLoadMessages(t.Context(), "tcp://"+pub.Addr().String(), w.Slots[0], zap.NewNop())
	until := func(what string, ok func(l fleet.Load) bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); !ok(w.Slots[0].Load(time.Now())); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("never: %s, want it in time", what)
			}
		}
	}
	until("load", func(l fleet.Load) bool {
		_ = pub.Send(zmq4.NewMsgString("junk"))
		_ = pub.Send(zmq4.NewMsgString(`{"num_waiting_reqs": 7, "kv_cache_usage": 0.5}`))
		_, usage, _, _ := w.Slots[0].CurrentReport(time.Now())
		return l.Inflight == 7 && usage == 0.5
	})
	pub.Close()
	until("silence", func(l fleet.Load) bool { return l.Inflight == 0 })
}
