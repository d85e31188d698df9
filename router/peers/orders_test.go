package peers

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightline-router/sightline/workers/fleet"
)

// TestOrders: what is ordered of workers at one replica reaches the others, those that join later too, with the time since.
func TestOrders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		want := []Order{{"w1", fleet.Cordoned, time.Minute}, {"w2", fleet.Draining, time.Hour}, {"w3", fleet.InService, 0}}
		var mu sync.Mutex
		told := map[Order]int{}
		h := &hall{}
		h.prepare = func(r *replica) {
			if len(h.all) == 0 {
				r.Orders = func() []Order { return want }
				return
			}
			r.Ordered = func(o Order) { mu.Lock(); defer mu.Unlock(); told[o]++ }
		}
		h.join(t)
		h.join(t)
		eventually(t, "all orders", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(told) == len(want) && told[want[0]] > 0 && told[want[1]] > 0 && told[want[2]] > 0
		})
		bad := append(messageHead("12345678"), appendOrders(nil, []Order{{"w1", fleet.Draining + 1, 0}})...)
		h.all[1].Receive(bad)
		mu.Lock()
		defer mu.Unlock()
		if len(told) != len(want) {
			t.Errorf("orders %v, want none that does not exist", told)
		}
	})
}
