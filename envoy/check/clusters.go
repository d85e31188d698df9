package check

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	compositev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/composite/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	overridev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Checks of the clusters: those of workers, and Sightline's.

// pickerHeader has a picker's choice in the endpoint-picker protocol.
const pickerHeader = "x-gateway-destination-endpoint"

const httpOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

// reads reports whether a cluster follows Sightline's choice, and the header by which it dials any address ("": none).
func (c *known) reads(name string) (header string, reads bool) {
	there, ok := c.cluster(name)
	if !ok {
		return "", false
	}
	if composite, ok := as[*compositev3.ClusterConfig](there.of.GetClusterType().GetTypedConfig()); ok {
		for _, sub := range composite.GetClusters() { // only the first attempt's, if it uses a header
			if part, ok := c.cluster(sub.GetName()); ok && part.of.GetOriginalDstLbConfig() != nil {
				return c.reads(sub.GetName())
			}
		}
		return "", false
	}
	if there.of.GetType() == clusterv3.Cluster_ORIGINAL_DST {
		o := there.of.GetOriginalDstLbConfig()
		header = o.GetHttpHeaderName()
		if header == "" && o.GetUseHttpHeader() {
			header = "x-envoy-original-dst-host"
		}
		header = strings.ToLower(header)
		picked := c.want.Picker && header == pickerHeader
		return header, picked || header == c.want.Header || header == c.want.Header+"-2" || o.GetMetadataKey().GetKey() == "sightline"
	}
	for _, source := range c.override(there.of).GetOverrideHostSources() {
		reads = reads || strings.EqualFold(source.GetHeader(), c.want.Header) || source.GetHeader() == pickerHeader
		key := source.GetMetadata()
		reads = reads || key.GetKey() == "sightline" || key.GetKey() == "envoy.lb"
	}
	return "", reads
}

func (c *known) override(of *clusterv3.Cluster) *overridev3.OverrideHost {
	for _, p := range of.GetLoadBalancingPolicy().GetPolicies() {
		if o, ok := as[*overridev3.OverrideHost](p.GetTypedExtensionConfig().GetTypedConfig()); ok {
			return o
		}
	}
	return nil
}

// worker checks a cluster that inference requests are routed to. unread: no cluster of their routes follows Sightline's choice.
func (c clusterChecks) worker(name string, unread bool) {
	there, ok := c.cluster(name)
	if !ok {
		c.find("cluster_unknown", path{"static_resources", "clusters"}, name)
		return
	}
	of, at := there.of, there.at
	header, _ := c.reads(name)
	switch o := c.override(of); {
	case !unread:
	case o != nil:
		c.find("choice_not_read", at.to("load_balancing_policy"), "override_host reads something else")
	case header != "":
		c.find("choice_not_read", at.to("original_dst_lb_config", "http_header_name"), header)
	case of.GetClusterType() != nil || of.GetType() == clusterv3.Cluster_LOGICAL_DNS || of.GetType() == clusterv3.Cluster_ORIGINAL_DST:
		got := of.GetType().String()
		if t := of.GetClusterType(); t != nil {
			got = t.GetName()
		}
		c.find("choice_not_read", at.to("type"), got)
	default:
		c.miss("choice", "set",
			"A worker that Sightline names is taken, if it is one of this cluster; else the cluster balances as before. No "+
				"other address is dialled.",
			at.to("load_balancing_policy"), genWorkers.to("load_balancing_policy"), fallback(of))
	}
	if c.want.Picker && !c.want.OneAddress && header == pickerHeader {
		c.as(Warning, "choice_not_read", at.to("original_dst_lb_config", "http_header_name"), header)
	}
	if header != "" {
		c.allowed(name, header, there)
	}
	c.connections(there)
	c.family(there)
	c.alive(there)
	c.unknown(name, there)
	c.breakers(there, true, genWorkers.to("circuit_breakers"))
}

// fallback returns a function that puts the cluster's own balancing into the piece.
func fallback(of *clusterv3.Cluster) func(any) any {
	policy := strings.ToLower(of.GetLbPolicy().String())
	kinds := map[string]string{"round_robin": "RoundRobin", "least_request": "LeastRequest", "random": "Random",
		"ring_hash": "RingHash", "maglev": "Maglev"}
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

// allowed checks that an address named by a header is verified before it is dialled, on the composite cluster if there is one.
func (c clusterChecks) allowed(name, header string, there located[*clusterv3.Cluster]) {
	if minor, ok := minorOf(c.Envoy); ok && minor < 39 {
		return // it has no such filter
	}
	if !c.guarded(there.of) {
		c.find("any_address", there.at.to("typed_extension_protocol_options"), name+" dials any address that "+header+" names")
	}
}

func (c *known) guarded(of *clusterv3.Cluster) bool {
	o, _ := as[*upstreamv3.HttpProtocolOptions](of.GetTypedExtensionProtocolOptions()[httpOptions])
	for _, f := range o.GetHttpFilters() {
		if kind(f.GetTypedConfig()) == "rbac" {
			return true
		}
	}
	return false
}

// unknown checks that Envoy knows all workers: choosing another one has no effect.
func (c clusterChecks) unknown(name string, there located[*clusterv3.Cluster]) {
	if h, _ := c.reads(name); h != "" || len(c.want.Pools) > 0 {
		return
	}
	written := c.endpointsOf(there.of)
	have := ofLive(c.live[name])
	hidden := map[string]bool{} // ports at names that do not resolve here
	if len(have) == 0 {
		for _, a := range written {
			ips := c.ips([]string{a})
			have = append(have, ips...)
			if host, port, _ := net.SplitHostPort(a); len(ips) == 0 && host != "" {
				hidden[port] = true
			}
		}
	}
	if len(written)+len(have) == 0 && there.of.GetType() == clusterv3.Cluster_EDS {
		return // not known here
	}
	var lacking []string
	known := 0
	for _, w := range c.want.Workers {
		ips := c.ips([]string{w})
		_, port, _ := net.SplitHostPort(w)
		atPort := func(a string) bool { return strings.HasSuffix(a, ":"+port) }
		lost := slices.DeleteFunc(slices.Clone(ips), func(ip string) bool { return slices.Contains(have, ip) })
		switch {
		case len(lost) == 0 && (len(ips) > 0 || slices.Contains(written, w)):
			known++
		case hidden[port]: // it may be there
		case len(ips) > 0:
			lacking = append(lacking, lost...)
		case !slices.ContainsFunc(have, atPort):
			lacking = append(lacking, w)
		}
	}
	shown := have
	if len(shown) == 0 {
		shown = written
	}
	severity := Warning
	if known == 0 {
		severity = Error // no choice can be followed
	}
	for _, addr := range lacking {
		c.as(severity, "worker_unknown", there.at.to("load_assignment"), "no endpoint "+addr+"; there are "+some(shown))
	}
}

// isName reports whether an address must be resolved.
func isName(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	_, notIP := netip.ParseAddr(host)
	return err == nil && notIP != nil
}

func ofLive(list []endpoint) (addrs []string) {
	for _, e := range list {
		addrs = append(addrs, e.addr)
	}
	return addrs
}

// some lists addresses, the first few of many.
func some(addrs []string) string {
	const shown = 4
	if len(addrs) > shown {
		return strings.Join(addrs[:shown], ", ") + fmt.Sprintf(" and %d more", len(addrs)-shown)
	}
	return cmp.Or(strings.Join(addrs, ", "), "none")
}

// family checks that Envoy resolves names to the addresses that Sightline uses: by default it takes IPv6 where a name has both.
func (c clusterChecks) family(there located[*clusterv3.Cluster]) {
	of := there.of
	resolves := of.GetClusterType() == nil && (of.GetType() == clusterv3.Cluster_STRICT_DNS || of.GetType() == clusterv3.Cluster_LOGICAL_DNS)
	if !resolves || !slices.ContainsFunc(addresses(of.GetLoadAssignment()), isName) {
		return
	}
	switch f := of.GetDnsLookupFamily(); f {
	case clusterv3.Cluster_V4_PREFERRED, clusterv3.Cluster_V4_ONLY:
	case clusterv3.Cluster_V6_ONLY:
		if !slices.ContainsFunc(c.ips(c.want.Workers), func(a string) bool { return strings.HasPrefix(a, "[") }) {
			c.find("no_healthy_worker", there.at.to("dns_lookup_family"), f)
		}
	default:
		c.find("no_healthy_worker", there.at.to("dns_lookup_family"), f)
		c.miss("dns_family", "set", "Envoy takes IPv6 of a name that has both families, Sightline IPv4: no choice is followed, and "+
			"workers that listen on IPv4 alone are dead to Envoy.",
			there.at.to("dns_lookup_family"), genWorkers.to("dns_lookup_family"), nil)
	}
}

// alive checks, of a running Envoy, that requests without a choice go somewhere.
func (c clusterChecks) alive(there located[*clusterv3.Cluster]) {
	name := there.of.GetName()
	list, known := c.live[name]
	header, _ := c.reads(name)
	healthy := slices.ContainsFunc(list, func(e endpoint) bool { return !e.failed })
	if header != "" || !known || healthy {
		return
	}
	got := "it has no endpoint"
	if len(list) > 0 {
		got = "all fail their health check: " + some(ofLive(list))
	}
	c.find("no_healthy_worker", there.at.to("load_assignment"), got)
}

// connections checks for how long connections to workers stay idle, and how long one may take to open.
func (c clusterChecks) connections(there located[*clusterv3.Cluster]) {
	if composite, ok := as[*compositev3.ClusterConfig](there.of.GetClusterType().GetTypedConfig()); ok {
		for _, sub := range composite.GetClusters() { // its parts have the connections
			if part, ok := c.cluster(sub.GetName()); ok {
				c.connections(part)
			}
		}
		return
	}
	o, typed := as[*upstreamv3.HttpProtocolOptions](there.of.GetTypedExtensionProtocolOptions()[httpOptions])
	idle, at, whole := o.GetCommonHttpProtocolOptions().GetIdleTimeout(), there.at.to("typed_extension_protocol_options", httpOptions),
		genWorkers.to("typed_extension_protocol_options", httpOptions)
	from := whole
	old := there.of.GetCommonHttpProtocolOptions() //nolint:staticcheck // deprecated, and still in people's files
	//nolint:staticcheck // so are these
	if !typed && (old != nil || there.of.GetHttp2ProtocolOptions() != nil || there.of.GetHttpProtocolOptions() != nil) {
		idle, typed, at = old.GetIdleTimeout(), true, there.at
	}
	if typed {
		at, from = at.to("common_http_protocol_options", "idle_timeout"), whole.to("common_http_protocol_options", "idle_timeout")
	}
	if idle == nil || idle.AsDuration() > keptAlive || idle.AsDuration() <= 0 {
		c.find("keep_alive", at, shown(idle, "1h, Envoy's default"))
	}
	if idle == nil {
		c.miss("keep_alive", "set", "An engine's server closes connections that are idle for 5s (uvicorn's default): Envoy closes them "+
			"first, so that no request runs into a closing one.", at, from, nil)
	}
	if there.of.GetConnectTimeout() == nil {
		c.miss("connect_timeout", "set", "In a container network a dead worker does not refuse connections: each request would wait for "+
			"5s, Envoy's default, before it is retried.",
			there.at.to("connect_timeout"), genWorkers.to("connect_timeout"), nil)
	}
}

// keptAlive is the longest time for which a connection may be idle: below uvicorn's 5 s.
const keptAlive = 4500 * time.Millisecond

// breakers checks the circuit breakers; Envoy's defaults are 1,024 requests and 3 retries at a time.
func (c clusterChecks) breakers(there located[*clusterv3.Cluster], worker bool, from path) {
	var t *clusterv3.CircuitBreakers_Thresholds
	for _, x := range there.of.GetCircuitBreakers().GetThresholds() {
		if x.GetPriority() == corev3.RoutingPriority_DEFAULT {
			t = x
		}
	}
	at, low := there.at.to("circuit_breakers"), []string(nil)
	check := func(member string, v *wrapperspb.UInt32Value, or, least uint32) {
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
	c.find("circuit_breakers", at, strings.Join(low, ", "))
	if t == nil {
		c.miss("circuit_breakers", "set",
			"1,024 requests at a time is one engine's batch; with 3 retries at a time requests fail when a worker dies.", at, from, nil)
	}
}

// sightlines checks the cluster by which Sightline is reached.
func (c clusterChecks) sightlines(s *site, name string) {
	gen := path{"static_resources", "clusters", 0}
	there, ok := c.cluster(name)
	for i, part := range c.parts() {
		if _, ok := c.cluster(part); !ok && (part == name || slices.Contains(s.logs, part)) {
			c.miss("cluster "+part, "add", "Sightline's address; a hanging instance is detected by its health check instead of by each request.",
				path{"static_resources", "clusters"}, path{"static_resources", "clusters", i}, nil)
		}
	}
	if !ok {
		if name != "sightline" {
			c.find("cluster_unknown", s.ours.at.to("grpc_service"), name)
		}
		return
	}
	if !speaksHTTP2(there.of) {
		c.as(Error, "sightline_health", there.at.to("typed_extension_protocol_options"), "HTTP/1")
	}
	panics, severity := there.of.GetCommonLbConfig().GetHealthyPanicThreshold(), Warning
	if s.ours.of.GetProcessingMode().GetRequestBodyMode() == extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED && s.ours.of.GetFailureModeAllow() {
		severity = Error // each request with a body gets 500 while the port refuses connections, whatever failure_mode_allow says
	}
	if len(there.of.GetHealthChecks()) == 0 && there.of.GetOutlierDetection() == nil || panics == nil || panics.GetValue() > 0 {
		c.as(severity, "sightline_health", there.at.to("health_checks"), "none, or not used: a panic threshold above 0")
	}
	c.breakers(there, false, gen.to("circuit_breakers"))
}

func speaksHTTP2(of *clusterv3.Cluster) bool {
	o, _ := as[*upstreamv3.HttpProtocolOptions](of.GetTypedExtensionProtocolOptions()[httpOptions])
	old := of.GetHttp2ProtocolOptions() //nolint:staticcheck // deprecated, and still in people's files
	return o.GetExplicitHttpConfig().GetHttp2ProtocolOptions() != nil || o.GetAutoConfig() != nil ||
		o.GetUseDownstreamProtocolConfig() != nil || old != nil
}

// parts returns the names of the clusters that the generator makes for Sightline.
func (c *known) parts() []string {
	names := []string{"sightline"}
	if n := len(strings.Split(c.want.Options.Sightline, ",")); n > 1 {
		for i := range n {
			names = append(names, fmt.Sprint("sightline_log_", i))
		}
	}
	return names
}
