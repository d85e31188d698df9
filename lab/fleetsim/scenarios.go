package fleetsim

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// A Scenario is traffic and a fleet. Its capacity is the rate (conversations, requests or bursts per second; for a trace, the
// speed-up over the recording) at which round robin's mean time to first token reaches 1.5 s on this fleet; loads are shares of it.
// All were fixed before anything was tuned.
type Scenario struct {
	Name     string
	About    string
	Workers  int
	Capacity float64
	Traffic  func(seed uint64, rate float64) []*Request
	Change   func(*Setup)  // nil: a fleet without faults
	Until    time.Duration // later requests are not counted
	Loads    []float64     // to play it at; nil: all that are asked for
	seed     uint64
}

// Loads are those at which every scenario is played unless it has its own.
var Loads = []float64{0.4, 0.7, 0.9, 1.3}

// saturated is three times the capacity.
var saturated = []float64{3}

// seconds is the length of the traffic; the first ones are not counted.
const (
	seconds = 150
	warmUp  = 20 * time.Second // at most a seventh of what is played
	fastest = 1 << 12          // largest speed-up over the recording that is tried for a trace
)

// Scenarios lists those that need no trace. Ten are complaints of users of other routers, with what was seen there.
func Scenarios() []Scenario {
	aboutImages := func(seed uint64, rate float64) []*Request { return images(seed, rate, seconds, 0) }
	hot := func(seed uint64, rate float64) []*Request { return images(seed, rate, seconds, 0.3) }
	reports := func(seed uint64, rate float64) []*Request { return documents(seed, rate, seconds) }
	talk := func(seed uint64, rate float64) []*Request { return chats.traffic(seed, rate, seconds) }
	work := func(seed uint64, rate float64) []*Request { return agents.traffic(seed, rate, 100) }
	list := []Scenario{
		{Name: "chats", Capacity: 26, Traffic: talk, About: "conversations under four system prompts"},
		{Name: "images", Capacity: 33, Traffic: aboutImages, About: "questions about images, some of them asked about often"},
		{Name: "agents", Capacity: 3.7, Traffic: work, About: "long common instructions, many short steps"},

		{Name: "herd", Capacity: 51, Traffic: func(seed uint64, rate float64) []*Request { return herd(seed, rate, 60) },
			About: "single requests under one system prompt (sglang #21199: round robin 627 ms, cache_aware 1,617 ms; Dynamo " +
				"#737: one of eight gets all)"},
		{Name: "short prompts", Capacity: 108, Traffic: func(seed uint64, rate float64) []*Request { return shorts(seed, rate, 60) },
			About: "most of them shorter than a block (Infera #107: 12 of 12 to one worker)"},
		{Name: "paced agents", Workers: 2, Capacity: 1, Until: time.Hour, Loads: []float64{1},
			Traffic: func(seed uint64, _ float64) []*Request { return paced(seed, 448) },
			About:   "one request at a time, nothing in flight at any decision (Infera #103: 448 to one of two workers, 0 to the other)"},
		{Name: "replicas", Capacity: 33, Traffic: aboutImages, Change: func(s *Setup) { s.Replicas = 16 },
			About: "images; sixteen routers that do not see each other (Dynamo #589: all choose the same worker between two reports)"},
		{Name: "scrape outage", Capacity: 33, Traffic: aboutImages, Change: func(s *Setup) { s.ScrapedTo = 30 * time.Second },
			About: "images; no worker's metrics after 30 s (llm-d: older than 200 ms counts as full, which stops all)"},
		{Name: "siblings", Capacity: 1.1, Traffic: func(seed uint64, rate float64) []*Request { return siblings(seed, rate, seconds) },
			About: "sixteen at once with one new prompt of 8,000 tokens (llm-d #2515: one worker takes all; Dynamo: all compute it)"},
		{Name: "event loss", Capacity: 33, Traffic: aboutImages, Change: func(s *Setup) { s.Lossy = 0.1 },
			About: "images; a tenth of the event messages is lost (sglang #39822: 337 of 1,958 decisions blind)"},
		{Name: "slow worker", Capacity: 33, Traffic: aboutImages, Change: func(s *Setup) { s.Speeds = []float64{0.5} },
			About: "images; one worker at half speed (Lodestar: 4.4 times the mean of a picker that knows)"},
		{Name: "scale-up", Capacity: 21, Traffic: talk, Change: func(s *Setup) { s.Joining, s.JoinAt = 2, time.Minute },
			About: "chats; two of the eight workers come after a minute (llm-d #669: they stay idle)"},
		{Name: "hot image", Capacity: 44, Traffic: hot, About: "images; a third about one image (GAIE #2823: one worker gets all of them)"},

		{Name: "failing worker", Capacity: 29, Traffic: aboutImages, Change: func(s *Setup) {
			s.Failing = 1
		}, About: "images; one worker answers 503 at once"},
		{Name: "no events", Capacity: 33, Traffic: aboutImages, Change: func(s *Setup) { s.NoEvents = true }, About: "images; no events at all"},
		{Name: "no reports", Capacity: 33, Traffic: aboutImages, Change: func(s *Setup) { s.NoReports = true },
			About: "images; no access log: Sightline learns no beginning and no end of requests, other routers see both"},
		{Name: "adapters", Capacity: 16, Traffic: func(seed uint64, rate float64) []*Request {
			return adapted(seed, chats.traffic(seed, rate, seconds), 16)
		},
			About: "chats; sixteen LoRA adapters, of which a worker holds four, 0.3 s to load one"},
		{Name: "lower tiers", Capacity: 12.7, Traffic: talk, Change: offloads,
			About: "chats; a quarter of the room on the GPUs and ten times that in lower tiers, in units of 256 tokens: four " +
				"workers fetch 190,000 tokens a second, four 5,000"},
		{Name: "chats windows", Capacity: 26, Traffic: talk, Change: windows,
			About: "chats; workers with sliding windows, of which they keep what vLLM keeps"},
		{Name: "documents windows", Capacity: 17, Traffic: reports, Change: windows,
			About: "questions about documents, each asked about some five times; workers with sliding windows"},
		{Name: "documents states", Capacity: 18, Traffic: reports, Change: states, About: "the same; workers with recurrent states"},
		{Name: "images states", Capacity: 33, Traffic: aboutImages, Change: states,
			About: "images; workers with recurrent states, of which they keep what vLLM keeps"},
		{Name: "bursts", Capacity: 27, Traffic: func(seed uint64, rate float64) []*Request {
			return inBursts(images(seed, 3*rate, seconds/3, 0))
		},
			About: "images; all come within 2 s of every 6 s"},
		{Name: "unequal 2", Workers: 2, Capacity: 4, Traffic: aboutImages, Change: func(s *Setup) {
			s.Speeds = []float64{0.5, 1}
		}, About: "images; two workers, one of half the speed"},
		{Name: "unequal 16", Workers: 16, Capacity: 31, Traffic: func(seed uint64, rate float64) []*Request {
			return images(seed, rate, 100, 0)
		}, Change: speeds(0.4, 1.6), About: "images; sixteen workers of 0.4 to 1.6 times the speed"},
		{Name: "saturated images", Capacity: 33, Loads: saturated, Traffic: aboutImages,
			About: "images; three times round robin's capacity: requests per second"},
		{Name: "saturated agents", Capacity: 3.7, Loads: saturated, Traffic: work,
			About: "agents; three times round robin's capacity: requests per second"},
		{Name: "saturated chats", Capacity: 26, Loads: saturated, Traffic: talk,
			About: "chats; three times round robin's capacity: requests per second"},

		{Name: "hot prefix", Capacity: 47, Traffic: func(seed uint64, rate float64) []*Request { return trending(seed, rate, seconds) },
			About: "chats; three of five begin with the same 6,000 tokens, which others replace every 20 s"},
		{Name: "documents among chats", Capacity: 3.3, Traffic: func(seed uint64, rate float64) []*Request {
			return withDocuments(seed, rate, seconds)
		}, About: "chats; one of twenty begins with a document of 30,000 to 60,000 tokens"},
		{Name: "screenshots", Capacity: 4.9, Traffic: func(seed uint64, rate float64) []*Request { return screenshots(seed, rate, 100) },
			About: "agents that send one more image a turn"},
		{Name: "passages", Capacity: 52, Traffic: func(seed uint64, rate float64) []*Request { return passages(seed, rate, seconds) },
			About: "questions with five passages of 400 tokens each, some of which are found often, the best first"},

		{Name: "chats 3B", Capacity: 50, Traffic: talk, Change: on(smallModel), About: "chats on a machine like one with a 3 B model"},
		{Name: "hot image 3B", Capacity: 98, Traffic: hot, Change: on(smallModel), About: "hot image on a machine like one with a 3 B model"},
		{Name: "chats 70B", Capacity: 21, Traffic: talk, Change: on(largeModel), About: "chats on a machine like one with a 70 B model"},
		{Name: "images 70B", Capacity: 25, Traffic: aboutImages, Change: on(largeModel),
			About: "images on a machine like one with a 70 B model"},
		{Name: "chats 14B", Capacity: 6.6, Traffic: talk, Change: on(smallGPU),
			About: "chats on a machine like a small GPU with a 14 B model; held out"},
		{Name: "images 30B", Capacity: 43, Traffic: aboutImages, Change: on(experts),
			About: "images on a machine like one with a 30 B mixture of experts; held out"},
		{Name: "thousand workers", Workers: 1000, Until: 5 * time.Second, Capacity: 33 * 125, Loads: []float64{0.7},
			Traffic: func(seed uint64, rate float64) []*Request { return images(seed, rate, 5, 0) }, About: "images; 5 s of them"},
	}
	list = append(list, withPrefillWorkers(list)...)
	for i := range list {
		list[i].Until = cmp.Or(list[i].Until, seconds*time.Second)
		list[i].Workers = cmp.Or(list[i].Workers, 8)
		list[i].seed = 1
	}
	return list
}

// withPrefillWorkers returns those scenarios with four workers that prefill for the four others, under the pickers that
// choose such pairs. Their capacities are those of pairs in turn.
func withPrefillWorkers(list []Scenario) (pairs []Scenario) {
	for _, p := range []struct {
		name     string
		capacity float64
	}{{"chats", 7}, {"images", 17}, {"agents", 1.33}, {"herd", 27}, {"short prompts", 71}, {"siblings", 1.4},
		{"hot image", 24}, {"bursts", 15}, {"slow worker", 8.2}, {"scale-up", 7},
		{"replicas", 15}, {"scrape outage", 17}, {"event loss", 17}, {"no events", 17}, {"no reports", 17}, {"adapters", 3.6}} {
		s := list[slices.IndexFunc(list, func(s Scenario) bool { return s.Name == p.name })]
		change := s.Change
		s.Name, s.Capacity, s.About = p.name+" 4+4", p.capacity, s.About+"; four workers prefill for four"
		s.Change = func(setup *Setup) {
			setup.Prefill = 4
			if change != nil {
				change(setup)
			}
		}
		pairs = append(pairs, s)
	}
	return pairs
}

// pickers returns the pickers under which the scenario is played.
func (s *Scenario) pickers() []Rival {
	switch setup := s.setup(); {
	case setup.Prefill > 0:
		return pairPickers()
	case setup.Engine.Lower > 0:
		return tierPickers()
	case setup.Engine.Groups != nil:
		return hybridPickers()
	}
	return Pickers()
}

// on runs a scenario on another machine.
func on(machine func(*Engine)) func(*Setup) {
	return func(s *Setup) { machine(&s.Engine) }
}

// offloads gives workers a lower tier: half of them host memory, the others a store behind a slow network.
func offloads(s *Setup) {
	s.Engine.Blocks /= 4
	s.Engine.Lower, s.Engine.Unit = 10*s.Engine.Blocks, 16
	s.Lower = []float64{5.2e-6, 5.2e-6, 5.2e-6, 5.2e-6, 200e-6, 200e-6, 200e-6, 200e-6}
}

// speeds spreads the workers' speeds evenly between from and to.
func speeds(from, to float64) func(*Setup) {
	return func(s *Setup) {
		for i := range s.Workers {
			s.Speeds = append(s.Speeds, from+(to-from)*float64(i)/float64(s.Workers-1))
		}
	}
}

// setup returns the scenario's fleet.
func (s *Scenario) setup() Setup {
	setup := Setup{Workers: s.Workers, Engine: defaultEngine(), Delays: defaultDelays(), Seed: 1}
	if len(s.Loads) == 1 && s.Loads[0] == saturated[0] { // only what is served until then counts
		setup.Stop = s.Until
	}
	if s.Change != nil {
		s.Change(&setup)
	}
	return setup
}

// at generates the traffic of a load.
func (s *Scenario) at(load float64, seed uint64) *Trace {
	return prepare(s.Traffic(seed, load*s.Capacity), defaultEngine().BlockSize)
}

// run plays a scenario's traffic under a picker.
func (s *Scenario) run(trace *Trace, picker Rival) (*Result, Summary) {
	r := Run(s.setup(), trace, picker.Make)
	return r, r.Summarise(min(warmUp, s.Until/7), s.Until)
}

// findCapacity searches for the rate, within 2 %, at which round robin's mean time to first token is 1.5 s longer than without
// waiting. A trace that is too short for that has none.
func (s *Scenario) findCapacity() (float64, error) {
	mean := func(rate float64) time.Duration {
		pickers := s.pickers()
		turns := slices.IndexFunc(pickers, func(r Rival) bool { return r.Name == "round robin" })
		_, sum := s.run(prepare(s.Traffic(1, rate), defaultEngine().BlockSize), pickers[turns])
		return sum.Mean
	}
	low := 1.0 / 16
	most := mean(low) + 1500*time.Millisecond
	high := 2 * low
	for ; mean(high) < most; low, high = high, 2*high {
		if high > fastest {
			return 0, fmt.Errorf("too few requests to load %d workers: give more, or fewer workers", s.Workers)
		}
	}
	for high > 1.02*low {
		if middle := (low + high) / 2; mean(middle) < most {
			low = middle
		} else {
			high = middle
		}
	}
	return low, nil
}
