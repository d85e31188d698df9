package serve

import (
	"testing"

	"go.uber.org/goleak"
)

// The publisher of the other implementation, which simulated workers speak with, leaves its writers behind; a NATS server that is
// stopped while it makes a stream, that stream's.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server.(*fileStore).flushStreamStateLoop"),
		goleak.IgnoreTopFunction("github.com/nats-io/nats-server/v2/server/ats.Register.func1"))
}
