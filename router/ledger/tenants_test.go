package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/sightline-router/sightline/workers/fleet"
)

// TestAhead checks how much more work than the average a tenant was given: half of it is forgotten in 30 s, tenants have bounds, and
// requests that are not counted by tenant give nobody anything.
func TestAhead(t *testing.T) {
	now := time.Unix(1000, 0)
	l := New(fleet.New(nil), func() time.Time { return now })
	give := func(tenant string, tokens int) {
		l.work.give(&Booking{Model: "m", Tenant: tenant, Counted: true, Work: fleet.Work{Tokens: tokens}}, now)
	}
	check := func(what, tenant string, want int) {
		t.Helper()
		if got := l.Ahead("m", tenant); got != want {
			t.Errorf("%s: got %s ahead by %d tokens, want %d", what, tenant, got, want)
		}
	}
	give("a", 1000)
	check("alone", "a", 0)
	l.work.give(&Booking{Model: "m", Tenant: "b", Work: fleet.Work{Tokens: 1000}}, now)
	check("beside one that is not counted", "a", 0)
	give("b", 200)
	check("beside one with less", "a", 400)
	check("with less", "b", 0)
	check("without any", "c", 0)
	now = now.Add(29 * time.Second)
	check("after 29 s", "a", 400)
	now = now.Add(time.Second)
	check("after 30 s", "a", 200)
	now = now.Add(10 * time.Hour)
	check("after hours", "a", 0)
	if len(l.work.of) != 0 {
		t.Errorf("after hours: got %d models remembered, want none", len(l.work.of))
	}
	for i := range 2 * maxTenants {
		give(fmt.Sprint(i), 1<<40)
	}
	if got := len(l.work.of["m"].of); got != maxTenants {
		t.Errorf("got %d tenants remembered, want %d", got, maxTenants)
	}
	check("one that has no room", fmt.Sprint(2*maxTenants-1), 0)
	now = now.Add(time.Hour)
	for i := range 2 * maxTenants { // another replica names them
		l.work.give(&Booking{Model: fmt.Sprint(i), Tenant: "a", Counted: true, Work: fleet.Work{Tokens: 1 << 40}}, now)
	}
	if got := len(l.work.of); got != maxTenants || l.work.tenants != maxTenants {
		t.Errorf("got %d models with %d tenants remembered, want %d", got, l.work.tenants, maxTenants)
	}
	now = now.Add(time.Hour)
	for range 4 {
		give("a", 1<<62)
	}
	give("b", 1)
	check("beyond all numbers", "a", mostAhead)
	if l.work.tenants != 2 {
		t.Errorf("got %d tenants, want 2", l.work.tenants)
	}
}

// TestAheadUnsteered: what a request that was not steered asks of its worker counts once the worker is known.
func TestAheadUnsteered(t *testing.T) {
	l, a, b := twoWorkers(&clock{time.Unix(1000, 0)})
	l.Book("x", Booking{Model: "m", Tenant: "a", Counted: true, OnSlot: func(b *Booking) { b.Tokens = 1000 }})
	l.Book("y", Booking{Model: "m", Tenant: "b", Counted: true, Slot: a.Slots[0], Work: fleet.Work{Tokens: 200}})
	for _, w := range []*fleet.Worker{a, b} { // the second one after a failure
		l.Confirm("x", w.Addr, 1)
		l.Confirm("y", w.Addr, 1)
	}
	if got := l.Ahead("m", "a"); got != 400 {
		t.Errorf("got %d tokens ahead, want 400", got)
	}
}
