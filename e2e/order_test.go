package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// TestTakenOutOfService: under load, a worker that is cordoned gets nothing new, one that is draining gets nothing and is empty soon, and
// one that is in service again gets its share; no request fails. Without the token, or for the last worker, nothing is ordered.
func TestTakenOutOfService(t *testing.T) {
	t.Parallel()
	const token = "a-token-of-this-test"
	l := startLab(t, func(o *lab.Options) {
		o.Workers, o.Speed = 3, 1
		o.Config = func(keys map[string]any) { keys["admin_token"] = token }
	})
	var stop atomic.Bool
	var clients sync.WaitGroup
	var mu sync.Mutex
	failed, served := 0, [3]int{}
	for c := range 12 {
		clients.Go(func() {
			r := rand.New(rand.NewPCG(uint64(c), 5))
			for i := 0; !stop.Load(); i++ {
				user := fmt.Sprintf("load-%d-%d", c, i)
				raw, _ := json.Marshal(map[string]any{"model": lab.ModelName, "max_tokens": 12, "user": user,
					"messages": []any{map[string]any{"role": "user", "content": words(r, 120)}}})
				got := raws(t, l, raw, nil)
				at := l.Served(user)
				mu.Lock()
				if got.status != http.StatusOK || at < 0 {
					failed++
				} else {
					served[at]++
				}
				mu.Unlock()
			}
		})
	}
	defer func() { stop.Store(true); clients.Wait() }()
	counts := func() (of [3]int, all int) {
		mu.Lock()
		defer mu.Unlock()
		return served, served[0] + served[1] + served[2]
	}
	// during returns how many of the next requests each worker gets.
	during := func(n int) (of [3]int) {
		before, all := counts()
		eventually(t, "requests go on", func() bool { _, now := counts(); return now >= all+n })
		after, _ := counts()
		for i := range of {
			of[i] = after[i] - before[i]
		}
		return of
	}
	command := func(args ...string) (string, error) {
		c := exec.CommandContext(t.Context(), l.Self(), args...)
		c.Env = append(os.Environ(), "SIGHTLINE_ADMIN=http://"+l.Admin, "SIGHTLINE_ADMIN_TOKEN="+token)
		out, err := c.CombinedOutput()
		return string(out), err
	}
	row := func() gjson.Result { return gjson.Get(page(t, l.Admin, "/workers"), `#(name=="worker-1")`) }
	if got := during(60); got[0] == 0 || got[1] == 0 || got[2] == 0 {
		t.Fatalf("requests by worker %v, want some at each", got)
	}

	resp, err := http.Post("http://"+l.Admin+"/workers/drain?worker=worker-1", "", nil)
	if err != nil || resp.StatusCode == http.StatusOK || row().Get("service").Exists() {
		t.Errorf("a drain without the token: %v %v, want it refused", resp, err)
	}
	if said, err := command("drain", "no-such-worker"); err == nil || !strings.Contains(said, "no such worker") {
		t.Errorf("an unknown worker: %v, %q, want an error that says so", err, said)
	}

	for _, c := range []struct{ order, is string }{{"cordon", "cordoned"}, {"drain", "draining"}} {
		args := []string{c.order, "worker-1"}
		if c.order == "drain" {
			args = append(args, "--timeout", "30s")
		}
		if said, err := command(args...); err != nil || !strings.Contains(said, "worker-1 is "+c.is) ||
			c.order == "drain" && !strings.Contains(said, "It is empty after") {
			t.Fatalf("%s: %v\n%s", c.order, err, said)
		}
		if c.order == "cordon" { // what was decided before
			eventually(t, "its last requests end", func() bool { return row().Get("in_flight").Int() == 0 })
		}
		most := map[string]int{"cordoned": 3}[c.is] // a cordoned worker still gets what it alone holds
		if got := during(60); got[0] > most || got[1] == 0 || got[2] == 0 {
			t.Errorf("requests by worker %v while worker-1 is %s, want %d there at most", got, c.is, most)
		}
		if got := row().Get("service").String(); got != c.is {
			t.Errorf("/workers says %q, want %q", got, c.is)
		}
		problems := page(t, l.Admin, "/problems")
		if !strings.Contains(problems, "taken out of service") || !strings.Contains(page(t, l.Admin, "/"), "taken out of service") {
			t.Errorf("problems and page do not say that worker-1 is %s: %s", c.is, problems)
		}
	}
	if _, err := command("drain", "worker-2", "--timeout", "30s"); err != nil {
		t.Errorf("drain of a second worker: got %v, want no error", err)
	}
	if said, err := command("cordon", "worker-3"); err == nil || !strings.Contains(said, "no other worker in service") {
		t.Errorf("the last worker: %v, %q, want it refused", err, said)
	}
	for _, name := range []string{"worker-1", "worker-2"} {
		if said, err := command("uncordon", name); err != nil || !strings.Contains(said, "in service") {
			t.Errorf("uncordon %s: got %v, %q, want no error, %q in it", name, err, said, "in service")
		}
	}
	end := time.Now().Add(30 * time.Second)
	for got := during(60); got[0] == 0 || got[1] == 0; got = during(60) {
		if time.Now().After(end) {
			t.Fatalf("requests by worker %v after uncordon, want some at each", got)
		}
	}
	eventually(t, "problems no longer say so", func() bool { return !strings.Contains(page(t, l.Admin, "/problems"), "taken out of service") })
	mu.Lock()
	defer mu.Unlock()
	if failed > 0 {
		t.Errorf("%d requests failed, want 0 of %v", failed, served)
	}
	t.Logf("requests by worker: %v, failed: %d", served, failed)
}

// TestDrainUnderLoad: of two replicas, each that restarts hears from the other which worker is cordoned, and since when. Then, at 200
// requests a second, a worker is drained, killed, started again and uncordoned: no request fails.
func TestDrainUnderLoad(t *testing.T) {
	t.Parallel()
	const token, perSecond, atOnce = "a-token-of-this-test", 200, 96
	s := startStand(t, 4, 0, 2, 8, map[string]any{"drain": "0s", "fixed": unprobed(), "admin_token": token, "replicas": true})
	worker := s.fleet[0].name
	order := func(admin string, args ...string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), s.bin, args...)
		c.Env = append(os.Environ(), "SIGHTLINE_ADMIN=http://"+admin, "SIGHTLINE_ADMIN_TOKEN="+token)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: got %v, want no error\n%s", args, err, out)
		}
		return string(out)
	}
	row := func(r *standing) gjson.Result {
		rows, err := lab.Get("http://" + r.admin + "/workers")
		if err != nil {
			return gjson.Result{}
		}
		return gjson.GetBytes(rows, fmt.Sprintf("#(name==%q)", worker))
	}
	heard := func() bool {
		for _, r := range s.replicas {
			if page, err := lab.Get("http://" + r.admin + "/status"); err != nil || gjson.GetBytes(page, "sightlines.0.other_replicas").Int() != 1 {
				return false
			}
		}
		return true
	}
	eventually(t, "they hear each other", heard)
	if said := order(s.replicas[0].admin, "cordon", worker); strings.Contains(said, "No other replica") {
		t.Errorf("cordon beside a replica: got %s, want no word of forgetting", said)
	}
	since := row(s.replicas[0]).Get("service_since").Time()
	for i, r := range s.replicas {
		eventually(t, "the other knows", func() bool { return row(s.replicas[1-i]).Get("service").String() == "cordoned" })
		r.stop()
		r.start(t)
		eventually(t, "the other has told it", func() bool { return row(r).Get("service").String() == "cordoned" })
		if got := row(r).Get("service_since").Time(); got.Sub(since).Abs() > 5*time.Second {
			t.Errorf("after a restart: cordoned since %v, want since %v", got, since)
		}
		eventually(t, "all is up", func() bool { return s.whole() && heard() })
	}
	order(s.replicas[1].admin, "uncordon", worker)
	eventually(t, "both have it in service", func() bool {
		return !row(s.replicas[0]).Get("service").Exists() && !row(s.replicas[1]).Get("service").Exists()
	})

	places := make(chan struct{}, atOnce) // a slow machine sends fewer a second, not more at once
	began := time.Now()
	load := startLoad(t, perSecond, func(i int) reply {
		places <- struct{}{}
		defer func() { <-places }()
		return s.send(fmt.Sprintf(`{"model":%q,"max_tokens":2,"messages":[{"role":"user","content":"Letter %d: %s"}]}`, lab.ModelName, i%64,
			strings.Repeat("a letter of words ", 12)), false, time.Minute).reply
	})
	load.more(2 * perSecond)
	if said := order(s.replicas[0].admin, "drain", worker, "--timeout", "60s"); !strings.Contains(said, "It is empty after") {
		t.Errorf("drain: got %s, want it to end empty", said)
	}
	eventually(t, "the other's last request for it ends", func() bool { return row(s.replicas[1]).Get("in_flight").Int() == 0 })
	s.fleet[0].stop()
	load.more(2 * perSecond)
	s.fleet[0].start(t)
	s.fleet[0].healthy(t)
	eventually(t, "its events are read again", s.whole)
	order(s.replicas[0].admin, "uncordon", worker)
	load.more(2 * perSecond)
	replies := load.stop()
	took := time.Since(began)
	if bad := failures(replies); len(bad) > 0 {
		t.Errorf("%d of %d requests failed, want 0: %s", len(bad), len(replies), bad[0])
	}
	t.Logf("%d requests in %v, %.0f a second, %d failed", len(replies), took.Round(time.Second), float64(len(replies))/took.Seconds(),
		len(failures(replies)))
}
