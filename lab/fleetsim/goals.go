package fleetsim

import (
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"
)

// A goal is a requirement on the choice in one run.
type goal struct {
	scenario string
	load     float64
	about    string
	reached  func(p *Played) (measured string, ok bool)
}

// goals lists them. Goals for a trace apply if it is given and named mooncake.
func goals() (list []goal) {
	add := func(scenario string, load float64, about string, reached func(p *Played) (string, bool)) {
		list = append(list, goal{scenario, load, about, reached})
	}
	for _, name := range []string{"chats", "images", "hot image", "hot prefix", "screenshots", "chats 3B", "chats 14B"} {
		add(name, 0.7, "mean, p99 ≤ 1.05 of the oracle's", func(p *Played) (string, bool) {
			ours, oracle := p.row("sightline"), p.row("oracle")
			mean, tail := over(ours.Mean, oracle.Mean), over(ours.TTFT.P99, oracle.TTFT.P99)
			return fmt.Sprintf("%.3f, %.3f", mean, tail), mean <= 1.05 && tail <= 1.05
		})
	}
	for _, load := range []float64{0.4, 0.7, 0.9} {
		add("mooncake", load, "mean ≤ 1.05 of the oracle's, end below every rival's", func(p *Played) (string, bool) {
			mean, end := over(p.row("sightline").Mean, p.row("oracle").Mean), p.best(endOf)
			return fmt.Sprintf("%.3f, %.3f of the best", mean, end), mean <= 1.05 && end <= 1
		})
	}
	for _, name := range []string{"chats", "images"} {
		add(name, 1.3, "mean ≤ the oracle's, end below every rival's", func(p *Played) (string, bool) {
			mean, end := over(p.row("sightline").Mean, p.row("oracle").Mean), p.best(endOf)
			return fmt.Sprintf("%.3f, %.3f of the best", mean, end), mean <= 1 && end <= 1
		})
	}
	for _, c := range []struct {
		name  string
		times float64
	}{{"saturated images", 1.3}, {"saturated agents", 3.5}, {"saturated chats", 1.08}} {
		add(c.name, 3, fmt.Sprintf("%.2f times round robin's requests a second", c.times), func(p *Played) (string, bool) {
			rate := p.row("sightline").Rate / p.row("round robin").Rate
			return fmt.Sprintf("%.2f", rate), rate >= c.times
		})
	}
	add("adapters", 0.7, "mean ≤ the oracle's, at most two loads an adapter, hits 0.97 of a shared cache's",
		func(p *Played) (string, bool) {
			r := p.row("sightline")
			mean, loads, hits := over(r.Mean, p.row("oracle").Mean), float64(r.result.Loads)/maxAdapters, r.Hits/r.Possible
			return fmt.Sprintf("%.3f, %.2f, %.3f", mean, loads, hits), mean <= 1 && loads <= 2 && !(hits < 0.97)
		})
	add("lower tiers", 0.7, "mean ≤ 0.5 of ours if it takes the tiers for GPU memory, or ignores their events",
		func(p *Played) (string, bool) {
			ours := p.row("sightline").Mean
			as, unheard := over(ours, p.row("tiers as GPU").Mean), over(ours, p.row("tiers unheard").Mean)
			return fmt.Sprintf("%.3f, %.3f", as, unheard), as <= 0.5 && unheard <= 0.5
		})
	add("slow worker", 0.7, "after 10 s ≤ 0.6 of a fair share of requests", func(p *Played) (string, bool) {
		share := p.row("sightline").result.Share(0, 10*time.Second, p.Scenario.Until)
		return fmt.Sprintf("%.2f", share), share <= 0.6
	})
	add("failing worker", 0.7, "after 2 s it gets at most 1 % of requests", func(p *Played) (string, bool) {
		share := p.row("sightline").result.Share(0, 2*time.Second, p.Scenario.Until) / float64(p.Scenario.Workers)
		return fmt.Sprintf("%.2f %%", 100*share), share <= 0.01
	})
	for _, name := range []string{"event loss", "no events", "scrape outage", "no reports"} {
		add(name, 0.7, "mean ≤ 1.05 of least request's", func(p *Played) (string, bool) {
			mean := over(p.row("sightline").Mean, p.row("least request").Mean)
			return fmt.Sprintf("%.3f", mean), mean <= 1.05
		})
	}
	for _, s := range Scenarios() {
		if s.setup().Prefill > 0 {
			add(s.Name, 0.7, "mean, p99 ≤ 1.03 of the best pair picker's", func(p *Played) (string, bool) {
				mean, tail := p.best(meanOf), p.best(tailOf)
				return fmt.Sprintf("%.3f, %.3f", mean, tail), mean <= 1.03 && tail <= 1.03
			})
		}
	}
	return list
}

// best returns sightline's value over the best rival's.
func (p *Played) best(of func(*Row) time.Duration) float64 {
	least := time.Duration(0)
	for i := range p.Rows {
		r := &p.Rows[i]
		if r.Picker != "sightline" && r.Picker != "oracle" && (least == 0 || of(r) < least) {
			least = of(r)
		}
	}
	return over(of(p.row("sightline")), least)
}

func meanOf(r *Row) time.Duration { return r.Mean }
func tailOf(r *Row) time.Duration { return r.TTFT.P99 }
func endOf(r *Row) time.Duration  { return r.E2E }

func over(a, b time.Duration) float64 { return float64(a) / float64(max(1, b)) }

func (p *Played) row(picker string) *Row {
	return &p.Rows[slices.IndexFunc(p.Rows, func(r Row) bool { return r.Picker == picker })]
}

// playGoals plays the scenarios and loads of the goals, each once, writes its table, and finally lists the goals that are reached.
func playGoals(w io.Writer, scenarios []Scenario, o Options) error {
	var all []Played
	lines, news := "", 0
	judge := func(name string, load float64, about, measured string, ok bool) {
		verdict := "reached"
		if !ok {
			verdict = o.Missed.verdict(name, load, about, measured)
			if o.Missed != nil && o.Seed == 1 && verdict != missedAsStated {
				news++
			}
		}
		lines += fmt.Sprintf("  %-18s %3.0f %%  %-62s %-24s %s\n", name, 100*load, about, measured, verdict)
	}
	asked := goals()
	for i := range scenarios {
		for _, load := range append(slices.Clone(Loads), saturated...) {
			var of []goal
			for _, g := range asked {
				if g.scenario == scenarios[i].Name && g.load == load {
					of = append(of, g)
				}
			}
			if len(of) == 0 {
				continue
			}
			p := scenarios[i].compare(load, scenarios[i].pickers())
			p.write(w)
			all = append(all, p)
			for _, g := range of {
				measured, ok := g.reached(&p)
				judge(g.scenario, g.load, g.about, measured, ok)
			}
			setup := p.Scenario.setup()
			if setup.Prefill > 0 {
				most := 0.02
				if setup.Replicas > 1 || setup.NoEvents || setup.NoReports {
					most = 0.1 // for routers that see little
				}
				measured, share, lost := p.row("sightline").result.costlier()
				judge(p.Scenario.Name, load, fmt.Sprintf("costlier separate prefills ≤ %.2f of %d, and 0.01 of the savings",
					most, flipped), measured, share <= most && lost <= 0.01)
			}
			if load == saturated[0] || setup.Failing > 0 || setup.Prefill > 0 {
				continue // the waiting times of the rest are meaningless: a router that fails many requests has less to do
			}
			mean, tail := p.best(meanOf), p.best(tailOf)
			judge(p.Scenario.Name, load, "mean, p99 ≤ 1.03 of the best rival's", fmt.Sprintf("%.3f, %.3f", mean, tail),
				mean <= 1.03 && tail <= 1.03)
		}
	}
	find := func(name string) Scenario {
		return scenarios[slices.IndexFunc(scenarios, func(s Scenario) bool { return s.Name == name })]
	}
	for _, name := range []string{"images", "images 4+4"} {
		playReplicas(find(name), 0.7, func(about, measured string, ok bool) { judge(name, 0.7, about, measured, ok) })
	}
	playEncoders(find("images"), 0.4, func(about, measured string, ok bool) { judge("encode pool", 0.4, about, measured, ok) })
	playOrder(find, judge)
	playForecasts(w, find, judge)
	at := slices.IndexFunc(scenarios, func(s Scenario) bool { return s.Workers == 1000 })
	took, bytes := scenarios[at].cost()
	lines += fmt.Sprintf("  %s: p99 of a decision's time %.2f ms on this machine as it is (goal 1 ms on a quiet one), %d MB\n",
		scenarios[at].Name, took.Seconds()*1e3, bytes>>20)
	fmt.Fprint(w, lines)
	if o.HTML != nil {
		if err := writePage(o.HTML, all); err != nil {
			return err
		}
	}
	if news > 0 {
		return fmt.Errorf("%d goals are missed that the page of missed goals does not list, or by other figures", news)
	}
	return nil
}

// timed is a Picker that measures the wall-clock time of its decisions.
type timed struct {
	*sightline
	took []time.Duration
}

func (t *timed) Pick(v *View, r *run) int {
	start := time.Now()
	defer func() { t.took = append(t.took, time.Since(start)) }()
	return t.sightline.Pick(v, r)
}

// cost measures the p99 of a decision, and the router's memory at the end, on this machine. It plays alone.
func (s *Scenario) cost() (p99 time.Duration, bytes uint64) {
	trace := s.at(s.Loads[0], 1)
	var picker *timed
	Run(s.setup(), trace, func(v *View) Picker {
		picker = &timed{sightline: newSightline(v).(*sightline)}
		return picker
	})
	with := inUse()
	p99 = quantiles(picker.took).P99
	picker.sightline = nil
	return p99, with - min(with, inUse())
}

func inUse() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
