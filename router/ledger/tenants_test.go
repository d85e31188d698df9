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
}
