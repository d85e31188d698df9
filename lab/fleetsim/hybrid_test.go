package fleetsim

import (
	"slices"
	"testing"
)

// TestHybridWorkers: where prefixes are shared, requests wait less when the groups of hybrid workers are followed than when the full
// group alone is: what workers hold is known as their engines find it, and the first to keep a shared prefix is one that has it.
func TestHybridWorkers(t *testing.T) {
	pickers := slices.DeleteFunc(hybridPickers(), func(r Rival) bool { return r.Name != "sightline" && r.Name != "full group alone" })
	sc := scenario(t, "documents states")
	p := sc.compare(0.7, pickers)
	mean, tail := p.best(meanOf), p.best(tailOf)
	if mean > 0.97 || tail > 0.9 {
		t.Errorf("mean %.3f, p99 %.3f of the full group's", mean, tail)
	}
	if s := p.row("sightline"); s.Hits < 0.75*s.Possible {
		t.Errorf("hits %.3f of %.3f", s.Hits, s.Possible)
	}
}
