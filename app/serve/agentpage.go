package serve

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/admin"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/buildinfo"
	"github.com/sightline-router/sightline/internal/meter"
)

// agent is a running agent, with an HTTP server for
//
//	/metrics  Prometheus
//	/healthz  200 while the process lives; /readyz: 200 while NATS has all that the engine published
//	/state    the counters and positions of each rank, as JSON
type agent struct {
	o  AgentOptions
	mu sync.Mutex
	// ranks has the ranks that have taken over their line; both fields of others are nil.
	ranks   []agentRank
	refused atomic.Uint64 // times that NATS refused the process
	failing bus.Failing   // why there is no connection to NATS
}

type agentRank struct {
	publisher *bus.Publisher
	feed      *stream.Feed
}

// rankState is one rank in /state.
type rankState struct {
	Rank      int                `json:"rank"`
	Refused   uint64             `json:"nats_refused"`        // times that NATS rejected the process or one of its subjects
	NotReady  string             `json:"not_ready,omitempty"` // reason; "": it is ready
	Age       float64            `json:"stream_age_seconds"`
	Published bus.PublisherStats `json:"published"`
	Heard     stream.Stats       `json:"heard"`
}

// state returns the state of all ranks.
func (a *agent) state() []rankState {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := make([]rankState, len(a.ranks))
	for r, it := range a.ranks {
		s := &list[r]
		s.Rank, s.Refused = r, a.refused.Load()
		if it.feed == nil {
			why, _ := a.failing.Why()
			s.NotReady = "it has no position in NATS' stream yet: " +
				cmp.Or(why, "NATS has not answered or is too old, or no router has made the stream")
			continue
		}
		s.Published, s.Heard, s.Age = it.publisher.Stats(), it.feed.Stats(), it.feed.Age(time.Now()).Seconds()
		switch {
		case s.Published.Refused > 0:
			s.NotReady = "a newer agent has taken its place"
		case !s.Published.Connected:
			s.NotReady = "no connection to NATS: " + away(&a.failing)
		case !s.Heard.Connected:
			s.NotReady = "the engine is not connected"
		case !s.Heard.CaughtUp, !s.Published.Current:
			s.NotReady = "it is catching up"
		}
	}
	return list
}

// serve serves the page, if configured, and reports a later failure to failed. The caller must close the server.
func (a *agent) serve(log *zap.Logger, failed chan<- error) (*http.Server, error) {
	web := newWeb()
	if a.o.Admin == "" {
		return web, nil
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(a, buildinfo.Read().Metric(), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		for _, s := range a.state() {
			if s.NotReady != "" {
				http.Error(w, fmt.Sprintf("rank %d: %s", s.Rank, s.NotReady), http.StatusServiceUnavailable)
				return
			}
		}
		_, _ = io.WriteString(w, "ready\n")
	})
	mux.HandleFunc("GET /state", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"worker": a.o.Worker, "ranks": a.state()})
	})
	lis, err := net.Listen("tcp", a.o.Admin)
	if err != nil {
		return nil, fmt.Errorf("--admin: %w", err)
	}
	lis = boundWeb(lis, func(string) {}, "")
	web.Handler = admin.Access{Token: func() string { return a.o.AdminToken }, Loopback: lis.Addr().(*net.TCPAddr).IP.IsLoopback()}.Guard(mux)
	go serveHTTP(web, lis, "--admin", log, failed)
	return web, nil
}

// agentMetrics are the metrics of each rank, in the order of Collect.
var agentMetrics = []struct {
	name, help string
	kind       prometheus.ValueType
	value      func(*rankState) float64
}{
	{"published_bytes_total", "Bytes that the stream has acknowledged.", prometheus.CounterValue,
		func(s *rankState) float64 { return float64(s.Published.Bytes) }},
	{"publish_failures_total", "Attempts to publish that failed and were repeated.", prometheus.CounterValue,
		func(s *rankState) float64 { return float64(s.Published.Failed) }},
	{"publish_refused_total", "1 once a newer agent publishes for this worker.", prometheus.CounterValue,
		func(s *rankState) float64 { return float64(s.Published.Refused) }},
	{"dropped_total", "Times that too many events waited, and a snapshot replaced them.",
		prometheus.CounterValue, func(s *rankState) float64 { return float64(s.Published.Dropped) }},
	{"unanswered_total", "Routers' snapshot requests dropped: too many waited.", prometheus.CounterValue,
		func(s *rankState) float64 { return float64(s.Published.Unanswered) }},
	{"pending_bytes", "Bytes of events that wait to be published.", prometheus.GaugeValue,
		func(s *rankState) float64 { return float64(s.Published.Pending) }},
	{"nats_connected", "1 while NATS is connected.", prometheus.GaugeValue,
		func(s *rankState) float64 { return meter.Flag(s.Published.Connected) }},
	{"nats_refused_total", "Credentials rejected and subjects denied by NATS.", prometheus.CounterValue,
		func(s *rankState) float64 { return float64(s.Refused) }},
	{"engine_connected", "1 while the engine is connected.", prometheus.GaugeValue,
		func(s *rankState) float64 { return meter.Flag(s.Heard.Connected) }},
	{"ready", "1 while NATS has everything that the engine reported.", prometheus.GaugeValue,
		func(s *rankState) float64 { return meter.Flag(s.NotReady == "") }},
	{"resumed", "1 if it continued from an earlier agent's state.", prometheus.GaugeValue,
		func(s *rankState) float64 { return meter.Flag(s.Published.Resumed) }},
	{"stream_age_seconds", "Time since the engine's event stream was live.", prometheus.GaugeValue,
		func(s *rankState) float64 { return s.Age }},
	{"blocks", "Blocks that the worker holds.", prometheus.GaugeValue, func(s *rankState) float64 { return float64(s.Published.Blocks) }},
	{"snapshot_failures_total", "Snapshots not written.", prometheus.CounterValue,
		func(s *rankState) float64 { return float64(s.Published.SnapshotErrors) }},
	{"snapshot_timestamp_seconds", "When the last snapshot was written; 0: none was.", prometheus.GaugeValue, func(s *rankState) float64 {
		if s.Published.SnapshotAt.IsZero() {
			return 0
		}
		return float64(s.Published.SnapshotAt.UnixMilli()) / 1000
	}},
}

var agentEvents = meter.Desc("agent_events_total", "The engine's KV events.", "rank", "what")

// Describe implements prometheus.Collector: it sends nothing, so Collect is unchecked.
func (a *agent) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (a *agent) Collect(ch chan<- prometheus.Metric) {
	for _, s := range a.state() {
		rank := fmt.Sprint(s.Rank)
		for _, m := range agentMetrics {
			ch <- prometheus.MustNewConstMetric(meter.Desc("agent_"+m.name, m.help, "rank"), m.kind, m.value(&s), rank)
		}
		for what, n := range s.Heard.Counters() {
			meter.Counter(ch, agentEvents, float64(n), rank, what)
		}
	}
}
