package fleetsim

import (
	"testing"

	"github.com/sightline-router/sightline/router/forecast"
)

// TestNeeded: as many workers as a fleet of four is told to need for a share of the time, or one fewer, is the least number that computes
// prompts for no more of it.
func TestNeeded(t *testing.T) {
	if testing.Short() {
		t.Skip("a quarter of a minute of simulation")
	}
	const share = 0.7
	steps, right := 0, 0
	for _, rate := range []float64{3, 5, 7, 9, 11} {
		s := scenario(t, "chats")
		s.Workers = 4
		trace := prepare(chats.traffic(1, rate, 150), s.setup().Engine.BlockSize)
		busy := func(workers int, told *forecast.Forecast) float64 {
			setup := s.setup()
			setup.Workers = workers
			r := Run(setup, trace, func(v *View) Picker {
				p := newSettling(v)
				if told == nil {
					return p
				}
				return &foretelling{sightline: p.sightline, told: told}
			})
			tokens := 0
			for _, n := range r.Tokens {
				tokens += n
			}
			return float64(tokens) * setup.Engine.Prefill / (float64(workers) * r.Took.Seconds())
		}
		var told forecast.Forecast
		today := busy(4, &told)
		needed := told.Needed(forecast.Goal{Busy: share}, 0)
		least := needed + 1 // of those that are tried
		for n := max(1, needed-2); n <= needed+1; n++ {
			if b := busy(n, nil); b <= share {
				least = n
				break
			}
		}
		steps++
		if needed == least || needed == least+1 {
			right++
		}
		t.Logf("%v requests/s: four are busy for %.2f, %d are told to be needed for %v, %d are", rate, today, needed, share, least)
	}
	if 10*right < 9*steps {
		t.Errorf("got as many workers as are needed, or one more, in %d of %d steps, want 90 %%", right, steps)
	}
}
