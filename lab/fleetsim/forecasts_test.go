package fleetsim

import "testing"

// TestForecasts: what is forecast from the traffic of one fleet for another is what that one does.
func TestForecasts(t *testing.T) {
	if testing.Short() {
		t.Skip("a quarter of a minute of simulation")
	}
	for _, c := range []struct {
		scenario string
		refits   []refit
	}{{"images", refits}, {"chats", []refit{{1.2, more(0)}, {1, more(1)}}}} {
		now, list := scenario(t, c.scenario).foretell(0.7, c.refits)
		if measured, points, ok := judgeForecast(&now, list); !ok {
			t.Errorf("%s: off by %s points, want at most %v each and %v on average:%s", c.scenario, measured, foretoldWithin, foretoldMean, points)
		}
	}
}
