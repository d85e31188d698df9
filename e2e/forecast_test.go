package e2e

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// TestForecastOfRunningFleet: what a running Sightline forecasts for twice the cache is what workers of twice the cache then have, by their
// own counts; today's hit rate is theirs too, on the page and in the metrics.
func TestForecastOfRunningFleet(t *testing.T) {
	t.Parallel()
	const blocks = 160 // of a worker
	play := func(blocks int) (rate float64, forecast gjson.Result) {
		l := startLab(t, func(o *lab.Options) { o.Workers, o.Blocks = 2, blocks })
		r := rand.New(rand.NewPCG(7, 7))
		documents := make([]string, 24)
		for i := range documents {
			documents[i] = words(r, 150+r.IntN(150))
		}
		last := func() gjson.Result {
			raw, err := lab.Get("http://" + l.Admin + "/forecast")
			if err != nil {
				t.Fatal(err)
			}
			return gjson.GetBytes(raw, "0.hour")
		}
		for i := range 2 {
			ask(t, l, fmt.Sprint("Say ", i)+words(r, 30))
		}
		eventually(t, "the caches' sizes are known", func() bool {
			if last().Get("workers").Int() == 2 {
				return true
			}
			ask(t, l, words(r, 40))
			return false
		})
		begun := [2]float64{metric(t, l, "sightline_engine_cached_tokens_total", ""),
			metric(t, l, "sightline_engine_prompt_tokens_total", "")}
		for range 300 {
			ask(t, l, documents[min(r.IntN(len(documents)), r.IntN(len(documents)))]+words(r, 10))
		}
		quiet(t, l)
		cached := metric(t, l, "sightline_engine_cached_tokens_total", "") - begun[0]
		rate = cached / (metric(t, l, "sightline_engine_prompt_tokens_total", "") - begun[1])
		forecast = last()
		if today := metricOf(t, l.Admin, "sightline_forecast_hit_rate", `"today"`); math.Abs(today-rate) > 0.02 {
			t.Errorf("%d blocks: today's hit rate is %.3f, engines count %.3f", blocks, today, rate)
		}
		if p := page(t, l.Admin, "/"); !strings.Contains(p, fmt.Sprintf("You are at %.0f %%", 100*forecast.Get("today.hit_rate").Float())) {
			t.Errorf("%d blocks: the page does not say the forecast", blocks)
		}
		return rate, forecast
	}
	small, forecast := play(blocks)
	large, _ := play(2 * blocks)
	twice := 0.0
	forecast.Get("curve").ForEach(func(_, p gjson.Result) bool {
		if math.Abs(p.Get("size").Float()-2) < 0.01 {
			twice = p.Get("hit_rate").Float()
		}
		return true
	})
	if large < small+0.1 || math.Abs(twice-large) > 0.05 {
		t.Errorf("hit rate %.3f; with twice the cache %.3f is forecast and %.3f comes (want within 0.05, and a difference of 0.1)",
			small, twice, large)
	}
	if forecast.Get("covered").Float() < 0.9 || forecast.Get("marks.#").Int() != 4 {
		t.Errorf("covered %v with %d marks, want 0.9 and 4", forecast.Get("covered"), forecast.Get("marks.#").Int())
	}
}
