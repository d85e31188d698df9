package fleetsim

import "testing"

// TestPairs: with four prefill and four decode workers, requests wait no longer than under Dynamo's and llm-d's pickers. Not all are
// prefilled separately: a prompt that a decode worker holds nearly completely is computed there, and no separate prefill costs more
// than that would.
func TestPairs(t *testing.T) {
	for name, load := range map[string]float64{"chats 4+4": 0.7, "hot image 4+4": 0.7, "bursts 4+4": 1.3, "adapters 4+4": 0.7} {
		sc := scenario(t, name)
		p := sc.compare(load, pairPickers())
		mean, tail := p.best(meanOf), p.best(tailOf)
		if mean > 1.03 || tail > 1.06 {
			t.Errorf("%s: mean %.3f, p99 %.3f of the best picker's", name, mean, tail)
		}
		apart := 0
		for _, s := range p.row("sightline").result.Served {
			if s.First >= 0 {
				apart++
			}
		}
		if all := len(p.row("sightline").result.Served); apart == 0 || apart > all*3/4 {
			t.Errorf("%s: got %d of %d prefilled apart, want some, at most %d", name, apart, all, all*3/4)
		}
		if measured, share, lost := p.row("sightline").result.costlier(); share > 0.02 || lost > 0.01 {
			t.Errorf("%s: of those %s; got %v, %v, want at most 0.02, at most 0.01", name, measured, share, lost)
		}
	}
}
