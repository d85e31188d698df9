package extproc

import (
	"sync"
	"testing"
)

// TestFrames checks that each buffer has one user at a time, whatever its size and their number, and that the mapped ones stay
// within their limit.
func TestFrames(t *testing.T) {
	f := newFrames()
	var all sync.WaitGroup
	for g := range 4 {
		all.Go(func() {
			for round := range 3 {
				var lent []*[]byte
				for i := range framesKept / 3 {
					n := []int{frameSize, frameSize/4 + 1, 100, frameSize + 1}[i%4]
					b := f.Get(n)
					if len(*b) != n {
						t.Errorf("%d bytes, want %d", len(*b), n)
					}
					(*b)[0], (*b)[n-1] = byte(g), byte(round)
					lent = append(lent, b)
				}
				for _, b := range lent {
					if (*b)[0] != byte(g) || (*b)[len(*b)-1] != byte(round) {
						t.Error("got memory that another goroutine has written, want it lent to one at a time")
					}
					f.Put(b)
				}
			}
		})
	}
	all.Wait()
	if n := f.mapped.Load(); n > framesKept || n < framesStep {
		t.Errorf("%d buffers mapped, want at most %d, at least %d", n, framesKept, framesStep)
	}
}
