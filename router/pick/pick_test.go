package pick

import "testing"

func TestRank(t *testing.T) {
	for _, c := range []struct {
		name   string
		cands  []Candidate
		tokens int
		want   []int
	}{
		{"longest prefix wins", []Candidate{{Slot: 0}, {Slot: 1, Exact: 500, Predicted: 500}, {Slot: 2, Exact: 100, Predicted: 100}}, 1000, []int{1, 2, 0}},
		{"predicted counts like exact", []Candidate{{Slot: 0, Exact: 300, Predicted: 300}, {Slot: 1, Predicted: 400}}, 1000, []int{1, 0}},
		{"a queue longer than the saving loses", []Candidate{{Slot: 0, Exact: 500, Predicted: 500, Backlog: 600}, {Slot: 1}}, 1000, []int{1, 0}},
		{"a picture already encoded wins", []Candidate{{Slot: 0, Encode: 1196}, {Slot: 1, Seen: 1196}}, 1300, []int{1, 0}},
		{"requests in flight weigh", []Candidate{{Slot: 0, Inflight: 3}, {Slot: 1, Inflight: 1}}, 10, []int{1, 0}},
		{"a short shared prefix does not draw new work", []Candidate{{Slot: 0, Exact: 48, Predicted: 48, Recent: 1200}, {Slot: 1}}, 1000, []int{1, 0}},
		{"a longer prefix does", []Candidate{{Slot: 0, Exact: 80, Predicted: 80, Recent: 1200}, {Slot: 1}}, 1000, []int{0, 1}},
		{"work on the same prompt is no queue", []Candidate{{Slot: 0, Predicted: 400, Backlog: 800, Shared: 800, Inflight: 1}, {Slot: 1, Encode: 391}}, 410, []int{0, 1}},
		{"a full cache weighs less than a held prompt", []Candidate{{Slot: 0, Usage: 1}, {Slot: 1, Usage: 0.1}, {Slot: 2, Exact: 1900, Predicted: 1900, Usage: 1}}, 2000, []int{2, 1, 0}},
		{"a trial goes first", []Candidate{{Slot: 0, Exact: 1000, Predicted: 1000}, {Slot: 1, First: true, Backlog: 9000}, {Slot: 2}}, 1000, []int{1, 0, 2}},
		{"credit never exceeds the prompt", []Candidate{{Slot: 0, Exact: 99, Predicted: 99, Inflight: 1}, {Slot: 1, Exact: 10, Predicted: 10}}, 10, []int{1, 0}},
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

// Workers of two classes: each is charged for the prompt as it reads it.
func TestOwnLengths(t *testing.T) {
	c := []Candidate{{Slot: 0, Tokens: 1000, Exact: 500, Predicted: 500}, {Slot: 1, Tokens: 400}}
	if got := Rank(c, 2, 0); got[0].Slot != 1 {
		t.Errorf("500 tokens to prefill go before 400: %+v", got)
	}
}

// Equal candidates take turns, each once a round.
func TestTiesGoRound(t *testing.T) {
	var first [4]int
	for turn := range uint64(40) {
		c := []Candidate{{Slot: 0}, {Slot: 1}, {Slot: 2}, {Slot: 3}}
		first[Rank(c, 3, turn)[0].Slot]++
	}
	for slot, n := range first {
		if n != 10 {
			t.Errorf("slot %d came first %d times of 40", slot, n)
		}
	}
}

func TestRankAllocatesNothing(t *testing.T) {
	c := make([]Candidate, 64)
	if n := testing.AllocsPerRun(10, func() { Rank(c, 3, 7) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
