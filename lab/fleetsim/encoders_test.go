package fleetsim

import "testing"

// TestEncoderPools: each image is encoded once in a pool, and if one encoder leaves and returns only its own are encoded again.
func TestEncoderPools(t *testing.T) {
	playEncoders(*scenario(t, "images"), 0.4, func(about, measured string, ok bool) {
		t.Logf("%s: %s", about, measured)
		if !ok {
			t.Error("not reached")
		}
	})
}
