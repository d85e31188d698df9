package fleet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

// TestHealth runs stories of a worker's health: F fails, A answers a request decided now, a answers one decided before it went
// out, T tries, a number lets so many seconds pass; a health check is good (g), fails (m), or says that the worker is not
// available (n). After each step the worker is in (+) or out (-); for T, whether the trial was given (!).
func TestHealth(t *testing.T) {
	for _, c := range []struct{ name, steps, want string }{
		{"three in a row", "F F F", "+ + -"},
		{"an answer between", "F F A F F A", "+ + + + + +"},
		{"one trial at a time", "F F F T 1 T T", "+ + - - - -! -"},
		{"a good trial", "F F F 1 T A F F", "+ + - - -! + + +"},
		{"pauses of 1, 4, 16, 30 and 30 s", "F F F 1 T F 3 T 1 T F 15 T 1 T F 29 T 1 T F 29 T 1 T",
			"+ + - - -! - - - - -! - - - - -! - - - - -! - - - - -!"},
		{"a trial that is not heard of", "F F F 1 T T 1 T", "+ + - - -! - - -!"},
		{"failures of before do not count", "F F F F F F 1 T", "+ + - - - - - -!"},
		{"it ends what it had: full, not broken", "F F F 1 T F a 1 T A", "+ + - - -! - - - -! +"},
		{"fails again soon: the pauses go on", "F F F 1 T A F F F 1 T 3 T", "+ + - - -! + + + - - - - -!"},
		{"fails again late: the first pause", "F F F 1 T A 61 F F F 1 T", "+ + - - -! + + + + - - -!"},
		{"three checks in a row", "m m m 9 T g T", "+ + - - - + +"},
		{"an answer between checks", "m m A m m A m m", "+ + + + + + + +"},
		{"a good check between checks", "m m g m m m", "+ + + + + -"},
		{"it says so itself", "n T 60 T m g", "- - - - - +"},
		{"a good check does not make up for requests", "F g F g F g g 1 T", "+ + + + - - - - -!"},
		{"nor bring it back", "F F F g 1 T F g g 3 T g 1 T A", "+ + - - - -! - - - - - - - -! +"},
		{"away and back: a trial at once", "F F F 1 T F m m m 60 T g T A", "+ + - - -! - - - - - - - -! +"},
		{"away by one check", "F F F 1 T F m T g T F 1 T 3 T", "+ + - - -! - - - - -! - - - - -!"},
		{"both: in when neither", "n F F F T g T A", "- - - - - - -! +"},
		{"both, the answer first", "F F F 1 T n A g", "+ + - - -! - - +"},
	} {
		w, now := &Worker{}, time.Unix(1000, 0)
		w.health.changedAt = time.Time{}
		var got []string
		for _, step := range strings.Fields(c.steps) {
			tried := ""
			switch step {
			case "F":
				w.RecordFailure("503", now)
			case "A":
				w.RecordSuccess(now, now)
			case "a":
				w.RecordSuccess(time.Unix(999, 0), now)
			case "g":
				w.RecordCheck("", false, now)
			case "m":
				w.RecordCheck("timeout", false, now)
			case "n":
				w.RecordCheck("503", true, now)
			case "T":
				if w.ClaimTrial(now) {
					tried = "!"
				}
			default:
				var n int
				if _, err := fmt.Sscan(step, &n); err != nil {
					t.Fatal(err)
				}
				now = now.Add(time.Duration(n) * time.Second)
			}
			is := "+"
			if w.OutReason(now).String() != "" {
				is = "-"
			}
			got = append(got, is+tried)
		}
		if g := strings.Join(got, " "); g != c.want {
			t.Errorf("%s: %s\n got %s\nwant %s", c.name, c.steps, g, c.want)
		}
	}
}

// TestChangesAreToldOnce checks that each change is reported to one caller only.
func TestChangesAreToldOnce(t *testing.T) {
	w, now := &Worker{}, time.Unix(1000, 0)
	for i, c := range []struct {
		is, want bool
	}{
		{w.RecordCheck("refused", false, now), false}, {w.RecordCheck("refused", false, now), false},
		{w.RecordCheck("refused", false, now), true},
		{w.RecordCheck("refused", false, now), false}, {w.RecordFailure("connect", now), false},
		{w.RecordFailure("connect", now), false}, {w.RecordFailure("connect", now), false},
		{w.RecordCheck("", false, now), false}, {w.RecordSuccess(now, now), true}, {w.RecordCheck("503", true, now), true},
		{w.RecordCheck("", false, now), true},
	} {
		if c.is != c.want {
			t.Errorf("step %d: changed %v, want %v", i, c.is, c.want)
		}
	}
}

// TestHealthy checks that workers that are out are left out, until too few would be left.
func TestHealthy(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct{ workers, out, left int }{
		{4, 0, 4}, {4, 1, 3}, {4, 3, 1}, {4, 4, 4}, {16, 12, 4}, {16, 13, 16}, {1, 1, 1}, {2, 1, 1}, {0, 0, 0},
	} {
		var slots []*Slot
		for i := range c.workers {
			w := NewWorker(fmt.Sprint(i), netip.MustParseAddrPort("10.0.0.1:8000"), "m", 0, func(int) indexer.SlotID { return 0 })
			if i < c.out {
				for range failuresInARow {
					w.RecordFailure("connect", now)
				}
			}
			slots = append(slots, w.Slots...)
		}
		if got := Healthy(slots); len(got) != c.left || c.left < c.workers && !slices.Equal(got, slots[c.out:]) {
			t.Errorf("%d of %d are out: %d left, want %d", c.out, c.workers, len(got), c.left)
		}
	}
}

// TestReturnedWithoutTraffic: a worker that refused connections is in again once its health check is good and its next trial is due,
// even if no request comes; one that answered with errors is not, since a check does not vouch for requests.
func TestReturnedWithoutTraffic(t *testing.T) {
	for what, in := range map[string]bool{"connect": true, "503": false} {
		w, now := new(Worker), time.Unix(1000, 0)
		for range failuresInARow {
			w.RecordFailure(what, now)
		}
		w.RecordCheck("", false, now.Add(firstPause/2))
		if w.IsHealthy() {
			t.Errorf("%s: in before a trial was due", what)
		}
		w.RecordCheck("", false, now.Add(2*firstPause))
		if w.IsHealthy() != in {
			t.Errorf("%s: in %t after a good check, want %t", what, w.IsHealthy(), in)
		}
	}
}
