package fit

import (
	"fmt"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	compositev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/composite/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	overridev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
)

// Checks of the clusters: those of workers, and Sightline's.

// reads reports whether a cluster follows Sightline's choice, and the header by which it dials any address ("": none).
func (c *checker) reads(name string) (header string, reads bool) {
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

// worker checks a cluster that inference requests are routed to. unread: no cluster of their routes follows Sightline's choice.
func (c *checker) worker(name string, unread bool) {
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
		c.find("cluster_type", at.to("type"), got)
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
		c.find("worker_health", at.to("health_checks"), "no health checks and no outlier detection")
	}
}

// fallback returns a function that puts the cluster's own balancing into the piece.
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

// allowed checks that an address named by a header is verified before it is dialled, on the composite cluster if there is one.
func (c *checker) allowed(name string, there placed[*clusterv3.Cluster]) {
	if minor, ok := minorOf(c.Envoy); ok && minor < 39 {
		return // it has no such filter
	}
	if !c.guarded(there.of) {
		c.find("any_address", there.at.to("typed_extension_protocol_options"), name+" dials any address that x-target-worker names")
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

// unknown checks that Envoy knows all workers: choosing another one has no effect.
func (c *checker) unknown(name string, there placed[*clusterv3.Cluster]) {
	if h, _ := c.reads(name); h != "" || len(c.want.Pools) > 0 || there.of.GetType() == clusterv3.Cluster_STRICT_DNS {
		return
	}
	have := c.endpointsOf(there.of)
	if there.of.GetType() == clusterv3.Cluster_EDS && len(have) == 0 {
		return // unknown from a file
	}
	for _, w := range c.want.Workers {
		if !slices.Contains(have, w) {
			c.find("worker_unknown", there.at.to("load_assignment"), "no endpoint "+w)
		}
	}
}

// breakers checks the circuit breakers; Envoy's defaults are 1,024 requests and 3 retries at a time.
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
	c.find("circuit_breakers", at, strings.Join(low, ", "))
	if t == nil {
		c.miss("circuit_breakers", "set", "1,024 requests at a time is one engine's batch; with 3 retries at a time requests fail when a worker dies.", at, from, nil)
	}
}

// sightlines checks the cluster by which Sightline is reached.
func (c *checker) sightlines(s *site, name string) {
	gen := path{"static_resources", "clusters", 0}
	there, ok := c.cluster(name)
	for i, part := range c.parts() {
		if _, ok := c.cluster(part); !ok && name == "sightline" {
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
	o, _ := as[*upstreamv3.HttpProtocolOptions](there.of.GetTypedExtensionProtocolOptions()["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"])
	if o.GetExplicitHttpConfig().GetHttp2ProtocolOptions() == nil && o.GetAutoConfig() == nil && o.GetUseDownstreamProtocolConfig() == nil &&
		there.of.GetHttp2ProtocolOptions() == nil { //nolint:staticcheck // deprecated, and still in people's files
		c.find("sightline_http2", there.at.to("typed_extension_protocol_options"), "HTTP/1")
	}
	if w := o.GetExplicitHttpConfig().GetHttp2ProtocolOptions().GetInitialStreamWindowSize(); w != nil && w.GetValue() < 1<<20 {
		c.find("http2_window", there.at.to("typed_extension_protocol_options"), fmt.Sprint(w.GetValue(), " bytes"))
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

// parts returns the names of the clusters that the generator makes for Sightline.
func (c *checker) parts() []string {
	names := []string{"sightline"}
	if n := len(strings.Split(c.want.Options.Sightline, ",")); n > 1 {
		for i := range n {
			names = append(names, fmt.Sprint("sightline_log_", i))
		}
	}
	return names
}
