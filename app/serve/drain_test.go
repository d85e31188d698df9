package serve

import (
	"context"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sightline-router/sightline/app/registry"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/peers"
	"github.com/sightline-router/sightline/workers/fleet"
)

// withWorkers returns what carries out orders, with workers of one model, by name.
func withWorkers(t *testing.T, addrs map[string]string) *running {
	t.Helper()
	ix, all := indexer.New(indexer.Options{}), fleet.New(nil)
	r := &running{Server: &Server{log: zap.NewNop()}, fleet: all, sources: &sources{}}
	r.router = router.New(router.Options{Index: ix, Fleet: all, Log: zap.NewNop(), Metrics: prometheus.NewRegistry()})
	r.sources.set = registry.New(registry.Options{Index: ix, Fleet: all, Log: zap.NewNop(), Metrics: prometheus.NewRegistry(),
		Changed: func([]*fleet.Worker) {}})
	t.Cleanup(r.sources.set.Close)
	for name, addr := range addrs {
		err := r.sources.set.Add(0, registry.Spec{ID: name, Name: name, Addr: netip.MustParseAddrPort(addr), Ready: true, Model: "m", Ranks: 1,
			Listen: func(*fleet.Slot, int, *stream.Options) (bool, error) { return false, nil }})
		if err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// TestLastWorkerStays: of two orders at the same time, one is refused, so that a worker stays in service.
func TestLastWorkerStays(t *testing.T) {
	for range 50 {
		r := withWorkers(t, map[string]string{"a": "10.0.0.1:8000", "b": "10.0.0.2:8000"})
		var all sync.WaitGroup
		for _, name := range []string{"a", "b"} {
			all.Go(func() { _, _ = r.order(name, fleet.Draining) })
		}
		all.Wait()
		stay := 0
		for _, w := range r.fleet.Workers() {
			if w.InService() {
				stay++
			}
		}
		if stay != 1 {
			t.Fatalf("got %d workers in service after both were ordered to drain, want 1", stay)
		}
	}
}

// TestDrainIsLoggedOnce: an ordered drain is one line of the log, and the empty worker another one.
func TestDrainIsLoggedOnce(t *testing.T) {
	r := withWorkers(t, map[string]string{"a": "10.0.0.1:8000", "b": "10.0.0.2:8000"})
	core, lines := observer.New(zap.InfoLevel)
	r.log = zap.New(core)
	if _, err := r.order("a", fleet.Draining); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { r.watchDrains(ctx); close(ended) }()
	for end := time.Now().Add(2 * time.Minute); lines.Len() < 2 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	stop()
	<-ended
	var got []string
	for _, line := range lines.All() {
		got = append(got, line.Message)
	}
	if len(got) != 2 || !strings.Contains(got[0], "is draining") || !strings.Contains(got[1], "is empty") {
		t.Errorf("got lines %q, want one that it drains and one that it is empty", got)
	}
}

// TestOrderForThePodBefore: a pod that came back under its name does not drain because a replica has not seen the one before leave.
func TestOrderForThePodBefore(t *testing.T) {
	before := withWorkers(t, map[string]string{"llm-0": "10.0.0.1:8000", "llm-1": "10.0.0.2:8000"})
	after := withWorkers(t, map[string]string{"llm-0": "10.0.0.9:8000", "llm-1": "10.0.0.2:8000"})
	for _, name := range []string{"llm-0", "llm-1"} {
		before.sources.set.Order(func(w *fleet.Worker) bool { return w.Name == name }, fleet.Draining, time.Now())
	}
	from, to := &replicas{Exchange: &peers.Exchange{}}, &replicas{Exchange: &peers.Exchange{}}
	from.shareOrders(before)
	to.shareOrders(after)
	for _, o := range from.Orders() {
		to.Ordered(o)
	}
	for _, w := range after.fleet.Workers() {
		want := fleet.InService
		if w.Name == "llm-1" {
			want = fleet.Draining
		}
		if got, _ := w.Service(); got != want {
			t.Errorf("%s is %v, want %v", w.Name, got, want)
		}
	}
}
