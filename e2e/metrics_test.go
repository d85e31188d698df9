package e2e

import (
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/lab"
)

// What a running Sightline exports: what only grows is a counter and is named so, and nothing else is.
func TestCountersAreCounters(t *testing.T) {
	t.Parallel()
	listen := freeAddr(t)
	l := startLab(t, func(o *lab.Options) {
		o.Config = func(keys map[string]any) {
			keys["media"].(map[string]any)["relay"] = map[string]any{"listen": listen, "url": "http://" + listen}
		}
	})
	ask(t, l, "What is this?", dataURL(photo(61)))
	raw, err := lab.Get("http://" + l.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	var gauges []string
	names := 0
	for _, line := range strings.Split(string(raw), "\n") {
		var name, kind string
		if n, _ := fmt.Sscanf(line, "# TYPE %s %s", &name, &kind); n != 2 || !strings.HasPrefix(name, "sightline_") {
			continue
		}
		if (kind == "counter") != strings.HasSuffix(name, "_total") {
			t.Errorf("%s is a %s", name, kind)
		}
		names++
		// these are there while something is found
		passing := []string{"sightline_findings", "sightline_forecast_hit_rate", "sightline_worker_removal_cost_tokens",
			"sightline_workers_needed"}
		if kind == "gauge" && !slices.Contains(passing, name) {
			gauges = append(gauges, name)
		}
	}
	if want := []string{"sightline_access_log_ends_missing", "sightline_access_log_silent", "sightline_build_info",
		"sightline_config_reload_success",
		"sightline_doubtful_blocks", "sightline_event_socket_shared", "sightline_event_stream_age_seconds",
		"sightline_index_blocks", "sightline_index_bytes",
		"sightline_learned_bytes", "sightline_orphan_blocks",
		"sightline_ready",
		"sightline_relay_bytes", "sightline_relay_images",
		"sightline_requests_open", "sightline_requests_waiting_to_be_read", "sightline_rules_aside",
		"sightline_unserved_models",
		"sightline_worker_kv_cache_usage",
		"sightline_worker_load_age_seconds", "sightline_worker_partial", "sightline_worker_queued_prefill_seconds",
		"sightline_worker_requests_in_flight", "sightline_workers", "sightline_workers_out"}; !slices.Equal(gauges, want) {
		t.Errorf("gauges are %v, want %v: one that is new must be able to fall", gauges, want)
	}
	if names < 20 {
		t.Errorf("only %d metrics", names)
	}
}

// An OpenMetrics scrape names a decision.
func TestOpenMetrics(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) { o.Workers = 1 })
	ask(t, l, "What is this?", dataURL(photo(63)))
	quiet(t, l)
	req, err := http.NewRequest(http.MethodGet, "http://"+l.Admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	page, _ := io.ReadAll(resp.Body)
	id := regexp.QuoteMeta(lastDecision(t, l).Get("id").Str)
	for _, name := range []string{"sightline_decision_seconds"} {
		if !regexp.MustCompile(name + `_bucket\{.*# \{decision_id="` + id + `"\}`).Match(page) {
			t.Errorf("%s has no exemplar %s:\n%.2000s", name, id, page)
		}
	}
}

// After a retry the answer is counted for the worker that gave it, and none for the one that is dead.
func TestOutcomesAfterARetry(t *testing.T) {
	t.Parallel()
	l := startLab(t, nil)
	url := dataURL(photo(62))
	first := ask(t, l, "What is this?", url)
	awaitExact(t, l, first.worker, first.prompt)
	dead := fmt.Sprintf(`worker="worker-%d"`, first.worker+1)
	before := metric(t, l, "sightline_outcomes_total", dead)
	l.Sims[first.worker].Close()
	r := ask(t, l, "And what is that?", url)
	if r.status != 200 || r.worker == first.worker {
		t.Fatalf("%+v", r)
	}
	eventually(t, "the end is reported", func() bool { return metric(t, l, "sightline_outcomes_total", `code="2xx"`) >= 2 })
	if n := metric(t, l, "sightline_outcomes_total", dead); n != before {
		t.Errorf("%v outcomes of the dead worker, %v before it died", n, before)
	}
}
