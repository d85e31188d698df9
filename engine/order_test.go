package engine

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

// TestAskOrder checks what is read of servers' answers about the order in which they serve, hostile ones too.
func TestAskOrder(t *testing.T) {
	vllm := func(policy string) string {
		return `{"vllm_config":{"model_config":{"hf_token":"secret"},"scheduler_config":{"policy":` + policy + `}}}`
	}
	for _, c := range []struct {
		engine string
		status int
		answer string
		want   rules.Serving
		fails  bool
	}{
		{"vllm", 200, vllm(`"priority"`), rules.LowFirst, false},
		{"vllm", 200, vllm(`"fcfs"`), rules.AsTheyCome, false},
		{"vllm", 200, vllm(`""`), rules.Unsaid, false},
		{"vllm", 200, vllm(`17`), rules.Unsaid, true},
		{"vllm", 200, `{}`, rules.Unsaid, false},
		{"vllm", 200, `<html>`, rules.Unsaid, true},
		{"vllm", 404, ``, rules.Unsaid, true},
		{"sglang", 200, `{"enable_priority_scheduling":true,"disable_priority_preemption":true,"api_key":"secret"}`, rules.HighFirst, false},
		{"sglang", 200, `{"enable_priority_scheduling":true,"disable_priority_preemption":true,"schedule_low_priority_values_first":true}`,
			rules.LowFirst, false},
		{"sglang", 200, `{"enable_priority_scheduling":true}`, rules.AsTheyCome, false},
		{"sglang", 200, `{"enable_priority_scheduling":true,"disable_priority_preemption":true,"enable_metrics":true}`, rules.AsTheyCome, false},
		{"sglang", 200, `{"enable_priority_scheduling":false,"abort_on_priority_when_disabled":true}`, rules.AsTheyCome, false},
		{"sglang", 200, `{"version":"0.5.23"}`, rules.Unsaid, false},
		{"sglang", 200, `{"enable_priority_scheduling":"yes"}`, rules.Unsaid, true},
		{"sglang", 503, ``, rules.Unsaid, true},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/server_info" {
				t.Errorf("%s: asked for %s, want /server_info", c.engine, r.URL)
			}
			w.WriteHeader(c.status)
			_, _ = w.Write([]byte(c.answer))
		}))
		got, err := RulesOf(c.engine, RulesOf(c.engine, "").Release).Order.Ask(t.Context(), rules.NewClient(time.Second, nil),
			strings.TrimPrefix(server.URL, "http://"))
		server.Close()
		if got != c.want || (err != nil) != c.fails || err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%s, %d %s: got %v and error %v, want %v", c.engine, c.status, c.answer, got, err, c.want)
		}
	}
}
