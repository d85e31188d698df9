package health

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
)

func loadOf(name string) *rules.Load {
	l := engine.RulesOf(name, "").Load
	return &l
}

const vllmPage = `# HELP python_gc_objects_collected_total Objects collected during gc
# TYPE python_gc_objects_collected_total counter
python_gc_objects_collected_total{generation="0"} 12345.0
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a \"b\", {c}"} 3.0
vllm:num_requests_running{engine="1",model_name="a \"b\", {c}"} 5.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a"} 0.0
vllm:num_requests_waiting{engine="1",model_name="a"} 2.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="a",reason="capacity"} 99.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.5
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="300"} 1.0
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="1",num_gpu_blocks="None"} 1.0
# TYPE vllm:mm_cache_queries_total counter
vllm:mm_cache_queries_total{engine="0",model_name="a"} 20.0
vllm:mm_cache_queries_total{engine="1",model_name="a"} 10.0
vllm:mm_cache_queries_created{engine="1",model_name="a"} 1.7e+09
vllm:mm_cache_hits_total{engine="0",model_name="a"} 12.0
vllm:mm_cache_hits_total{engine="1",model_name="a"} 0.0
vllm:request_prompt_tokens_bucket{engine="0",le="+Inf",model_name="a"} 7.0
`

func TestPages(t *testing.T) {
	for _, c := range []struct {
		name, engine, page string
		want               map[int]gauges // nil: unreadable
	}{
		{"vLLM", "vllm", vllmPage, map[int]gauges{0: {3, 0, 0.25, 4800}, 1: {5, 2, 0.5, 0}}},
		{"SGLang, a series a tensor-parallel rank", "sglang", `sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 4.0
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="1"} 4.0
sglang:num_queue_reqs{model_name="m",tp_rank="0",priority=""} 3
sglang:num_queue_reqs{model_name="m",tp_rank="0",priority="1"} 2
sglang:token_usage{model_name="m",tp_rank="0"} 0.125
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 400000
sglang:max_total_num_tokens{model_name="m",tp_rank="1"} 400000
`, map[int]gauges{0: {4, 3, 0.125, 400000}}},
		{"impossible caches", "vllm", "vllm:num_requests_running{engine=\"0\"} 2\nvllm:num_requests_running{engine=\"1\"} 3\n" +
			"vllm:cache_config_info{block_size=\"-16\",engine=\"0\",num_gpu_blocks=\"300\"} 1\n" +
			"vllm:cache_config_info{block_size=\"16\",engine=\"1\",num_gpu_blocks=\"999999999999999\"} 1\n",
			map[int]gauges{0: {2, 0, -1, 0}, 1: {3, 0, -1, 0}}},
		{"a cache alone", "sglang", "sglang:max_total_num_tokens 400000\n", map[int]gauges{}},
		{"SGLang, ranks", "sglang", "sglang:num_running_reqs{dp_rank=\"1\"} 4\nsglang:token_usage{dp_rank=\"0\"} 1\n",
			map[int]gauges{0: {0, 0, 1, 0}, 1: {4, 0, -1, 0}}},
		{"TensorRT-LLM", "trtllm", `trtllm_num_requests_running{engine_type="undefined",model_name="undefined"} 2.0
trtllm_num_requests_waiting{engine_type="undefined",model_name="undefined"} 1.0
trtllm_kv_cache_utilization{engine_type="undefined",model_name="undefined"} 0.0625
`, map[int]gauges{0: {2, 1, 0.0625, 0}}},
		{"with a time, with blanks", "vllm", "vllm:num_requests_running \t{engine=\"0\"} 2 1700000000000\nvllm:num_requests_waiting 1\n",
			map[int]gauges{0: {2, 1, -1, 0}}},
		{"the same twice: the larger", "vllm", "vllm:num_requests_running 2\nvllm:num_requests_running 7\nvllm:num_requests_running 3\n",
			map[int]gauges{0: {7, 0, -1, 0}}},
		{"nothing", "vllm", "", map[int]gauges{}},
		{"another page", "vllm", "<html><body>hello</body></html>", map[int]gauges{}},
		{"another engine's", "sglang", vllmPage, map[int]gauges{}},
		{"no number", "vllm", "vllm:num_requests_running NaN\n", nil},
		{"negative", "vllm", "vllm:num_requests_waiting -1\n", nil},
		{"too many", "vllm", "vllm:num_requests_running 1e300\n", nil},
		{"as many as can be", "vllm", fmt.Sprintf("vllm:num_requests_running %d\nvllm:num_requests_waiting %[1]d\n", maxCount),
			map[int]gauges{0: {maxCount, maxCount, -1, 0}}},
		{"one more", "vllm", fmt.Sprintf("vllm:num_requests_waiting %d\n", maxCount+1), nil},
		{"without end", "vllm", "vllm:num_requests_running +Inf\n", nil},
		{"more than all", "vllm", "vllm:kv_cache_usage_perc 1.5\n", nil},
		{"less than nothing", "vllm", "vllm:kv_cache_usage_perc -0.1\n", nil},
		{"use is no number", "vllm", "vllm:kv_cache_usage_perc NaN\n", nil},
		{"a good value beside", "vllm", "vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"1\"} -7\n", nil},
		{"an odd rank", "vllm", "vllm:num_requests_running{engine=\"-1\"} 1\n", nil},
		{"a rank far off", "vllm", "vllm:num_requests_running{engine=\"1000000000\"} 1\n", nil},
		{"born before time", "vllm", "vllm:num_requests_running 1\nprocess_start_time_seconds -5\n", nil},
		{"born at no time", "vllm", "vllm:num_requests_running 1\nprocess_start_time_seconds NaN\n", nil},
		{"broken", "vllm", "vllm:num_requests_running{engine=\n", nil},
		{"a line that does not end", "vllm", strings.Repeat("x", 2*maxLine), nil},
		{"the same for ever", "vllm", strings.Repeat("vllm:num_requests_running 1\n", maxKept/20), nil},
		{"a page that does not end", "vllm", strings.Repeat(strings.Repeat("y", 1023)+"\n", maxPage/1024+1), nil},
	} {
		told, err := parsePage(loadOf(c.engine), strings.NewReader(c.page))
		got := told.ranks
		if (err != nil) != (c.want == nil) || err == nil && !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, %v; want %v", c.name, got, err, c.want)
		}
	}
}

// TestEnginesTell checks that every engine defines where its load and health are, or that it has none.
func TestEnginesTell(t *testing.T) {
	for _, name := range []string{"vllm", "sglang", "trtllm"} {
		r := engine.RulesOf(name, "")
		l := r.Load
		if r.Health != "/health" || l.Path == "" || l.Running == "" || l.Waiting == "" || len(l.Usage) == 0 || l.MaxAge < time.Second {
			t.Errorf("%s: %q, %+v", name, r.Health, l)
		}
	}
}

func TestSum(t *testing.T) {
	if got := sumRanks(map[int]gauges{0: {1, 2, 0.5, 10}, 3: {10, 20, -1, 0}, 5: {0, 0, 0.25, 30}}); got != (gauges{11, 22, 0.375, 40}) {
		t.Errorf("got %+v, want %+v", got, gauges{11, 22, 0.375, 40})
	}
	if got := sumRanks(map[int]gauges{0: {1, 0, -1, 0}}); got != (gauges{1, 0, -1, 0}) {
		t.Errorf("got %+v, want %+v", got, gauges{1, 0, -1, 0})
	}
}

// TestOwnRanks: the ranks of a server begin with 0, those in a vLLM's labels with --data-parallel-start-rank.
func TestOwnRanks(t *testing.T) {
	a, b, c := gauges{running: 1}, gauges{running: 2}, gauges{running: 3}
	for _, one := range []struct {
		page  map[int]gauges
		ranks int
		want  map[int]gauges // nil: not understood
	}{
		{map[int]gauges{0: a, 1: b}, 2, map[int]gauges{0: a, 1: b}},
		{map[int]gauges{8: a, 9: b}, 2, map[int]gauges{0: a, 1: b}},
		{map[int]gauges{11: c, 9: a, 10: b}, 3, map[int]gauges{0: a, 1: b, 2: c}},
		{map[int]gauges{3: a}, 1, map[int]gauges{0: a}},
		{map[int]gauges{1: b}, 2, map[int]gauges{1: b}}, // rank 0 has reported nothing
		{map[int]gauges{0: a, 1: b, 2: c}, 2, map[int]gauges{0: a, 1: b, 2: c}},
		{map[int]gauges{}, 2, map[int]gauges{}},
		{map[int]gauges{8: a, 9: b, 10: c}, 2, nil},
		{map[int]gauges{8: a, 10: b}, 2, nil},
		{map[int]gauges{8: a}, 2, nil},
	} {
		got, err := ownRanks(one.page, one.ranks)
		if (err != nil) != (one.want == nil) || !maps.Equal(got, one.want) {
			t.Errorf("%d ranks, %v: got %v, %v; want %v", one.ranks, one.page, got, err, one.want)
		}
	}
}

func FuzzPage(f *testing.F) {
	f.Add(vllmPage)
	f.Add("vllm:num_requests_running{engine=\"1\\n\"} 0x1p3 1\nvllm:kv_cache_usage_perc 1e-400\n")
	l := loadOf("vllm")
	f.Fuzz(func(t *testing.T, page string) {
		told, err := parsePage(l, strings.NewReader(page))
		got, began := told.ranks, told.startTime
		if !(began >= 0 && began < maxTime) {
			t.Errorf("began at %v", began)
		}
		for rank, g := range got {
			count := func(n int) bool { return n >= 0 && n <= maxCount }
			use := g.usage == -1 || g.usage >= 0 && g.usage <= 1
			if err != nil || rank < 0 || rank >= maxRank || !count(g.running) || !count(g.waiting) || !use {
				t.Errorf("rank %d: %+v, %v", rank, g, err)
			}
		}
	})
}

// BenchmarkPage reads a page as large as a vLLM's with eight ranks.
func BenchmarkPage(b *testing.B) {
	var page strings.Builder
	for rank := range 8 {
		page.WriteString(strings.ReplaceAll(strings.ReplaceAll(vllmPage, `"1"`, `"x"`), `"0"`, fmt.Sprintf("%q", fmt.Sprint(rank))))
		for i := range 1500 {
			fmt.Fprintf(&page, `vllm:e2e_request_latency_seconds_bucket{engine="%d",le="%d.0",model_name="Qwen/Qwen2.5-VL-7B"} %d.0`+
				"\n", rank, i, i*i)
		}
	}
	text := strings.ReplaceAll(page.String(), `engine="x"`, `engine="8"`)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if got, err := parsePage(loadOf("vllm"), strings.NewReader(text)); err != nil || len(got.ranks) != 9 {
			b.Fatalf("%+v %v: got %d, want no error, 9", got, err, len(got.ranks))
		}
	}
}
