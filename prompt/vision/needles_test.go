package vision

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// Counting many placeholders at once gives what counting one after the other gives, also where they lie in one another.
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

// Many placeholders are found where one search for each finds them.
func TestNextOfMany(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	target := func(it *item) []uint32 { return it.ids }
	for range 2000 {
		text := make([]uint32, r.IntN(80))
		for i := range text {
			text[i] = uint32(r.IntN(3)) << (8 * r.IntN(2))
		}
		one, all := &queues{}, &queues{}
		seen := map[string]bool{}
		for i := range 5 + r.IntN(5) {
			ids := make([]uint32, 1+r.IntN(4))
			var key strings.Builder
			for j := range ids {
				ids[j] = uint32(r.IntN(3)) << (8 * r.IntN(2))
				key.WriteRune(rune(ids[j]) + 'a')
			}
			if seen[key.String()] {
				continue
			}
			seen[key.String()] = true
			for range 1 + r.IntN(2) {
				it := &item{index: i, ids: ids}
				for _, q := range []*queues{one, all} {
					if n := len(q.waiting); n == 0 || q.waiting[n-1].items[0].index != i {
						q.waiting = append(q.waiting, queue{})
					}
					w := &q.waiting[len(q.waiting)-1]
					w.items = append(w.items, it)
				}
			}
		}
		for from := 0; ; {
			best, start, end := -1, len(text), 0
			for i := range one.waiting {
				if w := &one.waiting[i]; len(w.items) > 0 {
					if s, e := indexIDs(text, w.items[0].ids, from); s >= 0 && s < start {
						best, start, end = i, s, e
					}
				}
			}
			got, s, e := nextOfMany(all, text, from, target)
			if got != best || best >= 0 && (s != start || e != end) {
				t.Fatalf("%v from %d: queue %d at %d to %d, want %d at %d to %d", text, from, got, s, e, best, start, end)
			}
			if best < 0 {
				break
			}
			one.waiting[best].items = one.waiting[best].items[1:]
			all.waiting[best].items = all.waiting[best].items[1:]
			from = end
		}
	}
}
