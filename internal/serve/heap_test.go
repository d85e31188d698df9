package serve

import "testing"

func TestGCPercent(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		live, index int64
		want        int
	}{
		{0, 0, 100},
		{40 * mb, 16 * mb, 100},
		{300 * mb, 200 * mb, 30},   // 100 MB of the rest may double
		{2100 * mb, 2048 * mb, 5},  // 105 MB, not 2.1 GB
		{100 * mb, 2048 * mb, 5},   // the collector has not seen the index yet
		{6000 * mb, 2000 * mb, 65}, // the rest is most of it
	} {
		if got := gcPercent(c.live, c.index); got != c.want {
			t.Errorf("live %d MB, index %d MB: %d percent, want %d", c.live/mb, c.index/mb, got, c.want)
		}
	}
}
