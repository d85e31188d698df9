package alias

import (
	"math"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/workers/fleet"
)

// shows gathers the exposed metrics: one entry per series, the sum for a histogram.
func shows(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetName() + "=" + l.GetValue()
			}
			all[name] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
			if f.GetType() == dto.MetricType_HISTOGRAM {
				all[name] = m.Histogram.GetSampleSum()
			}
		}
	}
	return all
}

// TestDynamosRelease: the names are those of the release that make e2e-dynamo runs.
func TestDynamosRelease(t *testing.T) {
	for file, want := range map[string]string{"../../Makefile": "DYNAMO := " + dynamo + ".", "alias.go": "Dynamo " +
		dynamo + ":", "../../docs/signals.md": "Dynamo " + dynamo + ";"} {
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s lacks %q (%v)", file, want, err)
		}
	}
}

const dynamo = "1.6"

// TestNames: one decision, one end and two workers, under the names and labels of each router.
func TestNames(t *testing.T) {
	worker := func(name, addr string, ranks int) *fleet.Worker {
		return fleet.NewWorker(name, netip.MustParseAddrPort(addr), "m", ranks, func(int) indexer.SlotID { return 0 })
	}
	fl := fleet.New(nil)
	a, b, mute := worker("a", "10.0.0.1:1", 2), worker("b", "10.0.0.2:1", 0), worker("mute", "10.0.0.3:1", 0)
	fl.Set([]*fleet.Worker{a, b, mute})
	now := time.Now()
	for i, s := range append(slices.Clone(a.Slots), b.Slots...) { // a: 0.2 and 0.4; b: 0.5
		s.SetReport(fleet.LoadReport{Running: 1 + i, Waiting: i, Usage: []float64{0.2, 0.4, 0.5}[i], ValidFor: time.Hour}, now)
	}
	want := map[string]string{"llm-d": `
llm_d_epp_request_total model_name=m target_model_name=m 1
llm_d_epp_request_error_total error_code=503 model_name=m target_model_name=m 1
llm_d_epp_request_duration_seconds model_name=m target_model_name=m 2
llm_d_epp_request_size_bytes model_name=m target_model_name=m 5000
llm_d_epp_request_streaming_tpot_seconds model_name=m target_model_name=m 0.5
llm_d_epp_request_processing_duration_seconds 0.001
llm_d_epp_disagg_decision_total decision_type=encode-prefill-decode model_name=m 1
llm_d_epp_encoder_cache_queries_total modality=image 3
llm_d_epp_encoder_cache_hits_total modality=image pod=w 2
llm_d_epp_info build_ref=(devel) commit= 1
llm_d_epp_request_ttft_seconds model_name=m target_model_name=m 0.5
llm_d_epp_request_ntpot_seconds model_name=m target_model_name=m 0.5
llm_d_epp_request_input_tokens model_name=m target_model_name=m 100
llm_d_epp_request_output_tokens model_name=m target_model_name=m 4
llm_d_epp_request_cached_tokens model_name=m target_model_name=m 48
llm_d_epp_scheduler_e2e_duration_seconds 0.001
llm_d_epp_scheduler_attempts_total status=success target_model_name=m 1
llm_d_epp_prefix_indexer_hit_ratio 0.5
llm_d_epp_request_running model_name=m target_model_name=m 0
llm_d_epp_ready_endpoints name=m 3
llm_d_epp_average_kv_cache_utilization name=m 0.4
llm_d_epp_average_queue_size name=m 1.5
llm_d_epp_average_running_requests name=m 3
llm_d_epp_std_dev_kv_cache_utilization name=m 0.1414
llm_d_epp_std_dev_queue_size name=m 0.7071
llm_d_epp_std_dev_running_requests name=m 0
llm_d_epp_per_endpoint_queue_size model_server_endpoint=a name=m 1
llm_d_epp_per_endpoint_queue_size model_server_endpoint=b name=m 2`, "gateway-api": `
inference_objective_request_total model_name=m target_model_name=m 1
inference_objective_request_error_total error_code=503 model_name=m target_model_name=m 1
inference_objective_request_duration_seconds model_name=m target_model_name=m 2
inference_objective_request_sizes model_name=m target_model_name=m 5000
inference_extension_info build_ref=(devel) commit= 1
inference_objective_request_ttft_seconds model_name=m target_model_name=m 0.5
inference_objective_normalized_time_per_output_token_seconds model_name=m target_model_name=m 0.5
inference_objective_input_tokens model_name=m target_model_name=m 100
inference_objective_output_tokens model_name=m target_model_name=m 4
inference_objective_prompt_cached_tokens model_name=m target_model_name=m 48
inference_extension_scheduler_e2e_duration_seconds 0.001
inference_extension_scheduler_attempts_total status=success target_model_name=m 1
inference_extension_prefix_indexer_hit_ratio 0.5
inference_objective_running_requests model_name=m target_model_name=m 0
inference_pool_ready_pods name=m 3
inference_pool_average_kv_cache_utilization name=m 0.4
inference_pool_average_queue_size name=m 1.5
inference_pool_average_running_requests name=m 3
inference_pool_per_pod_queue_size model_server_pod=a name=m 1
inference_pool_per_pod_queue_size model_server_pod=b name=m 2`, "dynamo": `
dynamo_frontend_requests_total model=m status=success 1
dynamo_frontend_requests_total model=m status=error 1
dynamo_frontend_request_duration_seconds model=m 2
dynamo_frontend_time_to_first_token_seconds model=m 0.5
dynamo_frontend_input_sequence_tokens model=m 100
dynamo_frontend_output_sequence_tokens model=m 4
dynamo_frontend_cached_tokens model=m 48
dynamo_frontend_inflight_requests model=m 0
dynamo_router_overhead_total_ms 1
dynamo_component_router_kv_hit_rate model=m 0.5`}
	for _, of := range append(slices.Clone(Of), strings.Join(Of, " "), "dynamo dynamo", "") {
		reg := prometheus.NewRegistry()
		set := New(reg, strings.Fields(of), fl)
		set.Decided(&router.Decision{Model: "m", Targets: []router.Target{{Worker: "w", Prefill: "10.0.0.1:1"}},
			Encoder: "10.0.0.2:1", BodyBytes: 5000, Images: 3, ImagesHeld: 2, PromptTokens: 96,
			CachedTokens: 48}, time.Millisecond)
		set.Ended("m", &router.Outcome{Code: 200, FirstByte: time.Second / 2, PromptTokens: 100, CachedTokens: 48,
			OutputTokens: 4, Streamed: true},
			2*time.Second)
		set.Ended("m", &router.Outcome{Code: 503, CachedTokens: -1}, time.Second)
		got, lines := shows(t, reg), ""
		for _, by := range Of {
			if slices.Contains(strings.Fields(of), by) {
				lines += want[by]
			}
		}
		list := strings.Split(strings.TrimPrefix(lines, "\n"), "\n")
		for _, line := range list {
			at := strings.LastIndexByte(line, ' ')
			if at < 0 {
				continue
			}
			n, there := got[line[:at]]
			if exact, _ := strconv.ParseFloat(line[at+1:], 64); !there || math.Abs(n-exact) > 1e-4 {
				t.Errorf("%q: %s, got %v %v", of, line, n, there)
			}
		}
		if lines == "" {
			list = nil
		}
		if len(got) != len(list) {
			t.Errorf("%q: %d series, want %d: %v", of, len(got), len(list), got)
		}
	}
}
