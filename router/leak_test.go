package router

import (
	"testing"

	"go.uber.org/goleak"
)

// lumberjack 2.2.1 leaks one goroutine for each log.
func TestMain(m *testing.M) {
	_, _ = testModel() // as long as the process
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent(), goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}
