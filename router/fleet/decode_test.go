package fleet

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

// Where some only prefill, they are the choice and the others decode, the least busy first; without either kind the other
// serves nothing, or all.
func TestPrefillApart(t *testing.T) {
	now := time.Unix(1000, 0)
	f := New(func() time.Time { return now })
	worker := func(model, id string, prefill bool) *Worker {
		w := NewWorker(id, netip.MustParseAddrPort("10.0.0.9:8000"), model, 0, func(int) indexer.SlotID { return 0 })
		w.Instance, w.Frontends, w.Prefill = id, []string{"10.0.0.9:8000"}, prefill
		return w
	}
	a, b, p, other := worker("m", "a", false), worker("m", "b", false), worker("m", "p", true), worker("n", "other", false)
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
		{[]*Worker{a, p, b, other}, []string{"p"}, []string{"p", "other"}},
		{[]*Worker{p, other}, nil, []string{"other"}},
	} {
		f.Set(c.workers)
		if got, all := slots("m"), slots(""); !slices.Equal(got, c.m) || !slices.Equal(all, c.all) {
			t.Errorf("of %d workers: %v, in all %v", len(c.workers), got, all)
		}
	}
	f.Set([]*Worker{a, p, b, other})
	if f.Decode(other.Slots[0], 1) != nil {
		t.Error("another decodes for a worker that does all")
	}
	seen := map[string]int{}
	for i := range 4 {
		d := f.Decode(p.Slots[0], uint64(i))
		seen[d.Worker.Name]++
		f.Book(fmt.Sprint("r", i), Booking{Slot: p.Slots[0], Tokens: 100, Decode: d})
	}
	if seen["a"] != 2 || seen["b"] != 2 || p.Slots[0].Load(now).Inflight != 4 {
		t.Errorf("decoded by %v", seen)
	}
	f.End("r0", 0)
	now = now.Add(2 * unconfirmed)
	f.Book("x", Booking{Slot: p.Slots[0]}) // the others end: nobody told of them
	if n := a.Slots[0].Load(now).Inflight + b.Slots[0].Load(now).Inflight; n != 0 {
		t.Errorf("%d requests decoding after all ended", n)
	}
}
