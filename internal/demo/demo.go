// Package demo shows the product on one machine: three simulated workers, Sightline, a real Envoy, a mixed load.
//
//	load ─▶ Envoy ─ext_proc─▶ Sightline            worker-1 ── ZeroMQ ──────────────▶ Sightline
//	          └──▶ worker-1, worker-2, worker-3     worker-2, -3 ── agent ── NATS ──▶ Sightline
//
// The same load runs twice, each time on fresh workers: once with Sightline away (Envoy spreads round robin, as its
// configuration says for that case), once with Sightline.
package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/sim"
)

const (
	// ModelName is what the demo's requests call the model.
	ModelName = "sim-vl"
	workers   = 3
	readyWait = 30 * time.Second
)

// Options are what a demo runs with.
type Options struct {
	Self     string // path of the sightline binary
	Envoy    string // path of the Envoy binary
	ModelDir string
	Prompts  func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error)
	Stay     bool // leave everything running until ctx ends
	Out      io.Writer
}

// Run shows it all. The error says what did not come out as it should.
func Run(ctx context.Context, o Options) error {
	d := &demo{Options: o, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}}
	defer d.stop()
	var err error
	if d.dir, err = os.MkdirTemp("", "sightline-demo-"); err != nil {
		return err
	}
	shots := pictures(10)
	host := imageHost(shots)
	defer host.Close()
	load := mixed(shots, host.URL)

	fmt.Fprintf(o.Out, "demo: %d requests, twice, through %s\n\n", len(load), o.Envoy)
	fmt.Fprintln(o.Out, "first without Sightline: Envoy spreads the requests round robin …")
	plain, err := d.fleet(ctx, false)
	if err != nil {
		return err
	}
	without, err := plain.run(ctx, load, nil)
	if err != nil {
		return err
	}
	encoded := plain.encoded()
	plain.stop()

	fmt.Fprintln(o.Out, "then with Sightline, on fresh workers:")
	fmt.Fprintln(o.Out)
	fl, err := d.fleet(ctx, true)
	if err != nil {
		return err
	}
	with, err := fl.run(ctx, load, o.Out)
	if err != nil {
		return err
	}
	verdict := judge(load, with)
	compare(o.Out, without, with, encoded, fl.encoded())
	if verdict != nil {
		return verdict
	}
	fmt.Fprintln(o.Out, "\nEvery repeated picture went to the worker that held it, by data URL, by URL, and in later turns.")
	if o.Stay {
		fmt.Fprintf(o.Out, `
Left running (Ctrl-C ends it). Try:

  curl -s http://%s/v1/chat/completions -H 'content-type: application/json' -d '{"model": "%s", "max_tokens": 8,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"},
      {"type": "image_url", "image_url": {"url": "%s/a/1.jpg"}}]}]}'

  Sightline's page  http://%s/
  Envoy's counters  curl -s http://%s/stats?filter=sightline
`, fl.listen, ModelName, host.URL, fl.admin, fl.envoyAdmin)
		<-ctx.Done()
	}
	return nil
}

type demo struct {
	Options
	dir    string
	client *http.Client
	fleets []*run
}

func (d *demo) stop() {
	for _, f := range d.fleets {
		f.stop()
	}
	os.RemoveAll(d.dir)
}

// imageHost serves the pictures, each at two URLs.
func imageHost(shots [][]byte) *httptest.Server {
	mux := http.NewServeMux()
	for i, shot := range shots {
		for _, where := range []string{"a", "b"} {
			mux.HandleFunc(fmt.Sprintf("/%s/%d.jpg", where, i), func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "image/jpeg")
				w.Header().Set("Cache-Control", "max-age=3600")
				_, _ = w.Write(shot)
			})
		}
	}
	return httptest.NewServer(mux)
}

// run is one fleet of fresh workers behind one Envoy.
type run struct {
	d          *demo
	sims       []*sim.Worker
	served     sync.Map // the request's user → worker
	procs      []*exec.Cmd
	envoy      *envoy.Process
	listen     string
	admin      string // Sightline's; "" without it
	envoyAdmin string
	once       sync.Once
}

// fleet starts workers, Sightline and its agents if asked for, and Envoy, and waits until they are ready.
func (d *demo) fleet(ctx context.Context, sightline bool) (*run, error) {
	r := &run{d: d}
	d.fleets = append(d.fleets, r)
	var addrs []string
	for i := range workers {
		w, err := sim.New(sim.Config{Model: ModelName, Speed: 2, Blocks: 2048, Prompt: func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error) {
			r.served.Store(gjson.GetBytes(body, "user").Str, i)
			return d.Prompts(ctx, path, body)
		}})
		if err != nil {
			return nil, err
		}
		w.Start()
		r.sims = append(r.sims, w)
		addrs = append(addrs, w.Addr())
	}
	ports, err := freePorts(5)
	if err != nil {
		return nil, err
	}
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	r.listen, r.envoyAdmin = at(0), at(1)
	if sightline {
		r.admin = at(3)
		if err := r.startSightline(at(2), at(3), at(4)); err != nil {
			return nil, err
		}
	}
	o := envoy.Default()
	o.Listen, o.Admin, o.Sightline, o.Workers, o.TokenUsage = r.listen, r.envoyAdmin, at(2), addrs, true
	log, err := os.Create(filepath.Join(d.dir, fmt.Sprintf("envoy-%d.log", len(d.fleets))))
	if err != nil {
		return nil, err
	}
	if r.envoy, err = envoy.Start(ctx, d.Envoy, o, log, "--concurrency", "2"); err != nil {
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("%w\n%s", err, text[max(0, len(text)-2000):])
	}
	if sightline {
		err = waitFor(ctx, "the workers' KV events", func() bool {
			rows, err := d.get("http://" + r.admin + "/workers")
			return err == nil && len(gjson.ParseBytes(rows).Array()) == workers && !strings.Contains(string(rows), `"waiting"`)
		})
		if err == nil { // Envoy asks Sightline only once its health check has passed
			err = waitFor(ctx, "Envoy's health check of Sightline", func() bool {
				stats, err := d.get("http://" + r.envoyAdmin + "/stats?filter=cluster.sightline.membership_healthy")
				return err == nil && strings.Contains(string(stats), ": 1")
			})
		}
	}
	return r, err
}

// startSightline runs `sightline serve`, listening to the first worker itself, and agents beside the others.
func (r *run) startSightline(listen, admin, nats string) error {
	var list []any
	for i, w := range r.sims {
		events := map[string]any{"nats": true}
		if i == 0 {
			events = map[string]any{"zmq": w.EventsAddr(), "replay": w.ReplayAddr()}
		}
		list = append(list, map[string]any{"name": fmt.Sprint("worker-", i+1), "addr": w.Addr(), "events": events})
	}
	cfg, err := yaml.Marshal(map[string]any{
		"listen": listen, "admin": admin, "log_level": "warn",
		"nats":    map[string]any{"listen": nats, "dir": filepath.Join(r.d.dir, "nats")},
		"media":   map[string]any{"allow": []string{"127.0.0.0/8"}},
		"models":  []any{map[string]any{"name": ModelName, "dir": absolute(r.d.ModelDir)}},
		"workers": list,
	})
	if err != nil {
		return err
	}
	file := filepath.Join(r.d.dir, "sightline.yaml")
	if err := os.WriteFile(file, cfg, 0o600); err != nil {
		return err
	}
	if err := r.start("serve", "--config", file); err != nil {
		return err
	}
	for i, w := range r.sims[1:] {
		if err := r.start("agent", "--worker", fmt.Sprint("worker-", i+2), "--zmq", w.EventsAddr(), "--replay", w.ReplayAddr(), "--nats", "nats://"+nats, "--log-level", "error"); err != nil {
			return err
		}
	}
	return nil
}

// start runs a subcommand of this binary as a process of its own.
func (r *run) start(args ...string) error {
	c := exec.Command(r.d.Self, args...)
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to handle
	if err := c.Start(); err != nil {
		return err
	}
	r.procs = append(r.procs, c)
	return nil
}

func (r *run) stop() {
	r.once.Do(func() {
		if r.envoy != nil {
			r.envoy.Stop()
		}
		for _, c := range slices.Backward(r.procs) { // agents before the NATS server that they talk to
			_ = c.Process.Signal(syscall.SIGTERM)
			_ = c.Wait()
		}
		for _, w := range r.sims {
			w.Close()
		}
	})
}

// run sends the load, one request after the other but for those marked together, and shows each if out is given.
func (r *run) run(ctx context.Context, load []request, out io.Writer) ([]answer, error) {
	answers := make([]answer, len(load))
	if out != nil {
		fmt.Fprintf(out, "  #  %-29s %-9s %-10s %7s %9s %9s %7s\n", "request", "worker", "why", "prompt", "predicted", "reported", "ttft")
	}
	for n := 0; n < len(load); n++ {
		last := n
		for last+1 < len(load) && load[last+1].together {
			last++
		}
		errs := make([]error, last-n+1)
		var all sync.WaitGroup
		for i := n; i <= last; i++ {
			all.Go(func() {
				time.Sleep(time.Duration(i-n) * 10 * time.Millisecond) // that is the case shown, not a wait
				answers[i], errs[i-n] = send(ctx, r.d.client, "http://"+r.listen, i, load[i])
			})
		}
		all.Wait()
		if err := errors.Join(errs...); err != nil {
			return nil, fmt.Errorf("request %d (%s): %w", n+1, load[n].what, err)
		}
		var decided []decision
		if out != nil {
			raw, err := r.d.get(fmt.Sprintf("http://%s/decisions?n=%d", r.admin, last-n+1))
			if err != nil {
				return nil, err
			}
			if err := json.Unmarshal(raw, &decided); err != nil {
				return nil, err
			}
		}
		for i := n; i <= last; i++ {
			a := &answers[i]
			if w, ok := r.served.Load(fmt.Sprint("demo-", i)); ok {
				a.worker = w.(int)
			}
			if out == nil {
				continue
			}
			if at := last - i; at < len(decided) { // newest first
				a.decided = decided[at]
			}
			fmt.Fprintf(out, "%3d  %-29s %-9s %-10s %7d %9d %9d %5d ms\n", i+1, load[i].what, fmt.Sprint("worker-", a.worker+1), a.decided.Reason,
				a.prompt, a.decided.Cached, a.cached, a.first.Milliseconds())
		}
		n = last
	}
	return answers, nil
}

// judge says whether every repeated picture went to a worker that held it, and whether what we predicted came true.
func judge(load []request, got []answer) error {
	where := map[int]int{}
	var bad []string
	for i, r := range load {
		a := got[i]
		if r.picture < 0 {
			continue
		}
		if first, seen := where[r.picture]; r.repeat && seen && a.worker != first {
			bad = append(bad, fmt.Sprintf("request %d (%s) went to worker-%d, its picture is on worker-%d", i+1, r.what, a.worker+1, first+1))
		}
		if r.repeat && !r.together && a.cached < 1000 {
			bad = append(bad, fmt.Sprintf("request %d (%s): the worker found only %d tokens cached", i+1, r.what, a.cached))
		}
		where[r.picture] = a.worker
	}
	if len(bad) > 0 {
		return errors.New("not as it should be:\n  " + strings.Join(bad, "\n  "))
	}
	return nil
}

// encoded counts the pictures that the workers' encoders saw.
func (r *run) encoded() (n int) {
	for _, w := range r.sims {
		n += w.Stats().ImagesEncoded
	}
	return n
}

func compare(out io.Writer, without, with []answer, encodedWithout, encodedWith int) {
	type sum struct {
		prompt, cached, encoded int
		mean, p99               time.Duration
		equal                   int
	}
	add := func(list []answer) (s sum) {
		var ttft []time.Duration
		for _, a := range list {
			s.prompt += a.prompt
			s.cached += a.cached
			s.mean += a.first / time.Duration(len(list))
			ttft = append(ttft, a.first)
			if a.decided.Cached == a.cached {
				s.equal++
			}
		}
		sort.Slice(ttft, func(i, j int) bool { return ttft[i] < ttft[j] })
		s.p99 = ttft[(len(ttft)*99-1)/100]
		return s
	}
	a, b := add(without), add(with)
	ms := func(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
	pct := func(s sum) string { return fmt.Sprintf("%d (%d %%)", s.cached, 100*s.cached/max(1, s.prompt)) }
	fmt.Fprintf(out, "\n%-28s %16s %16s\n", "", "round robin", "Sightline")
	fmt.Fprintf(out, "%-28s %16s %16s\n", "cached tokens", pct(a), pct(b))
	fmt.Fprintf(out, "%-28s %16d %16d\n", "images encoded", encodedWithout, encodedWith)
	fmt.Fprintf(out, "%-28s %16s %16s\n", "time to first token, mean", ms(a.mean), ms(b.mean))
	fmt.Fprintf(out, "%-28s %16s %16s\n", "time to first token, p99", ms(a.p99), ms(b.p99))
	fmt.Fprintf(out, "\npredicted cached tokens = the worker's own count in %d of %d requests\n", b.equal, len(with))
}

func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func (d *demo) get(url string) ([]byte, error) {
	resp, err := d.client.Get(url)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: status %d", url, resp.StatusCode)
	}
	return body, err
}

// waitFor asks until a condition holds.
func waitFor(ctx context.Context, what string, cond func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not come up within %v", what, readyWait)
		case <-tick.C:
		}
	}
	return nil
}

// freePorts gives ports that are free now.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
