package fleetsim

import "testing"

// Each picture is encoded once in a pool, and where one encoder goes and comes only its own are encoded again.
func TestEncoderPools(t *testing.T) {
	playEncoders(*scenario(t, "images"), 0.4, func(about, measured string, ok bool) {
		if t.Logf("%s: %s", about, measured); !ok {
			t.Error("not reached")
		}
	})
}
