package fleetsim

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// TestForecasts: what is forecast from the traffic of one fleet for another is what that one does. SIGHTLINE_FORECASTS=all plays each
// scenario at both loads and the traces of examples/traces; the file of Mooncake's conversations in its place plays that one too.
func TestForecasts(t *testing.T) {
	all := os.Getenv("SIGHTLINE_FORECASTS")
	if testing.Short() && all == "" {
		t.Skip("a quarter of a minute of simulation")
	}
	check := func(s Scenario, load float64, refits []refit) {
		now, list := s.foretell(load, refits)
		measured, points, ok := judgeForecast(&now, list)
		if !ok {
			t.Errorf("%s at %v: off by %s points, want at most %v each and %v on average:%s", s.Name, load, measured, foretoldWithin,
				foretoldMean, points)
		}
		if all != "" {
			fmt.Printf("forecast of %s at %.0f %% from %.1f %%, hit rates and errors in points:%s | %s\n", s.Name, 100*load,
				100*now.Today.HitRate, points, measured)
		}
	}
	if all == "" {
		check(*scenario(t, "images"), 0.7, []refit{{cache: 0.5}, {cache: 2}, {workers: -2}, {double: true}, {host: 3}}) // a quarter of a minute
		check(*scenario(t, "chats"), 0.7, []refit{{cache: 1.2}})
		return
	}
	var list []Scenario
	for _, name := range foretold {
		list = append(list, *scenario(t, name))
	}
	files, _ := filepath.Glob("../../examples/traces/*.jsonl.gz")
	if all != "all" {
		files = append(files, all)
	}
	for _, file := range files {
		workers := 4 // the fewest requests of a trace load no more
		if file == all {
			workers = 16
		}
		s, err := readScenario(file, workers, Scenarios())
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, s)
	}
	for _, s := range list {
		for _, load := range []float64{0.7, 0.9} {
			check(s, load, refits)
		}
	}
}
