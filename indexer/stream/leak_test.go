package stream

import (
	"testing"

	"go.uber.org/goleak"
)

// The publisher of the other implementation, which tests speak to, leaves its writers behind.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}
