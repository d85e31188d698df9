package dynamo

import (
	"testing"

	"go.uber.org/goleak"
)

// The other implementation's publisher, used by the tests, leaks its writer goroutines.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}
