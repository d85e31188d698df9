package router

import (
	"fmt"
	"net/http"
	"testing"
)

// TestUrgentPlaces: without fair shares, objectives alone keep the last tenth of places for those above 0, and the last quarter from
// those below; without any above 0 the last tenth is for all.
func TestUrgentPlaces(t *testing.T) {
	w := newWorld(t, 2)
	w.limit(10)
	n := 0
	fill := func(priority int, urgent bool, want int) {
		t.Helper()
		got := 0
		for range 30 {
			n++
			d := w.Decide(t.Context(), &Request{ID: fmt.Sprint("r", n), Path: "/v1/chat/completions", Priority: priority, UrgentExist: urgent,
				Body: [][]byte{[]byte(chatBody("m", fmt.Sprintf("%q", text(20, uint64(n)))))}})
			if d.Refuse == nil {
				got++
			}
		}
		if got != want {
			t.Errorf("priority %d: %d of 30 let in, want %d", priority, got, want)
		}
	}
	fill(-1, true, 15)
	fill(0, true, 3)
	fill(1, true, 2)
	for i := range n {
		w.opt.Ledger.End(fmt.Sprint("r", i+1), 0)
	}
	fill(-1, false, 15)
	fill(0, false, 5)
	if got, want := w.counted(t, "sightline_requests_shed_total"), "m,full=53 m,priority=57 "; got != want {
		t.Errorf("shed %q, want %q", got, want)
	}
}

// TestFewPlacesAreShared checks that of twenty places the last two go to tenants with few requests, the last five to no request
// of low priority, and any of them to an urgent one.
func TestFewPlacesAreShared(t *testing.T) {
	w := newWorld(t, 2)
	w.opt.Fair = true
	w.limit(12)
	w.slots[0].Worker.MaxInFlight = 8
	n := 0
	ask := func(tenant string, priority int) (id string, status int) {
		n++
		id = fmt.Sprint("r", n)
		d := w.Decide(t.Context(), &Request{ID: id, Path: "/v1/chat/completions", Tenant: tenant, Priority: priority,
			Body: [][]byte{[]byte(chatBody("m", fmt.Sprintf("%q", text(20, uint64(n)))))}})
		if d.Refuse != nil {
			return id, d.Refuse.Status
		}
		return id, http.StatusOK
	}
	fill := func(tenant string, priority, want int) {
		t.Helper()
		got := 0
		for range 30 {
			if _, status := ask(tenant, priority); status == http.StatusOK {
				got++
			} else if status != http.StatusTooManyRequests {
				t.Fatal(status)
			}
		}
		if got != want {
			t.Fatalf("%s, priority %d: %d of 30 let in, want %d", tenant, priority, got, want)
		}
	}
	fill("a", -1, 15)
	fill("a", 0, 3)
	a, b := w.slots[0].Load(w.now).Inflight, w.slots[1].Load(w.now).Inflight
	if a+b != 18 || a > 8 {
		t.Errorf("%d and %d in flight: got %d, want 18, at most 8", a, b, a+b)
	}
	if _, status := ask("b", 0); status != http.StatusOK {
		t.Errorf("who has nothing: got %d, want %d", status, http.StatusOK)
	}
	if _, status := ask("a", 0); status != http.StatusTooManyRequests {
		t.Errorf("who has most: got %d, want %d", status, http.StatusTooManyRequests)
	}
	if _, status := ask("b", 0); status != http.StatusOK {
		t.Errorf("who has one of nineteen: got %d, want %d", status, http.StatusOK)
	}
	fill("c", 1, 0)
	for i := range 2 { // of tenant a
		if _, ok := w.opt.Ledger.End(fmt.Sprint("r", i+1), 0); !ok {
			t.Fatal("not booked, want ok")
		}
	}
	fill("a", 1, 2)
	if got, want := w.counted(t, "sightline_requests_shed_total"), "m,full=58 m,priority=15 m,share=28 "; got != want {
		t.Errorf("shed %q, want %q", got, want)
	}
	if own, tenants, all := w.opt.Ledger.InFlightOf("m", "a"); own != 18 || tenants != 2 || all != 20 {
		t.Errorf("%d of %d of %d tenants, want 18, 2, 20", own, all, tenants)
	}
	for i := range n {
		w.opt.Ledger.End(fmt.Sprint("r", i+1), 0)
	}
	if own, tenants, all := w.opt.Ledger.InFlightOf("m", "a"); own != 0 || tenants != 1 || all != 0 {
		t.Errorf("at the end %d of %d of %d tenants, want 0, 1, 0", own, all, tenants)
	}
}
