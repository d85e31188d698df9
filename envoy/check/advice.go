package check

import (
	"fmt"
	"slices"
)

// advice maps a finding's name to the doctor's codes of it, its severity, what is expected and how to fix it; site.go, routes.go and
// clusters.go contain the conditions. BODY_LIMIT and TIMEOUT stand for Sightline's settings. docs/envoy.md has a line for each.
var advice = map[string]struct{ code, severity, want, fix string }{
	// What Sightline sees.
	"body_mode": {"SL0401", Error,
		"request_header_mode: SEND, request_body_mode: BUFFERED (or FULL_DUPLEX_STREAMED with request_trailer_mode: SEND), no response_body_mode",
		"processing_mode: { request_header_mode: SEND, request_body_mode: BUFFERED, response_header_mode: SKIP }; no buffered answers"},
	"body_limit": {"SL0401", Error, "BODY_LIMIT, Sightline's body_limit",
		"request_body_buffer_limit on the virtual host: one limit for HTTP/1 and HTTP/2; leave a buffer filter out, and have ext_authz " +
			"read a part (allow_partial_message: true) or all; no max_receive_message_length below it: an edited body comes back " +
			"in one message"},
	"body_changed_behind": {"SL0401", Error, "before Sightline's filter, and one FULL_DUPLEX_STREAMED",
		"move it, so that Sightline reads what workers do; beside an ext_proc with FULL_DUPLEX_STREAMED ask with request_body_mode: BUFFERED: " +
			"bodies of more than some KB are truncated before Envoy 1.38 (1.36 and 1.37 with #43175), and some later (#43983)"},

	// How it is asked.
	"not_asked": {"SL0410", Error, "not disabled, observability_mode: false, and the router behind it",
		"take disabled and observability_mode out (Envoy does not wait for the choice), and move the router to the end"},
	"message_timeout": {"SL0404", Error, "message_timeout: TIMEOUT, as configured in Sightline, and max_message_timeout: LONGEST",
		"message_timeout: TIMEOUT, max_message_timeout: LONGEST: each request waits TIMEOUT for a Sightline that hangs, and copying 15 " +
			"to 30 MiB takes up to 200ms; a body of BODY_LIMIT bytes gets a second more for each MiB, or goes on uncleaned when several " +
			"come at once"},
	"client_address": {"SL0410", Warning, "x-sightline-client with the client's address",
		"initial_metadata: [{ key: x-sightline-client, value: " +
			"\"%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%\" }]: without it one client can take all that clients share"},
	"failure_mode": {"SL0404", Warning, "true; false, if on_unread is refuse",
		"failure_mode_allow: true, or requests fail while Sightline is down; false, if on_unread is refuse, or bodies reach workers unread"},
	"sightline_health": {"SL0404", Warning,
		"HTTP/2, a gRPC health check, and common_lb_config: { healthy_panic_threshold: { value: 0 }, update_merge_window: 0s }",
		"take them over from the cluster sightline that " +
			"\"sightline envoy\" prints: each request waits for a Sightline that hangs, and with FULL_DUPLEX_STREAMED fails"},

	// How its choice is applied.
	"mutation_rules": {"SL0408", Error, "all that Sightline sets, and disable_immediate_response: false", `allow_expression: { regex: ` +
		`"x-(target|work|dyn|byp|sight|route|data|ses|gate|pref|enc|kv|vllm|over)[a-z0-9-]+|content-[a-z]+|retry-after" }; ` +
		`edited bodies and refusals need the last`},
	"choice_not_read": {"SL0408", Error,
		"override_host_sources: [{ metadata: { key: sightline, path: [{ key: endpoints }] } }], or http_header_name: x-target-worker",
		"have the cluster read it from there (route.one_address: true in Sightline's configuration, or serve --pool --one-address, " +
			"if it dials one address), or name it in the route's gRPC metadata, x-sightline-header. A route for " +
			"the header needs route_cache_action: CLEAR, and may not remove it: an upstream header_mutation filter does"},
	"cluster_unknown": {"SL0410", Error, "a cluster of this name",
		"add it; or, if a control plane tells it, give the admin address of a running Envoy"},
	"worker_unknown": {"SL0408", Warning, "all of Sightline's workers",
		"add it: requests cannot be sent to a worker that is not listed"},
	"no_healthy_worker": {"SL0404 SL0408", Error, "endpoints that answer, and V4_PREFERRED, as Sightline takes IPv4 of both",
		"dns_lookup_family: V4_PREFERRED on the cluster, or another port: otherwise no choice is followed, and requests without " +
			"one get 503"},

	// What a client must not do.
	"any_address": {"SL0407", Warning, "an upstream_rbac filter with the workers' networks",
		"envoy.worker_networks in Sightline's configuration and " +
			"\"sightline envoy\" print it; on a composite cluster, not on its parts, where it is silently not applied"},
	"steering_headers": {"SL0407", Warning, "removed before the first route selection, from requests to workers alone",
		"the filter or extension that \"sightline envoy --for\" prints, for the tenants' header too: while Sightline is down a client " +
			"could choose the worker, or any address (with ORIGINAL_DST give the workers a listener of their own)"},
	"request_bursts": {"SL0407", Warning, "http.max_requests_per_io_cycle: 1",
		"layered_runtime with it, as \"sightline envoy --for\" prints it: a client that resets its requests at once has Sightline " +
			"asked for all of them"},
	"admin_paths": {"SL0410", Note, "allow_paths that only show something",
		"take admin over from what \"sightline envoy\" prints: a browser " +
			"here can send POST /quitquitquit for any site's page"},

	// What Envoy sends to Sightline.
	"access_log": {"SL0409", Warning, "an http_grpc access log to it with [x-sightline-id], each UpstreamEnd, and buffer_flush_interval: 0.1s",
		"add the logs that \"sightline envoy --for\" prints: Sightline knows each worker's load and health by it, without the id no line is " +
			"joined with its decision, and a worker counts as busy until the line comes"},

	// What ends a generation.
	"route_timeout": {"SL0410", Warning, "timeout: 0s, no end, and stream_idle_timeout: 3600s",
		"timeout: 0s, and no other: a generation can take minutes, also before the first byte and between bytes"},
	"retries": {"SL0410", Warning, "connect-failure,refused-stream,reset-before-request",
		"retry_on: connect-failure,refused-stream,reset-before-request: what a worker has read is computed again, and a request that " +
			"crashes one worker crashes the next"},
	"circuit_breakers": {"SL0410", Warning, "4096 and more; 64 retries and more",
		"raise them: what is above gets 503, and a worker that dies takes all of its requests into a retry at once"},
	"keep_alive": {"SL0410", Warning, "4s, below the 5s after which an engine's server closes an idle connection",
		"common_http_protocol_options: { idle_timeout: 4s } " +
			"in the cluster's HttpProtocolOptions: otherwise now and then a request runs into a closing connection and gets 503"},

	// What cannot be checked.
	"envoy_version": {"SL0410", Error, "1.36 or later", "take a newer Envoy"},
	"no_route": {"SL0410", Error, "one",
		"check the file; configuration from a control plane (RDS, LDS) is visible only at the admin address of a running Envoy"},
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
