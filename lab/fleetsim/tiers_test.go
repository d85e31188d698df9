package fleetsim

import (
	"slices"
	"testing"
)

// TestLowerTiers: if workers' lower tiers differ in speed, requests wait a third less at least than when these tiers count like
// the GPU, or not at all: the rates are learned, and conversations leave the slow workers. Where it is not known in which order engines
// serve, a little less is known of their queues.
func TestLowerTiers(t *testing.T) {
	pickers := slices.DeleteFunc(tierPickers(), func(r Rival) bool {
		return r.Name != "sightline" && r.Name != "tiers as GPU" && r.Name != "tiers unheard"
	})
	sc := scenario(t, "lower tiers")
	const load = 0.7 // make sim plays more
	p := sc.compare(load, pickers)
	mean, tail := p.best(meanOf), p.best(tailOf)
	if mean > 0.65 || tail > 0.66 {
		t.Errorf("at %v: got mean %.3f, p99 %.3f of the better one's, want two thirds", load, mean, tail)
	}
}
