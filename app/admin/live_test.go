package admin

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/workers/fleet"
)

func watched(t *testing.T) (*livePage, *[]findings.Worker, *httptest.Server) {
	workers := &[]findings.Worker{{Name: "<gpu>", Rank: -1, Events: "live", Rate: 10_000}}
	c := newLivePage(State{Router: router.New(router.Options{Fleet: fleet.New(nil), Index: indexer.New(indexer.Options{})}),
		Ready: func() (string, error) {
			return "", nil
		}, Problems: func(time.Time) []findings.Finding { return nil }, Workers: func() []findings.Worker { return *workers }})
	srv := httptest.NewServer(http.HandlerFunc(c.events))
	t.Cleanup(srv.Close)
	return c, workers, srv
}

// TestEvents: a watcher first gets the whole page, then its changes; nothing is rendered without a watcher.
func TestEvents(t *testing.T) {
	c, workers, srv := watched(t)
	now := time.Now()
	c.step(now)
	if c.sent != nil || len(c.history.minutes) != 1 {
		t.Errorf("nobody looks: %d sections rendered, %d samples; got %v, want nil, 1", len(c.sent), len(c.history.minutes), c.sent)
	}
	resp, err := srv.Client().Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	next := func() (news map[string]string) {
		t.Helper()
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if err := json.Unmarshal([]byte(text), &news); err != nil {
					t.Fatal(err)
				}
				return news
			}
		}
		t.Fatalf("the stream ended: %v, want another message", lines.Err())
		return nil
	}
	if all := next(); len(all) < len(sections)-3 || !strings.Contains(all["fleet"], "&lt;gpu&gt;") {
		t.Errorf("at first %d sections (problems, checks and forecast may be empty): %v, want at least %d, %q in it",
			len(all), all["fleet"], len(sections)-3, "&lt;gpu&gt;")
	}
	(*workers)[0].Inflight = 7
	c.step(now.Add(time.Second))
	news := next()
	if !strings.Contains(news["fleet"], `data-l="in flight">7<`) || news["decisions"] != "" {
		t.Errorf("after a change: got %v, want fleet %q in it, decisions %q", news, `data-l="in flight">7<`, "")
	}
	resp.Body.Close()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		n := len(c.watching)
		c.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("got it still written to who has left, want an end")
		}
	}
	c.step(now.Add(2 * time.Second))
	if c.sent != nil {
		t.Errorf("it is rendered for nobody: got %v, want nil", c.sent)
	}
}

// TestWatchersAreBounded: beyond the bound a new watcher gets the page and the oldest stream ends; a watcher that does not read is
// disconnected.
func TestWatchersAreBounded(t *testing.T) {
	c, workers, srv := watched(t)
	var counted atomic.Value
	c.state.NoRoom = func(what string) { counted.Store(what) }
	oldest := make(chan []byte, 2)
	c.watching = append(c.watching, oldest)
	for range maxWatchers - 1 {
		c.watching = append(c.watching, make(chan []byte, 2)) // nobody reads it
	}
	resp, err := srv.Client().Get(srv.URL)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("one more: got %v %v, want no error, StatusCode %d", resp, err, http.StatusOK)
	}
	if first, err := bufio.NewReader(resp.Body).ReadString('\n'); !strings.HasPrefix(first, "data: ") {
		t.Errorf("one more gets %q, %v, want %q first", first, err, "data: ")
	}
	resp.Body.Close()
	if _, open := <-oldest; open || counted.Load() != "pages" {
		t.Errorf("the oldest is still open %t, counted as %v, want false, %q", open, counted.Load(), "pages")
	}
	for i := range 3 {
		(*workers)[0].Inflight++
		c.step(time.Now().Add(time.Duration(i) * time.Second))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.watching) > 1 { // the one more may not have been noticed yet
		t.Errorf("%d watch who do not read, want at most 1", len(c.watching))
	}
}

// TestHistory: the history is bounded, sums up ten seconds, and shows unknown values as gaps.
func TestHistory(t *testing.T) {
	var h history
	rows := make([]findings.Worker, 500)
	for i := range rows {
		rows[i] = findings.Worker{Name: fmt.Sprint("w", i), Inflight: i, EventAge: float64(i)}
	}
	var sum router.Totals
	for i := range 5000 {
		sum = sum.Plus(router.Totals{Decisions: 2, Prompt: 100, Cached: 50, Held: 60})
		var first []time.Duration
		if i%2 == 0 {
			first = []time.Duration{time.Second, 3 * time.Second, 2 * time.Second}
		}
		h.add(sum, rows, first)
	}
	if len(h.minutes) != seconds || len(h.hour) != tens {
		t.Errorf("%d, %d kept, want %d, %d", len(h.minutes), len(h.hour), seconds, tens)
	}
	last, ten := h.minutes[seconds-1], h.hour[tens-1]
	if last.Prompt != 100 || ten.Prompt != 1000 || ten.Decisions != 20 || !math.IsNaN(last.Median) || ten.Median != 2 ||
		ten.Tail != 3 || ten.Most != 499 {
		t.Errorf("a second: %+v, ten: %+v, want last.Prompt == 100, ten.Prompt == 1000, ten.Decisions == 20, "+
			"math.IsNaN(last.Median), ten.Median == 2, ten.Tail == 3, ten.Most == 499", last, ten)
	}
	now := time.Now()
	for n, want := range map[int]string{1: "30 s", 90: "90 s", seconds: "5 min"} {
		if p := plots(h.minutes[:n], 1, nil, now)[0]; p.From != want {
			t.Errorf("%d seconds: %q, want %q", n, p.From, want)
		}
	}
	if got := plots(h.hour, perTen, nil, now)[0].From; got != "60 min" {
		t.Errorf("got %q, want %q", got, "60 min")
	}
	for i := range 3 * maxMarks { // it goes out and comes back, and the configuration is read again
		rows[0].Health = []*fleet.Out{nil, {}}[i%2]
		h.note(now.Add(-time.Minute), rows, now.Add(time.Duration(i-1000)*time.Second))
	}
	marks := plots(h.minutes, 1, h.marks, now)[0].Marks
	if len(h.marks) != maxMarks || !slices.Contains(marks, mark{"240.0", "w0 is out 60 s ago"}) ||
		!slices.Contains(marks, mark{"240.0", "w0 is back 60 s ago"}) || !strings.HasPrefix(h.marks[0].what, "configuration applied") {
		t.Errorf(`%d marks, shown: %v, want len(h.marks) == %v, slices.Contains(marks, mark{"240.0", "w0 is out 60 s ago"}), `+
			`slices.Contains(marks, mark{"240.0", "w0 is back 60 s ago"}), strings.HasPrefix(h.marks[0].what, "configuration `+
			`applied")`, len(h.marks), marks, maxMarks)
	}
	list := plots(h.minutes, 1, nil, now)
	if s := list[0].Series; s[0].Last != "50" || s[1].Last != "–" || s[1].D != "" {
		t.Errorf("cached: got %+v, want [0].Last %q, [1].Last %q, [1].D %q", s, "50", "–", "")
	}
	if d := list[1].Series[0].D; strings.Count(d, "M") != seconds/2 || strings.Contains(d, "NaN") {
		t.Errorf(`every second one is not known: %.100s, want strings.Count(d, "M") == seconds/2, no "NaN" in d`, d)
	}
}

// TestSaved: what caches have saved is shown as far as it is known, and estimates are marked.
func TestSaved(t *testing.T) {
	for _, c := range []struct {
		t    router.Totals
		rate float64
		want saved
	}{
		{router.Totals{}, 0, saved{"–", "no requests yet", "–", "GPU-hours", "no requests yet"}},
		{router.Totals{Prompt: 1000, Cached: 250}, 0, saved{"25 %", "250 of 1000, predicted; no engine has reported its count",
			"–", "GPU-hours", "no prefill rate has been measured yet"}},
		{router.Totals{Prompt: 1, EnginePrompt: 144_000_000, EngineCached: 72_000_000}, 10_000,
			saved{"50 %", "72.0 M of 144.0 M, as counted by the engines", "2", "GPU-hours",
				"estimated at 10 k tokens/s, as measured, and one GPU per worker"}},
		{router.Totals{EnginePrompt: 40_000, EngineCached: 20_000}, 10_000,
			saved{"50 %", "20 k of 40 k, as counted by the engines", "2", "GPU-seconds",
				"estimated at 10 k tokens/s, as measured, and one GPU per worker"}},
		{router.Totals{EnginePrompt: 3_000_000, EngineCached: 1_500_000}, 10_000,
			saved{"50 %", "1.5 M of 3.0 M, as counted by the engines", "150", "GPU-seconds",
				"estimated at 10 k tokens/s, as measured, and one GPU per worker"}},
	} {
		if got := savedOf(c.t, c.rate); got != c.want {
			t.Errorf("%+v at %v: %+v, want %+v", c.t, c.rate, got, c.want)
		}
	}
}

// TestEveryCostHasAColour: each cost of a candidate has its own colour, light and dark.
func TestEveryCostHasAColour(t *testing.T) {
	css, err := files.ReadFile("page.css")
	if err != nil {
		t.Fatal(err)
	}
	terms := choose.Terms{Prefill: 1, Queue: 1, Delay: 1, Requests: 1, Context: 1, Fetch: 1,
		Elsewhere: 1, Distance: 1, Junction: 1}
	of := func(t choose.Terms) router.Considered {
		return router.Considered{Candidate: decisionlog.Candidate{Terms: t}}
	}
	bars := newDecided(Explained{Recent: router.Recent{Ranked: []router.Considered{of(terms), of(choose.Terms{Queue: 1})}}}).Candidates
	if few := bars[1].Bars; len(few) != 1 || few[0].Class != "c2" {
		t.Errorf("one cost: %+v, want one bar, c2", few)
	}
	if len(bars[0].Bars) != len(Terms(terms)) {
		t.Fatalf("%d bars, want %d", len(bars[0].Bars), len(Terms(terms)))
	}
	for _, b := range bars[0].Bars {
		if strings.Count(string(css), "--"+b.Class+":") != 2 || !strings.Contains(string(css), "."+b.Class+" {") {
			t.Errorf(`%s: page.css has no colours for %s, want strings.Count(string(css), "--"+b.Class+":") == 2, "."+b.Class+" `+
				`{" in string(css)`, b.Name, b.Class)
		}
	}
}
