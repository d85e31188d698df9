package extproc

import (
	"context"
	"encoding/hex"
	"maps"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	spans "go.opentelemetry.io/proto/otlp/trace/v1"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/prototext"

	"github.com/sightline-router/sightline/app/trace"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/decisionlog"
)

// receiver keeps what an OTLP receiver gets.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	mu   sync.Mutex
	sent []*collector.ExportTraceServiceRequest
}

func (r *receiver) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent = append(r.sent, req)
	return &collector.ExportTraceServiceResponse{}, nil
}

// TestTraces checks that a decision is a span below the request's, if that is sampled, and quotes no client text. Envoy's span
// has priority over the client's.
func TestTraces(t *testing.T) {
	const trace1, span1 = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
	sampled, unsampled := "00-"+trace1+"-"+span1+"-01", "00-"+trace1+"-"+span1+"-00"
	for name, test := range map[string]struct {
		client, envoy string
		sample        float64
		away          bool
		spans         int
		parent        string
	}{
		"sampled":              {client: sampled, spans: 1, parent: span1},
		"unsampled":            {client: unsampled, sample: 1},
		"Envoy's":              {client: unsampled, envoy: sampled, spans: 1, parent: span1},
		"Envoy's, unsampled":   {client: sampled, envoy: unsampled},
		"none, all are wanted": {sample: 1, spans: 1},
		"none, none is wanted": {},
		"not one":              {client: strings.Repeat("secret", 1000), sample: 1, spans: 1},
		"receiver away":        {client: sampled, away: true},
	} {
		t.Run(name, func(t *testing.T) {
			told := router.Recent{Considered: 2,
				Ranked: []router.Considered{{Candidate: decisionlog.Candidate{Worker: "a", Cost: 36, Exact: 64}},
					{Candidate: decisionlog.Candidate{Worker: "b", Cost: 100}}}}
			lis, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			got, g := &receiver{}, grpc.NewServer()
			collector.RegisterTraceServiceServer(g, got)
			if test.away {
				_ = lis.Close()
			} else {
				go func() { _ = g.Serve(lis) }()
				defer g.Stop()
			}
			reg := prometheus.NewRegistry()
			tracer, err := trace.Start(trace.Options{Endpoint: lis.Addr().String(), Insecure: true, Sample: test.sample,
				Log: zap.NewNop(), Metrics: reg,
				Recent: func(string) (router.Recent, bool) { return told, true }})
			if err != nil {
				t.Fatal(err)
			}
			decision := router.Decision{Model: "m", Engine: "vllm", Reason: router.Load, Why: "no events", PromptTokens: 100, CachedTokens: 64,
				Targets: []router.Target{{Worker: "a", Addr: "10.0.0.1:8000", Rank: -1}}}
			r := newRig(t, always(decision), Options{Traced: tracer.Decided})
			ctx := t.Context()
			if test.envoy != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "traceparent", test.envoy)
			}
			if got := r.talkIn(ctx, t, headersMsg(nil, false, chat("traceparent", test.client, "x-session-id", "secret")...),
				bodyMsg(`{"prompt":"secret"}`, true)); len(got) != 2 {
				t.Errorf("%d answers, want 2", len(got))
			}
			r.stop()
			<-r.gone
			tracer.Close()

			got.mu.Lock()
			defer got.mu.Unlock()
			var found []*spans.Span
			for _, req := range got.sent {
				if text := prototext.Format(req); strings.Contains(text, "secret") {
					t.Errorf("a client's words were sent:\n%s, want no \"secret\" in text", text)
				}
				for _, rs := range req.ResourceSpans {
					for _, ss := range rs.ScopeSpans {
						found = append(found, ss.Spans...)
					}
				}
			}
			counted, err := reg.Gather()
			if err != nil || len(found) != test.spans || !test.away && len(counted) != test.spans {
				t.Fatalf("%d spans, want %d; counted %v, %v", len(found), test.spans, counted, err)
			}
			if test.spans == 0 {
				return
			}
			if m := counted[0].GetMetric(); len(m) != 1 || m[0].GetLabel()[0].GetValue() != "sent" || m[0].GetCounter().GetValue() != 1 {
				t.Errorf(`counted %v, want len(m) == 1, m[0].GetLabel()[0].GetValue() == "sent", m[0].GetCounter().GetValue() == 1`, m)
			}
			s := found[0]
			if parent := hex.EncodeToString(s.ParentSpanId); parent != test.parent || test.parent != "" && hex.EncodeToString(s.TraceId) != trace1 {
				t.Errorf("trace %s, parent %s; want parent %q", hex.EncodeToString(s.TraceId), parent, test.parent)
			}
			if s.Name != "sightline decide" || s.StartTimeUnixNano == 0 || s.EndTimeUnixNano < s.StartTimeUnixNano {
				t.Errorf("%s, from %d to %d, want %q, some, at least %d",
					s.Name, s.StartTimeUnixNano, s.EndTimeUnixNano, "sightline decide", s.StartTimeUnixNano)
			}
			seen := map[string]any{}
			for _, a := range s.Attributes {
				seen[a.Key] = a.Value.GetStringValue()
				if seen[a.Key] == "" {
					seen[a.Key] = a.Value.GetIntValue()
				}
			}
			requests, _ := r.seen()
			want := map[string]any{"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.usage.input_tokens": int64(100),
				"gen_ai.provider.name": "vllm", "gen_ai.usage.cache_read.input_tokens": int64(64),
				"sightline.id": requests[0].ID, "sightline.worker": "a", "sightline.reason": string(router.Load), "sightline.why": "no events",
				"sightline.cached_tokens": int64(64), "sightline.considered": int64(2), "sightline.ties": int64(0), "sightline.margin": int64(0)}
			if !maps.Equal(seen, want) {
				t.Errorf("attributes %v, want %v", seen, want)
			}
			if text := prototext.Format(s); len(s.Events) != 2 || !strings.Contains(text, "sightline.exact_tokens") ||
				!strings.Contains(text, "sightline.cost_tokens") {
				t.Errorf("the candidates are not told:  %q; got %d, want 2, %q in it, %q in it",
					text, len(s.Events), "sightline.exact_tokens", "sightline.cost_tokens")
			}
		})
	}
}
