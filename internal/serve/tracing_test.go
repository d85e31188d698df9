package serve

import (
	"context"
	"net"
	"path/filepath"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// received counts the spans that come.
type received struct {
	collector.UnimplementedTraceServiceServer
	spans chan int
}

func (r received) Export(_ context.Context, req *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	r.spans <- len(req.GetResourceSpans()[0].GetScopeSpans()[0].GetSpans())
	return &collector.ExportTraceServiceResponse{}, nil
}

// What is configured under tracing is where decisions go, at the latest when the process stops.
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
probe: false
tracing: {endpoint: "`+lis.Addr().String()+`", insecure: true, sample: 1}
models: [{name: m, dir: DIR/model, engine_version: 0.32.0}]
workers: [{name: a, addr: "127.0.0.1:9"}]
`)
		conn, err := grpc.NewClient("unix:"+filepath.Join(filepath.Dir(r.file), "s"), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
		if err != nil {
			t.Fatal(err)
		}
		headers := &corev3.HeaderMap{}
		for name, v := range map[string]string{":method": "POST", ":path": "/v1/completions", "content-type": "application/json"} {
			headers.Headers = append(headers.Headers, &corev3.HeaderValue{Key: name, RawValue: []byte(v)})
		}
		for _, msg := range []*extprocv3.ProcessingRequest{
			{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headers}}},
			{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte(`{"model":"m","prompt":"x"}`), EndOfStream: true}}},
		} {
			if err := stream.Send(msg); err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		_, _ = stream.Recv() // the end: the decision has been told of
	})
	select {
	case n := <-got.spans:
		if n != 1 {
			t.Errorf("%d spans, want 1", n)
		}
	default:
		t.Error("no span came")
	}
}
