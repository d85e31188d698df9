package health

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/workers/fleet"
)

// TestLives checks that a new process is reported once, by its start time if known, else by an address at which nobody listened
// for a while.
func TestLives(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(1000+s), 0) }
	type step struct {
		began   float64 // a page; 0: a health check
		refused bool
		want    int // since when it may be another; 0: it is the same
	}
	for name, steps := range map[string][]step{
		"another birth":           {{began: 5}, {began: 5}, {began: 6, want: 2}, {began: 6}},
		"two behind one address":  {{began: 5}, {began: 6, want: 1}, {began: 5}, {began: 6}, {began: 5}},
		"refused, then back":      {{}, {}, {refused: true}, {refused: true}, {want: 2}, {}},
		"refused from the first":  {{refused: true}, {}, {}},
		"refused, the same birth": {{began: 5}, {}, {refused: true}, {}, {began: 5}},
		"refused, another birth":  {{began: 5}, {refused: true}, {}, {began: 7, want: 1}},
		"birth not told at first": {{}, {began: 5}, {began: 5}},
	} {
		l := &processState{}
		for i, s := range steps {
			var was time.Time
			if s.began > 0 {
				was = l.startReported(s.began, at(i+1))
			} else {
				was = l.answered(s.refused, at(i+1))
			}
			if want := at(s.want); was != want && (s.want > 0 || !was.IsZero()) {
				t.Errorf("%s, step %d: %v, want %v", name, i+1, was, s.want)
			}
		}
	}
}

// TestRebornIsTold checks that a restarted worker is noticed by its page.
func TestRebornIsTold(t *testing.T) {
	var mu sync.Mutex
	var told []*fleet.Worker
	page := func(began float64) http.HandlerFunc {
		return func(rw http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(rw, "vllm:num_requests_running 0\n# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %g\n", began)
		}
	}
	w := newWard(t, Options{Load: time.Millisecond, ProcessRestarted: func(w *fleet.Worker, _ time.Time) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, w)
	}}, 0, page(1.7e9))
	w.hears(3)
	w.answers(page(1.70000001e9))
	reborn := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(told)
	}
	w.until("it is told", func() bool { return reborn() > 0 })
	w.hears(3)
	if n := reborn(); n != 1 || !slices.Contains(told, w.worker) {
		t.Errorf("got it told %d times, want once, of this worker", n)
	}
}

// TestBirth checks that a process's start time is read from its metrics page, and that nothing is read from a page without it, an
// invalid page or a redirect.
func TestBirth(t *testing.T) {
	for page, want := range map[string]string{
		"# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.7953951e+09\n": "1795395100",
		"process_start_time_seconds_other 5\n":                                                "",
		"process_start_time_seconds never\n":                                                  "",
		"elsewhere":                                                                           "",
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if page == "elsewhere" {
				http.Redirect(w, r, "/page", http.StatusFound)
				return
			}
			_, _ = io.WriteString(w, page)
		}))
		birth := ProcessStart(server.URL + "/metrics")
		if got := birth(t.Context()); got != want {
			t.Errorf("%q: %q, want %q", page, got, want)
		}
		server.Close()
		if got := birth(t.Context()); got != "" {
			t.Errorf("%q of a server that has gone, want %q", got, "")
		}
	}
}
