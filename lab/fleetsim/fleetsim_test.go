package fleetsim

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func scenario(t *testing.T, name string) *Scenario {
	t.Helper()
	list := Scenarios()
	at := slices.IndexFunc(list, func(s Scenario) bool { return s.Name == name })
	if at < 0 {
		t.Fatalf("no scenario %q", name)
	}
	return &list[at]
}

func picker(t *testing.T, name string) Rival {
	t.Helper()
	list := Pickers()
	at := slices.IndexFunc(list, func(r Rival) bool { return r.Name == name })
	if at < 0 {
		t.Fatalf("no picker %q", name)
	}
	return list[at]
}

// TestNearTheOracle: the real router, with only the information of real life, does about as well as one that sees true queues and
// caches, and better than pickers that herd or spread.
func TestNearTheOracle(t *testing.T) {
	if testing.Short() {
		t.Skip("half a minute of simulation")
	}
	for _, c := range []struct {
		scenario string
		load     float64
		most     float64 // relative to the oracle's mean
		rivals   []string
	}{
		{"images", 0.7, 1.06, []string{"least request", "session sticky", "Dynamo lmetric", "SGLang"}},
		{"hot image", 0.7, 1.06, []string{"least request", "session sticky"}},
		{"images", 1.3, 1, []string{"Dynamo lmetric", "AIBrix tokens"}},
		{"siblings", 1.3, 1, []string{"round robin", "llm-d filter"}},
	} {
		sc := scenario(t, c.scenario)
		trace := sc.at(c.load, 1)
		_, ours := sc.run(trace, picker(t, "sightline"))
		_, best := sc.run(trace, picker(t, "oracle"))
		if got := float64(ours.Mean) / float64(best.Mean); got > c.most {
			t.Errorf("%s at %v: mean TTFT %v, %.2f of the oracle's, want %v at most", c.scenario, c.load, ours.Mean, got, c.most)
		}
		for _, name := range c.rivals {
			if _, s := sc.run(trace, picker(t, name)); ours.Mean > s.Mean+s.Mean/33 || ours.TTFT.P99 > s.TTFT.P99+s.TTFT.P99/20 {
				t.Errorf("%s at %v: TTFT %v, p99 %v; %s has %v, %v, want at most %v, at most %v",
					c.scenario, c.load, ours.Mean, ours.TTFT.P99, name, s.Mean, s.TTFT.P99, s.Mean+s.Mean/33, s.TTFT.P99+s.TTFT.P99/20)
			}
		}
	}
}

// TestUnequalWorkers: a slow worker gets less, a failing one only trial requests. One seed's share is a tenth more or less than another's.
func TestUnequalWorkers(t *testing.T) {
	share := func(name string) float64 {
		sc := scenario(t, name)
		late, first := 0, 0
		for seed := range uint64(3) {
			r, _ := sc.run(sc.at(0.7, 1+seed), picker(t, "sightline"))
			for _, s := range r.Served {
				if s.At > 10*time.Second && s.At < sc.Until {
					late++
					if s.Worker == 0 {
						first++
					}
				}
			}
		}
		return float64(first) / float64(late) * float64(sc.Workers)
	}
	if got := share("slow worker"); got > 0.7 {
		t.Errorf("a worker of half the speed gets %.2f of a fair share after 10 s, want 0.7 at most", got)
	}
	if got := share("failing worker"); got > 0.08 {
		t.Errorf("a worker that answers 503 gets %.3f of a fair share after 10 s, want 1 %% of all requests at most", got)
	}
}

// TestBlind: without events, with a tenth of them lost, or without Envoy's reports, it is no worse than the least loaded worker.
func TestBlind(t *testing.T) {
	for _, name := range []string{"event loss", "no events", "no reports"} {
		sc := scenario(t, name)
		trace := sc.at(0.7, 1)
		_, ours := sc.run(trace, picker(t, "sightline"))
		if _, s := sc.run(trace, picker(t, "least request")); ours.Mean > s.Mean+s.Mean/20 {
			t.Errorf("%s: mean TTFT %v, least request has %v, want at most %v", name, ours.Mean, s.Mean, s.Mean+s.Mean/20)
		}
	}
}

// TestSaturated: of three times its capacity, a fleet serves the more the less it computes twice.
func TestSaturated(t *testing.T) {
	sc := scenario(t, "saturated images")
	trace := sc.at(saturated[0], 1)
	_, ours := sc.run(trace, picker(t, "sightline"))
	if _, s := sc.run(trace, picker(t, "round robin")); ours.Rate < 1.3*s.Rate {
		t.Errorf("%.1f requests a second, round robin has %.1f", ours.Rate, s.Rate)
	}
}

// TestReplicasDoNotHerd: sixteen routers that see each other only in the workers' metrics do not herd, which would evict what the
// workers hold.
func TestReplicasDoNotHerd(t *testing.T) {
	sc := scenario(t, "replicas")
	trace := sc.at(1.3, 1)
	_, ours := sc.run(trace, picker(t, "sightline"))
	if _, s := sc.run(trace, picker(t, "least request")); ours.Mean > s.Mean/5 {
		t.Errorf("mean TTFT %v, least request has %v, want at most %v", ours.Mean, s.Mean, s.Mean/5)
	}
}

// TestDeterministic: equal seeds give equal runs, and equal pages, which load nothing from elsewhere; another seed gives another run.
func TestDeterministic(t *testing.T) {
	var tables, pages [2]bytes.Buffer
	for i := range tables {
		if err := Play(&tables[i], Options{Scenarios: []string{"siblings"}, Loads: []float64{0.4, 0.5}, HTML: &pages[i]}); err != nil {
			t.Fatal(err)
		}
	}
	if p := pages[0].String(); p != pages[1].String() || strings.Count(p, "<svg") != 7 || strings.Count(p, "</svg>") != 7 ||
		regexp.MustCompile(`src=|href=|url\(|NaN|Inf`).MatchString(p) {
		t.Errorf("two pages differ, have other plots than seven, or something that they should not:\n%.3000s", p)
	}
	for _, r := range everyPicker() {
		if class := fmt.Sprintf(".c%d {", colours()[r.Name]); !strings.Contains(pageText, class) {
			t.Errorf("%s has no colour: the page lacks %s", r.Name, class)
		}
	}
	if tables[0].String() != tables[1].String() || strings.Count(tables[0].String(), "\n") != 2*(len(Pickers())+3) {
		t.Errorf("two runs differ, or pickers are missing:\n%s%s", &tables[0], &tables[1])
	}
	for i := range tables {
		tables[i].Reset()
		o := Options{Scenarios: []string{"siblings"}, Pickers: []string{"round robin"}, Loads: []float64{0.4}, Seed: uint64(i) + 1}
		if err := Play(&tables[i], o); err != nil {
			t.Fatal(err)
		}
	}
	if tables[0].String() == tables[1].String() {
		t.Errorf("another seed gives the same traffic:\n%s", &tables[0])
	}
}

// TestScenariosAreWhatTheySay: the properties of scenarios have an effect: an adapter's first use costs its load, a burst has its
// pause, nothing is in flight where an agent is paced, and a fleet has the given speeds.
func TestScenariosAreWhatTheySay(t *testing.T) {
	one := picker(t, "least request")
	play := func(setup Setup, trace []*Request) *Result { return Run(setup, prepare(trace, 16), one.Make) }
	alone := Setup{Workers: 1, Engine: defaultEngine(), Delays: defaultDelays()}
	var used []time.Duration
	for _, s := range play(alone, adapted(1, paced(1, 20), 2)).Served {
		used = append(used, s.TTFT)
	}
	plain := play(alone, paced(1, 20)).Served
	loads := 0
	for i := range used {
		if used[i] > plain[i].TTFT+250*time.Millisecond {
			loads++
		}
	}
	if loads != 2 {
		t.Errorf("%d of 20 requests with two adapters wait for a load, want 2", loads)
	}
	for _, r := range inBursts(images(1, 60, 10, 0)) {
		if r.Prev == nil && r.At%(6*time.Second) > 2*time.Second {
			t.Fatalf("a request comes %v after the start", r.At)
		}
	}
	end := time.Duration(0)
	for _, s := range play(alone, paced(1, 50)).Served {
		if s.At < end {
			t.Fatalf("a paced agent's request comes before the one before has ended: got %v, want at least %v", s.At, end)
		}
		end = s.At + s.E2E
	}
	if setup := scenario(t, "unequal 16").setup(); len(setup.Speeds) != 16 || setup.Speeds[0] != 0.4 || setup.Speeds[15] != 1.6 {
		t.Errorf("speeds %v, want 16 of them, [0] 0.4, [15] 1.6", setup.Speeds)
	}
}

// TestSummary: a run's figures cover the right requests: classes, regret, shares, requests per second.
func TestSummary(t *testing.T) {
	long, word := &Request{}, &Request{}
	long.add(Segment{1, 1000}, false)
	word.add(Segment{2, 20}, false)
	r := &Result{Took: time.Minute, Work: []float64{3, 1}, Served: []Served{
		{Req: long, At: time.Second, TTFT: time.Second, E2E: 2 * time.Second},
		{Req: long, Worker: 1, At: 30 * time.Second, TTFT: 2 * time.Second, E2E: 3 * time.Second, Cached: 400, Possible: 800, Lost: 300},
		{Req: long, At: 31 * time.Second, TTFT: 4 * time.Second, E2E: 5 * time.Second},
		{Req: word, At: 32 * time.Second, TTFT: time.Second, E2E: 90 * time.Second},
		{Req: word, Worker: 1, At: 33 * time.Second, Failed: true},
	}}
	s := r.Summarise(20*time.Second, time.Hour)
	if s.TTFT.N != 3 || s.TTFT.P50 != 2*time.Second || s.Failed != 1 || s.Rate != 2./40 || s.Skew != 1.5 {
		t.Errorf("got %+v, want s.TTFT.N == 3, s.TTFT.P50 == 2*time.Second, s.Failed == 1, s.Rate == 2./40, s.Skew == 1.5", s)
	}
	if s.Classes[warm].N != 1 || s.Classes[cold].P99 != 4*time.Second || s.Classes[short].N != 1 {
		t.Errorf("classes %+v, want [warm].N 1, [cold].P99 %v, [short].N 1", s.Classes, 4*time.Second)
	}
	if s.Hits != 400./2020 || s.Possible != 800./2020 || s.Regret != 300./2020 {
		t.Errorf("%v of %v tokens hit, regret %v, want %v, %v, %v", s.Hits, s.Possible, s.Regret, 400./2020, 800./2020, 300./2020)
	}
	if got := r.Share(1, 20*time.Second, time.Hour); got != 1 {
		t.Errorf("worker 1 has %v of a fair share, want 1: two of four", got)
	}
}
