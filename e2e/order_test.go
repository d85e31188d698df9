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
