package serve

import (
	"testing"

	"go.uber.org/goleak"
)

// The other implementation's publisher, which simulated workers use, leaves its writers running; a NATS server that is stopped
// while it creates a stream leaves that stream's goroutine.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"))
}
