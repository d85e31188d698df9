package fleetsim

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/sightline-router/sightline/router/forecast"
)

// foretelling is this repository's router, whose forecast is read when its run is over.
type foretelling struct {
	*sightline
	settled time.Duration
	told    *forecast.Forecast
}

func (f *foretelling) Pick(v *View, r *run) int {
	f.now = v.Now
	if f.now >= f.settled {
		f.settled = f.now + 250*time.Millisecond // as Router.Run does
		*f.told = f.router.Forecasts()[0].Hour
	}
	return f.sightline.Pick(v, r)
}

// A refit is another fleet for the same traffic: of so many times the cache (0: as it is), of more or fewer workers, or with a lower tier
// of so many sizes of the cache.
type refit struct {
	cache   float64
	workers int
	double  bool // the workers
	host    float64
}

// refits are those that are forecast, and played.
var refits = []refit{{cache: 0.5}, {cache: 0.8}, {cache: 1.2}, {cache: 2}, {cache: 4}, {workers: -2}, {workers: -1}, {workers: 1},
	{workers: 2}, {double: true}, {host: 3}}

// told is what is forecast for a refit, and what came of it.
type told struct {
	name     string
	point    forecast.Point
	measured float64 // hit rate
}

// off is the forecast's error in points.
func (t *told) off() float64 { return 100 * (t.point.HitRate - t.measured) }

// foretell plays a scenario at a load, forecasts from that what some refits would bring, and plays these.
func (s *Scenario) foretell(load float64, refits []refit) (now forecast.Forecast, list []told) {
	trace := s.at(load, max(1, s.seed))
	play := func(setup Setup, to *forecast.Forecast) float64 {
		r := Run(setup, trace, func(v *View) Picker {
			ours := newSightline(v).(*sightline)
			ours.counted = true
			if to == nil {
				return ours
			}
			return &foretelling{sightline: ours, told: to}
		})
		cached, all := 0, 0
		for i := range r.Served {
			cached, all = cached+r.Served[i].Cached, all+r.Served[i].Req.Input()
		}
		return float64(cached) / float64(all)
	}
	play(s.setup(), &now)
	list = make([]told, len(refits))
	var done sync.WaitGroup
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, f := range refits {
		setup := s.setup()
		e, workers, cache := &setup.Engine, max(1, setup.Workers+f.workers), cmp.Or(f.cache, 1)
		if f.double {
			workers = 2 * setup.Workers
		}
		t := &list[i]
		t.name = fmt.Sprintf("×%g", cache)
		if workers != setup.Workers {
			t.name = fmt.Sprintf("%+d", workers-setup.Workers)
		}
		t.point = now.With(max(cache, f.host), workers)
		setup.Workers, e.Blocks, e.Lower = workers, int(cache*float64(e.Blocks)), int(cache*float64(e.Lower))
		if f.host > 0 { // blocks remain in both, and come one at a time (vLLM's default)
			t.name = fmt.Sprintf("host ×%g", f.host)
			e.Lower, e.Unit = int(f.host*float64(e.Blocks)), 1
		}
		done.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			t.measured = play(setup, nil)
		})
	}
	done.Wait()
	return now, list
}

// The most that a forecast may be wrong, in points, and on average.
const (
	foretoldWithin = 2
	foretoldMean   = 0.7
)

// foretold are the scenarios whose forecasts are played, at 70 and 90 % of the load.
var foretold = []string{"images", "hot image", "chats", "agents", "hot prefix", "screenshots", "adapters", "passages",
	"documents among chats", "chats 14B"}

// playForecasts plays them, writes each forecast's errors, and judges them.
func playForecasts(w io.Writer, find func(name string) Scenario, judge func(name string, load float64, about, measured string, ok bool)) {
	for _, name := range foretold {
		for _, load := range []float64{0.7, 0.9} {
			s := find(name)
			now, list := s.foretell(load, refits)
			measured, points, ok := judgeForecast(&now, list)
			fmt.Fprintf(w, "forecast of %s at %.0f %% from %.1f %%, hit rates and errors in points:%s\n", name, 100*load,
				100*now.Today.HitRate, points)
			judge(name, load, fmt.Sprintf("forecasts within %v points, and %v on average", foretoldWithin, foretoldMean), measured, ok)
		}
	}
}

// judgeForecast says how far off forecasts are. Of those that are bounds (marked with !) only the direction counts.
func judgeForecast(now *forecast.Forecast, list []told) (measured, points string, ok bool) {
	sum, worst, n := 0.0, 0.0, 0
	ok = now.Covered > 0.9
	var line strings.Builder
	for i := range list {
		t := &list[i]
		off := t.off()
		fmt.Fprintf(&line, " %s %.1f%+.1f", t.name, 100*t.measured, off)
		switch t.point.Bound {
		case forecast.AtLeast:
			line.WriteByte('!')
			ok = ok && off <= foretoldWithin
		case forecast.AtMost:
			line.WriteByte('!')
			ok = ok && off >= -foretoldWithin
		default:
			sum, worst, n = sum+math.Abs(off), max(worst, math.Abs(off)), n+1
		}
	}
	mean := sum / float64(max(1, n))
	return fmt.Sprintf("%.2f, %.2f of %d", worst, mean, n), line.String(), ok && worst <= foretoldWithin && mean <= foretoldMean
}
