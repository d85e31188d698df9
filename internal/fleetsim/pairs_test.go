package fleetsim

import "testing"

// Where four workers prefill for four, requests wait no longer than under Dynamo's and llm-d's rules, and are not always prefilled
// apart: what a decode worker holds nearly whole is computed there, and none costs more than it would have there.
func TestPairs(t *testing.T) {
	for name, load := range map[string]float64{"chats 4+4": 0.7, "hot image 4+4": 0.7, "bursts 4+4": 1.3, "adapters 4+4": 0.7} {
		sc := scenario(t, name)
		p := sc.compare(load, pairRules())
		if mean, tail := p.best(meanOf), p.best(tailOf); mean > 1.03 || tail > 1.06 {
			t.Errorf("%s: mean %.3f, p99 %.3f of the best rule's", name, mean, tail)
		}
		apart := 0
		for _, s := range p.row("sightline").result.Served {
			if s.First >= 0 {
				apart++
			}
		}
		if all := len(p.row("sightline").result.Served); apart == 0 || apart > all*3/4 {
			t.Errorf("%s: %d of %d prefilled apart", name, apart, all)
		}
		if measured, share, lost := p.row("sightline").result.dearer(); share > 0.02 || lost > 0.01 {
			t.Errorf("%s: of those %s", name, measured)
		}
	}
}
