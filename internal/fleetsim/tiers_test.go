package fleetsim

import (
	"slices"
	"testing"
)

// Where workers' lower tiers differ in speed, requests wait half as long at most as where what these hold counts like the GPU's, or for
// nothing: the rates are learned, and conversations leave the slow ones.
func TestLowerTiers(t *testing.T) {
	rules := slices.DeleteFunc(tierRules(), func(r Rival) bool {
		return r.Name != "sightline" && r.Name != "tiers as GPU" && r.Name != "tiers unheard"
	})
	sc := scenario(t, "lower tiers")
	for _, load := range []float64{0.7, 1.3} {
		p := sc.compare(load, rules)
		if mean, tail := p.best(meanOf), p.best(tailOf); mean > 0.6 || tail > 0.6 {
			t.Errorf("at %v: mean %.3f, p99 %.3f of the better one's", load, mean, tail)
		}
	}
}
