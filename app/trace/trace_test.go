package trace

import (
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/router"
)

// TestSpansAreBounded: a hanging receiver delays no decision: queued spans are bounded, and dropped ones are counted.
func TestSpansAreBounded(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts connections
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	reg := prometheus.NewRegistry()
	tracer, err := Start(Options{Endpoint: lis.Addr().String(), Insecure: true, Sample: 1, Log: zap.NewNop(), Metrics: reg,
		Recent: func(string) (router.Recent, bool) { return router.Recent{}, false }})
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	const made = maxQueued + 700
	for range made {
		tracer.Decided("", "/v1/completions", router.Decision{ID: "d"}, time.Now(), 0)
	}
	families, err := reg.Gather()
	if err != nil || len(families) != 1 || len(families[0].GetMetric()) != 1 {
		t.Fatalf("got %v %v, want no error, len(families) == 1, len(families[0].GetMetric()) == 1", families, err)
	}
	if m := families[0].GetMetric()[0]; m.GetLabel()[0].GetValue() != "dropped" || m.GetCounter().GetValue() != made-maxQueued {
		t.Errorf("%v, want %d dropped", m, made-maxQueued)
	}
}
