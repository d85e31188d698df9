package serve

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sightline-router/sightline/internal/denied"
)

// received counts the received spans.
type received struct {
	collector.UnimplementedTraceServiceServer
	spans chan int
}

func (r received) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.spans <- len(req.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans())
	return &collector.ExportTraceServiceResponse{}, nil
}

// door is a client of a server that listens on DIR/s.
type door struct {
	extprocv3.ExternalProcessorClient
	leaves bool // right after the answers, as Envoy does when a request is over
}

func newDoor(t *testing.T, r *reloading) door {
	conn, err := grpc.NewClient("unix:"+filepath.Join(filepath.Dir(r.file), "s"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return door{ExternalProcessorClient: extprocv3.NewExternalProcessorClient(conn)}
}

// ask sends one request: its body, and headers besides the usual ones. It returns at the end of the stream, after the decision
// was reported, or after the last answer if the door leaves.
func (d door) ask(t *testing.T, body string, headers ...string) (answers []*extprocv3.ProcessingResponse) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stream, err := d.Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	all := &corev3.HeaderMap{}
	headers = append(headers, ":method", "POST", "content-type", "application/json")
	for pair := range slices.Chunk(headers, 2) {
		all.Headers = append(all.Headers, &corev3.HeaderValue{Key: pair[0], RawValue: []byte(pair[1])})
	}
	for _, m := range []*extprocv3.ProcessingRequest{
		{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: all}}},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: true}}},
	} {
		if stream.Send(m) != nil { // the stream has ended: the request is not ours
			return answers
		}
		a, err := stream.Recv()
		if err != nil {
			return answers
		}
		answers = append(answers, a)
	}
	if !d.leaves {
		_, _ = stream.Recv()
	}
	return answers
}

// TestLabelFlood checks that nothing that clients choose becomes a label value: 5000 models, paths, sessions, tenants, pools and
// broken bodies leave each metric with the values of the configuration and our own words, at most 1,000 for a label, and one for
// all others.
func TestLabelFlood(t *testing.T) {
	r := startReloading(t, `
listen: unix:DIR/s
admin: ADMIN
fair_share: {header: x-tenant}
max_in_flight: 100000
models: [{name: m, dir: DIR/model, engine_version: 0.32.0}]
workers: [{name: a, addr: "127.0.0.1:9"}]
`, quiet)
	at, n := newDoor(t, r), 5000
	at.leaves = true
	if testing.Short() {
		n = 1200
	}
	for i := range n {
		name := fmt.Sprint("flood-", i)
		for path, body := range map[string]string{
			"/v1/" + name:                `{}`,
			denied.Chat:                  fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hi"}],%[1]q:1}`, name),
			denied.Chat + "?" + name:     fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"hi"}],"user":%q}`, name),
			denied.Chat + "?bad=" + name: strings.Repeat(" ", i) + "no JSON",
		} {
			at.ask(t, body, ":path", path, "x-session-id", name, "x-tenant", name, "x-request-id", name, "user-agent", name, ":authority", name)
		}
	}
	_, page := r.ask("GET", "/metrics")
	if !strings.Contains(page, `sightline_decisions_total{model="other"`) &&
		!strings.Contains(page, `sightline_decisions_total{model="m"`) || strings.Contains(page, "flood-") {
		t.Errorf("nothing was decided, or a label has a client's text, want `sightline_decisions_total{model=\"other\"` in page " +
			"or `sightline_decisions_total{model=\"m\"` in page, no \"flood-\" in page")
	}
	values := map[string]map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^([a-z_]+)\{.*\}`).FindAllStringSubmatch(page, -1) {
		for _, l := range regexp.MustCompile(`([a-z_]+)="([^"]*)"`).FindAllStringSubmatch(m[0], -1) {
			of := m[1] + " " + l[1]
			if values[of] == nil {
				values[of] = map[string]bool{}
			}
			values[of][l[2]] = true
		}
	}
	for of, all := range values {
		if len(all) > 1000+1 {
			t.Errorf("%s has %d values, want at most %d", of, len(all), 1000+1)
		}
	}
}

// TestTracing checks that decisions are sent to what is configured under tracing, at the latest when the process stops.
func TestTracing(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	got, g := received{spans: make(chan int, 8)}, grpc.NewServer()
	collector.RegisterTraceServiceServer(g, got)
	go func() { _ = g.Serve(lis) }()
	defer g.Stop()
	t.Run("serve", func(t *testing.T) {
		r := startReloading(t, `
listen: unix:DIR/s
admin: ADMIN
tracing: {endpoint: "http://`+lis.Addr().String()+`", sample: 1}
models: [{name: m, dir: DIR/model, engine_version: 0.32.0}]
workers: [{name: a, addr: "127.0.0.1:9"}]
`, quiet)
		door := newDoor(t, r)
		if answers := door.ask(t, `{"model":"m","prompt":"x"}`, ":path", "/v1/completions"); len(answers) != 2 {
			t.Errorf("%d answers, want 2", len(answers))
		}
	})
	select {
	case n := <-got.spans:
		if n != 1 {
			t.Errorf("%d spans, want 1", n)
		}
	default:
		t.Error("got no span, want one")
	}
}
