package fit

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	alsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	compositev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/composite/v3"
	bufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	authzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	headersv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	overridev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightline-router/sightline/internal/steering"
)

// Where the parts lie in what the generator prints for an override_host.
var (
	genManager = path{"static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config"}
	genHost    = genManager.to("route_config", "virtual_hosts", 0)
	genFilter  = genManager.to("http_filters", 0)
	genRouter  = genManager.to("http_filters", 1, "typed_config")
)

const (
	filterName = "envoy.filters.http.ext_proc"
	typeURL    = "type.googleapis.com/envoy.extensions."
)

// version: the oldest release that the generator knows, 1.36.
func (c *checker) version() {
	if minor, ok := minorOf(c.Envoy); ok && minor < 36 {
		c.find("envoy_version", Error, path{"node"}, c.Envoy, "1.36 or later", "take a newer Envoy")
	}
}

// minorOf reads the n of 1.n.
func minorOf(version string) (int, bool) {
	_, rest, ok := strings.Cut(version, ".")
	n, err := strconv.Atoi(strings.SplitN(rest, ".", 2)[0])
	return n, ok && err == nil
}

// site applies the rules to an HTTP connection manager that inference requests come through.
func (c *checker) site(s *site, routes *routev3.RouteConfiguration) {
	s.router = len(s.hcm.GetHttpFilters())
	for i, f := range s.hcm.GetHttpFilters() {
		if p, ok := as[*extprocv3.ExternalProcessor](f.GetTypedConfig()); ok && s.ours.of == nil && c.isSightline(p.GetGrpcService()) {
			s.ours, s.name, s.index = placed[*extprocv3.ExternalProcessor]{s.at.to("http_filters", i, "typed_config"), p}, f.GetName(), i
		}
		if kind(f.GetTypedConfig()) == "router" {
			s.router = min(s.router, i)
		}
	}
	cluster := "sightline"
	if s.ours.of == nil {
		s.index, s.name = s.router, filterName
		for _, f := range s.hcm.GetHttpFilters() {
			if f.GetName() == filterName { // a filter of another server; settings of routes are found by name
				s.name = "sightline"
			}
		}
		c.miss("filter", "add before ["+strconv.Itoa(s.router)+"]", "Sightline is asked, after all other filters and before the router; the request goes on "+
			"balanced if it does not answer in time.", s.at.to("http_filters"), genFilter, named(s.name))
	} else {
		c.processor(s, s.ours.of, s.ours.at)
		cluster = s.ours.of.GetGrpcService().GetEnvoyGrpc().GetClusterName()
	}
	c.filters(s)
	dials := c.hosts(s, routes)
	c.steering(s, dials)
	c.log(s)
	c.timeouts(s)
	if cluster != "" {
		c.sightlines(s, cluster)
	}
}

func named(name string) func(any) any {
	return func(v any) any { return set(v, path{"name"}, name) }
}

// processor: how Sightline is asked.
func (c *checker) processor(s *site, p *extprocv3.ExternalProcessor, at path) {
	find := func(name, severity, member string, got any, want, fix string) {
		c.find(name, severity, at.to(member), got, want, fix)
	}
	c.modes(p.GetProcessingMode(), at.to("processing_mode"))
	switch t, least := p.GetMessageTimeout(), c.want.MessageTimeout; {
	case t == nil || t.AsDuration() < least:
		find("message_timeout", Error, "message_timeout", shown(t, "200ms, Envoy's default"), fmt.Sprintf("%v, as Sightline is told", least),
			"message_timeout: "+seconds(least)+" (copying a body of 15 to 30 MiB over takes up to 200ms by itself)")
	case t.AsDuration() > 30*time.Second:
		find("message_timeout_long", Warning, "message_timeout", t.AsDuration(), fmt.Sprintf("%v", least),
			"message_timeout: "+seconds(least)+"; each request waits so long for a Sightline that hangs")
	}
	if !p.GetFailureModeAllow() {
		find("fail_closed", Warning, "failure_mode_allow", false, "true", "failure_mode_allow: true, or requests fail while Sightline is away")
	}
	if p.GetObservabilityMode() {
		find("observability_mode", Error, "observability_mode", true, "false", "take it out: Envoy does not wait for the choice")
	}
	if p.GetDisableImmediateResponse() {
		find("disable_immediate_response", Error, "disable_immediate_response", true, "false",
			"take it out: refusals (400, 413, 429) become errors of Envoy's")
	}
	if !p.GetAllowModeOverride() && p.GetProcessingMode().GetRequestBodyMode() == extprocv3.ProcessingMode_BUFFERED {
		find("allow_mode_override", Warning, "allow_mode_override", false, "true",
			"allow_mode_override: true, so that what is no inference streams through and is not buffered")
	}
	if !slices.Contains(p.GetMetadataOptions().GetReceivingNamespaces().GetUntyped(), "sightline") {
		find("metadata", Warning, "metadata_options", "sightline is not received", "receiving_namespaces: { untyped: [sightline] }",
			"metadata_options: { receiving_namespaces: { untyped: [sightline] } }; access logs and override_host read it")
	}
	if p.GetForwardRules() != nil {
		find("forward_rules", Warning, "forward_rules", "some headers are kept from Sightline", "none",
			"take it out, or let through :method, :path, content-type, content-encoding, content-length and all that steers")
	}
	c.mutations(p.GetMutationRules(), at.to("mutation_rules"))
	g, limit := p.GetGrpcService(), int64(-1)
	if g.GetGoogleGrpc() != nil {
		limit = 4 << 20 // gRPC's default
		if v, ok := g.GetGoogleGrpc().GetChannelArgs().GetArgs()["grpc.max_receive_message_length"]; ok {
			limit = v.GetIntValue()
		}
	} else if v := g.GetEnvoyGrpc().GetMaxReceiveMessageLength().GetValue(); v > 0 {
		limit = int64(v)
	}
	if limit >= 0 && limit < int64(c.want.BodyLimit) {
		find("grpc_message_limit", Error, "grpc_service", fmt.Sprintf("answers of more than %d bytes fail", limit), fmt.Sprint(c.want.BodyLimit, " and more"),
			"use envoy_grpc without max_receive_message_length: an edited body comes back in one message")
	}
}

// modes: which parts of a request Sightline sees.
func (c *checker) modes(m *extprocv3.ProcessingMode, at path) {
	const fix = "processing_mode: { request_header_mode: SEND, request_body_mode: BUFFERED, response_header_mode: SKIP }"
	switch mode := m.GetRequestBodyMode(); mode {
	case extprocv3.ProcessingMode_BUFFERED:
	case extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED:
		if m.GetRequestTrailerMode() != extprocv3.ProcessingMode_SEND {
			c.find("body_mode", Error, at.to("request_trailer_mode"), m.GetRequestTrailerMode(), "SEND", "request_trailer_mode: SEND")
		}
	default:
		c.find("body_mode", Error, at.to("request_body_mode"), mode, "BUFFERED, or FULL_DUPLEX_STREAMED", fix)
	}
	if m.GetRequestHeaderMode() == extprocv3.ProcessingMode_SKIP {
		c.find("body_mode", Error, at.to("request_header_mode"), "SKIP", "SEND", fix)
	}
	if mode := m.GetResponseBodyMode(); mode == extprocv3.ProcessingMode_BUFFERED || mode == extprocv3.ProcessingMode_BUFFERED_PARTIAL {
		c.find("response_body_mode", Error, at.to("response_body_mode"), mode, "NONE",
			"leave it out: streamed answers are held back until they end")
	}
}

// mutations: what Sightline may set. The rules hold for refusals too.
func (c *checker) mutations(m *mutationv3.HeaderMutationRules, at path) {
	full := func(re string) *regexp.Regexp { return regexp.MustCompile(`^(?:` + re + `)$`) }
	var allow, forbid *regexp.Regexp
	for _, p := range []struct {
		text string
		re   **regexp.Regexp
	}{{m.GetAllowExpression().GetRegex(), &allow}, {m.GetDisallowExpression().GetRegex(), &forbid}} {
		if _, err := regexp.Compile(p.text); p.text != "" && err == nil {
			*p.re = full(p.text)
		}
	}
	var lost []string
	for _, h := range []string{"x-target-worker", "x-sightline-id", "x-route-reason", "x-data-parallel-rank", "content-length", "content-type", "retry-after"} {
		if forbid != nil && forbid.MatchString(h) || m.GetDisallowAll().GetValue() && (allow == nil || !allow.MatchString(h)) {
			lost = append(lost, h)
		}
	}
	if len(lost) > 0 {
		c.find("mutation_rules", Error, at, "not allowed: "+strings.Join(lost, ", "), "all that Sightline sets",
			`allow_expression: { regex: "x-(target|worker|dynamo|bypass|sightline|route|data|session|gateway)-.*|content-(type|length)|retry-after" }`)
	}
}

// Filters by what they do; names are those of their types.
var (
	guards   = []string{"jwt_authn", "ext_authz", "oauth2", "basic_auth", "api_key_auth", "rbac", "ratelimit", "local_ratelimit", "csrf"}
	changers = []string{"decompressor", "grpc_json_transcoder", "proto_message_extraction", "grpc_http1_bridge", "aws_lambda"}
	scripts  = []string{"lua", "wasm", "golang", "dynamic_modules"}
)

// filters: what stands before and behind Sightline.
func (c *checker) filters(s *site) {
	duplex := s.ours.of.GetProcessingMode().GetRequestBodyMode() == extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED
	for i, f := range s.hcm.GetHttpFilters() {
		at, packed := s.at.to("http_filters", i), f.GetTypedConfig()
		name, behind := kind(packed), i > s.index && s.ours.of != nil
		order := func(rule, severity, got, fix string) {
			c.find(rule, severity, at, f.GetName()+got, "before Sightline's", fix)
		}
		switch {
		case behind && slices.Contains(guards, name):
			order("guard_behind", Warning, " stands behind Sightline's filter", "move it before: bodies of requests that it refuses are read first")
		case behind && slices.Contains(changers, name):
			order("body_changed_behind", Error, " changes the body that Sightline has read", "move it before, so that Sightline reads what workers read")
		case behind && slices.Contains(scripts, name):
			order("body_changed_behind", Note, " may change the body that Sightline has read", "move it before, if it does")
		case i == s.router && s.ours.of != nil && s.index > i:
			order("behind_router", Error, " stands before Sightline's filter", "move Sightline's before the router: it is never asked")
		}
		if b, ok := as[*bufferv3.Buffer](packed); ok && int64(b.GetMaxRequestBytes().GetValue()) < int64(c.want.BodyLimit) {
			c.small(at.to("typed_config", "max_request_bytes"), int64(b.GetMaxRequestBytes().GetValue()), "buffer_filter", "raise it, or take the filter out: "+
				"Envoy buffers for Sightline anyway")
		}
		if a, ok := as[*authzv3.ExtAuthz](packed); ok {
			if b := a.GetWithRequestBody(); b != nil && !b.GetAllowPartialMessage() && int64(b.GetMaxRequestBytes()) < int64(c.want.BodyLimit) {
				c.small(at.to("typed_config", "with_request_body", "max_request_bytes"), int64(b.GetMaxRequestBytes()), "ext_authz_body",
					"allow_partial_message: true, or raise it, or leave with_request_body out")
			}
		}
		if p, ok := as[*extprocv3.ExternalProcessor](packed); ok && p != s.ours.of && (i != s.index || s.ours.of == nil) {
			mode := p.GetProcessingMode().GetRequestBodyMode()
			if behind && mode != extprocv3.ProcessingMode_NONE {
				order("body_changed_behind", Warning, " may change the body that Sightline has read", "move it before, if it does")
			}
			if minor, told := minorOf(c.Envoy); mode == extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED && duplex {
				severity, why := Warning, "truncated bodies were still seen with two of them after the fix of 1.38 (Envoy #43175, #43983)"
				if told && minor < 38 {
					severity, why = Error, "bodies of more than some KB are truncated before Envoy 1.38, or a 1.36 or 1.37 with #43175"
				}
				c.find("two_full_duplex", severity, at.to("typed_config", "processing_mode", "request_body_mode"), "a second ext_proc with FULL_DUPLEX_STREAMED",
					"one", "ask Sightline with request_body_mode: BUFFERED; "+why)
			}
		}
	}
}

// small reports a limit that is below the bodies that Sightline takes.
func (c *checker) small(at path, limit int64, name, fix string) {
	c.find(name, Error, at, fmt.Sprintf("%d: bodies above it are answered with 413", limit), fmt.Sprintf("%d, Sightline's body_limit", c.want.BodyLimit), fix)
}

// hosts: the routes of inference requests and their clusters. It reports whether a header can name any address.
func (c *checker) hosts(s *site, routes *routev3.RouteConfiguration) (dials bool) {
	for i := range s.hosts {
		h := &s.hosts[i]
		if !h.leads {
			c.elsewhere(s, h.at, routes, h.of.GetTypedPerFilterConfig())
			continue
		}
		c.bodies(s, h)
		workers, picked := map[string]bool{}, map[string]bool{}
		for _, w := range h.routes {
			if len(w.asked) == 0 {
				continue
			}
			c.way(s, h, w, routes)
			for _, name := range w.clusters {
				workers[name] = c.workers(name)
				header, reads := c.reads(name)
				dials = dials || header != ""
				for _, p := range w.asked {
					picked[p] = picked[p] || reads
				}
			}
		}
		for _, w := range h.routes {
			if len(w.asked) == 0 && len(w.clusters) > 0 && !slices.ContainsFunc(w.clusters, func(n string) bool { return workers[n] }) {
				c.elsewhere(s, w.at, routes, h.of.GetTypedPerFilterConfig(), w.of.GetTypedPerFilterConfig())
			}
			for _, name := range w.clusters {
				if len(w.asked) == 0 || !c.workers(name) {
					continue
				}
				c.worker(name, slices.ContainsFunc(w.asked, func(p string) bool { return !picked[p] }))
			}
		}
	}
	return dials
}

// elsewhere: routes to other services need not ask Sightline.
func (c *checker) elsewhere(s *site, at path, routes *routev3.RouteConfiguration, settings ...map[string]*anypb.Any) {
	for _, m := range append(settings, routes.GetTypedPerFilterConfig()) {
		if m[s.name] != nil {
			return
		}
	}
	if s.ours.of != nil && s.hcm.GetHttpFilters()[s.index].GetDisabled() {
		return
	}
	c.miss("other_routes", "set", "What goes to other services does not ask Sightline.", at.to("typed_per_filter_config", s.name),
		genHost.to("routes", -1, "typed_per_filter_config", filterName), nil)
}

// bodies: what Envoy buffers for Sightline. The limit of a route wins over its virtual host's, and that over the listener's.
func (c *checker) bodies(s *site, h *host) {
	if s.ours.of.GetProcessingMode().GetRequestBodyMode() == extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED {
		return
	}
	limit, at := int64(1<<20), s.listener.at.to("per_connection_buffer_limit_bytes")
	if v := s.listener.of.GetPerConnectionBufferLimitBytes(); v != nil {
		limit = int64(v.GetValue())
	}
	type limited interface {
		GetRequestBodyBufferLimit() *wrapped64
		GetPerRequestBufferLimitBytes() *wrapped32
	}
	read := func(m limited, below path) (here bool) {
		if v := m.GetPerRequestBufferLimitBytes(); v != nil {
			limit, at, here = int64(v.GetValue()), below.to("per_request_buffer_limit_bytes"), true
		}
		if v := m.GetRequestBodyBufferLimit(); v != nil {
			limit, at, here = int64(min(v.GetValue(), 1<<62)), below.to("request_body_buffer_limit"), true
		}
		return here
	}
	const fix = "request_body_buffer_limit on the virtual host: the one limit for HTTP/1 and HTTP/2"
	from := genHost.to("request_body_buffer_limit")
	read(h.of, h.at)
	if limit < int64(c.want.BodyLimit) {
		c.small(at, limit, "body_limit", fix)
		c.miss("body_limit", "set", "Bodies up to Sightline's limit are buffered; Envoy's own limit is 1 MiB, less than a picture.",
			h.at.to("request_body_buffer_limit"), from, nil)
	}
	for _, w := range h.routes {
		if len(w.asked) > 0 && read(w.of, w.at) && limit < int64(c.want.BodyLimit) {
			c.small(at, limit, "body_limit", fix)
			c.miss("body_limit", "set", "Bodies up to Sightline's limit are buffered.", w.at.to("request_body_buffer_limit"), from, nil)
		}
	}
}

// way: one route that inference requests take.
func (c *checker) way(s *site, h *host, w *way, routes *routev3.RouteConfiguration) {
	action, at := w.of.GetRoute(), w.at.to("route")
	if !w.picked && c.settings(s, h, w, routes) {
		c.path(s, w)
	}
	if a := s.ours.of.GetRouteCacheAction(); w.picked && s.ours.of != nil && a != extprocv3.ExternalProcessor_CLEAR {
		c.find("route_cache", Error, s.ours.at.to("route_cache_action"), a, "CLEAR", "route_cache_action: CLEAR, or the route for x-target-worker is never looked for")
	}
	const cut = "timeout: 0s: a generation takes minutes"
	switch t := action.GetTimeout(); {
	case t == nil:
		c.find("route_timeout", Error, at.to("timeout"), "15s, Envoy's default", "0s, no end", cut)
		c.miss("route_timeout", "set", "Generations are not cut off after 15s, Envoy's default.", at.to("timeout"), genHost.to("routes", 1, "route", "timeout"), nil)
	case t.AsDuration() > 0 && t.AsDuration() < time.Hour:
		c.find("route_timeout", longer(t), at.to("timeout"), t.AsDuration(), "0s, no end", cut)
	}
	if t := action.GetIdleTimeout(); t != nil && t.AsDuration() > 0 && t.AsDuration() < 30*time.Minute {
		c.find("stream_idle_timeout", Warning, at.to("idle_timeout"), t.AsDuration(), "3600s", "an engine may think for minutes before the first byte")
	}
	if t := action.GetMaxStreamDuration().GetMaxStreamDuration(); t.AsDuration() > 0 && t.AsDuration() < time.Hour {
		c.find("route_timeout", longer(t), at.to("max_stream_duration"), t.AsDuration(), "none", "leave it out: a generation takes minutes")
	}
	retry, place := action.GetRetryPolicy(), at.to("retry_policy")
	if retry == nil {
		if retry = h.of.GetRetryPolicy(); retry != nil {
			place = h.at.to("retry_policy")
		}
	}
	if retry == nil {
		from := genHost.to("retry_policy")
		if _, more := takes(w.of.GetMatch(), "/v1/files"); more { // what may not bear being done twice comes this way too
			from = genHost.to("routes", -1, "route", "retry_policy")
		}
		c.miss("retries", "set", "What never reached a worker, or produced no byte of an answer, is tried again: at Sightline's next choice.", place, from, nil)
	}
	for _, on := range strings.Split(retry.GetRetryOn(), ",") {
		if on = strings.TrimSpace(on); on == "5xx" || on == "gateway-error" || on == "retriable-status-codes" {
			c.find("retries", Warning, place.to("retry_on"), on, "connect-failure,refused-stream,reset",
				"engines answer 500 to requests that are merely wrong: each would be computed several times")
		}
	}
	if t := retry.GetPerTryTimeout(); t.AsDuration() > 0 && t.AsDuration() < time.Hour {
		c.find("route_timeout", longer(t), place.to("per_try_timeout"), t.AsDuration(), "none", "leave it out: a generation that takes longer is begun again")
	}
	removed := append(slices.Clone(w.of.GetRequestHeadersToRemove()), append(h.of.GetRequestHeadersToRemove(), routes.GetRequestHeadersToRemove()...)...)
	for _, name := range w.clusters {
		if header, _ := c.reads(name); header != "" && slices.ContainsFunc(removed, func(r string) bool { return strings.EqualFold(r, header) }) {
			c.find("header_removed", Error, w.at.to("request_headers_to_remove"), header, "not here",
				"remove it in an upstream header_mutation filter: here it is gone before the worker is dialled (503)")
		}
	}
}

// settings: what routes change of our filter. It reports whether Sightline is asked.
func (c *checker) settings(s *site, h *host, w *way, routes *routev3.RouteConfiguration) bool {
	off, at := s.ours.of != nil && s.hcm.GetHttpFilters()[s.index].GetDisabled(), s.at.to("http_filters", s.index, "disabled")
	for _, level := range []struct {
		at path
		m  map[string]*anypb.Any
	}{{w.at, w.of.GetTypedPerFilterConfig()}, {h.at, h.of.GetTypedPerFilterConfig()}, {s.at.to("route_config"), routes.GetTypedPerFilterConfig()}} {
		packed := level.m[s.name]
		if packed == nil || s.ours.of == nil {
			continue
		}
		at = level.at.to("typed_per_filter_config", s.name)
		if f, ok := as[*routev3.FilterConfig](packed); ok {
			off, packed = f.GetDisabled(), f.GetConfig()
		} else {
			off = false
		}
		p, ok := as[*extprocv3.ExtProcPerRoute](packed)
		if !ok {
			break
		}
		off = off || p.GetDisabled()
		if m := p.GetOverrides().GetProcessingMode(); m != nil && !off {
			c.modes(m, at.to("overrides", "processing_mode"))
		}
		if f := p.GetOverrides().GetFailureModeAllow(); f != nil && !f.GetValue() {
			c.find("fail_closed", Warning, at.to("overrides", "failure_mode_allow"), false, "true", "leave it out, or requests fail while Sightline is away")
		}
		break
	}
	if off {
		c.find("filter_disabled", Error, at, "Sightline is not asked on this route", "asked", "take disabled: true out for this route")
	}
	return !off
}

// path tells Sightline the prefix that a route takes off, and the model of its workers.
func (c *checker) path(s *site, w *way) {
	told := map[string]bool{}
	p, _ := as[*extprocv3.ExtProcPerRoute](w.of.GetTypedPerFilterConfig()[s.name])
	for _, kv := range p.GetOverrides().GetGrpcInitialMetadata() {
		told[kv.GetKey()] = true
	}
	var say []any
	if w.prefix != "" && !told["x-sightline-path"] {
		say = append(say, object("key", "x-sightline-path", "value", w.prefix))
	}
	if pool := c.pool(w.clusters); pool != "" && !told["x-sightline-pool"] {
		say = append(say, object("key", "x-sightline-pool", "value", pool))
	}
	if len(say) == 0 {
		return
	}
	c.miss("route_says", "set", "Sightline is told what only this route knows: the prefix that it takes off, or the model that its workers serve.",
		w.at.to("typed_per_filter_config", s.name), genHost.to("routes", -1, "typed_per_filter_config", filterName), func(any) any {
			return object("@type", typeURL+"filters.http.ext_proc.v3.ExtProcPerRoute", "overrides", object("grpc_initial_metadata", say))
		})
}

// pool is the model whose workers a cluster has.
func (c *checker) pool(clusters []string) string {
	for _, name := range clusters {
		there, _ := c.cluster(name)
		known := c.endpointsOf(there.of)
		for _, p := range c.want.Pools {
			if slices.ContainsFunc(p.Workers, func(a string) bool { return slices.Contains(known, a) }) {
				return p.Name
			}
		}
	}
	return ""
}

// reads reports whether a cluster follows Sightline's choice, and the header by which it dials any address ("": none).
func (c *checker) reads(name string) (header string, reads bool) {
	there, ok := c.cluster(name)
	if !ok {
		return "", false
	}
	if composite, ok := as[*compositev3.ClusterConfig](there.of.GetClusterType().GetTypedConfig()); ok {
		for _, sub := range composite.GetClusters() { // the first attempt's, where it goes by a header
			if part, ok := c.cluster(sub.GetName()); ok && part.of.GetOriginalDstLbConfig() != nil {
				return c.reads(sub.GetName())
			}
		}
		return "", false
	}
	if there.of.GetType() == clusterv3.Cluster_ORIGINAL_DST {
		o := there.of.GetOriginalDstLbConfig()
		if header = o.GetHttpHeaderName(); header == "" && o.GetUseHttpHeader() {
			header = "x-envoy-original-dst-host"
		}
		return header, strings.HasPrefix(header, "x-target-worker") || o.GetMetadataKey().GetKey() == "sightline"
	}
	for _, source := range c.override(there.of).GetOverrideHostSources() {
		reads = reads || source.GetHeader() == "x-target-worker" || source.GetHeader() == "x-gateway-destination-endpoint"
		key := source.GetMetadata()
		reads = reads || key.GetKey() == "sightline" || key.GetKey() == "envoy.lb"
	}
	return "", reads
}

func (c *checker) override(of *clusterv3.Cluster) *overridev3.OverrideHost {
	for _, p := range of.GetLoadBalancingPolicy().GetPolicies() {
		if o, ok := as[*overridev3.OverrideHost](p.GetTypedExtensionConfig().GetTypedConfig()); ok {
			return o
		}
	}
	return nil
}

// worker: a cluster that inference requests go to. unread: no cluster of their routes follows Sightline's choice.
func (c *checker) worker(name string, unread bool) {
	there, ok := c.cluster(name)
	if !ok {
		c.find("cluster_unknown", Error, path{"static_resources", "clusters"}, name, "a cluster of this name",
			"give the admin address of a running Envoy, if a control plane tells it")
		return
	}
	of, at := there.of, there.at
	header, _ := c.reads(name)
	switch o := c.override(of); {
	case !unread:
	case o != nil:
		c.find("choice_not_read", Error, at.to("load_balancing_policy"), "override_host reads something else",
			"override_host_sources: [{ metadata: { key: sightline, path: [{ key: endpoints }] } }]", "add this source, or all choices are ignored")
	case header != "":
		c.find("choice_not_read", Error, at.to("original_dst_lb_config", "http_header_name"), header, "x-target-worker",
			"http_header_name: x-target-worker: Sightline sets no other, and x-envoy-original-dst-host is believed from clients")
	case of.GetClusterType() != nil || of.GetType() == clusterv3.Cluster_LOGICAL_DNS || of.GetType() == clusterv3.Cluster_ORIGINAL_DST:
		got := of.GetType().String()
		if t := of.GetClusterType(); t != nil {
			got = t.GetName()
		}
		c.find("cluster_type", Error, at.to("type"), got, "STATIC, STRICT_DNS or EDS",
			"make it STRICT_DNS, or list the workers: Envoy knows no single worker of such a cluster, and could not follow a choice")
	default:
		c.miss("choice", "set", "A worker that Sightline names is taken, if it is one of this cluster; else the cluster balances as before. No other address is dialled.",
			at.to("load_balancing_policy"), path{"static_resources", "clusters", -1, "load_balancing_policy"}, fallback(of))
		if !slices.Contains(c.led, name) {
			c.led = append(c.led, name)
		}
	}
	if header != "" {
		c.allowed(name, there)
	}
	c.unknown(name, there)
	c.breakers(there, true, path{"static_resources", "clusters", -1, "circuit_breakers"})
	if header == "" && len(of.GetHealthChecks()) == 0 && of.GetOutlierDetection() == nil {
		c.find("worker_health", Note, at.to("health_checks"), "no health checks and no outlier detection", "either",
			"health_checks: [{ timeout: 1s, interval: 1s, unhealthy_threshold: 2, healthy_threshold: 1, http_health_check: { path: /health } }]; requests without a choice go to dead workers")
	}
}

// fallback puts the cluster's own balancing into the piece.
func fallback(of *clusterv3.Cluster) func(any) any {
	policy := strings.ToLower(of.GetLbPolicy().String())
	kinds := map[string]string{"round_robin": "RoundRobin", "least_request": "LeastRequest", "random": "Random", "ring_hash": "RingHash", "maglev": "Maglev"}
	message, ok := kinds[policy]
	return func(v any) any {
		inner := path{"policies", 0, "typed_extension_config", "typed_config", "fallback_policy"}
		if own := of.GetLoadBalancingPolicy(); own != nil {
			return set(v, inner, plain(own))
		}
		if !ok {
			return v
		}
		inner = inner.to("policies", 0, "typed_extension_config")
		v = set(v, inner.to("name"), "envoy.load_balancing_policies."+policy)
		return set(v, inner.to("typed_config"), object("@type", typeURL+"load_balancing_policies."+policy+".v3."+message))
	}
}

// allowed: an address that a header names must be checked before it is dialled, on the composite where there is one.
func (c *checker) allowed(name string, there placed[*clusterv3.Cluster]) {
	if minor, ok := minorOf(c.Envoy); ok && minor < 39 {
		return // there is no such filter
	}
	if !c.guarded(there.of) {
		c.find("any_address", Warning, there.at.to("typed_extension_protocol_options"), name+" dials whatever x-target-worker says", "an upstream_rbac filter with the workers' networks",
			"envoy.worker_networks in Sightline's configuration and \"sightline envoy\" print it; on a composite cluster, not on its parts: there it is silently not applied")
	}
}

func (c *checker) guarded(of *clusterv3.Cluster) bool {
	o, _ := as[*upstreamv3.HttpProtocolOptions](of.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"])
	for _, f := range o.GetHttpFilters() {
		if kind(f.GetTypedConfig()) == "rbac" {
			return true
		}
	}
	return false
}

// unknown: a worker that Envoy does not have is chosen in vain.
func (c *checker) unknown(name string, there placed[*clusterv3.Cluster]) {
	if h, _ := c.reads(name); h != "" || len(c.want.Pools) > 0 || there.of.GetType() == clusterv3.Cluster_STRICT_DNS {
		return
	}
	have := c.endpointsOf(there.of)
	if there.of.GetType() == clusterv3.Cluster_EDS && len(have) == 0 {
		return // a file does not say
	}
	for _, w := range c.want.Workers {
		if !slices.Contains(have, w) {
			c.find("worker_unknown", Warning, there.at.to("load_assignment"), "no endpoint "+w, "all workers of Sightline's", "add it: Sightline's choice of it is not followed")
		}
	}
}

// breakers: Envoy's defaults are 1,024 requests and 3 retries at a time.
func (c *checker) breakers(there placed[*clusterv3.Cluster], worker bool, from path) {
	var t *clusterv3.CircuitBreakers_Thresholds
	for _, x := range there.of.GetCircuitBreakers().GetThresholds() {
		if x.GetPriority() == corev3.RoutingPriority_DEFAULT {
			t = x
		}
	}
	at, low := there.at.to("circuit_breakers"), []string(nil)
	check := func(member string, v *wrapped32, or, least uint32) {
		if v != nil {
			or = v.GetValue()
		}
		if or < least {
			low = append(low, fmt.Sprintf("%s %d", member, or))
		}
	}
	check("max_requests", t.GetMaxRequests(), 1024, 4096)
	check("max_pending_requests", t.GetMaxPendingRequests(), 1024, 4096)
	if worker {
		check("max_connections", t.GetMaxConnections(), 1024, 4096)
		if t.GetRetryBudget() == nil {
			check("max_retries", t.GetMaxRetries(), 3, 64)
		}
	}
	if len(low) == 0 {
		return
	}
	c.find("circuit_breakers", Warning, at, strings.Join(low, ", "), "4096 and more; 64 retries and more",
		"raise them: what is above is answered with 503, a failed worker takes all of its requests into a retry at once")
	if t == nil {
		c.miss("circuit_breakers", "set", "1,024 requests at a time is one engine's batch; with 3 retries at a time requests fail when a worker dies.", at, from, nil)
	}
}

// sightlines: the cluster that Sightline is reached by.
func (c *checker) sightlines(s *site, name string) {
	gen := path{"static_resources", "clusters", 0}
	there, ok := c.cluster(name)
	for i, part := range c.parts() {
		if _, ok := c.cluster(part); !ok && name == "sightline" {
			c.miss("cluster "+part, "add", "Where Sightline is; one that hangs is found by its health check and not by each request.",
				path{"static_resources", "clusters"}, path{"static_resources", "clusters", i}, nil)
		}
	}
	if !ok {
		if name != "sightline" {
			c.find("cluster_unknown", Error, s.ours.at.to("grpc_service"), name, "a cluster of this name", "cluster_name: sightline, which \"sightline envoy\" prints")
		}
		return
	}
	o, _ := as[*upstreamv3.HttpProtocolOptions](there.of.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"])
	if o.GetExplicitHttpConfig().GetHttp2ProtocolOptions() == nil && o.GetAutoConfig() == nil && o.GetUseDownstreamProtocolConfig() == nil &&
		there.of.GetHttp2ProtocolOptions() == nil {
		c.find("sightline_http2", Error, there.at.to("typed_extension_protocol_options"), "HTTP/1", "HTTP/2, for gRPC", "explicit_http_config: { http2_protocol_options: {} }")
	}
	if w := o.GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetInitialStreamWindowSize(); w != nil && w.GetValue() < 1<<20 {
		c.find("http2_window", Warning, there.at.to("typed_extension_protocol_options"), fmt.Sprint(w.GetValue(), " bytes"), "1 MiB and more",
			"leave initial_stream_window_size out: a body waits for the window many times, and message_timeout runs")
	}
	panics, severity := there.of.GetCommonLbConfig().GetHealthyPanicThreshold(), Warning
	if s.ours.of.GetProcessingMode().GetRequestBodyMode() == extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED && s.ours.of.GetFailureModeAllow() {
		severity = Error // 500 to each request with a body while the port refuses, whatever failure_mode_allow says
	}
	if len(there.of.GetHealthChecks()) == 0 && there.of.GetOutlierDetection() == nil || panics == nil || panics.GetValue() > 0 {
		c.find("sightline_health", severity, there.at.to("health_checks"), "none, or not used: a panic threshold above 0", "a gRPC health check, and common_lb_config: { healthy_panic_threshold: { value: 0 } }",
			"take both over from the cluster \"sightline\" that \"sightline envoy\" prints: while Sightline hangs each request waits for message_timeout, and with FULL_DUPLEX_STREAMED fails")
	}
	c.breakers(there, false, gen.to("circuit_breakers"))
}

// parts are the clusters that the generator makes for Sightline, by name.
func (c *checker) parts() []string {
	names := []string{"sightline"}
	if n := len(strings.Split(c.want.Options.Sightline, ",")); n > 1 {
		for i := range n {
			names = append(names, fmt.Sprint("sightline_log_", i))
		}
	}
	return names
}

// steering: whatever a client sends under these names must never have an effect.
func (c *checker) steering(s *site, dials bool) {
	var gone []*mutationv3.HeaderMutation
	for _, e := range s.hcm.GetEarlyHeaderMutationExtensions() {
		if m, ok := as[*earlyv3.HeaderMutation](e.GetTypedConfig()); ok {
			gone = append(gone, m.GetMutations()...)
		}
	}
	for _, f := range s.hcm.GetHttpFilters()[:s.index] {
		if m, ok := as[*headersv3.HeaderMutation](f.GetTypedConfig()); ok && !dials {
			gone = append(gone, m.GetMutations().GetRequestMutations()...)
		}
	}
	var left []string
	for _, h := range steering.Headers {
		removed := func(m *mutationv3.HeaderMutation) bool {
			match := m.GetRemoveOnMatch().GetKeyMatcher()
			if p := strings.ToLower(match.GetPrefix()); p != "" && strings.HasPrefix(h.Name, p) {
				return true
			}
			return !h.Prefix && (h.Match(m.GetRemove()) || h.Match(match.GetExact()))
		}
		if !slices.ContainsFunc(gone, removed) {
			left = append(left, h.Name+map[bool]string{true: "*"}[h.Prefix])
		}
	}
	if len(left) == 0 {
		return
	}
	at, severity := s.at.to("early_header_mutation_extensions"), Warning
	if dials && slices.Contains(left, "x-target-worker*") || slices.Contains(left, "x-gateway-destination-endpoint*") {
		severity = Error
	}
	c.find("steering_headers", severity, at, fmt.Sprintf("believed from clients: %s", strings.Join(left, ", ")), "removed before the first route is looked for",
		"early_header_mutation_extensions as in the piece: with Sightline away a client would choose the worker, or any address, itself")
	c.miss("headers", "add", "Headers that steer are taken from clients, x-envoy-* and x-request-id among them (Envoy makes a new id).",
		at, genManager.to("early_header_mutation_extensions", 0), nil)
}

// log: Sightline's report of how requests went, by which it knows each worker's load.
func (c *checker) log(s *site) {
	ends, begins := false, false
	read := func(list []*accesslogv3.AccessLog, at path) (found bool) {
		for i, l := range list {
			a, ok := as[*alsv3.HttpGrpcAccessLogConfig](l.GetTypedConfig())
			if !ok || !c.isSightline(a.GetCommonConfig().GetGrpcService()) {
				continue
			}
			found = true
			at := at.to(i, "typed_config")
			if !slices.Contains(a.GetAdditionalRequestHeadersToLog(), "x-sightline-id") {
				c.find("access_log_id", Error, at.to("additional_request_headers_to_log"), a.GetAdditionalRequestHeadersToLog(), "[x-sightline-id]",
					"add x-sightline-id: without it no line is joined with its decision")
			}
			common := a.GetCommonConfig()
			flush := common.GetBufferFlushInterval()
			if (flush == nil || flush.AsDuration() > 200*time.Millisecond) && (common.GetBufferSizeBytes() == nil || common.GetBufferSizeBytes().GetValue() > 0) {
				c.find("access_log_late", Warning, at.to("common_config", "buffer_flush_interval"), shown(flush, "1s, Envoy's default"), "0.02s",
					"buffer_flush_interval: 0.02s: an ended request counts as its worker's load until then")
			}
		}
		return found
	}
	ends = read(s.hcm.GetAccessLog(), s.at.to("access_log"))
	const why = "Sightline knows each worker's load and health by it."
	if !ends {
		c.find("access_log", Warning, s.at.to("access_log"), "none to Sightline", "an http_grpc access log", "the piece: "+why)
		c.logs("log of ends", "How requests ended. "+why, s.at.to("access_log"), genManager.to("access_log"))
	}
	if s.router == len(s.hcm.GetHttpFilters()) {
		return
	}
	r, ok := as[*routerv3.Router](s.hcm.GetHttpFilters()[s.router].GetTypedConfig())
	if !ok {
		return
	}
	at := s.at.to("http_filters", s.router, "typed_config")
	if begins = read(r.GetUpstreamLog(), at.to("upstream_log")); !begins {
		c.logs("log of begins", "Which worker has a request, and which attempts failed. "+why, at.to("upstream_log"), genRouter.to("upstream_log"))
	}
	if !r.GetUpstreamLogOptions().GetFlushUpstreamLogOnUpstreamStream() {
		c.miss("upstream_log_options", "set", "The line comes when the worker has the request and not when it has ended.", at.to("upstream_log_options"),
			genRouter.to("upstream_log_options"), nil)
	}
}

// logs adds the generator's logs: to each Sightline one.
func (c *checker) logs(name, why string, at, from path) {
	n := len(c.parts())
	for i := range max(1, n-1) {
		label := name
		if i > 0 {
			label = fmt.Sprint(name, " ", i+1)
		}
		c.miss(label, "add", why, at, from.to(nth{"envoy.access_loggers.http_grpc", i}), nil)
	}
}

// timeouts: an engine may think for minutes before the first byte, and between bytes.
func (c *checker) timeouts(s *site) {
	at := s.at.to("stream_idle_timeout")
	const fix = "stream_idle_timeout: 3600s: an engine may think for minutes before the first byte, and between bytes"
	switch t := s.hcm.GetStreamIdleTimeout(); {
	case t == nil:
		c.find("stream_idle_timeout", Warning, at, "5m, Envoy's default", "3600s", fix)
		c.miss("stream_idle_timeout", "set", "A generation may be silent for longer than 5 minutes, Envoy's default.", at, genManager.to("stream_idle_timeout"), nil)
	case t.AsDuration() > 0 && t.AsDuration() < 30*time.Minute:
		c.find("stream_idle_timeout", Warning, at, t.AsDuration(), "3600s", fix)
	}
	if t := s.hcm.GetCommonHttpProtocolOptions().GetMaxStreamDuration(); t.AsDuration() > 0 && t.AsDuration() < time.Hour {
		c.find("route_timeout", longer(t), s.at.to("common_http_protocol_options", "max_stream_duration"), t.AsDuration(), "none", "leave it out: a generation takes minutes")
	}
	if t := s.hcm.GetRequestTimeout(); t.AsDuration() > 0 && t.AsDuration() < 30*time.Second {
		c.find("request_timeout", Warning, s.at.to("request_timeout"), t.AsDuration(), "60s and more", "pictures over a slow line take longer")
	}
	if w := s.hcm.GetHttp2ProtocolOptions().GetInitialStreamWindowSize(); w != nil && w.GetValue() < 1<<20 {
		c.find("http2_window", Warning, s.at.to("http2_protocol_options", "initial_stream_window_size"), fmt.Sprint(w.GetValue(), " bytes"), "16 MiB",
			"http2_protocol_options: { initial_stream_window_size: 16777216, initial_connection_window_size: 67108864 }: uploads stop at each window")
	}
}

func longer(t *durationpb.Duration) string {
	if t.AsDuration() <= time.Minute {
		return Error
	}
	return Warning
}

func shown(t *durationpb.Duration, otherwise string) string {
	if t == nil {
		return otherwise
	}
	return t.AsDuration().String()
}

func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s" }
