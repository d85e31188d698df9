package fleetsim

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// A scenario is traffic and a fleet. Its capacity is the rate (conversations or bursts a second; of a trace, how much faster
// than recorded) at which round robin's mean time to first token reaches 1.5 s on this fleet; loads are shares of it. All
// were fixed before anything was tuned.
type Scenario struct {
	Name     string
	About    string
	Workers  int
	Capacity float64
	Traffic  func(rate float64) []*Request
	Change   func(*Setup) // nil: a fleet without faults
	Until    time.Duration
}

// Scenarios lists those that need no trace.
func Scenarios() []Scenario {
	const minutes = 150 // seconds of traffic
	still := func(hot float64) func(float64) []*Request {
		return func(rate float64) []*Request { return images(1, rate, minutes, hot) }
	}
	talk := func(rate float64) []*Request { return chats.traffic(1, rate, minutes) }
	list := []Scenario{
		{Name: "chats", About: "conversations under four system prompts", Capacity: 26, Traffic: talk},
		{Name: "images", About: "questions about pictures, some of them asked about often", Capacity: 33, Traffic: still(0)},
		{Name: "hot image", About: "the same, a third of them about one picture", Capacity: 44, Traffic: still(0.3)},
		{Name: "agents", About: "long common instructions, many short steps", Capacity: 3.7, Traffic: func(rate float64) []*Request { return agents.traffic(1, rate, 100) }},
		{Name: "siblings", About: "sixteen at once with one new prompt of 8,000 tokens", Capacity: 1.1, Traffic: func(rate float64) []*Request { return siblings(1, rate, minutes) }},
		{Name: "short prompts", About: "most of them shorter than a block", Capacity: 108, Traffic: func(rate float64) []*Request { return shorts(1, rate, 60) }},
		{Name: "slow worker", About: "images; one worker at half speed", Capacity: 33, Traffic: still(0), Change: func(s *Setup) { s.Speeds = []float64{0.5} }},
		{Name: "failing worker", About: "images; one worker answers 503 at once", Capacity: 29, Traffic: still(0), Change: func(s *Setup) { s.Failing = 1 }},
		{Name: "event loss", About: "images; a tenth of the event messages is lost", Capacity: 33, Traffic: still(0), Change: func(s *Setup) { s.Lossy = 0.1 }},
		{Name: "no events", About: "images; no events at all", Capacity: 33, Traffic: still(0), Change: func(s *Setup) { s.NoEvents = true }},
		{Name: "replicas", About: "images; sixteen routers that do not see each other", Capacity: 33, Traffic: still(0), Change: func(s *Setup) { s.Replicas = 16 }},
		{Name: "scale-up", About: "chats; two of the eight workers come after a minute", Capacity: 21, Traffic: talk, Change: func(s *Setup) { s.Joining, s.JoinAt = 2, time.Minute }},
	}
	for i := range list {
		list[i].Workers, list[i].Until = 8, minutes*time.Second
	}
	return list
}

// Mooncake is a scenario of a trace in that form, a gzipped file: 6,000 requests of it on sixteen workers.
func Mooncake(path string) (Scenario, error) {
	read := func(speed float64) ([]*Request, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return mooncake(f, speed, 6000)
	}
	if _, err := read(1); err != nil {
		return Scenario{}, fmt.Errorf("%s: %w", path, err)
	}
	return Scenario{Name: "mooncake", About: "conversations of a chat service", Workers: 16, Capacity: 3, Until: time.Hour, Traffic: func(speed float64) []*Request {
		trace, _ := read(speed) // it was read before
		return trace
	}}, nil
}

// Rival is a rule under its name.
type Rival struct {
	Name string
	Make func(*View) Rule
}

// Rules lists the router of this repository first, then the others, and the oracle last.
func Rules() []Rival {
	return []Rival{{"sightline", newSightline},
		{"round robin", roundRobin}, {"least request", leastRequest}, {"power of two", powerOfTwo}, {"prefix hash", prefixHash}, {"session sticky", sessionSticky},
		{"Dynamo linear", dynamoLinear}, {"Dynamo lmetric", dynamoLmetric}, {"llm-d 3:2:2", llmdScorers}, {"llm-d filter", llmdFilter}, {"SGLang", sglangCacheAware},
		{"vLLM kv_aware", vllmKVAware}, {"vLLM smetric", vllmSmetric}, {"AIBrix prefix", aibrixPrefix}, {"AIBrix tokens", aibrixTokens}, {"production-stack", productionStack},
		{"oracle", oracle},
	}
}

// Options say what Play plays.
type Options struct {
	Scenarios []string  // by name; nil: all
	Rules     []string  // by name; nil: all
	Loads     []float64 // shares of a scenario's capacity
	Trace     string    // a file in Mooncake's form, gzipped, to play too; "": none
}

// Play compares rules and writes a table for each scenario and load. The error says which name is not known, or what of the
// trace cannot be read.
func Play(w io.Writer, o Options) error {
	scenarios := Scenarios()
	if o.Trace != "" {
		trace, err := Mooncake(o.Trace)
		if err != nil {
			return err
		}
		scenarios = append(scenarios, trace)
	}
	scenarios, err := named(scenarios, o.Scenarios, func(s Scenario) string { return s.Name })
	if err != nil {
		return fmt.Errorf("scenario: %w", err)
	}
	rules, err := named(Rules(), o.Rules, func(r Rival) string { return r.Name })
	if err != nil {
		return fmt.Errorf("rule: %w", err)
	}
	compare(w, scenarios, o.Loads, rules)
	return nil
}

// named leaves those of a list that are named; no name: all.
func named[T any](list []T, names []string, name func(T) string) (some []T, err error) {
	if len(names) == 0 {
		return list, nil
	}
	for _, n := range names {
		at := slices.IndexFunc(list, func(x T) bool { return name(x) == n })
		if at < 0 {
			known := make([]string, len(list))
			for i := range list {
				known[i] = name(list[i])
			}
			return nil, fmt.Errorf("%q is none of %q", n, known)
		}
		some = append(some, list[at])
	}
	return some, nil
}

// warmUp is left out of the numbers.
const warmUp = 20 * time.Second

// at makes the traffic of a load.
func (s *Scenario) at(load float64) *Trace {
	return prepare(s.Traffic(load*s.Capacity), defaultEngine().BlockSize)
}

// run plays a scenario's traffic under a rule.
func (s *Scenario) run(trace *Trace, rule Rival) (*Result, Summary) {
	setup := Setup{Workers: s.Workers, Engine: defaultEngine(), Delays: defaultDelays(), Seed: 1}
	if s.Change != nil {
		s.Change(&setup)
	}
	r := Run(setup, trace, rule.Make)
	return r, r.Summarise(func(x *Served) bool { return x.At >= warmUp && x.At < s.Until })
}

// compare writes a table for each scenario and load: times in milliseconds, the best mean first.
func compare(w io.Writer, scenarios []Scenario, loads []float64, rules []Rival) {
	for _, sc := range scenarios {
		for _, load := range loads {
			fmt.Fprintf(w, "%s at %.0f %%: %s\n", sc.Name, 100*load, sc.About)
			fmt.Fprintf(w, "  %-17s %8s %8s %8s %8s %9s %6s %6s %6s\n", "TTFT, ms", "mean", "p50", "p90", "p99", "end", "hits", "skew", "failed")
			for _, r := range sc.compare(load, rules) {
				fmt.Fprintf(w, "  %-17s %8d %8d %8d %8d %9d %6.3f %6.2f %6d\n", r.rule, r.Mean.Milliseconds(), r.P50.Milliseconds(),
					r.P90.Milliseconds(), r.P99.Milliseconds(), r.E2E.Milliseconds(), r.Hits, r.Skew, r.Failed)
			}
			fmt.Fprintln(w, strings.Repeat("-", 88))
		}
	}
}

type row struct {
	rule string
	Summary
}

// compare plays a load under each rule, as many at once as there are processors; the best mean comes first.
func (s *Scenario) compare(load float64, rules []Rival) []row {
	trace := s.at(load)
	rows := make([]row, len(rules))
	var all sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, rule := range rules {
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			_, sum := s.run(trace, rule)
			rows[i] = row{rule.Name, sum}
		})
	}
	all.Wait()
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(a.Mean, b.Mean) })
	return rows
}
