package router

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// BenchmarkDecideNew is of chats that differ from all earlier ones by a number at their beginning: nothing is held of them, and they are
// compared with those. p50 is of the decision alone; the comparison follows, when it is on its way.
func BenchmarkDecideNew(b *testing.B) {
	for _, size := range []int{4 << 10, 100 << 10} {
		b.Run(fmt.Sprint(size>>10, "KB"), func(b *testing.B) {
			w := newWorld(b, 8)
			body := []byte(chatBody("m", fmt.Sprintf("%q", "Request 000000000000. "+prose(size))))
			at := slices.Index(body, '0')
			var took []time.Duration
			b.ReportAllocs()
			for n := 0; b.Loop(); n++ {
				copy(body[at:], fmt.Sprintf("%012d", n))
				w.now = w.now.Add(10 * time.Millisecond)
				id := fmt.Sprint(n)
				began := time.Now()
				d := w.Decide(b.Context(), &Request{ID: id, Path: "/v1/chat/completions", Body: [][]byte{body}})
				took = append(took, time.Since(began))
				w.Observe(Outcome{ID: id, Phase: Started, Addr: d.Targets[0].Addr, CachedTokens: -1})
				w.Observe(Outcome{ID: id, Phase: Ended, Code: 200, CachedTokens: -1})
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
		})
	}
}
