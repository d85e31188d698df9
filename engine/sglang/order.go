package sglang

import (
	"context"
	"net/http"

	"github.com/sightline-router/sightline/engine/rules"
)

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
