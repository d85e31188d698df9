package check

import (
	"slices"
	"strings"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Checks along a request's way: virtual hosts and routes.

// hosts checks the routes of inference requests and their clusters. It returns the headers by which clusters dial any address.
func (c *checker) hosts(s *site, routes *routev3.RouteConfiguration) (dials []string) {
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
				if header != "" && !slices.Contains(dials, header) {
					dials = append(dials, header)
				}
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
				clusterChecks{c}.worker(name, slices.ContainsFunc(w.asked, func(p string) bool { return !picked[p] }))
			}
		}
	}
	return dials
}

// elsewhere checks routes to other services, which need not ask Sightline.
func (c *checker) elsewhere(s *site, at path, routes *routev3.RouteConfiguration, settings ...map[string]*anypb.Any) {
	for _, m := range append(settings, routes.GetTypedPerFilterConfig()) {
		if m[s.name] != nil {
			return
		}
	}
	if s.ours.of != nil && s.hcm.GetHttpFilters()[s.index].GetDisabled() {
		return
	}
	c.miss("other_routes", "set", "Requests for other services do not ask Sightline.", at.to("typed_per_filter_config", s.name),
		genHost.to("routes", -1, "typed_per_filter_config", filterName), nil)
}

// bodies checks how much Envoy buffers for Sightline. A route's limit overrides its virtual host's, which overrides the listener's.
func (c *checker) bodies(s *site, h *host) {
	if s.ours.of.GetProcessingMode().GetRequestBodyMode() == extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED {
		return
	}
	limit, at := int64(1<<20), s.listener.at.to("per_connection_buffer_limit_bytes")
	if v := s.listener.of.GetPerConnectionBufferLimitBytes(); v != nil {
		limit = int64(v.GetValue())
	}
	type limited interface {
		GetRequestBodyBufferLimit() *wrapperspb.UInt64Value
		GetPerRequestBufferLimitBytes() *wrapperspb.UInt32Value
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
	const why = "Bodies up to Sightline's limit are buffered; Envoy's own limit is 1 MiB, less than an image."
	from := genHost.to("request_body_buffer_limit")
	read(h.of, h.at)
	of, place := limit, at
	others := slices.ContainsFunc(h.routes, (*way).elsewhere)
	if !others && c.small(at, limit) {
		c.miss("body_limit", "set", why, h.at.to("request_body_buffer_limit"), from, nil)
	}
	for _, w := range h.routes {
		limit, at = of, place
		if len(w.asked) > 0 && (read(w.of, w.at) || others) && c.small(at, limit) {
			c.miss("body_limit", "set", why, w.at.to("request_body_buffer_limit"), from, nil)
		}
	}
}

// way checks one route that inference requests take.
func (c *checker) way(s *site, h *host, w *way, routes *routev3.RouteConfiguration) {
	action, at := w.of.GetRoute(), w.at.to("route")
	if !w.picked && c.settings(s, h, w, routes) {
		c.path(s, w)
	}
	if a := s.ours.of.GetRouteCacheAction(); w.picked && s.ours.of != nil && a != extprocv3.ExternalProcessor_CLEAR {
		c.find("choice_not_read", s.ours.at.to("route_cache_action"), a)
	}
	switch t := action.GetTimeout(); {
	case t == nil:
		c.as(Error, "route_timeout", at.to("timeout"), "15s, Envoy's default")
		c.miss("route_timeout", "set", "Generations are not cut off after 15s, Envoy's default.", at.to("timeout"),
			genHost.to("routes", 1, "route", "timeout"), nil)
	case t.AsDuration() > 0 && t.AsDuration() < time.Hour:
		c.as(longer(t), "route_timeout", at.to("timeout"), t.AsDuration())
	}
	if t := action.GetIdleTimeout(); t != nil && t.AsDuration() > 0 && t.AsDuration() < 30*time.Minute {
		c.find("route_timeout", at.to("idle_timeout"), t.AsDuration())
	}
	if t := action.GetMaxStreamDuration().GetMaxStreamDuration(); t.AsDuration() > 0 && t.AsDuration() < time.Hour {
		c.as(longer(t), "route_timeout", at.to("max_stream_duration"), t.AsDuration())
	}
	retry, place := action.GetRetryPolicy(), at.to("retry_policy")
	if retry == nil {
		retry = h.of.GetRetryPolicy()
		if retry != nil {
			place = h.at.to("retry_policy")
		}
	}
	_, more := takes(w.of.GetMatch(), "/v1/files")
	if retry == nil {
		from := genHost.to("retry_policy")
		if more { // requests that must not be repeated take this route too
			from = genHost.to("routes", -1, "route", "retry_policy")
		}
		c.miss("retries", "set", "Requests that never reached a worker are retried at Sightline's next choice.", place, from, nil)
	}
	if retry != nil {
		c.retries(retry, place, more)
	}
	if t := retry.GetPerTryTimeout(); t.AsDuration() > 0 && t.AsDuration() < time.Hour {
		c.as(longer(t), "route_timeout", place.to("per_try_timeout"), t.AsDuration())
	}
	removed := append(slices.Clone(w.of.GetRequestHeadersToRemove()), append(h.of.GetRequestHeadersToRemove(),
		routes.GetRequestHeadersToRemove()...)...)
	for _, name := range w.clusters {
		if header, _ := c.reads(name); header != "" && slices.ContainsFunc(removed, func(r string) bool { return strings.EqualFold(r, header) }) {
			c.find("choice_not_read", w.at.to("request_headers_to_remove"), header)
		}
	}
}

// retries checks what is retried: all that the printed configuration retries for any request, and nothing that a worker may have
// computed. more: requests that must not be repeated take the route too.
func (c *checker) retries(retry *routev3.RetryPolicy, at path, more bool) {
	have := strings.FieldsFunc(retry.GetRetryOn(), func(r rune) bool { return r == ',' || r == ' ' })
	for _, on := range have {
		if slices.Contains([]string{"5xx", "gateway-error", "reset", "retriable-status-codes"}, on) {
			c.find("retries", at.to("retry_on"), on)
		}
	}
	wanted := []string{"connect-failure", "refused-stream", "reset-before-request"}
	if more {
		wanted = wanted[:2]
	}
	lacks := slices.DeleteFunc(wanted, func(on string) bool { return slices.Contains(have, on) })
	if len(lacks) > 0 && !slices.Contains(have, "5xx") && !slices.Contains(have, "reset") {
		c.find("retries", at.to("retry_on"), "no "+strings.Join(lacks, ", "))
	}
}

// settings checks how routes change our filter. It reports whether Sightline is asked.
func (c *checker) settings(s *site, h *host, w *way, routes *routev3.RouteConfiguration) bool {
	var overrides *extprocv3.ExtProcOverrides
	off, at := s.ours.of != nil && s.hcm.GetHttpFilters()[s.index].GetDisabled(), s.at.to("http_filters", s.index, "disabled")
	for _, level := range []struct {
		at path
		m  map[string]*anypb.Any
	}{{w.at, w.of.GetTypedPerFilterConfig()}, {h.at, h.of.GetTypedPerFilterConfig()},
		{s.at.to("route_config"), routes.GetTypedPerFilterConfig()}} {
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
		overrides, off = p.GetOverrides(), off || p.GetDisabled()
		if m := p.GetOverrides().GetProcessingMode(); m != nil && !off {
			c.modes(m, at.to("overrides", "processing_mode"))
		}
		if f := p.GetOverrides().GetFailureModeAllow(); f != nil {
			c.failure(f.GetValue(), at.to("overrides", "failure_mode_allow"))
		}
		break
	}
	if off {
		c.find("not_asked", at, "Sightline is not asked on this route")
		return false
	}
	g := s.ours.of.GetGrpcService()
	if of := overrides.GetGrpcService(); of != nil {
		c.client(of, overrides.GetGrpcInitialMetadata(), at.to("overrides", "grpc_service"))
	} else if g != nil {
		c.client(g, overrides.GetGrpcInitialMetadata(), s.ours.at.to("grpc_service"))
	}
	return true
}

// path tells Sightline the prefix that a route removes, and the model of its workers.
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
	c.miss("route_says", "set", "Tells Sightline what only this route knows: the prefix that it strips, or the model that its workers serve.",
		w.at.to("typed_per_filter_config", s.name), genHost.to("routes", -1, "typed_per_filter_config", filterName), func(any) any {
			return object("@type", typeURL+"filters.http.ext_proc.v3.ExtProcPerRoute", "overrides", object("grpc_initial_metadata", say))
		})
}

// pool returns the model whose workers a cluster has.
func (c *known) pool(clusters []string) string {
	for _, name := range clusters {
		there, _ := c.cluster(name)
		for _, p := range c.want.Pools {
			if c.has(there.of, p.Workers) {
				return p.Name
			}
		}
	}
	return ""
}
