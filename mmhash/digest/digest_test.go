package digest

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/zeebo/blake3"
)

// TestSum compares with another implementation: all lengths around the tree's boundaries, in whole rooms, in odd pieces and mixed,
// by several concurrent streams, so that helpers are sometimes late.
func TestSum(t *testing.T) {
	stream := make([]byte, 9*RoomSize+5000)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(stream)
	var sizes []int
	for _, edge := range []int{0, 1 << 10, 2 << 10, group, 2 * group, RoomSize, 2 * RoomSize, 3 * RoomSize, 6 * RoomSize, 9 * RoomSize} {
		sizes = append(sizes, max(edge-1, 0), edge, edge+1, edge+1024, edge+4097)
	}
	var all sync.WaitGroup
	for seed := range uint64(4) {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			h := New()
			for _, i := range rng.Perm(len(sizes)) {
				p := stream[:sizes[i]]
				want := blake3.Sum256(p)
				for _, odd := range []int{0, 1, 3} { // out of four pieces
					h.Reset()
					for rest := p; len(rest) > 0; {
						if rng.IntN(4) < odd {
							n := min(1+rng.IntN(2*group), len(rest))
							h.Write(rest[:n])
							rest = rest[n:]
							continue
						}
						n := copy(h.Room(), rest)
						h.Fill(n)
						rest = rest[n:]
					}
					if odd > 0 && rng.IntN(8) == 0 {
						continue // abandoned in the middle
					}
					if got := h.Sum256(); got != want {
						t.Errorf("%d bytes: %x, want %x", len(p), got, want)
						return
					}
				}
			}
		})
	}
	all.Wait()
}

// TestHelperPanic: a helper's panic is raised in its stream's goroutine; the process and other streams continue.
func TestHelperPanic(t *testing.T) {
	h := New()
	h.values = make([]value, 1)
	r := &room{panicked: "in a helper"}
	h.out = 1
	h.done <- r
	defer func() {
		if p := recover(); p != "in a helper" {
			t.Errorf("recovered %v", p)
		}
	}()
	h.Sum256()
}
