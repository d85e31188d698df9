package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/internal/demo"
)

// What Sightline costs beside what asking anybody costs: `make bench-envoy`. Three ways through a real Envoy, in turn, in
// one run:
//
//	plain     a route without ext_proc
//	nothing   ext_proc in the same mode, to a server that answers every message with "go on"
//	ours      `sightline serve`, with a model and workers, access log and all
//
// Only ratios and differences of one run mean something, and on a busy machine not even those: it fails where ours is
// over the limits, or where a request under load fails or leaves a stream open.

// nothingVar turns the test binary into the server that does nothing, listening on its value.
const nothingVar = "SIGHTLINE_E2E_NOTHING"

type nothing struct {
	extprocv3.UnimplementedExternalProcessorServer
}

func (nothing) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		in, err := stream.Recv()
		if err != nil {
			return nil
		}
		if in.GetRequestHeaders() != nil {
			err = stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{}}})
		} else {
			return stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{}}})
		}
		if err != nil {
			return nil
		}
	}
}

func serveNothing(addr string) error {
	lis, err := extproc.Listen(addr)
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpc.MaxRecvMsgSize(extproc.DefaultMaxBody + 1<<20))
	extprocv3.RegisterExternalProcessorServer(s, nothing{})
	h := health.NewServer()
	h.SetServingStatus(extprocv3.ExternalProcessor_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(s, h)
	return s.Serve(lis)
}

// yardstick is the three ways.
type yardstick struct {
	t    *testing.T
	ours *world
	ways []way
}

type way struct {
	name, url string
	took      []time.Duration
}

func TestYardstick(t *testing.T) {
	under, err := time.ParseDuration(os.Getenv("SIGHTLINE_YARDSTICK"))
	if err != nil {
		t.Skip("a measurement: make bench-envoy")
	}
	sink := listen(t)
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })}
	go func() { _ = srv.Serve(sink) }()
	t.Cleanup(func() { _ = srv.Close() })
	before := func(o *envoy.Options) { o.Workers = []string{sink.Addr().String()} }
	idle, ours := start(t, 0, before), start(t, 0, before)
	idle.fork(exec.Command(os.Args[0]), nothingVar+"="+idle.sightline)
	ours.runProduct(map[string]any{"models": []any{map[string]any{"name": demo.ModelName, "dir": absolute(t, modelDir)}},
		"workers": []any{map[string]any{"addr": sink.Addr().String()}}})
	eventually(t, "Envoy finds the server that does nothing", func() bool { return idle.stat("cluster.sightline.membership_healthy") == 1 })
	y := &yardstick{t: t, ours: ours, ways: []way{
		{name: "plain", url: ours.url + "/v1/unasked"}, {name: "nothing", url: idle.url + "/v1/chat/completions"}, {name: "ours", url: ours.url + "/v1/chat/completions"},
	}}
	var small, large []string
	for i := range 16 {
		small = append(small, chatOf(4<<10, i))
	}
	for i := range 3 {
		large = append(large, pictureOf(15<<20, i))
	}
	for i, body := range slices.Concat(small, large) { // pictures become known, connections open
		for _, w := range y.ways {
			if err := y.send(w.url, body); err != nil {
				t.Fatal(i, w.name, err)
			}
		}
	}
	t.Logf("4 KB of chat, one at a time: %s", y.turns(small, 40, 100))
	limit(t, "p50 over nothing, ms", ms(quantile(y.ways[2].took, .5)-quantile(y.ways[1].took, .5)), .15)
	limit(t, "p99 over nothing, ms", ms(quantile(y.ways[2].took, .99)-quantile(y.ways[1].took, .99)), 1)
	t.Logf("15 MB body, one at a time: %s", y.turns(large, 12, 6))
	limit(t, "p50, times that of nothing", float64(quantile(y.ways[2].took, .5))/float64(quantile(y.ways[1].took, .5)), 1.25)
	y.load(64, under, small)
}

// turns sends the bodies n times a turn, the three ways in turn, so that the machine's other work hits all alike.
func (y *yardstick) turns(bodies []string, turns, n int) string {
	for i := range y.ways {
		y.ways[i].took = nil
	}
	for turn := range turns {
		for i := range y.ways {
			w := &y.ways[(turn+i)%len(y.ways)]
			for j := range n {
				begin := time.Now()
				if err := y.send(w.url, bodies[j%len(bodies)]); err != nil {
					y.t.Fatal(w.name, err)
				}
				w.took = append(w.took, time.Since(begin))
			}
		}
	}
	var out []string
	for _, w := range y.ways {
		out = append(out, fmt.Sprintf("%s p50 %.3f p99 %.3f ms", w.name, ms(quantile(w.took, .5)), ms(quantile(w.took, .99))))
	}
	return strings.Join(out, "; ")
}

// limit says how a measure stands to its limit.
func limit(t *testing.T, what string, got, most float64) {
	t.Helper()
	if t.Logf("  %s: %.3f (at most %v)", what, got, most); got > most {
		t.Errorf("%s: over the limit", what)
	}
}

// load keeps c requests going for a while and asks Envoy's counters about it.
func (y *yardstick) load(c int, d time.Duration, bodies []string) {
	counters := []string{"streams_started", "streams_closed", "streams_failed", "failure_mode_allowed", "message_timeouts", "spurious_msgs_received"}
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
				err := y.send(y.ways[2].url, bodies[j%len(bodies)])
				mu.Lock()
				if took = append(took, time.Since(begin)); err != nil {
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
	if _, err = io.Copy(io.Discard, res.Body); err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %d", res.StatusCode)
	}
	return err
}

// chatOf is a chat of about n bytes of prose, another for each seed.
func chatOf(n, seed int) string {
	words := strings.Fields("the night train had already left when she came to the station, so we sat down in a small room behind the kitchen " +
		"and talked about what could still be done before morning; nobody had slept much, and most of the letters were not answered yet")
	r := rand.New(rand.NewPCG(uint64(seed), 7))
	var b strings.Builder
	for b.Len() < n-100 {
		b.WriteString(words[r.IntN(len(words))] + " ")
	}
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%q}]}`, demo.ModelName, b.String())
}

// pictureOf is a chat with a picture of about n bytes as a data URL.
func pictureOf(n, seed int) string {
	file := bytes.Clone(photo(uint64(seed)))
	more := make([]byte, n*3/4-len(file)) // behind the picture's end, where readers do not look
	for i := range more {
		more[i] = byte(i*7 + i>>9 + seed)
	}
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/jpeg;base64,%s"}},{"type":"text","text":"?"}]}]}`,
		demo.ModelName, base64.StdEncoding.EncodeToString(append(file, more...)))
}

func quantile(took []time.Duration, q float64) time.Duration {
	slices.Sort(took)
	return took[int(q*float64(len(took)-1))]
}

func ms(d time.Duration) float64 { return d.Seconds() * 1000 }
