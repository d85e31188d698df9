package vision

import (
	"math"
	"testing"
)

// TestLog uses values of a C library's log for which math.Log is one bit off.
func TestLog(t *testing.T) {
	for _, c := range []struct{ x, want float64 }{
		{1, 0}, {2, math.Ln2}, {3, 0x1.193ea7aad030bp+0}, {1.0 / 3, -0x1.193ea7aad030bp+0}, {0.5, -math.Ln2}, {4, 2 * math.Ln2},
		{9, 0x1.193ea7aad030bp+1}, {1e300, 0x1.5963447f87fb5p+9},
	} {
		if have := log(c.x); have != c.want {
			t.Errorf("log %v: want %x, have %x", c.x, c.want, have)
		}
	}
	for _, x := range []float64{0, -1, math.Inf(1), math.NaN()} {
		a, b := log(x), math.Log(x)
		if a != b && !(math.IsNaN(a) && math.IsNaN(b)) {
			t.Errorf("log %v = %v", x, a)
		}
	}
}
