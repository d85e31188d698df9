package zmq

import (
	"testing"

	"go.uber.org/goleak"
)

// The other implementation's publisher, with which tests communicate, leaves its writers running.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}
