// Package demo shows the product on one machine: three simulated workers, Sightline, a real Envoy, a mixed load.
//
//	load ─▶ Envoy ─ext_proc─▶ Sightline            worker-1 ── ZeroMQ ──────────────▶ Sightline
//	          └──▶ worker-1, worker-2, worker-3     worker-2, -3 ── agent ── NATS ──▶ Sightline
//
// The same load runs twice, each time on fresh workers: once with Sightline down (Envoy balances round robin, as configured for
// that case), once with Sightline.
package demo

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// Options control a demo.
type Options struct {
	Sightline string // path of the binary
	Envoy     string // path of the binary
	ModelDir  string // without weights
	Stay      bool   // leave everything running until ctx ends
	Color     bool   // Out is a terminal: use colours and show progress
	Out       io.Writer
}

const repeated = "Every repeated image went to the worker that held it, by data URL, by URL, and in later turns."

// Run runs the demo. The error says which result was not as expected.
func Run(ctx context.Context, o Options) error {
	prompts, err := lab.NewPrompts(o.ModelDir, sim.VLLM, lab.ModelName, 16)
	if err != nil {
		return err
	}
	shots := images(9)
	host := imageHost(shots)
	defer host.Close()
	load := mixed(shots, host.URL)
	fmt.Fprintf(o.Out, "demo: %d requests, twice, through %s\n\n", len(load), o.Envoy)

	p, token := paint(o.Color), rand.Text() // it lets the commands of the terminal change something
	fmt.Fprintf(o.Out, "%s Envoy spreads the requests round robin …\n", p.bold("first without Sightline:"))
	parts := lab.Options{Self: o.Sightline, Envoy: o.Envoy, ModelDir: o.ModelDir, Prompts: prompts, Speed: 2, Blocks: 2048, Without: true,
		Config: func(keys map[string]any) { keys["admin_token"] = token }}
	plain, err := lab.Start(ctx, parts)
	defer plain.Stop()
	if err != nil {
		return err
	}
	without, err := play(ctx, plain, load, func(i int, _ *answer) {
		if o.Color {
			fmt.Fprintf(o.Out, "\r\x1b[K%3d of %d\r", i+1, len(load))
		}
	})
	if err != nil {
		return err
	}
	plain.Stop()

	fmt.Fprintf(o.Out, "%s on fresh workers:\n\n", p.bold("then with Sightline,"))
	parts.Without = false
	full, err := lab.Start(ctx, parts)
	defer full.Stop()
	if err != nil {
		return err
	}
	p.head(o.Out)
	with, err := play(ctx, full, load, func(i int, a *answer) { p.row(o.Out, i, load[i].what, a) })
	if err != nil {
		return err
	}
	p.compare(o.Out, sum(without, plain.Encoded()), sum(with, full.Encoded()))
	if err := judge(load, with, len(full.Sims)); err != nil {
		return err
	}
	if err := p.lost(o.Out, full, len(load)); err != nil {
		return err
	}
	fmt.Fprintf(o.Out, "\n%s\n", p.green(repeated))
	if o.Stay {
		fmt.Fprintf(o.Out, `
Left running (Ctrl-C ends it). Try:

  curl -s %[1]s/v1/chat/completions -H 'content-type: application/json' -d '%[2]s'

  in a terminal     export SIGHTLINE_ADMIN=http://%[3]s SIGHTLINE_ADMIN_TOKEN=%[6]s
                    %[7]s status  (top, decisions -f, drain worker-2, --help)
  Sightline's page  http://%[3]s/
  Envoy's counters  curl -s 'http://%[4]s/stats?filter=^sightline'
  a worker fails    curl -X POST 'http://%[5]s/sim/fault?mode=refuse'  (hang, healthy)
  or is slow        curl -X POST 'http://%[5]s/sim/slow?by=10'
`, full.URL, again(host.URL), full.Admin, full.EnvoyAdmin, full.Sims[0].Addr(), token, o.Sightline)
		<-ctx.Done()
	}
	return nil
}

// again returns a request whose beginning, up to its image, the load has sent: its first answer is a hit.
func again(host string) string {
	body, _ := json.Marshal(map[string]any{"model": lab.ModelName, "max_tokens": 8, "messages": []any{ // texts and numbers always marshal
		says("system", system), user(imagePart(host+"/a/1.jpg"), text("What is this?"))}})
	return string(body)
}

// imageHost serves the images, each at two URLs: /a/0.jpg and /b/0.jpg.
func imageHost(shots [][]byte) *httptest.Server {
	mux := http.NewServeMux()
	for i, shot := range shots {
		mux.HandleFunc(fmt.Sprintf("/{where}/%d.jpg", i), func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "image/jpeg")
			w.Header().Set("Cache-Control", "max-age=3600")
			_, _ = w.Write(shot)
		})
	}
	return httptest.NewServer(mux)
}

// play sends the load sequentially, except for requests marked together, and calls tell for each answer.
func play(ctx context.Context, l *lab.Lab, load []request, tell func(i int, a *answer)) ([]answer, error) {
	answers := make([]answer, len(load))
	for n := 0; n < len(load); n++ {
		first := n
		for n+1 < len(load) && load[n+1].together {
			n++
		}
		if err := sendTogether(ctx, l, load, answers, first, n); err != nil {
			return nil, fmt.Errorf("request %d (%s): %w", first+1, load[first].what, err)
		}
		var decided []decision // newest first
		if l.Admin != "" {
			raw, err := lab.Get(fmt.Sprintf("http://%s/decisions?n=%d", l.Admin, n-first+1))
			if err != nil {
				return nil, err
			}
			if err := json.Unmarshal(raw, &decided); err != nil {
				return nil, err
			}
		}
		for i := first; i <= n; i++ {
			if at := n - i; at < len(decided) {
				answers[i].decided = decided[at]
			}
			tell(i, &answers[i])
		}
	}
	return answers, nil
}

// sendTogether sends the requests from first to last, 10 ms apart, and waits for all answers.
func sendTogether(ctx context.Context, l *lab.Lab, load []request, answers []answer, first, last int) error {
	errs := make([]error, len(load))
	var all sync.WaitGroup
	for i := first; i <= last; i++ {
		all.Go(func() {
			time.Sleep(time.Duration(i-first) * 10 * time.Millisecond) // this is the case shown, not a wait
			answers[i], errs[i] = send(ctx, l, i, load[i])
			answers[i].worker = l.Served(fmt.Sprint("demo-", i))
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// judge reports whether every repeated image went to the worker that held it and was found cached there, and whether all workers
// were used.
func judge(load []request, got []answer, workers int) error {
	where, busy := map[int]int{}, map[int]bool{}
	var bad []string
	for i, r := range load {
		a := got[i]
		busy[a.worker] = true
		if r.image < 0 {
			continue
		}
		if first, seen := where[r.image]; r.repeat && seen && a.worker != first {
			bad = append(bad, fmt.Sprintf("request %d (%s) went to worker-%d, its image is on worker-%d", i+1, r.what, a.worker+1, first+1))
		}
		race := r.together && !load[i-1].repeat // with the first request for it: either may win
		if r.repeat && !race && a.cached < 1000 {
			bad = append(bad, fmt.Sprintf("request %d (%s): the worker found only %d tokens cached", i+1, r.what, a.cached))
		}
		where[r.image] = a.worker
	}
	if len(busy) < workers {
		bad = append(bad, fmt.Sprintf("%d of %d workers got requests", len(busy), workers))
	}
	if len(bad) > 0 {
		return errors.New("unexpected results:\n  " + strings.Join(bad, "\n  "))
	}
	return nil
}
