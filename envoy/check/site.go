package check

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	mutationv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	alsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	bufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	authzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	headersv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	earlyv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/denied"
)

// Paths of the parts in the generator's output for an override_host.
var (
	genManager = path{"static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config"}
	genHost    = genManager.to("route_config", "virtual_hosts", 0)
	genFilter  = genManager.to("http_filters", nth{filterName, 0})
	genCounts  = genManager.to("http_filters", nth{countsName, 0}) // with TokenUsage
	genWorkers = path{"static_resources", "clusters", -1}
	genRouter  = genManager.to("http_filters", nth{"envoy.filters.http.router", 0}, "typed_config")
)

const (
	filterName = "envoy.filters.http.ext_proc"
	countsName = "envoy.filters.http.ai_protocol_manager"
	typeURL    = "type.googleapis.com/envoy.extensions."
)

// version checks for the oldest release that the generator supports, 1.36.
func (c *checker) version() {
	if minor, ok := minorOf(c.Envoy); ok && minor < 36 {
		c.find("envoy_version", path{"node"}, c.Envoy)
	}
}

// minorOf returns the n of 1.n.
func minorOf(version string) (int, bool) {
	_, rest, ok := strings.Cut(version, ".")
	n, err := strconv.Atoi(strings.SplitN(rest, ".", 2)[0])
	return n, ok && err == nil
}

// process checks what concerns the whole process.
func (c *checker) process() {
	if minor, known := minorOf(c.Envoy); c.adminOpen && (!known || minor >= 37) {
		c.find("admin_paths", path{"admin", "allow_paths"}, "all pages")
	}
	c.bursts()
}

// bursts checks that a connection's requests are read one by one: a client that resets each request at once otherwise opens
// thousands of streams to Sightline in one turn of Envoy's loop. Of two layers with a value the later counts.
func (c *checker) bursts() {
	const key = "http.max_requests_per_io_cycle"
	at, got := path{"layered_runtime"}, "4294967295, Envoy's default"
	from := at
	for i, layer := range c.layers.GetLayers() {
		static := path{"layered_runtime", "layers", i, "static_layer"}
		for _, in := range []path{{key}, {"http", "max_requests_per_io_cycle"}} {
			v := structpb.NewStructValue(layer.GetStaticLayer())
			for _, name := range in {
				v = v.GetStructValue().GetFields()[fmt.Sprint(name)]
			}
			if n, err := strconv.ParseFloat(cmp.Or(v.GetStringValue(), fmt.Sprint(v.GetNumberValue())), 64); v != nil && err == nil {
				at, got = slices.Concat(static, in), map[bool]string{false: fmt.Sprint(n)}[n >= 1 && n <= maxPerCycle]
				from = path{"layered_runtime", "layers", 0, "static_layer", key}
			}
		}
	}
	if got == "" {
		return
	}
	how := "set"
	if len(at) == 1 && c.layers != nil {
		at, from, how = at.to("layers"), from.to("layers", 0), "add"
	}
	c.find("request_bursts", at, key+": "+got)
	c.miss("request_bursts", how, "Of one connection Envoy begins so many requests at once: a client that resets them has Sightline "+
		"asked for thousands.", at, from, nil)
}

// maxPerCycle is the largest number of requests that one connection may begin in a turn of Envoy's loop.
const maxPerCycle = 16

// site checks an HTTP connection manager that inference requests pass.
func (c *checker) site(s *site, routes *routev3.RouteConfiguration) {
	s.router = len(s.hcm.GetHttpFilters())
	for i, f := range s.hcm.GetHttpFilters() {
		if p, ok := as[*extprocv3.ExternalProcessor](f.GetTypedConfig()); ok && s.ours.of == nil && c.isSightline(p.GetGrpcService()) {
			s.ours, s.name, s.index = located[*extprocv3.ExternalProcessor]{s.at.to("http_filters", i, "typed_config"), p}, f.GetName(), i
		}
		if kind(f.GetTypedConfig()) == "router" {
			s.router = min(s.router, i)
		}
	}
	s.grpc = object("envoy_grpc", object("cluster_name", c.sightlineHere()))
	if s.ours.of == nil {
		s.index, s.name = s.router, filterName
		for _, f := range s.hcm.GetHttpFilters() {
			if f.GetName() == filterName { // another server's filter of the same name; routes refer to filters by name
				s.name = "sightline"
			}
		}
		c.miss("filter", "add before ["+strconv.Itoa(s.router)+"]",
			"Sightline is asked, after all other filters and before the router; the request goes on "+
				"balanced if it does not answer in time.", s.at.to("http_filters"), genFilter, func(v any) any {
				asks := path{"typed_config", "grpc_service", "envoy_grpc", "cluster_name"}
				return set(set(v, path{"name"}, s.name), asks, c.sightlineHere())
			})
	} else {
		c.processor(s.ours.of, s.ours.at)
		s.grpc = asked(s.ours.of.GetGrpcService())
	}
	c.counts(s)
	c.filters(s)
	dials := c.hosts(s, routes)
	c.steering(s, routes, dials)
	c.tenant(s, routes)
	c.log(s)
	c.timeouts(s)
	if name, ok := get(s.grpc, path{"envoy_grpc", "cluster_name"}); ok {
		clusterChecks{c}.sightlines(s, fmt.Sprint(name))
	}
}

// sightlineHere returns the cluster by which Sightline is reached: one that has all of its addresses, or else the generator's.
func (c *known) sightlineHere() string {
	_, there := c.cluster("sightline")
	for i := 0; i < len(c.clusters) && !there; i++ {
		all := speaksHTTP2(c.clusters[i].of)
		for _, addr := range c.sightlineAddrs() {
			all = all && c.has(c.clusters[i].of, []string{addr})
		}
		if all {
			return c.clusters[i].of.GetName()
		}
	}
	return "sightline"
}

// asked returns how access logs reach the Sightline that a filter asks: by the same cluster or target, with the same credentials.
// A filter's timeout is an answer's; on a log it would end the stream.
func asked(g *corev3.GrpcService) any {
	g, _ = proto.Clone(g).(*corev3.GrpcService)
	g.Timeout = nil
	g.InitialMetadata = slices.DeleteFunc(g.GetInitialMetadata(), func(kv *corev3.HeaderValue) bool {
		return strings.HasPrefix(kv.GetKey(), "x-sightline-")
	})
	return plain(g)
}

// counts checks, if token_usage is set, for the filter that reads the engine's token counts from answers. Envoy has it since 1.40.
func (c *checker) counts(s *site) {
	minor, known := minorOf(c.Envoy)
	there := func(f *hcmv3.HttpFilter) bool { return kind(f.GetTypedConfig()) == "ai_protocol_manager" }
	if !c.want.TokenUsage || known && minor < 40 || slices.ContainsFunc(s.hcm.GetHttpFilters(), there) {
		return
	}
	c.miss("token counts", "add before ["+strconv.Itoa(s.index)+"]",
		"The engine's own counts come back to Sightline (envoy.token_usage). Needs Envoy 1.40.",
		s.at.to("http_filters"), genCounts, nil)
}

// failure checks what happens to requests that Sightline does not answer.
func (c *checker) failure(allow bool, at path) {
	if c.want.FailClosed && allow {
		c.as(Error, "failure_mode", at, true)
	} else if !c.want.FailClosed && !allow {
		c.find("failure_mode", at, false)
	}
}

// processor checks how Sightline is asked.
func (c *checker) processor(p *extprocv3.ExternalProcessor, at path) {
	c.modes(p.GetProcessingMode(), at.to("processing_mode"))
	switch t := p.GetMessageTimeout(); {
	case t == nil || t.AsDuration() < c.want.MessageTimeout:
		c.find("message_timeout", at.to("message_timeout"), shown(t, "200ms, Envoy's default"))
	case t.AsDuration() > 30*time.Second:
		c.as(Warning, "message_timeout", at.to("message_timeout"), t.AsDuration())
	}
	// A filter that waits so long anyway need not be asked to; and while a body streams, no timeout runs.
	longest := envoy.LongestWait(c.want.MessageTimeout, c.want.BodyLimit)
	most, place := p.GetMaxMessageTimeout(), at.to("max_message_timeout")
	buffered := p.GetProcessingMode().GetRequestBodyMode() == extprocv3.ProcessingMode_BUFFERED
	if buffered && max(p.GetMessageTimeout().AsDuration(), most.AsDuration()) < longest {
		c.as(Warning, "message_timeout", place, shown(most, "0s, Envoy's default: it never waits longer"))
		c.miss("max_message_timeout", "set", "Envoy waits longer for large bodies when Sightline asks it to; without it they reach "+
			"workers uncleaned when several come at once.", place, genFilter.to("typed_config", "max_message_timeout"), nil)
	}
	c.failure(p.GetFailureModeAllow(), at.to("failure_mode_allow"))
	if p.GetObservabilityMode() {
		c.find("not_asked", at.to("observability_mode"), true)
	}
	if p.GetDisableImmediateResponse() {
		c.find("mutation_rules", at.to("disable_immediate_response"), true)
	}
	if !slices.Contains(p.GetMetadataOptions().GetReceivingNamespaces().GetUntyped(), "sightline") {
		list := path{"metadata_options", "receiving_namespaces", "untyped"}
		c.miss("metadata", "add", "The choice and the decision's id come as metadata of this namespace.", slices.Concat(at, list),
			slices.Concat(genFilter.to("typed_config"), list.to(0)), nil)
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
		c.find("body_limit", at.to("grpc_service"), fmt.Sprintf("answers of more than %d bytes fail", limit))
	}
}

// client checks that Envoy tells Sightline the client's address, in the metadata of a gRPC service or of a route.
func (c *checker) client(g *corev3.GrpcService, ofRoute []*corev3.HeaderValue, at path) {
	const key = "x-sightline-client"
	is := func(kv *corev3.HeaderValue) bool { return strings.EqualFold(kv.GetKey(), key) }
	told := func(kv *corev3.HeaderValue) bool { return is(kv) && kv.GetValue() != "" }
	all := g.GetInitialMetadata()
	if slices.ContainsFunc(all, told) || slices.ContainsFunc(ofRoute, told) {
		return
	}
	const why = "Sightline divides what is bounded among clients by their addresses; without it one client can take all. " +
		"Behind another proxy see docs/security.md."
	from := genFilter.to("typed_config", "grpc_service", "initial_metadata", 1)
	at = at.to("initial_metadata")
	c.find("client_address", at, "no "+key)
	if i := slices.IndexFunc(all, is); i >= 0 {
		c.miss("client_address", "set", why, at.to(i, "value"), from.to("value"), nil)
		return
	}
	c.miss("client_address", "add", why, at, from, nil)
}

// modes checks which parts of a request Sightline gets.
func (c *checker) modes(m *extprocv3.ProcessingMode, at path) {
	switch mode := m.GetRequestBodyMode(); mode {
	case extprocv3.ProcessingMode_BUFFERED:
	case extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED:
		if m.GetRequestTrailerMode() != extprocv3.ProcessingMode_SEND {
			c.find("body_mode", at.to("request_trailer_mode"), m.GetRequestTrailerMode())
		}
	default:
		c.find("body_mode", at.to("request_body_mode"), mode)
	}
	if m.GetRequestHeaderMode() == extprocv3.ProcessingMode_SKIP {
		c.find("body_mode", at.to("request_header_mode"), "SKIP")
	}
	if mode := m.GetResponseBodyMode(); mode == extprocv3.ProcessingMode_BUFFERED || mode == extprocv3.ProcessingMode_BUFFERED_PARTIAL {
		c.find("body_mode", at.to("response_body_mode"), mode)
	}
}

// whole compiles an expression that a whole text must match, as in Envoy; nil: there is none, or it is not valid.
func whole(text string) *regexp.Regexp {
	re, err := regexp.Compile(`^(?:` + text + `)$`)
	if err != nil || text == "" {
		return nil
	}
	return re
}

// mutations checks what Sightline may set. They hold for its own responses too.
func (c *checker) mutations(m *mutationv3.HeaderMutationRules, at path) {
	allow, forbid := whole(m.GetAllowExpression().GetRegex()), whole(m.GetDisallowExpression().GetRegex())
	var lost []string
	for _, h := range []string{c.want.Header, "x-sightline-id", "x-route-reason", "x-data-parallel-rank",
		"x-prefiller-host-port", "x-encoder-hosts-ports", "x-kv-cache-source-host-port", "content-length", "content-type", "retry-after"} {
		if forbid != nil && forbid.MatchString(h) || m.GetDisallowAll().GetValue() && (allow == nil || !allow.MatchString(h)) {
			lost = append(lost, h)
		}
	}
	if len(lost) > 0 {
		c.find("mutation_rules", at, "not allowed: "+strings.Join(lost, ", "))
	}
}

// Filters by function, by the names of their types.
var (
	changers = []string{"decompressor", "grpc_json_transcoder", "proto_message_extraction", "grpc_http1_bridge", "aws_lambda"}
	scripts  = []string{"lua", "wasm", "golang", "dynamic_modules"}
)

// filters checks the filters before and after Sightline's.
func (c *checker) filters(s *site) {
	duplex := s.ours.of.GetProcessingMode().GetRequestBodyMode() == extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED ||
		s.ours.of == nil && c.want.FullDuplex
	for i, f := range s.hcm.GetHttpFilters() {
		at, packed := s.at.to("http_filters", i), f.GetTypedConfig()
		name, behind := kind(packed), i > s.index && s.ours.of != nil
		switch {
		case behind && slices.Contains(changers, name):
			c.find("body_changed_behind", at, f.GetName()+" changes the body that Sightline has read")
		case behind && slices.Contains(scripts, name):
			c.as(Note, "body_changed_behind", at, f.GetName()+" may change the body that Sightline has read")
		case i == s.router && s.ours.of != nil && s.index > i:
			c.find("not_asked", at, f.GetName()+" stands before Sightline's filter")
		}
		if b, ok := as[*bufferv3.Buffer](packed); ok {
			c.small(at.to("typed_config", "max_request_bytes"), int64(b.GetMaxRequestBytes().GetValue()))
		}
		a, _ := as[*authzv3.ExtAuthz](packed)
		if b := a.GetWithRequestBody(); b != nil && !b.GetAllowPartialMessage() {
			c.small(at.to("typed_config", "with_request_body", "max_request_bytes"), int64(b.GetMaxRequestBytes()))
		}
		if p, ok := as[*extprocv3.ExternalProcessor](packed); ok && p != s.ours.of && (i != s.index || s.ours.of == nil) {
			mode := p.GetProcessingMode().GetRequestBodyMode()
			if behind && mode != extprocv3.ProcessingMode_NONE {
				c.as(Warning, "body_changed_behind", at, f.GetName()+" may change the body that Sightline has read")
			}
			if minor, told := minorOf(c.Envoy); mode == extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED && duplex {
				severity := Warning
				if told && minor < 38 {
					severity = Error
				}
				c.as(severity, "body_changed_behind", at.to("typed_config", "processing_mode", "request_body_mode"),
					"a second ext_proc with FULL_DUPLEX_STREAMED")
			}
		}
	}
}

// small reports a limit that is smaller than the bodies that Sightline accepts.
func (c *checker) small(at path, limit int64) bool {
	if limit >= int64(c.want.BodyLimit) {
		return false
	}
	c.find("body_limit", at, fmt.Sprintf("%d: bodies above it are answered with 413", limit))
	return true
}

// steering checks that nothing a client sends under these names has an effect. dials are the headers by which clusters dial.
func (c *checker) steering(s *site, routes *routev3.RouteConfiguration, dials []string) {
	var early, general []*mutationv3.HeaderMutation
	for _, e := range s.hcm.GetEarlyHeaderMutationExtensions() {
		if m, ok := as[*earlyv3.HeaderMutation](e.GetTypedConfig()); ok {
			early = append(early, m.GetMutations()...)
		}
	}
	filters := s.hcm.GetHttpFilters()[:s.index]
	for _, f := range filters {
		if m, ok := as[*headersv3.HeaderMutation](f.GetTypedConfig()); ok && len(dials) == 0 {
			general = append(general, m.GetMutations().GetRequestMutations()...)
		}
	}
	table := slices.Clone(denied.Headers)
	for _, d := range dials {
		if !slices.ContainsFunc(table, func(h denied.Header) bool { return h.Match(d) }) {
			table = append(table, denied.Header{Name: d})
		}
	}
	var left, theirs []string
	var open []*way
	for _, h := range table {
		name := h.Name + map[bool]string{true: "*"}[h.Prefix]
		gone := func(list []*mutationv3.HeaderMutation) bool {
			return slices.ContainsFunc(list, func(m *mutationv3.HeaderMutation) bool { return removes(m, h) })
		}
		switch {
		case gone(early):
			theirs = append(theirs, name)
			continue
		case gone(general):
			continue
		}
		ways := s.ways(func(w *way) bool { return w.guarded && (len(dials) > 0 || !gone(c.perRoute(filters, w, routes))) })
		if len(ways) == 0 {
			continue
		}
		left = append(left, name)
		for _, w := range ways {
			if !slices.Contains(open, w) {
				open = append(open, w)
			}
		}
	}
	at := s.at.to("early_header_mutation_extensions")
	if hit := s.others(); len(theirs) > 0 && len(hit) > 0 {
		c.as(Note, "steering_headers", at, "removed also from requests to "+strings.Join(hit, ", "))
	}
	if len(left) == 0 {
		return
	}
	severity := Warning
	for _, d := range append([]string{"x-gateway-destination-endpoint"}, dials...) {
		if slices.ContainsFunc(left, func(l string) bool { return strings.HasPrefix(d, strings.TrimSuffix(l, "*")) }) {
			severity = Error
		}
	}
	c.as(severity, "steering_headers", at, fmt.Sprintf("accepted from clients: %s", strings.Join(left, ", ")))
	const why = "Removes steering headers that clients send, x-envoy-* and x-request-id among them (Envoy makes a new id)."
	from := genManager.to("early_header_mutation_extensions", 0)
	if !s.shared() || len(dials) > 0 {
		c.miss("headers", "add", why, at, from, func(v any) any { return alsoRemove(v, dials) })
		return
	}
	// Other services' requests pass this connection manager too, and keep their headers: a filter that does nothing by itself
	// removes them on the workers' routes.
	if !slices.ContainsFunc(filters, func(f *hcmv3.HttpFilter) bool { return f.GetName() == removerName }) {
		c.miss("headers", "add before ["+strconv.Itoa(s.index)+"]", why+" It does so on the routes below.", s.at.to("http_filters"), from,
			func(any) any {
				return object("name", removerName, "typed_config", object("@type", typeURL+"filters.http.header_mutation.v3.HeaderMutation"))
			})
	}
	for _, w := range open {
		c.miss("headers on a route", "set", why, w.at.to("typed_per_filter_config", removerName), from, func(v any) any {
			list, _ := get(v, path{"typed_config", "mutations"})
			return object("@type", typeURL+"filters.http.header_mutation.v3.HeaderMutationPerRoute",
				"mutations", object("request_mutations", renewed(list)))
		})
	}
}

// removerName is the filter that removes steering headers on some routes of a connection manager.
const removerName = "sightline_headers"

// removes reports whether nothing of a client's header passes a mutation.
func removes(m *mutationv3.HeaderMutation, h denied.Header) bool {
	match := m.GetRemoveOnMatch().GetKeyMatcher()
	if p := strings.ToLower(match.GetPrefix()); p != "" && strings.HasPrefix(h.Name, p) {
		return true
	}
	set := ""
	switch a := m.GetAppend(); a.GetAppendAction() {
	case corev3.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD, corev3.HeaderValueOption_OVERWRITE_IF_EXISTS:
		set = a.GetHeader().GetKey()
	}
	return !h.Prefix && (h.Match(m.GetRemove()) || h.Match(match.GetExact()) || h.Match(set))
}

// perRoute returns what filters of header mutations before Sightline's do on a route.
func (c *known) perRoute(filters []*hcmv3.HttpFilter, w *way, routes *routev3.RouteConfiguration) (all []*mutationv3.HeaderMutation) {
	for _, f := range filters {
		if _, ok := as[*headersv3.HeaderMutation](f.GetTypedConfig()); !ok {
			continue
		}
		for _, level := range []map[string]*anypb.Any{w.of.GetTypedPerFilterConfig(), w.host.GetTypedPerFilterConfig(),
			routes.GetTypedPerFilterConfig()} {
			m, _ := as[*headersv3.HeaderMutationPerRoute](level[f.GetName()])
			all = append(all, m.GetMutations().GetRequestMutations()...)
		}
	}
	return all
}

// alsoRemove adds headers to the generator's early mutation that are not in its table.
func alsoRemove(v any, names []string) any {
	at := path{"typed_config", "mutations"}
	list, _ := get(v, at)
	all, _ := list.([]any)
	all = slices.Clone(all)
	for _, n := range names {
		if !slices.ContainsFunc(denied.Headers, func(h denied.Header) bool { return h.Match(n) }) {
			all = append(all, object("remove", n))
		}
	}
	return set(v, at, all)
}

// renewed has a filter overwrite the request id instead of removing it: Envoy makes a new one before filters only.
func renewed(list any) any {
	all, _ := list.([]any)
	all = slices.Clone(all)
	for i, m := range all {
		if name, _ := get(m, path{"remove"}); name == "x-request-id" {
			header := object("key", "x-request-id", "value", "%UNIQUE_ID%")
			all[i] = object("append", object("header", header, "append_action", "OVERWRITE_IF_EXISTS_OR_ADD"))
		}
	}
	return all
}

// tenant checks that the header that names the tenant reaches no worker, on any of their routes.
func (c *checker) tenant(s *site, routes *routev3.RouteConfiguration) {
	name := c.want.TenantHeader
	removed := func(list []string) bool {
		return slices.ContainsFunc(list, func(r string) bool { return strings.EqualFold(r, name) })
	}
	if name == "" || removed(routes.GetRequestHeadersToRemove()) {
		return
	}
	for _, w := range s.ways(func(w *way) bool { return w.guarded }) {
		if removed(w.host.GetRequestHeadersToRemove()) || removed(w.of.GetRequestHeadersToRemove()) {
			continue
		}
		at := w.at.to("request_headers_to_remove")
		c.find("steering_headers", at, name+" reaches workers")
		c.miss("tenant_header", "add", "Removed after Sightline has read it: workers need not know tenants, and Sightline may be away.", at,
			genHost.to("request_headers_to_remove", 0), nil)
	}
}

// log checks the access logs to Sightline, from which it knows how requests ended and each worker's load.
func (c *checker) log(s *site) {
	read := func(list []*accesslogv3.AccessLog, at path) (found bool) {
		for i, l := range list {
			a, ok := as[*alsv3.HttpGrpcAccessLogConfig](l.GetTypedConfig())
			g, named := a.GetCommonConfig().GetGrpcService(), a.GetCommonConfig().GetLogName() == "sightline"
			if !ok || !c.isSightline(g) && (!named || g.GetEnvoyGrpc().GetClusterName() == "") {
				continue
			}
			found = true
			at := at.to(i, "typed_config")
			c.logsTo(s, g.GetEnvoyGrpc().GetClusterName(), at.to("common_config", "grpc_service"))
			if !slices.Contains(a.GetAdditionalRequestHeadersToLog(), "x-sightline-id") {
				c.as(Error, "access_log", at.to("additional_request_headers_to_log"), a.GetAdditionalRequestHeadersToLog())
			}
			common := a.GetCommonConfig()
			flush := common.GetBufferFlushInterval()
			if (flush == nil || flush.AsDuration() > 200*time.Millisecond) && (common.GetBufferSizeBytes() == nil ||
				common.GetBufferSizeBytes().GetValue() > 0) {
				c.find("access_log", at.to("common_config", "buffer_flush_interval"), shown(flush, "1s, Envoy's default"))
			}
		}
		return found
	}
	const why = "Sightline knows each worker's load and health by it."
	if !read(s.hcm.GetAccessLog(), s.at.to("access_log")) {
		c.find("access_log", s.at.to("access_log"), "none to Sightline")
		c.logs(s, "log of ends", "How requests ended. "+why, s.at.to("access_log"), genManager.to("access_log"))
	}
	if s.router == len(s.hcm.GetHttpFilters()) {
		return
	}
	r, ok := as[*routerv3.Router](s.hcm.GetHttpFilters()[s.router].GetTypedConfig())
	if !ok {
		return
	}
	at := s.at.to("http_filters", s.router, "typed_config")
	for i, l := range r.GetUpstreamLog() {
		if a, ok := as[*alsv3.HttpGrpcAccessLogConfig](l.GetTypedConfig()); ok && c.isSightline(a.GetCommonConfig().GetGrpcService()) &&
			strings.Contains(prototext.Format(l.GetFilter()), "response_flag_filter") {
			c.find("access_log", at.to("upstream_log", i, "filter"), "only what failed")
		}
	}
	if !read(r.GetUpstreamLog(), at.to("upstream_log")) {
		c.logs(s, "log of begins", "Which worker has a request, and which attempts failed. "+why, at.to("upstream_log"),
			genRouter.to("upstream_log"))
	}
	if !r.GetUpstreamLogOptions().GetFlushUpstreamLogOnUpstreamStream() {
		c.miss("upstream_log_options", "set", "The entry is written when the worker has the request, not when it has ended.",
			at.to("upstream_log_options"),
			genRouter.to("upstream_log_options"), nil)
	}
}

// logs adds the generator's access logs, one to each Sightline; the log to a single one goes where its filter asks.
func (c *checker) logs(s *site, name, why string, at, from path) {
	parts := c.parts()
	for i := range max(1, len(parts)-1) {
		label, to := name, s.grpc
		if i > 0 {
			label = fmt.Sprint(name, " ", i+1)
		}
		if len(parts) > 1 {
			to = nil
			s.logs = append(s.logs, parts[i+1])
		}
		c.miss(label, "add", why, at, from.to(nth{"envoy.access_loggers.http_grpc", i}), func(v any) any {
			if to == nil {
				return v
			}
			return set(v, path{"typed_config", "common_config", "grpc_service"}, to)
		})
	}
}

// logsTo checks that the cluster exists to which an access log goes: Envoy starts without it, and drops the entries.
func (c *checker) logsTo(s *site, name string, at path) {
	if _, ok := c.cluster(name); ok || name == "" {
		return
	}
	c.find("cluster_unknown", at, name)
	if parts := c.parts(); len(parts) > 1 && slices.Contains(parts, name) {
		s.logs = append(s.logs, name)
		return
	}
	if to, _ := get(s.grpc, path{"envoy_grpc", "cluster_name"}); to == name {
		return // its filter names it too
	}
	c.miss("log to Sightline", "set", "The cluster that this log names is not there: no entry arrives.", at,
		genManager.to("access_log", nth{"envoy.access_loggers.http_grpc", 0}, "typed_config", "common_config", "grpc_service"),
		func(any) any { return s.grpc })
}

// timeouts checks the idle timeouts: an engine may compute for minutes before the first byte, and between bytes.
func (c *checker) timeouts(s *site) {
	at := s.at.to("stream_idle_timeout")
	switch t := s.hcm.GetStreamIdleTimeout(); {
	case t == nil:
		for _, w := range s.ways(func(w *way) bool { return len(w.asked) > 0 && w.of.GetRoute().GetIdleTimeout() == nil }) {
			c.find("route_timeout", at, "5m, Envoy's default")
			place := at
			if s.shared() {
				place = w.at.to("route", "idle_timeout")
			}
			c.miss("stream_idle_timeout", "set", "A generation may be silent for longer than 5 minutes, Envoy's default.", place,
				genManager.to("stream_idle_timeout"), nil)
		}
	case t.AsDuration() > 0 && t.AsDuration() < 30*time.Minute:
		c.find("route_timeout", at, t.AsDuration())
	}
	if t := s.hcm.GetCommonHttpProtocolOptions().GetMaxStreamDuration(); t.AsDuration() > 0 && t.AsDuration() < time.Hour {
		c.as(longer(t), "route_timeout", s.at.to("common_http_protocol_options", "max_stream_duration"), t.AsDuration())
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
