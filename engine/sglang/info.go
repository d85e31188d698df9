package sglang

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer/source/zmq"
)

// ServerInfo is a server's answer about its KV events (GET /server_info, member kv_events; SGLang 0.5.23). The answer also holds
// the server's API keys: nothing else of it is read, and none of it may be logged.
type ServerInfo struct {
	Publisher string `json:"publisher"`
	Port      int    `json:"endpoint_port_base"` // of rank 0; rank r uses port + r
	Replay    int    `json:"replay_endpoint_port_base"`
	BlockSize int    `json:"block_size"` // the page size
	Ranks     int    `json:"dp_size"`
}

// publishes reports whether this many ranks have sockets at valid ports.
func (i *ServerInfo) publishes(ranks int) bool {
	return i != nil && i.Publisher == "zmq" && i.Port >= 1024 && (i.Replay <= 0 || i.Replay >= 1024) &&
		max(i.Port, i.Replay) <= 65536-max(1, ranks)
}

// FetchServerInfo asks the server at addr (host:port). If the server publishes nothing, the error is rules.ErrNoEvents.
func FetchServerInfo(ctx context.Context, client *http.Client, addr string) (info ServerInfo, err error) {
	var all struct {
		Events *ServerInfo `json:"kv_events"`
	}
	if err := rules.GetJSON(ctx, client, addr, "/server_info", "SGLang 0.5.22 or later", &all); err != nil {
		return info, err
	}
	if !all.Events.publishes(0) {
		return info, rules.ErrNoEvents
	}
	return *all.Events, nil
}

// Endpoints returns a rank's sockets on a worker's host; replay is "" if it has none. The host that the worker binds is ignored,
// because it is often a wildcard.
func (i ServerInfo) Endpoints(host string, rank int) (pub, replay string) {
	pub = "tcp://" + net.JoinHostPort(host, strconv.Itoa(i.Port+rank))
	if i.Replay > 0 {
		replay = "tcp://" + net.JoinHostPort(host, strconv.Itoa(i.Replay+rank))
	}
	return pub, replay
}

// sources returns where so many ranks publish.
func (i ServerInfo) sources(host string, ranks int) (list []rules.EventSource) {
	for rank := range ranks {
		e := rules.EventSource{}
		e.Pub, e.Replay = i.Endpoints(host, rank)
		list = append(list, e)
	}
	return list
}

// describe asks for the server's arguments (GET /server_info, before 0.5.22 /get_server_info: ServerArgs' fields, the release and,
// since 0.5.22, kv_events). They hold its keys, so only the fields named here are read.
func describe(ctx context.Context, client *http.Client, _ []byte, f *rules.Facts) {
	var a struct {
		Version      string      `json:"version"`
		Model        string      `json:"model_path"`
		Revision     string      `json:"revision"`
		ChatTemplate string      `json:"chat_template"`
		Speculative  string      `json:"speculative_algorithm"`
		PageSize     int         `json:"page_size"`
		Ranks        int         `json:"dp_size"`
		NoCache      *bool       `json:"disable_radix_cache"`
		Report       *bool       `json:"enable_cache_report"`
		Events       *ServerInfo `json:"kv_events"`

		Config json.RawMessage `json:"kv_events_config"` // as given: a string of JSON
	}
	const since = "SGLang 0.5.22 or later"
	err := rules.GetJSON(ctx, client, f.Addr, "/server_info", since, &a)
	var status *rules.StatusError
	if errors.As(err, &status) && status.Status == http.StatusNotFound {
		err = rules.GetJSON(ctx, client, f.Addr, "/get_server_info", "SGLang 0.4 or later", &a)
	}
	if err != nil {
		f.Lacks("settings", err)
		return
	}
	f.Version, f.EngineModel, f.Revision = rules.CleanText(a.Version), rules.CleanText(a.Model), rules.CleanText(a.Revision)
	if _, err := rules.ParseVersion(f.Version); err != nil {
		f.Version = ""
	}
	f.ChatTemplate, f.Speculative = rules.CleanText(a.ChatTemplate), rules.CleanText(a.Speculative)
	f.BlockSize, f.Ranks, f.CountsCached = rules.CleanCount(a.PageSize), min(rules.CleanCount(a.Ranks), rules.MaxClaimedRanks), a.Report
	if a.NoCache != nil {
		caches := !*a.NoCache
		f.PrefixCaching = &caches
	}
	ranks := max(1, f.Ranks)
	publishes := a.Events.publishes(ranks)
	f.Publishes = &publishes
	switch {
	case publishes:
		f.Events = a.Events.sources(f.Host(), ranks)
	case len(a.Config) > 0:
		f.Events, err = configured(a.Config, f.Host(), ranks)
		publishes = err == nil && len(f.Events) > 0
		if err != nil {
			f.Lacks("events", err)
		}
	}
}

// configured reads --kv-events-config. The default endpoint is tcp://*:5557, and there is no replay endpoint by default
// (sglang/srt/disaggregation/kv_events.py).
func configured(config json.RawMessage, host string, ranks int) (list []rules.EventSource, err error) {
	c := struct {
		Publisher string `json:"publisher"`
		Endpoint  string `json:"endpoint"`
		Replay    string `json:"replay_endpoint"`
	}{Endpoint: "tcp://*:5557"}
	var text string
	if json.Unmarshal(config, &text) == nil {
		config = json.RawMessage(text)
	}
	if len(config) > 0 && json.Unmarshal(config, &c) != nil {
		return nil, errors.New("kv_events_config is not a JSON object")
	}
	for rank := 0; rank < ranks && c.Publisher == "zmq"; rank++ {
		e := rules.EventSource{}
		e.Pub, err = zmq.Claimed(c.Endpoint, host, rank)
		if err == nil && c.Replay != "" {
			e.Replay, err = zmq.Claimed(c.Replay, host, rank)
		}
		if err != nil {
			return nil, errors.New("kv_events_config has an endpoint that is not tcp://host:port, with a port from 1024")
		}
		list = append(list, e)
	}
	return list, nil
}

// A server started with --enable-metrics sets its gauges with each prefill batch and each fortieth decode step
// (--decode-log-interval), and every 30 s while idle; in between they keep their last values. There is a series for each
// data-parallel rank, labelled dp_rank, and with --enable-metrics-for-all-schedulers for each tensor-parallel one
// (scheduler_metrics_mixin.py, metrics_collector.py and the scheduler's runtime checks below python/sglang/srt, read in revisions
// of 2025 and 2026).
var load = rules.Load{Path: "/metrics", Running: "sglang:num_running_reqs", Waiting: "sglang:num_queue_reqs",
	Usage: "sglang:token_usage", Rank: "dp_rank", Cache: "sglang:max_total_num_tokens", MaxAge: 5 * time.Second, KeepsLastValue: true}

// health takes at least one second to answer: it waits until the engine has produced a token, and an idle engine computes one for
// it, unless SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=0, with which only the HTTP server answers. It answers 503 during start-up
// and graceful shutdown, and after 20 s without a token (python/sglang/srt/entrypoints/http_server.py, read in a revision of 2026).
// The path /health_generate is the same without the exception.
const health = "/health"

// order returns how a release takes the order of requests: since 0.5.23 by x-override-priority (srt/entrypoints/request_headers.py), of
// which the highest is served first unless the server was told otherwise. A server that does not say gets none, since one without
// priority scheduling may refuse it (abort_on_priority_when_disabled).
func order(v rules.Version) (o rules.Order) {
	if v.AtLeast(0, 5, 23) {
		o = rules.Order{Header: "x-override-priority", Ask: askOrder}
	}
	return o
}

// askOrder asks for the server's arguments, of which it reads only those named here: the others hold keys. Two of them exclude an order
// by numbers that are all different (0.5.23). Without disable_priority_preemption, a request that is more than ten ahead ends running
// ones (srt/managers/schedule_policy.py). With enable_metrics, each number becomes a label of gauges that stay for good, and all of them
// are set with each report (srt/observability/metrics_collector.py, _known_priorities).
func askOrder(ctx context.Context, client *http.Client, addr string) (rules.Serving, error) {
	var a struct {
		Orders    *bool `json:"enable_priority_scheduling"`
		LowFirst  bool  `json:"schedule_low_priority_values_first"`
		NoPreempt bool  `json:"disable_priority_preemption"`
		Metrics   bool  `json:"enable_metrics"`
	}
	err := rules.GetJSON(ctx, client, addr, "/server_info", "SGLang 0.5.22 or later", &a)
	switch {
	case err != nil || a.Orders == nil:
		return rules.Unsaid, err
	case !*a.Orders || !a.NoPreempt || a.Metrics:
		return rules.AsTheyCome, nil
	case a.LowFirst:
		return rules.LowFirst, nil
	}
	return rules.HighFirst, nil
}
