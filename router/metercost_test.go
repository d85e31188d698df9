//go:build linux && !race

package router

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mostForMeter is the share of a choice's time, without the meter, that accounts, comparisons and forecasts may take of it at the
// median. The decision over gRPC is longer.
const mostForMeter = 0.08

// TestMeterCost measures what the meter takes of decisions whose prompts workers hold, and of those that are new, in time of the CPU:
// other processes do not count. What it does once a request is on its way is not in it.
func TestMeterCost(t *testing.T) {
	if os.Getenv("SIGHTLINE_COST") == "" {
		t.Skip("it measures: make cost")
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cpu := func() time.Duration {
		var at unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at); err != nil {
			t.Fatal(err)
		}
		return time.Duration(at.Nano())
	}
	median := func(list []time.Duration) time.Duration { slices.Sort(list); return list[len(list)/2] }
	for _, c := range []struct {
		name string
		size int
		held bool
	}{{"4 KB, held", 4 << 10, true}, {"4 KB, new", 4 << 10, false}, {"100 KB, held", 100 << 10, true}, {"100 KB, new", 100 << 10, false}} {
		w := newWorld(t, 8)
		body := []byte(chatBody("m", fmt.Sprintf("%q", "Request 000000000000. "+prose(c.size))))
		at := slices.Index(body, '0')
		if c.held {
			w.stores(3, string(body))
		}
		var without, meter []time.Duration
		for n := range 40 + 800<<10/c.size {
			if !c.held {
				copy(body[at:], fmt.Sprintf("%012d", n))
			}
			w.now = w.now.Add(10 * time.Millisecond)
			id := fmt.Sprint(n)
			began := cpu()
			p := w.newPlan(&Request{ID: id, Path: "/v1/chat/completions", Body: [][]byte{body}}, &w.live, 0, w.scratch.Get().(*scratch))
			p.prepare(t.Context())
			if !p.finish(1) {
				t.Fatalf("%s: got no choice, want one", c.name)
			}
			chosen := cpu()
			best, read := &p.mem.choice.Ranked[0], &p.mem.reading
			a, st := p.lookup().keep(read), p.mem.overlap.estimateOf(p.mem.choice.Chosen, &best.Overlap, best.Rate, 0)
			b := &bookingRecord{model: p.out.Model, slot: p.mem.choice.Chosen}
			w.booker.fillBooking(b, &st, &a)
			opened := cpu()
			w.booker.openAccount(b, &st, &a, p.mem.overlap.elsewhere(&p.list.selection, st.slot), p.out.Regret)
			if from, to, ok := w.booker.comparable(b, &a); ok {
				a.findParts(read, p.lookup(), w.opt.Secret)
				w.booker.prepareComparison(b, &a, from, to)
			}
			w.forecasting.decided(b, w.now)
			metered := cpu()
			tick := cpu() - metered
			w.booker.dropComparison(b)
			booked := cpu()
			w.booker.book(p)
			done := cpu()
			p.leaveLane()
			addr := p.out.Targets[0].Addr
			p.mem.release()
			w.scratch.Put(p.mem)
			w.Observe(Outcome{ID: id, Phase: Started, Addr: addr, CachedTokens: -1})
			w.Observe(Outcome{ID: id, Phase: Ended, Code: 200, CachedTokens: -1})
			w.forecasting.settle()
			meter = append(meter, metered-opened-tick)
			without = append(without, chosen-began+done-booked-(metered-opened)) // booking does the same once more
		}
		one, other := median(meter), median(without)
		share := float64(one) / float64(other)
		t.Logf("%s: %v without the meter, %v for it: %.1f %%", c.name, other, one, 100*share)
		if share > mostForMeter {
			t.Errorf("%s: got %v for the meter of %v, %.1f %%, want %.0f %% at most", c.name, one, other, 100*share, 100*mostForMeter)
		}
	}
}
