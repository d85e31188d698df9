package probe

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	_, _ = prompts() // as long as the process
	goleak.VerifyTestMain(m, goleak.IgnoreCurrent())
}
