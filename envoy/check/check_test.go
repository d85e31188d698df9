package check

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/sightline-router/sightline/envoy"
)

func read(t testing.TB, text string) Bootstrap {
	t.Helper()
	b, err := Read([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestGeneratedFits: the generator's output fits, in every variant.
func TestGeneratedFits(t *testing.T) {
	files, err := filepath.Glob("../*.yaml")
	if err != nil || len(files) < 9 {
		t.Fatalf("got %v %q, want no error, at least 9 of them", err, files)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		b, w := read(t, string(text)), Want{Options: envoy.Default()}
		w.Workers, w.FailClosed = nil, strings.Contains(file, "fail_closed") // each variant has its own
		if strings.Contains(file, "1.36") {
			b.Envoy = "1.36.2"
		}
		if pieces, err := Missing(b, w); err != nil || len(pieces) > 0 {
			t.Errorf("%s lacks %v %v, want no error, 0 of them", file, pieces, err)
		}
		for _, f := range Run(b, w) {
			t.Errorf("%s: %+v", file, f)
		}
	}
}

const user = `
admin: { address: { socket_address: { address: 127.0.0.1, port_value: 9901 } } }
static_resources:
  listeners:
  - name: ingress
    address: { socket_address: { address: 127.0.0.1, port_value: 10000 } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: { prefix: / }
                route: { cluster: vllm }
          http_filters:
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
  clusters:
  - name: vllm
    type: STATIC
    load_assignment:
      cluster_name: vllm
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8001 } } }
        - endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: 8002 } } }
`

// Missing parts that are added are found, in the order that Envoy needs, and nothing else is wrong: with token_usage and without.
func TestApply(t *testing.T) {
	for _, c := range []struct {
		envoy   string
		counts  bool
		filters []string
	}{
		{"", false, []string{filterName, "envoy.filters.http.router"}},
		{"", true, []string{countsName, filterName, "envoy.filters.http.router"}},
		{"1.39.0", true, []string{filterName, "envoy.filters.http.router"}},
	} {
		t.Run(fmt.Sprint(c.envoy, c.counts), func(t *testing.T) { apply(t, c.envoy, c.counts, c.filters) })
	}
}

func apply(t *testing.T, release string, counts bool, filters []string) {
	b, w := read(t, user), Want{Options: envoy.Default()}
	b.Envoy, w.Workers, w.TokenUsage = release, nil, counts
	pieces, err := Missing(b, w)
	if err != nil || len(pieces) < 8 {
		t.Fatalf("got %v: %v, want no error, at least 8 of them", err, pieces)
	}
	out, err := Apply(b, pieces)
	if err != nil {
		t.Fatal(err)
	}
	commented := "# ours\n" + strings.ReplaceAll(user, "  listeners:\n", "  # where clients come in\n  listeners: # all of them\n")
	{
		edited, kept, err := Edit(read(t, commented), pieces)
		if err != nil || !kept {
			t.Fatalf("comments are lost: %v, %v\n%s", kept, err, edited)
		}
		if !strings.Contains(string(edited), "# where clients come in\n  listeners: # all of them\n") {
			t.Error("a comment is lost")
		}
		again := read(t, string(edited))
		again.Envoy = release
		if lacks := must(Missing(again, w)); len(lacks) > 0 {
			t.Errorf("still lacks %v, want 0 of them", lacks)
		}
		if back, were := Remove(edited); !were || string(back) != commented {
			t.Errorf("%v, removed:\n%s", were, back)
		}
	}
	at := -1
	for _, name := range filters {
		i := strings.Index(string(out), "- name: "+name+"\n")
		if i <= at {
			t.Errorf("%s is at %d, behind %d, want more than %d", name, i, at, at)
		}
		at = i
	}
	if !slices.Contains(filters, countsName) && strings.Contains(string(out), countsName) {
		t.Error("it has the filter of token counts")
	}
	b = read(t, string(out))
	b.Envoy = release
	if pieces, err := Missing(b, w); err != nil || len(pieces) > 0 {
		t.Errorf("still lacks %v %v, want no error, 0 of them", pieces, err)
	}
	for _, f := range Run(b, w) {
		if f.Name != "admin_paths" || f.Severity != Note {
			t.Errorf("got %+v, want Name %q, Severity %q", f, "admin_paths", Note)
		}
	}
}

// TestMistakes: each mistake is found by its name, at its place, with its value.
func TestMistakes(t *testing.T) {
	page, err := os.ReadFile("../../docs/envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	load := func(name string) string {
		text, err := os.ReadFile("../" + name)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	// A case changes override_host.yaml, or the file that the sign before its text selects.
	files := map[byte]string{'=': load("envoy.yaml"), '~': load("full_duplex.yaml"), 0: load("override_host.yaml")}
	const (
		procAt  = "http_filters[0].typed_config"
		inferAt = "routes[1]"
		host    = "              request_body_buffer_limit: 67108864\n"
		router  = "          - name: envoy.filters.http.router\n"
		ask     = "          http_filters:\n"
		before  = "          http_filters:\n          - name: x\n            typed_config:\n              \"@type\": " +
			"type.googleapis.com/envoy.extensions.filters.http."
		behind = "          - name: x\n            typed_config:\n              \"@type\": type.googleapis.com/envoy.extensions.filters.http."
		off    = "                typed_per_filter_config: { envoy.filters.http.ext_proc: { \"@type\": " +
			"type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute, "
		infer  = "                stat_prefix: inference\n"
		theirs = "ext_proc.v3.ExternalProcessor\n              grpc_service: { envoy_grpc: { cluster_name: other } }\n       " +
			"       processing_mode: { request_body_mode: "
	)
	// the tests above and below
	cases := map[string]bool{"which_clusters": true, "no_healthy_worker": true}
	for _, c := range []struct{ name, from, to, at, got string }{
		{"body_mode", "request_body_mode: BUFFERED", "request_body_mode: NONE", procAt + ".processing_mode.request_body_mode", "NONE"},
		{"body_mode", "request_body_mode: BUFFERED", "request_body_mode: STREAMED", procAt + ".processing_mode.request_body_mode", "STREAMED"},
		{"body_mode", "request_body_mode: BUFFERED", "request_body_mode: FULL_DUPLEX_STREAMED",
			procAt + ".processing_mode.request_trailer_mode", "DEFAULT"},
		{"body_mode", "request_header_mode: SEND", "request_header_mode: SKIP", procAt + ".processing_mode.request_header_mode", "SKIP"},
		{"body_mode", infer, infer + off + "overrides: { processing_mode: { request_body_mode: NONE } } } }\n",
			inferAt + `.typed_per_filter_config["envoy.filters.http.ext_proc"].overrides.processing_mode.request_body_mode`, "NONE"},
		{"body_mode", "response_header_mode: SKIP }", "response_body_mode: BUFFERED }",
			procAt + ".processing_mode.response_body_mode", "BUFFERED"},
		{"message_timeout", "message_timeout: 2s", "stat_prefix: x", procAt + ".message_timeout", "200ms"},
		{"message_timeout", "message_timeout: 2s", "message_timeout: 1000s", procAt + ".message_timeout", "16m40s"},
		{"message_timeout", "max_message_timeout: 66s", "stat_prefix: x", procAt + ".max_message_timeout", "0s"},
		{"message_timeout", "max_message_timeout: 66s", "max_message_timeout: 10s", procAt + ".max_message_timeout", "10s"},
		{"client_address", "key: x-sightline-client,", "key: x-other,", procAt + ".grpc_service.initial_metadata", "no x-sightline-client"},
		{"failure_mode", "failure_mode_allow: true", "failure_mode_allow: false", procAt + ".failure_mode_allow", "false"},
		{"failure_mode", infer, infer + off + "overrides: { failure_mode_allow: false } } }\n", `.overrides.failure_mode_allow`, "false"},
		{"failure_mode", "failure_mode_allow: true", "failure_mode_allow:  true", procAt + ".failure_mode_allow", "true"},
		{"not_asked", "failure_mode_allow: true", "observability_mode: true", procAt + ".observability_mode", "true"},
		{"mutation_rules", "failure_mode_allow: true", "disable_immediate_response: true", procAt, "true"},
		{"mutation_rules", "|content-[a-z]+", "", procAt + ".mutation_rules", "content-length, content-type"},
		{"body_limit", "envoy_grpc: { cluster_name: sightline }\n                init",
			"google_grpc: { target_uri: \"sightline:9002\", stat_prefix: x }\n                init", procAt + ".grpc_service", "4194304"},
		{"body_limit", "envoy_grpc: { cluster_name: sightline }\n                init",
			"envoy_grpc: { cluster_name: sightline, max_receive_message_length: 1000 }\n                init", procAt + ".grpc_service", "1000"},
		{"not_asked", infer, infer + off + "disabled: true } }\n",
			inferAt + `.typed_per_filter_config["envoy.filters.http.ext_proc"]`, "not asked"},
		{"not_asked", "          - name: envoy.filters.http.ext_proc\n            typed",
			"          - name: envoy.filters.http.ext_proc\n            disabled: true\n            typed", "http_filters[0].disabled", "not asked"},
		{"body_changed_behind", router, behind + "decompressor.v3.Decompressor\n" + router, "http_filters[1]", "changes the body"},
		{"body_changed_behind", router, behind + "lua.v3.Lua\n" + router, "http_filters[1]", "may change"},
		{"body_changed_behind", router, behind + theirs + "BUFFERED }\n" + router, "http_filters[1]", "may change"},
		{"body_limit", ask, before + "buffer.v3.Buffer\n              max_request_bytes: 5242880\n",
			"http_filters[0].typed_config.max_request_bytes", "5242880"},
		{"body_limit", ask, before + "ext_authz.v3.ExtAuthz\n              with_request_body: { max_request_bytes: 8192 }\n",
			"http_filters[0].typed_config.with_request_body.max_request_bytes", "8192"},
		{"body_limit", host, "", "per_connection_buffer_limit_bytes", "1048576"},
		{"body_limit", host, "              per_request_buffer_limit_bytes: 32768\n", "virtual_hosts[0].per_request_buffer_limit_bytes", "32768"},
		{"body_limit", infer, infer + "                request_body_buffer_limit: 4096\n", inferAt + ".request_body_buffer_limit", "4096"},
		{"route_timeout", infer + "                route: { cluster: workers_any, timeout: 0s }",
			"                route: { cluster: workers_any }", inferAt + ".route.timeout", "15s"},
		{"route_timeout", infer + "                route: { cluster: workers_any, timeout: 0s }",
			"                route: { cluster: workers_any, timeout: 300s }", inferAt + ".route.timeout", "5m0s"},
		{"route_timeout", infer + "                route: { cluster: workers_any, timeout: 0s }",
			"                route: { cluster: workers_any, timeout: 0s, max_stream_duration: { max_stream_duration: 30s } }",
			inferAt + ".route.max_stream_duration", "30s"},
		{"route_timeout", "num_retries: 3\n", "num_retries: 3\n                per_try_timeout: 10s\n", "retry_policy.per_try_timeout", "10s"},
		{"route_timeout", "stream_idle_timeout: 3600s", "stream_idle_timeout: 60s", "stream_idle_timeout", "1m0s"},
		{"route_timeout", "          stream_idle_timeout: 3600s\n", "", "stream_idle_timeout", "5m"},
		{"retries", "retry_on: connect-failure,refused-stream,reset-before-request", "retry_on: 5xx",
			"virtual_hosts[0].retry_policy.retry_on", "5xx"},
		{"retries", "retry_on: connect-failure,refused-stream,reset-before-request", "retry_on: connect-failure,reset",
			"virtual_hosts[0].retry_policy.retry_on", "reset"},
		{"circuit_breakers", "max_retries: 1024", "max_retries: 3", "clusters[1].circuit_breakers", "max_retries 3"},
		{"circuit_breakers", "max_requests: 65536, max_pending_requests: 65536 }", "max_pending_requests: 65536 }",
			"clusters[0].circuit_breakers", "max_requests 1024"},
		{"steering_headers", "              - remove_on_match: { key_matcher: { prefix: x-target-worker } }",
			"              - remove: x-target-worker", "early_header_mutation_extensions", "x-target-worker*"},
		{"access_log", "additional_request_headers_to_log: [x-sightline-id]", "additional_request_headers_to_log: [x-id]",
			"typed_config.additional_request_headers_to_log", "x-id"},
		{"access_log", "log_type_filter: { types: [UpstreamPoolReady, UpstreamEnd] }", "response_flag_filter: {}",
			"upstream_log[0].filter", "only what failed"},
		{"access_log", "buffer_flush_interval: 0.1s", "buffer_size_bytes: 1000", "common_config.buffer_flush_interval", "1s"},
		{"access_log",
			"          - name: envoy.access_loggers.http_grpc\n            filter: { header_filter: { header: { name: " +
				"x-sightline-id, present_match: true } } }\n            typed_config:\n                  \"@type\": " +
				"type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig\n",
			"          - name: own\n            typed_config:\n                  \"@type\": type.googleapis.com/mine.Log\n",
			"typed_config.access_log", "none"},
		{"choice_not_read", "metadata: { key: sightline, path: [{ key: endpoints }] }", "header: x-endpoint",
			"clusters[1].load_balancing_policy", "something else"},
		{"choice_not_read", "    type: STATIC\n    load_balancing_policy: # only", "    type: LOGICAL_DNS\n    ignored: # only",
			"clusters[1].type", "LOGICAL_DNS"},
		{"cluster_unknown", "cluster_name: sightline }\n                init", "cluster_name: sightlines }\n                init",
			procAt + ".grpc_service", "sightlines"},
		{"cluster_unknown", "  - name: workers_any", "  - name: workers_some", "static_resources.clusters", "workers_any"},
		{"worker_unknown", "port_value: 8003", "port_value: 8004", "clusters[1].load_assignment", "127.0.0.1:8003"},
		{"sightline_health", "explicit_http_config: { http2_protocol_options: {} }",
			"explicit_http_config: { http_protocol_options: {} }", "clusters[0].typed_extension_protocol_options", "HTTP/1"},
		{"sightline_health",
			"    common_lb_config: { healthy_panic_threshold: { value: 0 }, update_merge_window: 0s } # by default a health " +
				"change waits for 1 s after the last\n", "", "clusters[0].health_checks", "panic"},
		{"envoy_version", "stat_prefix: ingress", "stat_prefix: in", "node", "1.35.2"},
		{"not_asked", ask, before + "router.v3.Router\n", "http_filters[0]", "stands before"},
		{"no_route", "          route_config:\n            name: llm",
			"          rds: { route_config_name: llm }\n          ignored:\n            name: llm", "typed_config.rds", "llm"},
		{"no_route", "cluster: workers_any, timeout", "cluster_header: x-cluster, timeout", "static_resources.listeners", "no route"},
		// With ORIGINAL_DST.
		{"choice_not_read", "=route_cache_action: CLEAR", "stat_prefix: x", procAt + ".route_cache_action", "DEFAULT"},
		{"choice_not_read", "=              - name: picked # ",
			"              - request_headers_to_remove: [x-target-worker]\n                name: picked # ",
			"routes[0].request_headers_to_remove", "x-target-worker"},
		{"choice_not_read", "=http_header_name: x-target-worker ", "http_header_name: x-envoy-original-dst-host ",
			"clusters[1].original_dst_lb_config", "x-envoy-original-dst-host"},
		{"body_changed_behind", "~" + ask, before + theirs + "FULL_DUPLEX_STREAMED, request_trailer_mode: SEND }\n",
			"http_filters[0].typed_config.processing_mode.request_body_mode", "second"},
		{"sightline_health",
			"~    common_lb_config: { healthy_panic_threshold: { value: 0 }, update_merge_window: 0s } # by default a health " +
				"change waits for 1 s after the last\n", "", "clusters[0].health_checks", "panic"},
		{"any_address", "=envoy.extensions.filters.http.rbac.v3.RBAC", "mine.RBAC", "clusters[1].typed_extension_protocol_options",
			"workers dials any address that x-target-worker names"},
		{"steering_headers", "=http_header_name: x-target-worker }", "http_header_name: target-pod }",
			"early_header_mutation_extensions", "accepted from clients: target-pod"},
		{"keep_alive", "idle_timeout: 4s", "idle_timeout: 60s", `HttpProtocolOptions"].common_http_protocol_options.idle_timeout`, "1m0s"},
		{"keep_alive", "idle_timeout: 4s", "max_requests_per_connection: 9",
			`HttpProtocolOptions"].common_http_protocol_options.idle_timeout`, "1h"},
		{"request_bursts", "http.max_requests_per_io_cycle: 1", "http.max_requests_per_io_cycle: 1000",
			`layered_runtime.layers[0].static_layer["http.max_requests_per_io_cycle"]`, "1000"},
		{"request_bursts", "http.max_requests_per_io_cycle: 1", "http: { max_requests_per_io_cycle: 17 }",
			"layered_runtime.layers[0].static_layer.http.max_requests_per_io_cycle", "17"},
		{"request_bursts", "http.max_requests_per_io_cycle: 1", "overload.other: 1", "layered_runtime.layers", "4294967295"},
		{"admin_paths", "  allow_paths:", "  ignored:", "admin.allow_paths", "all pages"},
		{"choice_not_read", "=http_header_name: x-target-worker ", "http_header_name: x-gateway-destination-endpoint ",
			"original_dst_lb_config.http_header_name", "x-gateway-destination-endpoint"},
		{"steering_headers", "stat_prefix: ingress", "stat_prefix: in", "virtual_hosts[0].routes[1].request_headers_to_remove",
			"x-tenant reaches workers"},
		{"retries", "retry_on: connect-failure,refused-stream,reset-before-request", "retry_on: refused-stream",
			"virtual_hosts[0].retry_policy.retry_on", "no connect-failure, reset-before-request"},
	} {
		file, from := files[0], c.from
		if other, ok := files[from[0]]; ok {
			file, from = other, from[1:]
		}
		planted := strings.Replace(file, from, c.to, 1)
		if planted == file {
			t.Errorf("%s: nothing to change: %s", c.name, c.from)
			continue
		}
		b, err := Read([]byte(planted))
		if err != nil {
			t.Errorf("%s: got %v, want no error", c.name, err)
			continue
		}
		b.Envoy = "1.40.0"
		if c.name == "envoy_version" {
			b.Envoy = "1.35.2"
		}
		cases[c.name] = true
		want := Want{Options: envoy.Default()}
		want.FailClosed, want.Picker = c.to == "failure_mode_allow:  true", c.got == "x-gateway-destination-endpoint"
		if c.got == "x-tenant reaches workers" {
			want.TenantHeader = "x-tenant"
		}
		found := Run(b, want)
		is := func(f Finding) bool {
			return f.Name == c.name && strings.Contains(f.Where, c.at) && strings.Contains(f.Got, c.got) && f.Want != "" && f.Fix != ""
		}
		if !slices.ContainsFunc(found, is) {
			t.Errorf("%s at %s with %q is not among %+v", c.name, c.at, c.got, found)
		}
	}
	const most = 25
	if len(advice) > most {
		t.Errorf("got %d findings, want at most %d: what costs no body, choice, log or security is none", len(advice), most)
	}
	for name := range advice {
		if !cases[name] {
			t.Errorf("no case for %s", name)
		}
		if !strings.Contains(string(page), "`"+name+"`") {
			t.Errorf("docs/envoy.md does not name %s", name)
		}
	}
}

// TestAskedFor: the time and the client's address are added to a filter that is there, and its other metadata stay.
func TestAskedFor(t *testing.T) {
	text, err := yaml.Marshal(printed(t))
	if err != nil {
		t.Fatal(err)
	}
	mine := strings.NewReplacer("max_message_timeout: 66s", "max_message_timeout: 10s", "x-sightline-client", "x-mine").Replace(string(text))
	w := Want{Options: envoy.Default()}
	b := read(t, mine)
	pieces, err := Missing(b, w)
	if err != nil || len(pieces) != 2 {
		t.Fatalf("got %v: %v, want no error, 2 of them", err, pieces)
	}
	out, err := Apply(b, pieces)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"key: x-mine", "key: x-sightline-client", "max_message_timeout: 66s"} {
		if strings.Count(string(out), want) != 1 {
			t.Errorf("%q is in it %d times, want 1", want, strings.Count(string(out), want))
		}
	}
	if found := Run(read(t, string(out)), w); len(found) > 0 {
		t.Errorf("got %+v, want 0 of them", found)
	}
}

// TestClusters: if several clusters may be the workers', a finding asks and nothing changes, unless they are given, have workers'
// addresses, also by names that resolve to them, or alone have their ports.
func TestClusters(t *testing.T) {
	_, cluster, _ := strings.Cut(user, "  - name: vllm")
	two := user + "  - name: b" + strings.NewReplacer("vllm", "b", "8001", "8003", "8002", "8004").Replace(cluster)
	weighted := strings.Replace(two, "{ cluster: vllm }",
		"{ weighted_clusters: { clusters: [{ name: vllm, weight: 1 }, { name: b, weight: 1 }] } }", 1)
	apart := strings.Replace(two, "              - match: { prefix: / }\n                route: { cluster: vllm }",
		"              - match: { path: /v1/chat/completions }\n                route: { cluster: vllm }\n              - "+
			"match: { prefix: / }\n                route: { cluster: b }", 1)
	named := strings.NewReplacer("STATIC", "STRICT_DNS", "127.0.0.1, port_value: 8001", "pod-1, port_value: 8001",
		"127.0.0.1, port_value: 8003", "site, port_value: 8003").Replace(apart)
	resolve := func(host string) []netip.Addr {
		return map[string][]netip.Addr{"w-1": {netip.MustParseAddr("10.0.0.1")}, "pod-1": {netip.MustParseAddr("10.0.0.1")},
			"site": {netip.MustParseAddr("10.0.0.9")}}[host]
	}
	for i, c := range []struct {
		text              string
		workers, clusters []string
		asked             string // severity
		changed           int    // number of clusters
	}{
		{weighted, nil, nil, "", 2},
		{apart, nil, nil, Error, 0},
		{apart, nil, []string{"b"}, "", 1},
		{apart, []string{"127.0.0.1:8003"}, nil, "", 1},
		{apart, []string{"10.0.0.7:8001"}, nil, Note, 1},                   // the port alone
		{apart, []string{"10.0.0.7:8001", "10.0.0.8:8003"}, nil, Error, 0}, // both have a worker's port
		{named, []string{"w-1:8001"}, nil, "", 1},                          // another name of the same address
		{named, []string{"10.0.0.1:8001"}, nil, "", 1},
		{named, []string{"10.0.0.3:9"}, nil, Error, 0},
	} {
		b, w := read(t, c.text), Want{Options: envoy.Default(), Clusters: c.clusters, Resolve: resolve}
		w.Workers = c.workers
		asked := ""
		for _, f := range Run(b, w) {
			if f.Name == "which_clusters" {
				asked = f.Severity
			}
		}
		pieces, err := Missing(b, w)
		changed := 0
		for _, p := range pieces {
			changed += boolean(p.Name == "choice")
		}
		if err != nil || asked != c.asked || changed != c.changed || asked == Error && len(pieces) > 0 {
			t.Errorf("%d, %v %v: %v, asks %q, %d clusters changed", i, c.workers, c.clusters, err, asked, changed)
		}
	}
}

// TestOtherServices: nothing of another service behind the same listener changes: not its routes, its cluster or its requests'
// headers; only Sightline's filter is switched off there. Early header mutation, which takes headers from all, is told of.
func TestOtherServices(t *testing.T) {
	const site = `
            - name: site
              domains: [site.example.com]
              routes:
              - match: { prefix: /v1 }
                route: { cluster: web }
          http_filters:`
	text := strings.Replace(user, "          http_filters:", site[1:], 1)
	text = strings.Replace(text, "              - match: { prefix: / }\n                route: { cluster: vllm }",
		"              - match: { prefix: /v1 }\n                route: { cluster: vllm }\n              - match: { prefix: "+
			"/ }\n                route: { cluster: web }", 1)
	_, cluster, _ := strings.Cut(user, "  - name: vllm")
	text += "  - name: web" + strings.NewReplacer("vllm", "web", "8001", "9001", "8002", "9002").Replace(cluster)
	w := Want{Options: envoy.Default()}
	w.Workers, w.TenantHeader = []string{"127.0.0.1:8001", "127.0.0.1:8002"}, "x-tenant"
	b := read(t, text)
	pieces, err := Missing(b, w)
	if err != nil {
		t.Fatal(err)
	}
	theirs := []string{"virtual_hosts[1]", "virtual_hosts[0].routes[1]", "clusters[1]", "virtual_hosts[0].request",
		"early_header", "stream_idle_timeout", "retry_policy"}
	for _, p := range pieces {
		if at := strings.TrimPrefix(p.Where, "static_resources."); p.Name != "other_routes" &&
			!strings.Contains(at, "virtual_hosts[0].routes[0]") &&
			slices.ContainsFunc(theirs, func(part string) bool { return strings.Contains(at, part) }) {
			t.Errorf("%s changes %s", p.Name, p.Where)
		}
	}
	out, err := Apply(b, pieces)
	if err != nil {
		t.Fatal(err)
	}
	b = read(t, string(out))
	if pieces, err := Missing(b, w); err != nil || len(pieces) > 0 {
		t.Errorf("still lacks %v %v, want no error, 0 of them", pieces, err)
	}
	for _, f := range Run(b, w) {
		if f.Severity != Note || f.Name == "steering_headers" {
			t.Errorf("got %+v, want Severity %q, Name other than %q", f, Note, "steering_headers")
		}
	}
	early := strings.Replace(text, "          stat_prefix: in\n", `          stat_prefix: in
          early_header_mutation_extensions:
          - name: x
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation
              mutations: [{ remove: x-request-id }]
`, 1)
	is := func(f Finding) bool {
		return f.Name == "steering_headers" && f.Severity == Note && strings.HasSuffix(f.Got, "to web") && f.Fix != ""
	}
	if found := Run(read(t, early), w); !slices.ContainsFunc(found, is) {
		t.Errorf("got nobody who tells of web's headers: %+v", found)
	}
}

// TestNames: a cluster that resolves names is told which family Sightline uses.
func TestNames(t *testing.T) {
	for family, wrong := range map[string]bool{"": true, "AUTO": true, "V6_ONLY": true, "ALL": true, "V4_ONLY": false, "V4_PREFERRED": false} {
		text := strings.NewReplacer("type: STATIC", "type: STRICT_DNS", "127.0.0.1, port_value: 8001",
			"workers.local, port_value: 8001").Replace(user)
		if family != "" {
			text = strings.Replace(text, "type: STRICT_DNS", "type: STRICT_DNS\n    dns_lookup_family: "+family, 1)
		}
		b, w := read(t, text), Want{Options: envoy.Default()}
		w.Workers = []string{"workers.local:8001"}
		found := slices.ContainsFunc(Run(b, w), func(f Finding) bool { return f.Name == "no_healthy_worker" && f.Severity == Error })
		pieces, err := Missing(b, w)
		i := slices.IndexFunc(pieces, func(p Piece) bool { return p.Name == "dns_family" })
		if err != nil || found != wrong || i >= 0 && !strings.Contains(pieces[i].YAML, "dns_lookup_family: V4_PREFERRED") ||
			(i >= 0) != (wrong && family != "V6_ONLY") {
			t.Errorf("%q: %v, found %v, piece %d", family, err, found, i)
		}
	}
}

// TestStrangers: a cluster that has neither an address nor a port of a worker is not changed, also if its names do not resolve here.
func TestStrangers(t *testing.T) {
	named := strings.NewReplacer("type: STATIC", "type: STRICT_DNS",
		"address: 127.0.0.1, port_value: 8001", "address: a.example, port_value: 80",
		"address: 127.0.0.1, port_value: 8002", "address: b.example, port_value: 80").Replace(user)
	for _, c := range []struct {
		text     string
		workers  []string
		clusters []string
		found    string // of which_clusters and worker_unknown
	}{
		{named, []string{"10.0.0.1:8000", "10.0.0.2:8000"}, nil, "which_clusters"},
		{named, []string{"w-1:8000"}, nil, "which_clusters"},
		{named, []string{"w-1:8000"}, []string{"vllm"}, "worker_unknown"},
		{named, []string{"10.0.0.1:80"}, nil, ""},
		{named, nil, nil, ""},
		{user, []string{"10.0.0.1:8000"}, nil, "which_clusters"},
		{user, []string{"10.0.0.1:8001"}, nil, "worker_unknown"},
		{user, []string{"w-1:8001"}, nil, ""}, // a name that does not resolve here
		{user, []string{"w-1:8009", "127.0.0.1:8001"}, nil, "worker_unknown"},
	} {
		b, w := read(t, c.text), Want{Options: envoy.Default(), Clusters: c.clusters}
		w.Workers = c.workers
		got := ""
		for _, f := range Run(b, w) {
			if f.Name == "which_clusters" || f.Name == "worker_unknown" {
				got = f.Name
			}
		}
		if pieces := must(Missing(b, w)); got != c.found || (len(pieces) == 0) != (c.found == "which_clusters") {
			t.Errorf("%v of %v: got %q with %d pieces, want %q", c.workers, c.clusters, got, len(pieces), c.found)
		}
	}
}

// TestPoolOfNames: a route tells the model of its workers, also where Sightline knows them by other names.
func TestPoolOfNames(t *testing.T) {
	w := Want{Options: envoy.Default(), Resolve: func(string) []netip.Addr { return []netip.Addr{netip.MustParseAddr("127.0.0.1")} }}
	w.Workers = []string{"w-1:8001", "w-2:8009"}
	w.Pools = []envoy.Pool{{Name: "other", Workers: w.Workers[1:]}, {Name: "mine", Workers: w.Workers[:1]}}
	pieces, err := Missing(read(t, user), w)
	i := slices.IndexFunc(pieces, func(p Piece) bool { return p.Name == "route_says" })
	if err != nil || i < 0 || !strings.Contains(pieces[i].YAML, "value: mine") {
		t.Errorf(`got %v: %v, want no error, i >= 0, strings.Contains(pieces[i].YAML, "value: mine")`, err, pieces)
	}
}

// TestRunning: of a running Envoy it is known what names became, and who is healthy.
func TestRunning(t *testing.T) {
	text := strings.NewReplacer("type: STATIC", "type: STRICT_DNS", "127.0.0.1, port_value: 8001",
		"localhost, port_value: 8001", "127.0.0.1, port_value: 8002", "localhost, port_value: 8002").Replace(user)
	js, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	const host = `{"address":{"socket_address":{"address":"::1","port_value":%d}},"health_status":{"failed_active_health_check":true}}`
	pages := map[string]string{
		"/config_dump": `{"configs":[{"@type":"type.googleapis.com/envoy.admin.v3.BootstrapConfigDump","bootstrap":` + string(js) + `}]}`,
		"/server_info": `{"version":"x/1.40.0/Clean"}`,
		"/clusters": `{"cluster_statuses":[{"name":"vllm","host_statuses":[` + fmt.Sprintf(host, 8001) + "," +
			fmt.Sprintf(host, 8002) + `]}]}`,
	}
	admin := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { fmt.Fprint(rw, pages[r.URL.Path]) }))
	defer admin.Close()
	b, err := Load(t.Context(), admin.URL)
	if err != nil {
		t.Fatal(err)
	}
	w := Want{Options: envoy.Default()}
	w.Workers = []string{"127.0.0.1:8001", "127.0.0.1:8002"}
	found := Run(b, w)
	for _, want := range []Finding{{Name: "no_healthy_worker", Severity: Error, Got: "[::1]:8001"},
		{Name: "worker_unknown", Severity: Error, Got: "no endpoint 127.0.0.1:8001; there are [::1]:8001"}} {
		if !slices.ContainsFunc(found, func(f Finding) bool {
			return f.Name == want.Name && f.Severity == want.Severity && strings.Contains(f.Got, want.Got)
		}) {
			t.Errorf("%+v is not among %+v", want, found)
		}
	}
}

// TestOtherHeader: the header by which a cluster dials is the one that is named and removed, whatever it is called.
func TestOtherHeader(t *testing.T) {
	text, _, _ := strings.Cut(user, "    load_assignment:")
	text = strings.Replace(text, "type: STATIC",
		"type: ORIGINAL_DST\n    lb_policy: CLUSTER_PROVIDED\n    original_dst_lb_config: { use_http_header: true, "+
			"http_header_name: Target-Pod }", 1)
	b := read(t, text)
	for _, header := range []string{"", "target-pod"} {
		w := Want{Options: envoy.Default(), Header: header}
		got := map[string]string{}
		for _, f := range Run(b, w) {
			got[f.Name] = f.Severity + " " + f.Got
		}
		pieces, err := Missing(b, w)
		i := slices.IndexFunc(pieces, func(p Piece) bool { return p.Name == "headers" })
		if err != nil || !strings.Contains(got["any_address"], "that target-pod names") || !strings.HasPrefix(got["steering_headers"], Error) ||
			!strings.Contains(got["steering_headers"], "target-pod") || i < 0 || !strings.Contains(pieces[i].YAML, "remove: target-pod\n") ||
			(got["choice_not_read"] != "") != (header == "") {
			t.Errorf("%q: %v, %v, %v", header, err, got, pieces)
		}
	}
}

// TestKubernetesObjects: what is no envoy.yaml but a Kubernetes object is named, and where Envoy's own configuration is.
func TestKubernetesObjects(t *testing.T) {
	for text, want := range map[string]string{
		"apiVersion: v1\nkind: ConfigMap\nmetadata: { name: envoy }\ndata:\n  envoy.yaml: |\n    admin: {}\n": `a ConfigMap (want the envoy.yaml that it holds: kubectl get configmap envoy -o jsonpath='{.data.envoy\.yaml}'`,
		"apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\nspec: {}\n": "a Kubernetes " +
			"object, EnvoyFilter, of which a control plane makes",
	} {
		if _, err := Read([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// FuzzRead: any file gives an error or an answer, and a file with pieces added can be read again.
func FuzzRead(f *testing.F) {
	for _, file := range []string{"../envoy.yaml", "../override_host.yaml", "../models.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte(user))
	f.Add([]byte(strings.Replace(user, "            typed_config: {", "            typed_config: # the last\n              {", 1)))
	f.Add([]byte(strings.Replace(string(must(os.ReadFile("../override_host.yaml"))), "|content-[a-z]+", `|\\Qx`, 1)))
	for _, text := range []string{"", "{}", "- a", "a: *b", "a: &a [*a, *a]", "static_resources: 3",
		"static_resources: { listeners: [{}], clusters: [{}] }",
		`{"configs":[{"@type":"type.googleapis.com/envoy.admin.v3.ListenersConfigDump","dynamic_listeners":[{"name":"x"},{}]}]}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		b, err := Read(text)
		if err != nil {
			return
		}
		w := Want{Options: envoy.Default()}
		Run(b, w)
		pieces, err := Missing(b, w)
		if err != nil {
			t.Fatal(err)
		}
		out, err := Apply(b, pieces)
		if b.file == nil || err != nil {
			return
		}
		if _, err := Read(out); err != nil {
			t.Errorf("%v:\n%s", err, out)
		}
		edited, kept, err := Edit(b, pieces)
		if back, _ := Remove(edited); err == nil && kept && !bytes.Contains(text, []byte("--apply:")) && !bytes.Equal(back, text) {
			t.Errorf("removed from\n%s\nis\n%s\nwant\n%s", edited, back, text)
		}
	})
}

// TestEditFlow: pieces within a part in flow style replace the member around it, with all of its lines, and are removed again.
func TestEditFlow(t *testing.T) {
	const routes = "              - match: { prefix: / }\n                route: { cluster: vllm }\n"
	for _, comment := range []string{"", "            # the only one\n", "              # the only one\n", "# the only one\n"} {
		text := strings.Replace(user, routes, comment+"              - { match: { prefix: / }, route: { cluster: vllm } }\n", 1)
		b := read(t, text)
		edited, kept, err := Edit(b, must(Missing(b, Want{Options: envoy.Default()})))
		if back, _ := Remove(edited); err != nil || !kept || string(back) != text {
			t.Errorf("%q: %v, %v, removed:\n%s\nfrom\n%s", comment, kept, err, back, edited)
		}
	}
}

// TestAliasesThatGrow: aliases that multiply are refused before they are expanded.
func TestAliasesThatGrow(t *testing.T) {
	text := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := range 9 {
		text += strings.ReplaceAll("aN: &aN [*aM, *aM, *aM, *aM, *aM, *aM, *aM, *aM, *aM, *aM]\n", "N", fmt.Sprint(i+1))
		text = strings.ReplaceAll(text, "aM", fmt.Sprint("a", i))
	}
	if _, err := Read([]byte(text)); err == nil || !strings.Contains(err.Error(), "aliases") {
		t.Error(err)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
