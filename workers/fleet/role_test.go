package fleet

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

// TestPrefillApart checks that a fleet with prefill workers serves nothing without decode workers, and that an encode worker is
// never chosen.
func TestPrefillApart(t *testing.T) {
	now := time.Unix(1000, 0)
	f := New(func() time.Time { return now })
	worker := func(model, id string, prefill bool) *Worker {
		w := NewWorker(id, netip.MustParseAddrPort("10.0.0.9:8000"), model, 0, func(int) indexer.SlotID { return 0 })
		w.Instance, w.Frontends = id, []string{"10.0.0.9:8000"}
		if prefill {
			w.Role = Prefill
		}
		return w
	}
	a, b, p, other := worker("m", "a", false), worker("m", "b", false), worker("m", "p", true), worker("n", "other", false)
	e := worker("m", "e", false)
	e.Role = Encode
	slots := func(model string) (names []string) {
		for _, s := range f.Slots(model) {
			names = append(names, s.Worker.Name)
		}
		return names
	}
	for _, c := range []struct {
		workers []*Worker
		m, all  []string
	}{
		{[]*Worker{a, other, b}, []string{"a", "b"}, []string{"a", "b", "other"}},
		{[]*Worker{a, p, b, other}, []string{"a", "p", "b"}, []string{"a", "p", "b", "other"}},
		{[]*Worker{a, e, other}, []string{"a"}, []string{"a", "other"}},
		{[]*Worker{p, other}, nil, []string{"other"}},
	} {
		f.Set(c.workers)
		if got, all := slots("m"), slots(""); !slices.Equal(got, c.m) || !slices.Equal(all, c.all) {
			t.Errorf("of %d workers: got %v, in all %v, want %q, %q", len(c.workers), got, all, c.m, c.all)
		}
	}
	f.Set([]*Worker{a, p, b, other})
	pairs := newRequests(func() time.Time { return now })
	for i, d := range []*Worker{a, b, a, b} {
		pairs.Book(fmt.Sprint("r", i), p.Slots[0], Work{Tokens: 100}, d.Slots[0])
	}
	if a.Slots[0].Load(now).Inflight != 2 || p.Slots[0].Load(now).Inflight != 4 {
		t.Errorf("got %d decoding at one of two, want 2, and all four prefilled at the other", a.Slots[0].Load(now).Inflight)
	}
	for i := range 4 {
		pairs.End(fmt.Sprint("r", i))
	}
	if n := a.Slots[0].Load(now).Inflight + b.Slots[0].Load(now).Inflight; n != 0 {
		t.Errorf("%d requests decoding after all ended, want 0", n)
	}
}
