package fleetsim

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// The page is one file without scripts or requests: for each scenario its times over load, and for each load the distribution of
// times, the whole curve, and hits against balance. Times are on logarithmic axes, because pickers differ by factors.

//go:embed page.html
var pageText string

var page = template.Must(template.New("").Parse(pageText))

type pageScenario struct {
	Name, About string
	OverLoad    *plot // nil: one load
	Loads       []pageLoad
}

type pageLoad struct {
	Percent              int
	Rows                 []pageRow
	Spread, Curve, Place plot
}

type pageRow struct {
	Colour                                                         int
	Picker, Mean, P50, P90, P99, End, Rate, Hits, Of, Regret, Skew string
}

// plot is the data of one SVG, in its units.
type plot struct {
	Title, X, Y    string
	Height, Bottom int // total; of the horizontal axis
	Lines          []pageLine
	Dots           []pageDot
	Bars           []pageBar
	Across, Up     []pageTick
}

type pageLine struct {
	Colour         int
	Picker, Points string
}

type pageDot struct {
	Colour int
	Picker string
	X, Y   int
}

type pageBar struct {
	Colour                 int
	Picker                 string
	Y, Middle, From, To, P int // p50 to p90, and p99
}

type pageTick struct {
	At   int
	Text string
}

// The plots' frame.
const (
	plotLeft   = 130
	plotRight  = 620
	plotTop    = 14
	plotBottom = 250
	rowHeight  = 17
)

// axis maps values to coordinates in a plot. Values outside are clamped to its ends.
type axis struct {
	from, to   float64
	start, end int
	log        bool
}

func (a axis) at(x float64) int {
	share := (x - a.from) / (a.to - a.from)
	if a.log {
		share = math.Log(x/a.from) / math.Log(a.to/a.from)
	}
	return a.start + int(math.Round(min(1, max(0, share))*float64(a.end-a.start)))
}

// times returns an axis for times in milliseconds that covers the given values, up to 300 times the least, and its ticks.
func times(seen []float64, start, end int) (axis, []pageTick) {
	low, high := math.Inf(1), 1.
	for _, x := range seen {
		low, high = min(low, max(1, x)), max(high, x)
	}
	high = min(high, 300*low)
	a := axis{math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high*1.01))), start, end, true}
	var ticks []pageTick
	for x := a.from; x <= a.to*1.01; x *= 10 {
		text := fmt.Sprintf("%.0f ms", x)
		if x >= 1000 {
			text = fmt.Sprintf("%.0f s", x/1000)
		}
		ticks = append(ticks, pageTick{a.at(x), text})
	}
	return a, ticks
}

// everyPicker lists the pickers of all scenarios, each once.
func everyPicker() (list []Rival) {
	for _, r := range slices.Concat(Pickers(), tierPickers(), pairPickers()) {
		if !slices.ContainsFunc(list, func(had Rival) bool { return had.Name == r.Name }) {
			list = append(list, r)
		}
	}
	return list
}

// colours assigns each picker one of the page's classes.
func colours() map[string]int {
	of := make(map[string]int)
	for i, r := range everyPicker() {
		of[r.Name] = i
	}
	return of
}

func milli(d time.Duration) float64 { return max(1, d.Seconds()*1000) }

// writePage writes what was played, in that order.
func writePage(w io.Writer, all []Played) error {
	colour := colours()
	var list []pageScenario
	for from := 0; from < len(all); {
		to := from
		for to < len(all) && all[to].Scenario == all[from].Scenario {
			to++
		}
		s := pageScenario{Name: all[from].Scenario.Name, About: all[from].Scenario.About}
		if to > from+1 {
			s.OverLoad = overLoad(all[from:to], colour)
		}
		for i := from; i < to; i++ {
			s.Loads = append(s.Loads, pageOf(&all[i], colour))
		}
		list = append(list, s)
		from = to
	}
	return page.Execute(w, struct {
		Pickers   []Rival
		Scenarios []pageScenario
	}{everyPicker(), list})
}

// overLoad plots mean times over load.
func overLoad(all []Played, colour map[string]int) *plot {
	var seen []float64
	for _, p := range all {
		for _, r := range p.Rows {
			seen = append(seen, milli(r.Mean))
		}
	}
	p := &plot{Title: "Mean time to first token over load", X: "share of round robin's capacity", Height: plotBottom + 36, Bottom: plotBottom}
	y, up := times(seen, plotBottom, plotTop)
	x := axis{from: all[0].Load, to: all[len(all)-1].Load, start: plotLeft, end: plotRight}
	p.Up = up
	for _, one := range all {
		p.Across = append(p.Across, pageTick{x.at(one.Load), fmt.Sprintf("%.0f %%", 100*one.Load)})
	}
	for i := range all[0].Rows {
		picker := all[0].Rows[i].Picker
		var points []string
		for _, one := range all {
			points = append(points, fmt.Sprintf("%d,%d", x.at(one.Load), y.at(milli(one.row(picker).Mean))))
		}
		p.Lines = append(p.Lines, pageLine{colour[picker], picker, strings.Join(points, " ")})
	}
	return p
}

// pageOf plots one load.
func pageOf(p *Played, colour map[string]int) pageLoad {
	l := pageLoad{Percent: int(math.Round(100 * p.Load))}
	bottom := plotTop + rowHeight*len(p.Rows)
	l.Spread = plot{Title: "Time to first token: median to 90th percentile, and 99th", Height: bottom + 24, Bottom: bottom}
	l.Curve = plot{Title: "Share of requests over time to first token", Height: plotBottom + 36, Bottom: plotBottom}
	l.Place = plot{Title: "Hits and balance", X: "share of the prompts found in caches",
		Y: "the busiest worker's work over the mean", Height: plotBottom + 36, Bottom: plotBottom}
	var seen []float64
	skew, hits := 1.1, 0.1
	for _, r := range p.Rows {
		seen = append(seen, milli(r.TTFT.P50), milli(r.TTFT.P99))
		skew, hits = max(skew, min(2, r.Skew)), max(hits, r.Possible)
	}
	x, across := times(seen, plotLeft, plotRight)
	l.Spread.Across, l.Curve.Across = across, across
	share := axis{from: 0, to: 1, start: plotBottom, end: plotTop}
	balance := axis{from: 1, to: skew, start: plotBottom, end: plotTop, log: true}
	found := axis{from: 0, to: math.Ceil(hits*10) / 10, start: plotLeft, end: plotRight}
	for i := range 5 {
		l.Curve.Up = append(l.Curve.Up, pageTick{share.at(float64(i) / 4), fmt.Sprintf("%d %%", 25*i)})
		h, b := found.to*float64(i)/4, math.Pow(skew, float64(i)/4)
		l.Place.Across = append(l.Place.Across, pageTick{found.at(h), fmt.Sprintf("%.0f %%", 100*h)})
		l.Place.Up = append(l.Place.Up, pageTick{balance.at(b), fmt.Sprintf("%.2f", b)})
	}
	for i, r := range p.Rows {
		c, y := colour[r.Picker], plotTop+rowHeight*i
		l.Spread.Bars = append(l.Spread.Bars, pageBar{c, r.Picker, y + 3, y + rowHeight/2 + 4, x.at(milli(r.TTFT.P50)),
			max(2, x.at(milli(r.TTFT.P90))-x.at(milli(r.TTFT.P50))), x.at(milli(r.TTFT.P99))})
		var points []string
		for j, d := range r.TTFT.Curve {
			points = append(points, fmt.Sprintf("%d,%d", x.at(milli(d)), share.at(float64(j)/float64(len(r.TTFT.Curve)-1))))
		}
		l.Curve.Lines = append(l.Curve.Lines, pageLine{c, r.Picker, strings.Join(points, " ")})
		l.Place.Dots = append(l.Place.Dots, pageDot{c, r.Picker, found.at(r.Hits), balance.at(r.Skew)})
		whole := func(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }
		percent := func(x float64) string { return fmt.Sprintf("%.1f", 100*x) }
		l.Rows = append(l.Rows, pageRow{c, r.Picker, whole(r.Mean), whole(r.TTFT.P50), whole(r.TTFT.P90), whole(r.TTFT.P99),
			whole(r.E2E), fmt.Sprintf("%.1f", r.Rate),
			percent(r.Hits), percent(r.Possible), percent(r.Regret), fmt.Sprintf("%.2f", r.Skew)})
	}
	return l
}
