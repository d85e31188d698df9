package admin

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/forecast"
)

// curve is a model's forecast as the page draws it: hit rates from a quarter to four times the size of today's caches.
type curve struct {
	Model, D, Says string
	Today          string // per cent
	Covers         string // how much it leaves out; "": little
	Marks          []curveMark
}

type curveMark struct{ X, Y, What string }

const maxCurves = 6 // models with the most tokens

// curves returns those of the last hour's forecasts.
func curves(of []router.ModelForecast) (list []curve) {
	of = slices.DeleteFunc(of, func(f router.ModelForecast) bool { return len(f.Hour.Curve) == 0 })
	slices.SortStableFunc(of, func(a, b router.ModelForecast) int { return cmp.Compare(b.Hour.Tokens, a.Hour.Tokens) })
	for i := range of[:min(len(of), maxCurves)] {
		f := &of[i].Hour
		one := curve{Model: of[i].Model, Says: f.String(), Today: fmt.Sprintf("%.0f", 100*f.Today.HitRate)}
		if f.Covered < 0.9 {
			one.Covers = fmt.Sprintf("It covers %.0f %% of the prompt tokens: the others' blocks, or their workers' caches, are not known.",
				100*f.Covered)
		}
		var d strings.Builder
		for i, p := range f.Curve {
			x, y := onCurve(p)
			fmt.Fprintf(&d, "%c%.1f %.1f", "ML"[min(i, 1)], x, y)
		}
		one.D = d.String()
		for _, m := range f.Marks {
			if x, y := onCurve(m.Point); x <= 300 && m.Name != forecast.NothingLost {
				what := strings.ReplaceAll(m.Name, "_", " ")
				one.Marks = append(one.Marks, curveMark{fmt.Sprintf("%.1f", x), fmt.Sprintf("%.1f", y), what})
			}
		}
		list = append(list, one)
	}
	return list
}

// onCurve returns where a point is drawn.
func onCurve(p forecast.Point) (x, y float64) { return 75 * (math.Log2(p.Size) + 2), 65 - 60*p.HitRate }
