package decisionlog

import (
	"testing"

	"go.uber.org/goleak"
)

// lumberjack 2.2.1 has one goroutine a log that removes old files, and Close leaves it. A log is opened once in a process.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}
