package vllm

import (
	"context"
	"net/http"

	"github.com/sightline-router/sightline/engine/rules"
)

// X-Vllm-Priority (0.30, entrypoints/generate/base/serving.py) replaces the body's priority: an int64, the lowest is served first, equal
// ones as they come (v1/core/sched/request_queue.py). Only --scheduling-policy priority follows it; under fcfs it changes nothing, so it
// is sent to servers that do not say. A request without it has the number 0. Where memory runs out, the running request with the
// highest number makes room.

// askOrder asks for GET /server_info, which servers with VLLM_SERVER_DEV_MODE=1 have (0.32, entrypoints/serve/dev/server_info).
func askOrder(ctx context.Context, client *http.Client, addr string) (rules.Serving, error) {
	var a struct {
		Config struct {
			Scheduler struct {
				Policy string `json:"policy"`
			} `json:"scheduler_config"`
		} `json:"vllm_config"`
	}
	err := rules.GetJSON(ctx, client, addr, "/server_info?config_format=json", "with VLLM_SERVER_DEV_MODE=1", &a)
	switch policy := a.Config.Scheduler.Policy; {
	case err != nil:
		return rules.Unsaid, err
	case policy == "priority":
		return rules.LowFirst, nil
	case policy != "":
		return rules.AsTheyCome, nil
	}
	return rules.Unsaid, nil
}
