package decisionlog

import (
	"testing"

	"go.uber.org/goleak"
)

// lumberjack 2.2.1 has one goroutine for each log that removes old files, and Close leaves it running. A process opens one log
// only.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}
