package admin

import (
	"fmt"
	"io"
	"net/http"
	"syscall"
	"testing"
	"time"
)

// TestCostOfLooking: what a terminal asks of a Sightline with 200 workers and 500 decisions a second costs it at most a fiftieth of a core:
// status --watch, top, each every two seconds, and decisions -f every second, as app/look asks. CPU time is counted, the client's too.
func TestCostOfLooking(t *testing.T) {
	if testing.Short() {
		t.Skip("it measures")
	}
	srv, decide := madeUpBy(t, 200, "well")
	for i := range 1100 {
		decide(fmt.Sprintf("later-%04d", i), "")
	}
	since := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano) // all that are kept: two seconds' of 500 a second
	for _, look := range []struct {
		what  string
		every time.Duration
		paths []string
	}{
		{"status", 2 * time.Second, []string{"/status"}},
		{"top", 2 * time.Second, []string{"/status", "/workers"}},
		{"decisions -f", time.Second, []string{"/decisions?n=1024&since=" + since}},
	} {
		best, bytes := time.Hour, int64(0)
		for range 5 {
			before := spent(t)
			for _, path := range look.paths {
				resp, err := http.Get(srv.URL + path)
				if err != nil {
					t.Fatal(err)
				}
				n, err := io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if err != nil || resp.StatusCode != http.StatusOK {
					t.Fatalf("%s: got %d, %v, want 200", path, resp.StatusCode, err)
				}
				bytes = n
			}
			best = min(best, spent(t)-before)
		}
		share := 100 * best.Seconds() / look.every.Seconds()
		t.Logf("%s: %v of CPU every %v, %.2f %% of a core; %d KB", look.what, best.Round(10*time.Microsecond), look.every, share, bytes>>10)
		if share > 2 {
			t.Errorf("%s: got %.2f %% of a core, want at most 2", look.what, share)
		}
	}
}

// spent is the CPU time of this process.
func spent(t *testing.T) time.Duration {
	t.Helper()
	var of syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &of); err != nil {
		t.Fatal(err)
	}
	return time.Duration(of.Utime.Nano() + of.Stime.Nano())
}
