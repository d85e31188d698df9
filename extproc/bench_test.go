package extproc

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"

	"github.com/sightline-router/sightline/router"
)

// BenchmarkDecision sends one request at a time over gRPC, a stream each, with a decision that does nothing: headers, their
// answer, the body in one message, the decision. That is the minimum cost of every decision. "stock" receives with gRPC's own
// codec and windows instead.
func BenchmarkDecision(b *testing.B) {
	for _, body := range []struct {
		name string
		size int
	}{{"4KB", 4 << 10}, {"32KB", 32 << 10}, {"3.7MB", 3_720_000}, {"15MB", 15 << 20}} {
		for _, at := range []string{"tcp", "unix"} {
			for _, server := range []string{"ours", "stock"} {
				b.Run(body.name+"/"+at+"/"+server, func(b *testing.B) {
					addr := "127.0.0.1:0"
					if at == "unix" {
						addr = "unix:" + b.TempDir() + "/s"
					}
					benchmarkDecision(b, addr, server == "stock", body.size)
				})
			}
		}
	}
}

func benchmarkDecision(b *testing.B, addr string, stock bool, size int) {
	lis, err := Listen(addr)
	if err != nil {
		b.Fatal(err)
	}
	target := lis.Addr().String()
	if lis.Addr().Network() == "unix" {
		target = addr
	}
	if stock {
		g := grpc.NewServer(grpc.MaxRecvMsgSize(math.MaxInt32))
		extprocv3.RegisterExternalProcessorServer(g, stockServer{answer: decoded(b, ours.bodyAnswer(pick))})
		go func() { _ = g.Serve(lis) }()
		defer g.Stop()
	} else {
		s, err := New(always(pick), func(router.Outcome) {}, Options{})
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { _ = s.Serve(ctx, lis); close(done) }()
		defer func() { cancel(); <-done }()
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(ready2send{})), grpc.WithInitialWindowSize(1<<20), grpc.WithInitialConnWindowSize(1<<24))
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	client := extprocv3.NewExternalProcessorClient(conn)
	headers := encode(headersMsg(nil, false, chat()...))
	body := encode(bodyMsg(string(make([]byte, size)), true))
	var took []time.Duration
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		begin := time.Now()
		ctx, cancel := context.WithCancel(context.Background())
		stream, err := client.Process(ctx)
		if err != nil {
			b.Fatal(err)
		}
		for _, msg := range []encoded{headers, body} {
			if err := stream.SendMsg(msg); err != nil {
				b.Fatal(err)
			}
			if err := stream.RecvMsg(nil); err != nil {
				b.Fatal(err)
			}
		}
		took = append(took, time.Since(begin))
		cancel() // as Envoy does when the request is over
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2])/1e3, "p50-µs")
	b.ReportMetric(float64(took[len(took)*9/10])/1e3, "p90-µs")
}

// ready2send is a client that sends prepared bytes and ignores answers, so that only the server is measured.
type ready2send struct{ codec }

func (ready2send) Unmarshal(mem.BufferSlice, any) error { return nil }

// stockServer answers like Server, with gRPC's own codec.
type stockServer struct {
	extprocv3.UnimplementedExternalProcessorServer
	answer *extprocv3.ProcessingResponse
}

func (s stockServer) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		in, err := stream.Recv()
		if err != nil {
			return err
		}
		if in.GetRequestBody() != nil {
			return stream.SendMsg(s.answer)
		}
		if err := stream.Send(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
			RequestHeaders: &extprocv3.HeadersResponse{}}}); err != nil {
			return err
		}
	}
}

// BenchmarkSplice applies one edit to a 3.7 MB body.
func BenchmarkSplice(b *testing.B) {
	body := cut(make([]byte, 3_720_000), 16384)
	edits := []router.Edit{{From: 1000, To: 1000, Text: []byte(`"uuid":"0123456789abcdef",`)}}
	b.ReportAllocs()
	for b.Loop() {
		out, err := splice(body, edits)
		if err != nil {
			b.Fatal(err)
		}
		out.Free()
	}
}
