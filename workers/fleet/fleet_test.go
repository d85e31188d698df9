package fleet

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func twoWorkers(c *clock) (*Fleet, *Worker, *Worker) {
	f := New(c.now)
	a := NewWorker("a", netip.MustParseAddrPort("10.0.0.1:8000"), "m", 0, func(int) indexer.SlotID { return 0 })
	b := NewWorker("b", netip.MustParseAddrPort("10.0.0.2:8000"), "m", 2, func(r int) indexer.SlotID { return indexer.SlotID(1 + r) })
	f.Set([]*Worker{a, b})
	return f, a, b
}

func TestSlots(t *testing.T) {
	f, a, b := twoWorkers(&clock{})
	if len(f.Slots("m")) != 3 || len(f.Slots("")) != 3 || len(f.Slots("other")) != 0 {
		t.Error("slots")
	}
	if a.Slots[0].Rank != -1 || b.Slots[1].Rank != 1 || f.ByAddr("10.0.0.2:8000") != b {
		t.Error("ranks or addresses")
	}
}

// requests charges slots, by the requests' names.
type requests struct {
	now  func() time.Time
	open map[string][]*Charge
}

func newRequests(now func() time.Time) *requests { return &requests{now, map[string][]*Charge{}} }

// Book charges a slot, and another one that decodes.
func (r *requests) Book(id string, s *Slot, w Work, decode ...*Slot) {
	list := []*Charge{s.Charge(w, r.now(), r.now())}
	for _, d := range decode {
		list = append(list, d.Charge(Work{Context: w.Context, PrefilledElsewhere: true}, r.now(), r.now()))
	}
	r.End(id)
	r.open[id] = list
}

func (r *requests) End(id string) {
	for _, c := range r.open[id] {
		c.Release(r.now())
	}
	delete(r.open, id)
}
