package e2e

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/section"
)

// A long run (make soak D=30m) of what wears a router out: prompts and images that never come again, names of models, sessions and
// paths that clients make up, workers that come and go, an agent that is killed again and again, and strangers' bytes at every port.
// Memory, goroutines and descriptors stay flat, and the last tenth is as fast as the first.
func TestSoak(t *testing.T) {
	lasts, err := time.ParseDuration(os.Getenv("SIGHTLINE_SOAK_ALL"))
	if err != nil {
		t.Skip("make soak runs it")
	}
	const rate, tenths = 50, 10
	file := photo(901)
	c := &chaos{rate: rate}
	c.request = func(i int) (string, bool) { // nothing of it comes again
		rng := rand.New(rand.NewPCG(uint64(i), 4))
		parts := []any{user(fmt.Sprintf("%d: %s", i, words(rng, 60)))}
		if i%5 == 0 {
			own := fmt.Appendf(slices.Clone(file), "%d", i) // behind the image's end
			parts = []any{user(fmt.Sprint(i), "data:image/jpeg;base64,"+base64.StdEncoding.EncodeToString(own))}
		}
		body, _ := json.Marshal(map[string]any{"model": lab.ModelName, "max_tokens": 4, "stream": i%2 == 0, "messages": parts})
		return string(body), i%2 == 0
	}
	c.stand = startStand(t, 3, 1, 1, 4, map[string]any{"drain": "0s", "fixed": unprobed(), "replicas": true})
	lis := listen(t)
	startWorkerOn(t, lis, lis.Addr().String())
	quit := make(chan struct{})
	var wear sync.WaitGroup
	defer wear.Wait()
	every := func(d time.Duration, do func(i int)) {
		wear.Go(func() {
			tick := time.NewTicker(d)
			defer tick.Stop()
			for i := 0; ; i++ {
				select {
				case <-quit:
					return
				case <-tick.C:
					do(i)
				}
			}
		})
	}
	made := 0
	every(50*time.Millisecond, func(i int) { // labels
		made = i
		body := fmt.Sprintf(`{"model":"made-up-%d","messages":[{"role":"user","content":"x"}]}`, i)
		req, _ := http.NewRequest("POST", fmt.Sprintf("%s/v1/%s", c.url, []string{"chat/completions", fmt.Sprint("made-up/", i)}[i%2]),
			strings.NewReader(body))
		req.Header = http.Header{"Content-Type": {"application/json"}, "X-Session-Id": {fmt.Sprint("made-up-", i)}}
		do(c.client, req)
	})
	every(10*time.Second, func(i int) { // workers, each a new one
		now := slices.Clone(c.workers)
		for k := range 20 * (1 - i%2) {
			now = append(now, map[string]any{"name": fmt.Sprintf("guest-%d-%d", i, k), "addr": fmt.Sprintf("127.2.%d.%d:9", i/2%250, 1+k)})
		}
		c.configure(c.replicas[0], now)
		c.replicas[0].signal(syscall.SIGHUP)
	})
	every(20*time.Second, func(int) { c.agents[0].stop(); c.agents[0].start(t) })
	every(200*time.Millisecond, func(i int) { // wires
		ports := []string{c.replicas[0].listen, c.replicas[0].admin,
			strings.TrimPrefix(c.keys["nats"].(map[string]any)["url"].(string), "nats://")}
		conn, err := net.DialTimeout("tcp", ports[i%len(ports)], time.Second)
		if err != nil {
			return
		}
		defer conn.Close()
		junk := make([]byte, 1<<10)
		rng := rand.New(rand.NewPCG(uint64(i), 5))
		for k := range junk {
			junk[k] = byte(rng.Uint32())
		}
		if i%2 == 0 { // as HTTP/2 begins
			junk = append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), junk...)
		}
		_, _ = conn.Write(junk)
	})

	type part struct {
		p99 time.Duration
		resources
	}
	var parts []part
	sent, failed, undecided := 0, 0, 0
	rows := []string{"| tenth | requests | failed | undecided | p50, p99 of an answer (ms) | goroutines, descriptors, MB, MB live |",
		"|---|---|---|---|---|---|"}
	for k := range tenths {
		c.begin()
		time.Sleep(lasts / tenths)
		all := c.end()
		var took []time.Duration
		f, u := 0, 0
		for _, r := range all {
			if r.failed() {
				f++
			} else {
				took = append(took, r.took)
				if !r.decided {
					u++
				}
			}
		}
		slices.Sort(took)
		p := part{took[len(took)*99/100], c.held()}
		parts = append(parts, p)
		sent, failed, undecided = sent+len(all), failed+f, undecided+u
		rows = append(rows, fmt.Sprintf("| %d | %d | %d | %d | %d, %d | %d, %d, %d, %d |", k+1, len(all), f, u,
			took[len(took)/2].Milliseconds(), p.p99.Milliseconds(), p.goroutines, p.descriptors, p.megabytes, p.live))
		t.Log(rows[len(rows)-1])
	}
	close(quit)
	wear.Wait()
	c.configure(c.replicas[0], c.workers)
	c.replicas[0].signal(syscall.SIGHUP)
	index := c.settle()
	first, middle, last := parts[0], parts[tenths/2], parts[tenths-1]
	said := fmt.Sprintf("%v on %d cores: %d requests, %d failed, %d undecided; %d made-up names; index at the end: %s.",
		lasts, runtime.NumCPU(), sent, failed, undecided, made, index)
	t.Log(said)
	if failed > 0 || index != "equal" {
		t.Errorf("%d failed, index %s, want 0, %q", failed, index, "equal")
	}
	if what := last.above(middle.resources); what != "" || last.megabytes > middle.megabytes*5/4 {
		t.Errorf("not flat in the second half: got %s, %d MB then %d, want %q, at most %d",
			what, middle.megabytes, last.megabytes, "", middle.megabytes*5/4)
	}
	if last.p99 > 2*first.p99+50*time.Millisecond { // a shared machine is no quiet one
		t.Errorf("p99 of the last tenth is %v, of the first %v, want at most %v", last.p99, first.p99, 2*first.p99+50*time.Millisecond)
	}
	if file := os.Getenv("SIGHTLINE_SOAK_DOC"); file != "" {
		section.Write(t, file, "soak", fmt.Sprintf("%s The first, sixth and last tenth: p99 of an answer %v, %v, %v; %d, %d, %d MB.", said,
			first.p99.Round(time.Millisecond), middle.p99.Round(time.Millisecond), last.p99.Round(time.Millisecond),
			first.megabytes, middle.megabytes, last.megabytes))
	}
}
