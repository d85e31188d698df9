package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
	"github.com/sightline-router/sightline/router"
)

// What Sightline costs beside what asking anybody costs: `make bench-envoy`. Five ways through a real Envoy, in turn, in
// one run:
//
//	plain     a route without ext_proc
//	nothing   ext_proc in the same mode, to a server that answers every message with "go on"
//	picks     the same server naming a worker: Envoy looks for the route again and takes it through the composite cluster
//	tells     our server with a decision made beforehand: also metadata, statistics, access log lines and their stream
//	ours      `sightline serve`, with a model and workers, access log and all
//
// The steps from one to the next are what each part costs; they are printed last.
// Only ratios and differences of one run mean something, and on a busy machine not even those: goals are stated against
// "nothing" of the same run. It fails where ours is over them, or where a request under load fails or leaves a stream open.

// nothingVar turns the test binary into a server that decides nothing: "way worker address-to-listen-on".
const nothingVar = "SIGHTLINE_E2E_NOTHING"

type nothing struct {
	extprocv3.UnimplementedExternalProcessorServer
	answer *extprocv3.CommonResponse // to the body
}

func (n nothing) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		in, err := stream.Recv()
		if err != nil {
			return nil
		}
		if in.GetRequestHeaders() != nil {
			err = stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
				RequestHeaders: &extprocv3.HeadersResponse{}}})
		} else {
			return stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
				RequestBody: &extprocv3.BodyResponse{Response: n.answer}}})
		}
		if err != nil {
			return nil
		}
	}
}

func serveNothing(told string) error {
	var way, worker, addr string
	if _, err := fmt.Sscan(told, &way, &worker, &addr); err != nil {
		return err
	}
	lis, err := extproc.Listen(addr)
	if err != nil {
		return err
	}
	n := nothing{}
	switch way {
	case "picks":
		set := func(name string) *corev3.HeaderValueOption {
			return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, RawValue: []byte(worker)}}
		}
		n.answer = &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{
			SetHeaders: []*corev3.HeaderValueOption{set(extproc.HeaderWorker), set(extproc.HeaderSecond)}}}
	case "tells":
		s, err := extproc.New(func(_ context.Context, r *router.Request) router.Decision {
			return router.Decision{ID: r.ID, Model: lab.ModelName, Reason: router.Load, Why: "no block held", PromptTokens: 1000,
				Targets: []router.Target{{Worker: "w", Addr: worker, Rank: -1}}}
		}, func(router.Outcome) {}, extproc.Options{})
		if err != nil {
			return err
		}
		return s.Serve(context.Background(), lis)
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(extproc.DefaultMaxBody + 1<<20))
	extprocv3.RegisterExternalProcessorServer(s, n)
	h := health.NewServer()
	h.SetServingStatus(extprocv3.ExternalProcessor_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(s, h)
	return s.Serve(lis)
}

// yardstick is the five ways.
type yardstick struct {
	t    *testing.T
	ours *world
	ways []*way
}

type way struct {
	name, url string
	pid       int // of its server
	took      []time.Duration
	cpu       time.Duration // of its server, while it took
}

// cpuTime is what a process has used of the cores so far.
func cpuTime(t *testing.T, pid int) time.Duration {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, after, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(after)
	if err != nil || len(fields) < 13 {
		t.Fatalf("CPU time of process %d: %v; got %d, want no error, at least 13", pid, err, len(fields))
	}
	return time.Duration(number(fields[11])+number(fields[12])) * 10 * time.Millisecond
}

// lighter compares three sizes of requests with a server that does nothing: the time through Envoy, and the CPU time of the server.
func (y *yardstick) lighter(plain, nothing, us *way) {
	for _, size := range []struct {
		name     string
		bodies   []string
		turns, n int
		goal     float64
		stated   float64 // docs/numbers.md, with what a busy machine adds
	}{
		{"4 KB of chat", []string{chatOf(4<<10, 20), chatOf(4<<10, 21), chatOf(4<<10, 22)}, 40, 50, 1.15, 1.4},
		{"an image of 362 KB", []string{imageOf(362<<10, 0), imageOf(362<<10, 1), imageOf(362<<10, 2)}, 40, 25, 1.15, 1.15},
		{"an image of 3.7 MB", []string{imageOf(3700<<10, 0), imageOf(3700<<10, 1)}, 20, 12, 1.3, 1.3},
	} {
		y.t.Logf("%s, one at a time: %s", size.name, y.turns(size.bodies, size.turns, size.n, plain, nothing, us))
		p := func(w *way) float64 { return ms(quantile(w.took, .5)) }
		times, noise := alternated(us.took, nothing.took, p50)
		limit(y.t, fmt.Sprintf("  p50, times that of nothing, median of %d alternations (±%.3f)", alternations, noise),
			times, size.goal, size.stated)
		y.t.Logf("    … of what is added to plain alone: %.2f", (p(us)-p(plain))/(p(nothing)-p(plain)))
		each := func(w *way) float64 { return w.cpu.Seconds() / float64(len(w.took)) * 1000 }
		y.t.Logf("    CPU of the server, s per 1,000: %.3f; nothing %.3f", each(us), each(nothing))
		if size.name != "4 KB of chat" {
			limit(y.t, "  CPU of the server, times that of nothing", each(us)/each(nothing), 1.5)
		}
	}
}

// alternations is into how many parts a measurement by turns is cut, each with a ratio of its own.
const alternations = 5

// alternated returns the median of the parts' ratios of a to b, and half the distance between the least and the largest: a difference
// below it is noise. Both have the same requests, in their order.
func alternated(a, b []time.Duration, of func([]time.Duration) time.Duration) (median, noise float64) {
	var ratios []float64
	for part := range alternations {
		cut := func(took []time.Duration) float64 {
			return float64(of(took[len(took)*part/alternations : len(took)*(part+1)/alternations]))
		}
		ratios = append(ratios, cut(a)/cut(b))
	}
	slices.Sort(ratios)
	return ratios[alternations/2], (ratios[alternations-1] - ratios[0]) / 2
}

func p50(took []time.Duration) time.Duration { return quantile(took, .5) }

func mean(took []time.Duration) (m time.Duration) {
	for _, d := range took {
		m += d
	}
	return m / time.Duration(max(1, len(took)))
}

// TestAlternated: a slow moment of the machine does not move the median, and is the noise.
func TestAlternated(t *testing.T) {
	var a, b []time.Duration
	for i := range 50 {
		b = append(b, 10*time.Millisecond)
		a = append(a, map[bool]time.Duration{true: 30, false: 12}[i < 10]*time.Millisecond)
	}
	for name, of := range map[string]func([]time.Duration) time.Duration{"p50": p50, "mean": mean} {
		if median, noise := alternated(a, b, of); math.Abs(median-1.2) > 1e-9 || math.Abs(noise-.9) > 1e-9 {
			t.Errorf("%s: got %v ± %v, want 1.2 ± 0.9", name, median, noise)
		}
	}
}

// sinkhole is a worker that reads whatever it gets, and answers with nothing.
func sinkhole(t *testing.T) (addr string) {
	l := listen(t)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })}
	go func() { _ = srv.Serve(l) }()
	t.Cleanup(func() { _ = srv.Close() })
	return l.Addr().String()
}

// forkYardstick runs a server that does less than ours in its place: nothing, picks or tells.
func (w *world) forkYardstick(name, worker string) {
	w.fork(exec.Command(os.Args[0]), fmt.Sprint(nothingVar, "=", name, " ", worker, " ", w.sightline))
	eventually(w.t, "Envoy finds its server", func() bool { return w.stat("cluster.sightline.membership_healthy") == 1 })
}

func TestYardstick(t *testing.T) {
	under, err := time.ParseDuration(os.Getenv("SIGHTLINE_YARDSTICK"))
	if err != nil {
		t.Skip("a measurement: make bench-envoy")
	}
	sink := sinkhole(t)
	before := func(o *envoy.Options) { o.Workers = []string{sink} }
	ours := startAsPrinted(t, 0, before)
	ours.runProduct(map[string]any{"models": []any{map[string]any{"name": lab.ModelName, "dir": absolute(t, modelDir)}},
		"workers": []any{map[string]any{"addr": sink}}})
	y := &yardstick{t: t, ours: ours, ways: []*way{{name: "plain", url: ours.url + "/v1/unasked"}}}
	for _, name := range []string{"nothing", "picks", "tells"} {
		w := startAsPrinted(t, 0, before)
		w.forkYardstick(name, sink)
		y.ways = append(y.ways, &way{name: name, url: w.url + "/v1/chat/completions", pid: w.pid})
	}
	y.ways = append(y.ways, &way{name: "ours", url: ours.url + "/v1/chat/completions", pid: ours.pid})
	var small, large []string
	for i := range 16 {
		small = append(small, chatOf(4<<10, i))
	}
	for i := range 3 {
		large = append(large, imageOf(15<<20, i))
	}
	for i, body := range slices.Concat(small, large) { // images become known, connections open
		for _, w := range y.ways {
			if err := y.send(w.url, body); err != nil {
				t.Fatalf("%d %q: got %v, want no error", i, w.name, err)
			}
		}
	}
	t.Logf("load average at the beginning: %s", loadAverage())
	plain, nothing, picks, tells, us := y.ways[0], y.ways[1], y.ways[2], y.ways[3], y.ways[4]
	t.Logf("4 KB of chat, one at a time: %s", y.turns(small, 40, 100, y.ways...))
	var at []float64 // p50
	for _, w := range []*way{plain, nothing, picks, tells, us} {
		at = append(at, ms(quantile(w.took, .5)))
	}
	limit(t, "p50 over nothing, ms", at[4]-at[1], .25, .33)
	limit(t, "p99 over nothing, ms", ms(quantile(us.took, .99)-quantile(nothing.took, .99)), 1)
	y.lighter(plain, nothing, us)
	t.Logf("15 MB body, one at a time: %s", y.turns(large, 12, 6, plain, nothing, us))
	limit(t, "p50, times that of nothing", float64(quantile(us.took, .5))/float64(quantile(nothing.took, .5)), 1.25)
	y.load(64, under, small)
	t.Logf("4 KB of chat, p50, what each part costs, in ms: to ask anybody %.3f; a worker of its own for the request, in Envoy %.3f; "+
		"metadata, statistics and access logs, in Envoy %.3f; the decision %.3f", at[1]-at[0], at[2]-at[1], at[3]-at[2], at[4]-at[3])
}

// TestIdle measures what Sightline uses of the cores without requests, with four workers that publish events. Before its first request
// Envoy may check Sightline's health more often.
func TestIdle(t *testing.T) {
	under, err := time.ParseDuration(os.Getenv("SIGHTLINE_YARDSTICK"))
	if err != nil {
		t.Skip("a measurement: make bench-envoy")
	}
	prompt, err := prompts()
	if err != nil {
		t.Fatal(err)
	}
	var workers []any
	var addrs []string
	for range 4 {
		w, err := sim.New(sim.Config{Model: lab.ModelName, Prompt: prompt})
		if err != nil {
			t.Fatal(err)
		}
		w.Start()
		t.Cleanup(w.Close)
		workers, addrs = append(workers, map[string]any{"addr": w.Addr(), "events": map[string]any{"auto": true}}), append(addrs, w.Addr())
	}
	w := startAsPrinted(t, 0, func(o *envoy.Options) { o.Workers = addrs })
	w.runProduct(map[string]any{"admin": freeAddr(t), "workers": workers,
		"models": []any{map[string]any{"name": lab.ModelName, "dir": absolute(t, modelDir)}}})
	y := &yardstick{t: t, ours: w}
	for _, state := range []string{"before a first request", "after requests"} {
		time.Sleep(15 * time.Second) // workers without requests are asked less often
		was := cpuTime(t, w.pid)
		time.Sleep(under)
		limit(t, "CPU time when idle, "+state+", ms/s", ms(cpuTime(t, w.pid)-was)/under.Seconds(), 3)
		for i := range 8 {
			if err := y.send(w.url+"/v1/chat/completions", chatOf(4<<10, i)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// turns sends the bodies n times a turn, the ways in turn, so that the machine's other work hits all alike.
func (y *yardstick) turns(bodies []string, turns, n int, ways ...*way) string {
	for _, w := range ways {
		w.took, w.cpu = nil, 0
	}
	for turn := range turns {
		for i := range ways {
			w := ways[(turn+i)%len(ways)]
			was := time.Duration(0)
			if w.pid != 0 {
				was = cpuTime(y.t, w.pid)
			}
			for j := range n {
				begin := time.Now()
				if err := y.send(w.url, bodies[j%len(bodies)]); err != nil {
					y.t.Fatal(w.name, err)
				}
				w.took = append(w.took, time.Since(begin))
			}
			if w.pid != 0 {
				w.cpu += cpuTime(y.t, w.pid) - was
			}
		}
	}
	var out []string
	for _, w := range ways {
		out = append(out, fmt.Sprintf("%s p50 %.3f p99 %.3f ms", w.name, ms(quantile(w.took, .5)), ms(quantile(w.took, .99))))
	}
	return strings.Join(out, "; ")
}

// limit says how a measure stands to its goal. It fails only if the measure is worse than both the goal and the figure that
// docs/numbers.md states beside it, noise included; a goal that the page calls missed is printed as missed.
func limit(t *testing.T, what string, got, goal float64, stated ...float64) {
	t.Helper()
	verdict := "reached"
	if got > goal {
		verdict = "MISSED"
		if len(stated) == 0 || got > stated[0] {
			t.Errorf("%s: got %.3f, want at most %v", what, got, slices.Max(append(stated, goal)))
		} else {
			verdict += fmt.Sprintf(", as docs/numbers.md says (up to %v)", stated[0])
		}
	}
	t.Logf("  %s: %.3f (goal %v: %s)", what, got, goal, verdict)
}

// missed says how a measure stands to a goal that is missed on purpose, and why; it does not fail.
func missed(t *testing.T, what string, got, goal float64, why string) {
	t.Helper()
	t.Logf("  %s: %.3f (goal %v, missed on purpose: %s)", what, got, goal, why)
}

// load keeps c requests going for a while and asks Envoy's counters about it.
func (y *yardstick) load(c int, d time.Duration, bodies []string) {
	counters := []string{"streams_started", "streams_closed", "streams_failed", "failure_mode_allowed", "message_timeouts",
		"spurious_msgs_received"}
	read := func() (v []int) {
		for _, name := range counters {
			v = append(v, y.ours.stat("http.ingress.ext_proc."+name))
		}
		return v
	}
	was := read()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration
	var failed []error
	end := time.Now().Add(d)
	for i := range c {
		wg.Go(func() {
			for j := i; time.Now().Before(end); j++ {
				begin := time.Now()
				err := y.send(y.ways[len(y.ways)-1].url, bodies[j%len(bodies)])
				mu.Lock()
				took = append(took, time.Since(begin))
				if err != nil {
					failed = append(failed, err)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	var now []int
	eventually(y.t, fmt.Sprintf("no stream is open: %v, before %v", &now, was), func() bool {
		now = read()
		return now[0]-was[0] == now[1]-was[1]+now[2]-was[2]
	})
	y.t.Logf("%d at a time for %v: %d requests, %.0f/s, p50 %.1f ms, p99 %.1f ms, %d failed", c, d, len(took), float64(len(took))/d.Seconds(),
		ms(quantile(took, .5)), ms(quantile(took, .99)), len(failed))
	for i, name := range counters {
		y.t.Logf("  ext_proc.%s %d", name, now[i]-was[i])
	}
	if len(failed) > 0 {
		y.t.Errorf("%d requests failed, such as: %v", len(failed), failed[0])
	}
	if opened := now[0] - was[0]; opened != len(took) {
		y.t.Errorf("%d streams for %d requests", opened, len(took))
	}
}

func (y *yardstick) send(url, body string) error {
	res, err := y.ours.client.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return err
}

// chatOf is a chat of about n bytes of prose, another for each seed.
func chatOf(n, seed int) string {
	words := strings.Fields("the night train had already left when she came to the station, so we sat down in a small " +
		"room behind the kitchen " +
		"and talked about what could still be done before morning; nobody had slept much, and most of the letters were not answered yet")
	r := rand.New(rand.NewPCG(uint64(seed), 7))
	var b strings.Builder
	for b.Len() < n-100 {
		b.WriteString(words[r.IntN(len(words))] + " ")
	}
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]}`, lab.ModelName, b.String())
}

// imageOf is a chat with an image of about n bytes as a data URL.
func imageOf(n, seed int) string {
	file := bytes.Clone(photo(uint64(seed)))
	more := make([]byte, n*3/4-len(file)) // behind the image's end, where readers do not look
	for i := range more {
		more[i] = byte(i*7 + i>>9 + seed)
	}
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,%s"}},{"type":"text","text":"?"}]}]}`,
		lab.ModelName, base64.StdEncoding.EncodeToString(append(file, more...)))
}

func quantile(took []time.Duration, q float64) time.Duration {
	took = slices.Sorted(slices.Values(took))
	return took[int(q*float64(len(took)-1))]
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }
