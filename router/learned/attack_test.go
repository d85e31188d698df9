package learned

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestAttackMemory(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 4))
		m := NewMemory(6 << 10)
		var known []request
		for i := range 400 {
			var r request
			if len(known) > 0 && rng.IntN(4) > 0 {
				from := known[rng.IntN(len(known))].parts
				r.parts = append(r.parts, from[:1+rng.IntN(len(from))]...)
			} else {
				r.parts = []int{1 + rng.IntN(3)}
			}
			for range rng.IntN(3) {
				r.parts = append(r.parts, 1+rng.IntN(6)-2)
			}
			tokens := r.prompt()
			if rng.IntN(3) == 0 { // a hostile or changing engine
				tokens = tokens[:rng.IntN(len(tokens))]
			}
			if rng.IntN(5) == 0 {
				tokens = slices.Clone(tokens)
				if len(tokens) > 0 { tokens[rng.IntN(len(tokens))] = 5 }
			}
			chain := chainOf(tokens)
			m.Teach(&Lesson{1, *r.path(), Taught{Chain: chain, Prompt: rng.IntN(len(chain)+2) - 1, Tokens: len(tokens)}})
			known = append(known, r)
			var p Prompt
			m.Recall(1, r.path(), &p)
			q := request{append(slices.Clone(r.parts), 9)}
			m.Recall(1, q.path(), &p)
			if slices.Contains(p.Blocks, 0) {
				t.Fatalf("seed %d step %d zero block %v", seed, i, p)
			}
			b := NewMemory(1 << 20)
			b.Await()
			if err := b.Load(m.Snapshot(1 << 20)); err != nil {
				t.Fatalf("seed %d step %d: %v", seed, i, err)
			}
		}
	}
}
