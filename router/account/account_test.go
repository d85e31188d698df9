package account

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestEachTokenOnce checks that whatever a decision knew and an engine counts, each token is cached or in one span, and the engine's
// counts stand.
func TestEachTokenOnce(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		blocks := func() int { return 16 * r.IntN(20) }
		k := Known{Tokens: r.IntN(300), Cached: blocks(), Exact: blocks(), Withheld: 16 * r.IntN(2), Elsewhere: blocks(),
			Read: blocks(), Rest: Unknown, NoRead: r.IntN(9) == 0, MayRead: r.IntN(9) == 0}
		k.Held, k.Usable = k.Cached+16*r.IntN(3), max(0, k.Tokens-1)/16*16
		a := Predict(k, func(spans []Span, from, to int) []Span {
			if r.IntN(2) == 0 {
				spans = append(spans, Span{From: from, To: from + 16*(1+r.IntN((to-from)/16)), Cause: Evicted, Worker: "w"})
			}
			return spans
		})
		check(t, k, a, k.Tokens, a.Cached)
		f := Found{Tokens: r.IntN(300), Cached: -1, Moved: r.IntN(4) == 0, Restored: func(int, int) bool { return r.IntN(2) == 0 }}
		tokens := k.Tokens
		if f.Tokens > 0 {
			tokens = f.Tokens
		}
		want := min(a.Cached, tokens)
		if r.IntN(3) > 0 {
			f.Cached = r.IntN(tokens + 1)
			want = f.Cached
		}
		a.Settle(f)
		check(t, k, a, tokens, want)
	}
}

func check(t *testing.T, k Known, a *Account, tokens, cached int) {
	t.Helper()
	at := a.Cached
	for _, s := range a.Spans {
		if s.From != at || s.To <= at {
			t.Fatalf("%+v: a span from %d to %d, want it from %d: %+v", k, s.From, s.To, at, a)
		}
		at = s.To
	}
	if at != a.Tokens || a.Tokens != tokens || a.Cached != cached || a.Uncached.Total() != tokens-cached {
		t.Fatalf("%+v: %+v ends at %d, want %d tokens, %d of them cached", k, a, at, tokens, cached)
	}
}

// TestSums checks that causes are written by name, read back, and that a later release's cause counts as unknown.
func TestSums(t *testing.T) {
	s := Sums{KeptShort: 3, Lost: 2}
	text, err := json.Marshal(s)
	if string(text) != `{"kept short":3,"lost":2}` || err != nil {
		t.Fatalf("%s, %v: got %q, want %q, no error", text, err, string(text), `{"kept short":3,"lost":2}`)
	}
	var back Sums
	if err := json.Unmarshal([]byte(`{"kept short":3,"lost":1,"later":7}`), &back); err != nil || back != (Sums{KeptShort: 3, Lost: 1, Unknown: 7}) {
		t.Errorf("got %v, %v, want no error, %v", back, err, Sums{KeptShort: 3, Lost: 1, Unknown: 7})
	}
	back.Add(&s)
	order := ""
	back.Each(func(c Cause, n int) { order += c.String() + " " })
	if order != "unknown kept short lost " || back.Total() != 16 {
		t.Errorf(`%s: %v, want order == "unknown kept short lost ", back.Total() == 16`, order, back)
	}
	var c Cause
	if c.UnmarshalText([]byte("later")) == nil {
		t.Error(`a cause that does not exist is read, want c.UnmarshalText([]byte("later")) != nil`)
	}
	for c := range causes {
		if c.Says() == "" || c.String() == "" {
			t.Errorf(`%d has no words, want c.Says() != "", c.String() != ""`, c)
		}
	}
}

// TestEnlarge checks which evicted tokens a larger cache would have kept: those up to the next block that needs more.
func TestEnlarge(t *testing.T) {
	evicted := []Span{{From: 160, To: 320, Cause: Evicted}, {From: 320, To: 400, Cause: New}, {From: 400, To: 480, Cause: Evicted}}
	for name, c := range map[string]struct {
		needs []Needs
		kept  int
		times [2]float64
	}{
		"nothing is known":   {nil, 0, [2]float64{}},
		"a fifth keeps all":  {[]Needs{{Token: 160, Times: 0.7}, {Token: 400, Times: 1.1}}, 240, [2]float64{1, 1.1}},
		"and the beginning":  {[]Needs{{Token: 176, Times: 1.2}, {Token: 240, Times: 1.5}, {Token: 416, Times: 3}}, 80, [2]float64{1.5, 3}},
		"one is not known":   {[]Needs{{Token: 160, Times: 1.1}, {Token: 400, Times: math.Inf(1)}}, 160, [2]float64{1.1, 0}},
		"behind what is not": {[]Needs{{Token: 320, Times: 1.1}}, 240, [2]float64{1.1, 1.1}},
	} {
		a := Account{Tokens: 480, Spans: slices.Clone(evicted)}
		a.Enlarge(c.needs)
		if a.Kept != c.kept || a.Spans[0].Times != c.times[0] || a.Spans[2].Times != c.times[1] {
			t.Errorf("%s: got %d tokens kept, %v and %v times the size, want %d, %v", name, a.Kept, a.Spans[0].Times, a.Spans[2].Times, c.kept,
				c.times)
		}
	}
	a := Account{Spans: slices.Clone(evicted)}
	a.Enlarge([]Needs{{Token: 160, Times: 1.1}, {Token: 400, Times: math.Inf(1), Pushed: true}})
	if a.Kept != 160 || a.Spans[0].Why != "" || a.Spans[2].Why != PushedOut || a.Spans[2].Times != 0 {
		t.Errorf("pushed out: got %d tokens kept, why %q, %q, want 160, none and %q", a.Kept, a.Spans[0].Why, a.Spans[2].Why, PushedOut)
	}
	if from, to := a.Evicted(); from != 160 || to != 480 {
		t.Errorf("evicted from %d to %d, want 160 to 480", from, to)
	}
}
