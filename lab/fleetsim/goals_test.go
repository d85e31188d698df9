package fleetsim

import (
	"testing"
	"time"
)

// TestGoals: a goal is reached exactly by results that are as good as it requires.
func TestGoals(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	row := func(picker string, mean, p99, end int, rate float64) Row {
		r := Row{Picker: picker, result: &Result{Work: make([]float64, 8)}}
		r.Mean, r.TTFT.P99, r.E2E, r.Rate = ms(mean), ms(p99), ms(end), rate
		return r
	}
	known := make(map[string]bool)
	scenarios := Scenarios()
	for i := range scenarios {
		known[scenarios[i].Name] = true
	}
	for _, g := range goals() {
		if !known[g.scenario] && g.scenario != "mooncake" {
			t.Errorf("a goal is about %q, which is no scenario", g.scenario)
		}
		sc := &Scenario{Name: g.scenario, Workers: 8, Until: time.Minute}
		good := Played{sc, g.load, []Row{row("sightline", 100, 400, 1000, 40), row("oracle", 100, 400, 1000, 40),
			row("round robin", 200, 800, 2000, 10), row("least request", 100, 800, 2000, 10), row("tiers as GPU", 210, 800, 2000, 10),
			row("tiers unheard", 210, 800, 2000, 10)}}
		bad := Played{sc, g.load, []Row{row("sightline", 106, 400, 2100, 10), row("oracle", 100, 400, 1000, 40),
			row("round robin", 200, 800, 2000, 10), row("least request", 100, 800, 2000, 10), row("tiers as GPU", 210, 800, 2000, 10),
			row("tiers unheard", 210, 800, 2000, 10)}}
		for i := range 100 { // worker 0 has no requests, or a fair share
			served := Served{Worker: 1, At: 20 * time.Second}
			good.Rows[0].result.Served = append(good.Rows[0].result.Served, served)
			if i%8 == 0 {
				served.Worker = 0
			}
			bad.Rows[0].result.Served = append(bad.Rows[0].result.Served, served)
		}
		if measured, ok := g.reached(&good); !ok {
			t.Errorf("%s at %v, %s: not reached with %s", g.scenario, g.load, g.about, measured)
		}
		if measured, ok := g.reached(&bad); ok {
			t.Errorf("%s at %v, %s: reached with %s", g.scenario, g.load, g.about, measured)
		}
	}
}
