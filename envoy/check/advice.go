package check

import (
	"fmt"
	"slices"
)

// advice maps a finding's name to the doctor's codes of it, its severity, what is expected and how to fix it; rules.go, routes.go and
// clusters.go contain the conditions. BODY_LIMIT and TIMEOUT stand for Sightline's settings. docs/envoy.md has a line for each.
var advice = map[string]struct{ code, severity, want, fix string }{
	// What Sightline sees.
	"body_mode": {"SL0401", Error,
		"request_header_mode: SEND, request_body_mode: BUFFERED (or FULL_DUPLEX_STREAMED with request_trailer_mode: SEND)",
		"processing_mode: { request_header_mode: SEND, request_body_mode: BUFFERED, response_header_mode: SKIP }"},
	"response_body_mode": {"SL0410", Error, "NONE", "leave it out: streamed answers are held back until they end"},
	"forward_rules":      {"SL0410", Warning, "none", "leave it out, or let through :method, :path, content-* and all that steers"},
	"body_limit": {"SL0401", Error, "BODY_LIMIT, Sightline's body_limit",
		"request_body_buffer_limit on the virtual host: one limit for HTTP/1 and HTTP/2"},
	"buffer_filter": {"SL0401", Error, "BODY_LIMIT, Sightline's body_limit",
		"raise it, or leave the filter out: Envoy buffers for Sightline anyway"},
	"ext_authz_body": {"SL0401", Error, "BODY_LIMIT, Sightline's body_limit",
		"allow_partial_message: true, or raise it, or leave with_request_body out"},
	"http2_window": {"SL0401", Warning, "1 MiB and more",
		"leave initial_stream_window_size out (or 16777216; the connection's 67108864): " +
			"a body stops at each window, and message_timeout runs"},

	// How it is asked.
	"filter_disabled": {"SL0410", Error, "not disabled", "take disabled: true out: Sightline is not asked on this route"},
	"message_timeout": {"SL0404", Error, "TIMEOUT, as configured in Sightline",
		"message_timeout: TIMEOUT; copying 15 to 30 MiB over takes up to 200ms by itself"},
	"message_timeout_long": {"SL0404", Warning, "TIMEOUT, as configured in Sightline",
		"message_timeout: TIMEOUT; each request waits so long for a Sightline that hangs"},
	"max_message_timeout": {"SL0410", Warning, "LONGEST: TIMEOUT and a second for each MiB of BODY_LIMIT",
		"max_message_timeout: LONGEST: Sightline " +
			"asks for so long for bodies of 1 MiB and more; Envoy ignores it without this or with less, and when several come at once they " +
			"go on uncleaned"},
	"client_address": {"SL0410", Warning, "x-sightline-client with the client's address",
		"initial_metadata: [{ key: x-sightline-client, value: " +
			"\"%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%\" }]: without it one client can take all that clients share"},
	"fail_closed": {"SL0404", Warning, "true", "failure_mode_allow: true, or requests fail while Sightline is down"},
	"fail_open": {"SL0404", Error, "false, as on_unread is refuse",
		"failure_mode_allow: false; else bodies reach workers unread"},
	"observability_mode": {"SL0410", Error, "false", "take it out: Envoy does not wait for the choice"},
	"allow_mode_override": {"SL0410", Warning, "true",
		"allow_mode_override: true, so that other requests than inference stream through unbuffered"},
	"grpc_message_limit": {"SL0401", Error, "BODY_LIMIT and more",
		"no max_receive_message_length: an edited body comes back in one message"},
	"sightline_http2": {"SL0410", Error, "HTTP/2, for gRPC", "explicit_http_config: { http2_protocol_options: {} }"},
	"sightline_health": {"SL0404", Warning,
		"a gRPC health check, and common_lb_config: { healthy_panic_threshold: { value: 0 }, update_merge_window: 0s }",
		"take both over from the cluster sightline that " +
			"\"sightline envoy\" prints: each request waits for a Sightline that hangs, and with FULL_DUPLEX_STREAMED fails"},

	// What it may change.
	"mutation_rules": {"SL0408", Error, "all that Sightline sets", `allow_expression: { regex: ` +
		`"x-(target|worker|dynamo|bypass|sight|route|data|session|gateway|prefill|enc|kv)[a-z0-9-]+|content-[a-z]+|retry-after" }; edited bodies and refusals need the last`},
	"metadata": {"SL0408", Warning, "receiving_namespaces: { untyped: [sightline] }",
		"metadata_options: { receiving_namespaces: { untyped: [sightline] } }: access logs and override_host read it"},
	"response_attributes": {"SL0410", Note, "[upstream.address]",
		"response_attributes: [upstream.address]: Sightline learns by it which " +
			"worker keeps an answer of /v1/responses"},
	"disable_immediate_response": {"SL0410", Error, "false", "take it out: refusals (400, 413, 429) become errors of Envoy's"},

	// Other filters around it.
	"guard_behind":        {"SL0410", Warning, "before Sightline's filter", "move it: bodies of requests that it refuses are read first"},
	"body_changed_behind": {"SL0401", Error, "before Sightline's filter", "move it, so that Sightline reads what workers read"},
	"behind_router":       {"SL0410", Error, "behind Sightline's filter", "move the router to the end: Sightline is never asked"},
	"two_full_duplex": {"SL0401", Warning, "one",
		"ask Sightline with request_body_mode: BUFFERED: before Envoy 1.38 (1.36 and 1.37 with #43175) bodies " +
			"of more than some KB are truncated, and even later some were (#43983)"},

	// How its choice is applied.
	"route_cache": {"SL0408", Error, "CLEAR", "route_cache_action: CLEAR, or Envoy does not select the route for x-target-worker"},
	"choice_not_read": {"SL0408", Error,
		"override_host_sources: [{ metadata: { key: sightline, path: [{ key: endpoints }] } }], or http_header_name: x-target-worker",
		"have the cluster read it from there, or set route.header of Sightline's configuration: it writes the choice nowhere else, so " +
			"choices are ignored"},
	"one_address": {"SL0408", Warning, "route.one_address: true in Sightline's configuration",
		"set it (serve --pool: --one-address): this cluster " +
			"dials one address, and to it a list is none, so the first request after each start of Sightline fails"},
	"header_removed": {"SL0408", Error, "not here",
		"remove it in an upstream header_mutation filter: here it is gone before the worker is dialled (503)"},
	"cluster_type": {"SL0408", Error, "STATIC, STRICT_DNS or EDS", "make it STRICT_DNS, or list the workers: " +
		"Envoy knows no single worker of such a cluster, and could not follow a choice"},
	"cluster_unknown": {"SL0410", Error, "a cluster of this name",
		"add it; or, if a control plane tells it, give the admin address of a running Envoy"},
	"worker_unknown": {"SL0408", Warning, "all of Sightline's workers",
		"add it: requests cannot be sent to a worker that is not listed"},
	"dns_family": {"SL0404 SL0408", Error, "V4_PREFERRED, as Sightline uses IPv4 of a name that has both families",
		"dns_lookup_family: V4_PREFERRED on the cluster: otherwise Envoy knows the workers " +
			"under other addresses than Sightline, no choice is followed, and workers that listen on IPv4 alone get no requests without one"},
	"no_healthy_worker": {"SL0404", Error, "endpoints that answer", "compare them with Sightline's workers: another port or family " +
		"(dns_lookup_family)? While Sightline is down every request gets 503"},
	"any_address": {"SL0407", Warning, "an upstream_rbac filter with the workers' networks",
		"envoy.worker_networks in Sightline's configuration and " +
			"\"sightline envoy\" print it; on a composite cluster, not on its parts, where it is silently not applied"},
	"headers_elsewhere": {"SL0410", Note, "from requests to workers alone",
		"take the extension out: \"sightline envoy --for\" then prints a " +
			"filter that removes them on the workers' routes " +
			"(with ORIGINAL_DST they must go before the first route selection: give the workers a listener of their own)"},
	"tenant_header": {"SL0410", Warning, "removed after Sightline has read it",
		"request_headers_to_remove, as \"sightline envoy --for\" prints it"},
	"steering_headers": {"SL0407", Warning, "removed before the first route selection",
		"the filter or extension that \"sightline envoy --for\" prints: " +
			"while Sightline is down a client could choose the worker, or any address"},

	// What Envoy sends to Sightline.
	"access_log": {"SL0409", Warning, "an http_grpc access log to it",
		"add the logs that \"sightline envoy --for\" prints: Sightline knows each worker's load and health by it"},
	"access_log_id": {"SL0409", Error, "[x-sightline-id]", "add x-sightline-id: without it no line is joined with its decision"},
	"access_log_late": {"SL0409", Warning, "0.1s",
		"buffer_flush_interval: 0.1s: an ended request counts as its worker's load until then"},
	"access_log_ends": {"SL0409", Warning, "each UpstreamEnd",
		"the filter of upstream_log as \"sightline envoy\" prints it: otherwise a worker " +
			"counts as busy with an answer that its client has not read yet"},

	// What ends a generation.
	"stream_flush_timeout": {"SL0410", Note, "60s",
		"stream_flush_timeout: 60s: so long Envoy keeps what is left of an answer for a client that " +
			"reads nothing (by default as long as stream_idle_timeout)"},
	"route_timeout": {"SL0410", Warning, "0s, no end", "timeout: 0s, and no other: a generation can take minutes"},
	"stream_idle_timeout": {"SL0410", Warning, "3600s",
		"stream_idle_timeout: 3600s: an engine may think for minutes before the first byte, and " +
			"between bytes"},
	"request_timeout": {"SL0410", Warning, "60s and more", "request_timeout: 60s or more: images over a slow connection take longer"},
	"retries": {"SL0410", Warning, "connect-failure,refused-stream,reset-before-request",
		"retry_on: connect-failure,refused-stream,reset-before-request: what a worker has read is computed again, and a request that " +
			"crashes one worker crashes the next"},
	"circuit_breakers": {"SL0410", Warning, "4096 and more; 64 retries and more",
		"raise them: what is above gets 503, and a worker that dies takes all of its requests into a retry at once"},
	"keep_alive": {"SL0410", Warning, "4s, below the 5s after which an engine's server closes an idle connection",
		"common_http_protocol_options: { idle_timeout: 4s } " +
			"in the cluster's HttpProtocolOptions: otherwise now and then a request runs into a closing connection and gets 503"},
	"connect_timeout": {"SL0410", Note, "0.25s",
		"connect_timeout: 0.25s: so long each request waits for a dead worker before it is retried"},
	"overload_limits": {"SL0410", Note, "monitors fixed_heap and downstream_connections, with actions",
		"take overload_manager over from what \"sightline envoy\" prints: Envoy holds a buffered body about 2.8 times for a moment"},
	"admin_paths": {"SL0410", Note, "allow_paths that only show something",
		"take admin over from what \"sightline envoy\" prints: a browser " +
			"here can send POST /quitquitquit for any site's page"},
	"request_bursts": {"SL0407", Warning, "http.max_requests_per_io_cycle: 1",
		"layered_runtime with it, as \"sightline envoy --for\" prints it: a client that resets its requests at once has Sightline " +
			"asked for all of them"},
	"worker_health": {"SL0410", Note, "either",
		"health_checks: [{ timeout: 1s, interval: 1s, unhealthy_threshold: 2, healthy_threshold: 1, " +
			"http_health_check: { path: /health } }]: requests without a choice go to dead workers"},

	// What cannot be checked.
	"envoy_version": {"SL0410", Error, "1.36 or later", "take a newer Envoy"},
	"no_route": {"SL0410", Error, "one",
		"check the file; configuration from a control plane (RDS, LDS) is visible only at the admin address of a running Envoy"},
	"routes_elsewhere": {"SL0410", Note, "the routes", "give the admin address of a running Envoy: its routes come from a control plane"},
	"which_clusters": {"SL0410", Error, "the workers' clusters", "name those of the workers (--cluster NAME,…), or give Sightline's " +
		"configuration with them (-c)"},
}

// find records a finding with the table's severity.
func (c *report) find(name string, at path, got any) { c.as(advice[name].severity, name, at, got) }

// as records a finding with another severity than the table's.
func (c *report) as(severity, name string, at path, got any) {
	a := advice[name]
	f := Finding{name, a.code, severity, at.String(), fmt.Sprint(got), c.settings.Replace(a.want), c.settings.Replace(a.fix)}
	if !slices.Contains(c.findings, f) {
		c.findings = append(c.findings, f)
	}
}
