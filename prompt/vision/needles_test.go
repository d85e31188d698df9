package vision

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// TestCountEach: counting many placeholders at once equals counting them one by one, also if they contain each other.
func TestCountEach(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	word := func(n int) string {
		var b strings.Builder
		for range n {
			b.WriteByte("ab<"[r.IntN(3)])
		}
		return b.String()
	}
	for range 2000 {
		text := word(r.IntN(60))
		list := make([]string, 1+r.IntN(12))
		for i := range list {
			list[i] = word(1 + r.IntN(4))
		}
		got := CountEach(text, list)
		for _, p := range list {
			if want := strings.Count(text, p); got[p] != want {
				t.Fatalf("%q in %q among %q: %d, want %d", p, text, list, got[p], want)
			}
		}
	}
}

// TestPlace: many placeholders are found where separate searches find them.
func TestPlace(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		text := make([]byte, r.IntN(80))
		for i := range text {
			text[i] = "ab<"[r.IntN(3)]
		}
		q, targets := &queues{}, map[*item]string{}
		var want, got []string // the texts between the placeholders, and the placeholders
		waiting := map[string]int{}
		var order []string
		for range 1 + r.IntN(9) {
			target := ""
			for range 1 + r.IntN(4) {
				target += string("ab<"[r.IntN(3)])
			}
			if waiting[target] > 0 {
				continue
			}
			order = append(order, target)
			var items []*item
			for range 1 + r.IntN(2) {
				items = append(items, new(item))
				targets[items[len(items)-1]] = target
				waiting[target]++
				q.left++
			}
			q.waiting = append(q.waiting, items)
		}
		rest := string(text)
		for {
			best, at := "", len(rest)
			for _, target := range order {
				if i := strings.Index(rest, target); waiting[target] > 0 && i >= 0 && i < at {
					best, at = target, i
				}
			}
			if best == "" {
				break
			}
			waiting[best]--
			want = append(want, rest[:at], best)
			rest = rest[at+len(best):]
		}
		left, err := place(q, text, func(it *item) []byte { return []byte(targets[it]) },
			func(part []byte) { got = append(got, string(part)) },
			func(it *item) error { got = append(got, targets[it]); return nil })
		if err != nil || string(left) != rest || !slices.Equal(got, want) {
			t.Fatalf("%q: %q and %q, %v; want %q and %q", text, got, left, err, want, rest)
		}
	}
}
