package choose

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestRank(t *testing.T) {
	for _, c := range []struct {
		name   string
		cands  []Candidate
		tokens int
		want   []int
	}{
		{"longest prefix wins", []Candidate{{Overlap: Overlap{Slot: 0}}, {Overlap: Overlap{Slot: 1, Exact: 500, Predicted: 500}},
			{Overlap: Overlap{Slot: 2, Exact: 100, Predicted: 100}}},
			1000, []int{1, 2, 0}},
		{"predicted counts like exact", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 300, Predicted: 300}},
			{Overlap: Overlap{Slot: 1, Predicted: 400}}}, 1000, []int{1, 0}},
		{"a queue longer than the saving loses", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 500, Predicted: 500},
			Backlog: 1100}, {Overlap: Overlap{Slot: 1}}}, 1000, []int{1, 0}},
		{"an image already encoded wins", []Candidate{{Overlap: Overlap{Slot: 0, Encode: 1196}},
			{Overlap: Overlap{Slot: 1, Seen: 1196}}}, 1300, []int{1, 0}},
		{"requests in flight weigh", []Candidate{{Overlap: Overlap{Slot: 0}, Inflight: 3},
			{Overlap: Overlap{Slot: 1}, Inflight: 1}}, 10, []int{1, 0}},
		{"a short shared prefix does not draw new work", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 48, Predicted: 48},
			Inflight: 1, Recent: 1200},
			{Overlap: Overlap{Slot: 1}}}, 1000, []int{1, 0}},
		{"nor does the beginning of a long prompt, if others are as free", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 128,
			Predicted: 128}, Recent: 3000},
			{Overlap: Overlap{Slot: 1}}}, 2800, []int{1, 0}},
		{"a longer prefix does", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 240, Predicted: 240}, Inflight: 1},
			{Overlap: Overlap{Slot: 1}}}, 1000, []int{0, 1}},
		{"decode steps read the context of others", []Candidate{{Overlap: Overlap{Slot: 0}, Inflight: 2, Context: 60000},
			{Overlap: Overlap{Slot: 1}, Inflight: 2}},
			1000, []int{1, 0}},
		{"a slow worker's prefill costs more", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 100, Predicted: 100}, Rate: 5000},
			{Overlap: Overlap{Slot: 1}, Rate: 10000}, {Overlap: Overlap{Slot: 2}, Rate: 10000}}, 1000, []int{1, 2, 0}},
		{"a cached prefix is worth more in a long queue", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 1000, Predicted: 1000},
			Backlog: 9000},
			{Overlap: Overlap{Slot: 1}, Backlog: 7000}}, 1000, []int{0, 1}},
		{"of a full fleet work done twice is paid by all", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 500, Predicted: 500},
			Backlog: 1100, Inflight: 60}, {Overlap: Overlap{Slot: 1}, Inflight: 60}}, 1000, []int{0, 1}},
		{"equal costs: the least recent work", []Candidate{{Overlap: Overlap{Slot: 0}, Recent: 1200},
			{Overlap: Overlap{Slot: 1}}}, 1000, []int{1, 0}},
		{"work in progress is waited for rather than done twice", []Candidate{{Overlap: Overlap{Slot: 0, Predicted: 400},
			Backlog: 800, Inflight: 1, Recent: 800},
			{Overlap: Overlap{Slot: 1, Encode: 391}}}, 410, []int{0, 1}},
		{"a trial goes first", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 1000, Predicted: 1000}},
			{Overlap: Overlap{Slot: 1}, First: true, Backlog: 9000}, {Overlap: Overlap{Slot: 2}}},
			1000, []int{1, 0, 2}},
		{"another zone is away", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 200, Predicted: 200}, ZoneDelay: 0.05},
			{Overlap: Overlap{Slot: 1}}}, 1000, []int{1, 0}},
		{"a longer prefix is worth the way", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 700, Predicted: 700}, ZoneDelay: 0.05},
			{Overlap: Overlap{Slot: 1}}}, 1000, []int{0, 1}},
		{"in time before cheap", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 900, Predicted: 900}, Late: 0.001},
			{Overlap: Overlap{Slot: 1}, Inflight: 9}}, 1000, []int{1, 0}},
		{"all late: the least late", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 900, Predicted: 900}, Late: 0.2},
			{Overlap: Overlap{Slot: 1}, Inflight: 9, Late: 0.1}},
			1000, []int{1, 0}},
		{"the GPU before the CPU", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 900, Predicted: 900, Offloaded: 900}},
			{Overlap: Overlap{Slot: 1, Exact: 900, Predicted: 900}}},
			1000, []int{1, 0}},
		{"the CPU before computing", []Candidate{{Overlap: Overlap{Slot: 0}},
			{Overlap: Overlap{Slot: 1, Exact: 900, Predicted: 900, Offloaded: 900}}}, 1000, []int{1, 0}},
		{"a fast tier before a slow one", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 900, Predicted: 900, Offloaded: 900},
			FetchRate: 15000},
			{Overlap: Overlap{Slot: 1, Exact: 900, Predicted: 900, Offloaded: 900}, FetchRate: 100000}}, 1000, []int{1, 0}},
		{"less of the GPU before more of a slow tier", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 900, Predicted: 900,
			Offloaded: 900}, FetchRate: 15000}, {Overlap: Overlap{Slot: 1, Exact: 700, Predicted: 700}}}, 1000, []int{1, 0}},
		{"credit never exceeds the prompt", []Candidate{{Overlap: Overlap{Slot: 0, Exact: 99, Predicted: 99}, Inflight: 1},
			{Overlap: Overlap{Slot: 1, Exact: 10, Predicted: 10}}}, 10, []int{1, 0}},
	} {
		for i := range c.cands {
			c.cands[i].Tokens = c.tokens
		}
		got := Rank(c.cands, 3, 0)
		for i, want := range c.want {
			if got[i].Slot != want {
				t.Errorf("%s: place %d is %d, want %d", c.name, i, got[i].Slot, want)
			}
		}
	}
}

// TestOwnLengths checks that workers of two classes are each charged for the prompt as they read it.
func TestOwnLengths(t *testing.T) {
	c := []Candidate{{Overlap: Overlap{Slot: 0, Tokens: 1000, Exact: 500, Predicted: 500}}, {Overlap: Overlap{Slot: 1, Tokens: 400}}}
	if got := Rank(c, 2, 0); got[0].Slot != 1 {
		t.Errorf("500 tokens to prefill go before 400: got %+v, want [0].Slot 1", got)
	}
}

// TestTiesAreDrawn checks that equal candidates are equally likely, and that routers with different draws do not all choose the
// same.
func TestTiesAreDrawn(t *testing.T) {
	var first [4]int
	r := rand.New(rand.NewPCG(1, 2))
	for range 4000 {
		c := []Candidate{{Overlap: Overlap{Slot: 0}}, {Overlap: Overlap{Slot: 1}}, {Overlap: Overlap{Slot: 2}},
			{Overlap: Overlap{Slot: 3}}}
		first[Rank(c, 3, r.Uint64())[0].Slot]++
	}
	for slot, n := range first {
		if n < 800 || n > 1200 {
			t.Errorf("slot %d came first %d times of 4,000, want at least 800, at most 1200", slot, n)
		}
	}
}

// TestLowerTiers checks that what lower tiers hold is worth computing less fetching, and never less than nothing: then all terms
// are as if it were not held.
func TestLowerTiers(t *testing.T) {
	cold := Candidate{Overlap: Overlap{Tokens: 5000}, Backlog: 3000, Inflight: 3, Rate: 10000}
	held := cold
	held.Exact, held.Predicted, held.Offloaded = 4000, 4000, 4000
	f := FleetOf([]Candidate{cold, held})
	for rate, fetch := range map[float64]float64{0: perRequest + fetchPerToken*4000, 100000: 400, 20000: 2000, 10000: 0, 1000: 0} {
		held.FetchRate = rate
		got, want := f.Cost(&held), f.Cost(&cold)
		if got.Fetch != fetch || (got == want) != (fetch == 0) || got.Sum() > want.Sum() {
			t.Errorf("%v tokens a second: fetching costs %v of %v, want %v; not held %v", rate, got.Fetch, got.Sum(), fetch, want.Sum())
		}
		if fetch > 0 && (got.Prefill != 1000 || math.Abs(f.FirstToken(&held)-(3000+1000+fetch)/10000) > 1e-9) {
			t.Errorf("%v tokens a second: got prefill %v and the first token after %v s, want 1000 and %v s",
				rate, got.Prefill, f.FirstToken(&held), (3000+1000+fetch)/10000)
		}
	}
	held.FetchRate, held.Offloaded = 0, 50
	if got := f.Cost(&held); got.Fetch != 0 || got.Prefill != 1050 {
		t.Errorf("a few tokens are not worth the wait: got %+v, want Fetch 0, Prefill 1050", got)
	}
}

// TestTermsSumUp checks that the shown cost is the one used for ranking.
func TestTermsSumUp(t *testing.T) {
	c := []Candidate{{Overlap: Overlap{Slot: 0, Tokens: 1000, Exact: 100, Predicted: 200, Encode: 300}, Inflight: 4,
		Backlog: 600, Context: 1000, Rate: 5000}, {Overlap: Overlap{Slot: 1, Tokens: 1000}, Rate: 5000}}
	got := FleetOf(c).Cost(&c[0])
	got.Delay = math.Round(10*got.Delay) / 10
	if want := (Terms{Prefill: 1100, Queue: 600, Delay: 1056, Requests: 256, Context: 30}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	Rank(c, 2, 0)
	if math.Abs(c[1].Cost-got.Sum()) > 0.1 {
		t.Errorf("ranked by %v, shown %v, want math.Abs(c[1].Cost-got.Sum()) <= 0.1", c[1].Cost, got.Sum())
	}
}

func TestRankAllocatesNothing(t *testing.T) {
	c := make([]Candidate, 64)
	c[60].Predicted, c[60].Tokens, c[60].Backlog = 500, 500, 9000
	if n := testing.AllocsPerRun(10, func() { Rank(c, 3, 7) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// TestFirstToken checks that the first token is expected after the queue and the rest of the prompt, at the worker's own rate,
// plus the round trip.
func TestFirstToken(t *testing.T) {
	c := []Candidate{{Overlap: Overlap{Tokens: 1500, Exact: 500, Predicted: 500}, Backlog: 3000, Rate: 10000, Inflight: 50},
		{Overlap: Overlap{Tokens: 1500}, Rate: 10000, ZoneDelay: 0.01}, {Overlap: Overlap{Tokens: 1000}, Rate: 2500}}
	f := FleetOf(c)
	for i, want := range []float64{0.4, 0.16, 0.4} {
		if got := f.FirstToken(&c[i]); got < want*0.99 || got > want*1.01 {
			t.Errorf("%d: %v s, want %v", i, got, want)
		}
	}
	c[0].Rate, c[1].Rate, c[2].Rate = 0, 0, 0
	if got := FleetOf(c).FirstToken(&c[2]); got != 0.1 {
		t.Errorf("no rate is known: got %v s, want 0.1", got)
	}
}
