package tokenizer

import (
	"testing"

	"go.uber.org/goleak"
)

// regexp2's clock ends by itself, a while after the last match.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/dlclark/regexp2/v2.runClock"))
}
