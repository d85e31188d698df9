package fleetsim

import (
	"slices"
	"testing"
)

// TestLowerTiers: if workers' lower tiers differ in speed, requests wait at most half as long as when these tiers count like the
// GPU, or not at all: the rates are learned, and conversations leave the slow workers.
func TestLowerTiers(t *testing.T) {
	pickers := slices.DeleteFunc(tierPickers(), func(r Rival) bool {
		return r.Name != "sightline" && r.Name != "tiers as GPU" && r.Name != "tiers unheard"
	})
	sc := scenario(t, "lower tiers")
	for _, load := range []float64{0.7, 1.3} {
		p := sc.compare(load, pickers)
		mean, tail := p.best(meanOf), p.best(tailOf)
		if mean > 0.6 || tail > 0.6 {
			t.Errorf("at %v: mean %.3f, p99 %.3f of the better one's", load, mean, tail)
		}
	}
}
