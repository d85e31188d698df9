package extproc

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sightline-router/sightline/router"
)

// TestMoreTimeForLargeBodies: for a large body, or one of unknown length, Envoy is asked for more time until it has the answer, and the
// answer comes last; for a small one, or where Envoy allows nothing, it is not asked.
func TestMoreTimeForLargeBodies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		length := func(n int) []string { return []string{"content-length", fmt.Sprint(n)} }
		for _, c := range []struct {
			what    string
			headers []string
			allowed time.Duration
			asked   bool
		}{
			{"a large body", length(largeBody), 9 * time.Second, true},
			{"a body of unknown length", nil, 9 * time.Second, true},
			{"a small body", length(largeBody - 1), 9 * time.Second, false},
			{"an Envoy that allows nothing", length(largeBody), 0, false},
		} {
			r := newStillRig(t, always(router.Decision{Reason: router.Load}), Options{EnvoyWaits: 80 * time.Millisecond, EnvoyMayWait: c.allowed})
			stream, err := extprocv3.NewExternalProcessorClient(r.conn).Process(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(headersMsg(nil, false, chat(c.headers...)...)); err != nil {
				t.Fatal(err)
			}
			if m, err := stream.Recv(); err != nil || m.GetRequestHeaders() == nil {
				t.Fatalf("%s: got %v, %v, want an answer to the headers", c.what, m, err)
			}
			if c.asked {
				for range 3 {
					if m, err := stream.Recv(); err != nil || m.GetOverrideMessageTimeout().AsDuration() != c.allowed {
						t.Fatalf("%s: %v, %v, want more time", c.what, m, err)
					}
				}
			}
			if err := stream.Send(bodyMsg(`{"model":"m"}`, true)); err != nil {
				t.Fatal(err)
			}
			answered := false
			for {
				m, err := stream.Recv()
				if err != nil {
					break
				}
				if more := m.GetOverrideMessageTimeout() != nil; more && (answered || !c.asked) {
					t.Errorf("%s: more time is asked for (after the answer: %t), want !more or (!answered, c.asked)", c.what, answered)
				}
				answered = answered || m.GetRequestBody() != nil
			}
			if !answered {
				t.Errorf("%s: no answer, want answered", c.what)
			}
		}
	})
}
