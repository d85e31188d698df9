// Package check reads the configuration of an existing Envoy and reports what Sightline needs of it:
//
//	b, err := check.Load(ctx, "envoy.yaml")      // or http://127.0.0.1:9901, a running Envoy's admin page
//	findings := check.Run(b, want)              // what will not work (advice.go), each with its place
//	pieces, err := check.Missing(b, want)        // what is missing: parts of envoy.Generate's output
//	text, err := check.Apply(b, pieces)          // the file with them in it
//
// Sightline is added as an override_host load balancer on the cluster that the inference routes already lead to: routes stay
// unchanged, requests that Sightline does not answer are balanced as before, and no address outside the cluster can be dialled.
// Configurations made by envoy.Generate, with its ORIGINAL_DST clusters, are supported as well.
package check

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/denied"
)

// Want is what Envoy must fit: Sightline's address, limits and time, as for envoy.Generate. Workers and Pools are optional; with
// them, Run verifies that Envoy knows each worker. OverrideHost and Listen are ignored.
type Want struct {
	envoy.Options
	// Clusters are the workers' clusters. Empty: those that contain Workers' addresses, or else the one that a POST to an endpoint
	// is routed to. If several may be meant, nothing is changed, and a finding asks.
	Clusters []string
	// Header is the header with the choice (x-sightline-header of a route); "": x-target-worker.
	Header string
	// Picker: choices are also written as in the endpoint-picker protocol. OneAddress: as one address (route.one_address).
	Picker, OneAddress bool
	// Resolve returns the addresses that Sightline uses of a name, and is called again for each use; nil: names are compared as they
	// are written.
	Resolve func(host string) []netip.Addr
}

// Severities, worst first. A note may be intended.
const (
	Error   = "error"   // requests fail, choices are ignored, or a client can choose for itself
	Warning = "warning" // it works until something else fails
	Note    = "note"
)

// Finding is something in the configuration that will not work with Sightline. Names are stable; docs/envoy.md lists them.
type Finding struct {
	Name, Code, Severity string // Code: the doctor's, such as SL0410; a finding may have two, separated by a blank
	Where                string // the place in the file, in yq's syntax
	Got, Want, Fix       string
}

// Piece is something to add to the configuration.
type Piece struct {
	Name  string
	Where string // the list it is added to, or the member that is set
	How   string // "add", "add before [2]" or "set"
	Why   string
	YAML  string // in the form in which it is added

	at     path
	before int // index, for How "add before"
	value  any
}

// Run returns what will not work, worst first.
func Run(b Bootstrap, w Want) []Finding {
	c := look(b, w)
	rank := []string{Error, Warning, Note}
	slices.SortStableFunc(c.findings, func(x, y Finding) int {
		return slices.Index(rank, x.Severity) - slices.Index(rank, y.Severity)
	})
	return c.findings
}

// Print writes findings as comments and pieces as YAML documents.
func Print(out io.Writer, findings []Finding, pieces []Piece) error {
	var b bytes.Buffer
	for _, f := range findings {
		fmt.Fprintf(&b, "# %s: %s at %s\n#   got:  %s\n#   want: %s\n#   fix:  %s\n", f.Severity, f.Name, f.Where, f.Got, f.Want, f.Fix)
	}
	for _, p := range pieces {
		fmt.Fprintf(&b, "---\n# missing: %s. %s\n# %s %s\n%s", p.Name, p.Why, p.How, p.Where, p.YAML)
	}
	if b.Len() == 0 {
		b.WriteString("# nothing is missing, nothing is wrong\n")
	}
	_, err := out.Write(b.Bytes())
	return err
}

// known is a configuration and what Sightline needs of it: which clusters there are, and whose they are.
type known struct {
	Bootstrap
	want Want
}

// report collects findings, and pieces that are missing.
type report struct {
	settings *strings.Replacer // of the words in advice that stand for Sightline's settings
	findings []Finding
	wishes   []wish
}

// checker makes the checks in one pass over a configuration.
type checker struct {
	known
	report
}

// clusterChecks are the checks of clusters: those of workers, and Sightline's.
type clusterChecks struct{ *checker }

// wish is a Piece whose YAML is still to be extracted from the generator's output.
type wish struct {
	Piece
	from path            // its path there
	with func(v any) any // transforms it; nil: unchanged
}

// miss adds a wish for a piece, once.
func (c *report) miss(name, how, why string, at, from path, with func(any) any) {
	w := wish{Piece{Name: name, How: how, Why: why, Where: at.String(), at: at}, from, with}
	same := func(o wish) bool { return o.Where == w.Where && (how == "set" || o.Name == name) }
	if !slices.ContainsFunc(c.wishes, same) {
		c.wishes = append(c.wishes, w)
	}
}

// site is an HTTP connection manager with the routes that inference requests take.
type site struct {
	at       path // of its typed_config
	listener located[*listenerv3.Listener]
	hcm      *hcmv3.HttpConnectionManager
	hosts    []host
	ours     located[*extprocv3.ExternalProcessor] // nil: none
	name     string                                // of our filter
	grpc     any                                   // how access logs reach Sightline: a grpc_service
	logs     []string                              // clusters of the generator's to which access logs go, one for each Sightline
	index    int                                   // of our filter, or of the router filter before which it must be
	router   int
}

// host is a virtual host.
type host struct {
	at     path
	of     *routev3.VirtualHost
	routes []*way
	leads  bool
}

// way is a route to clusters.
type way struct {
	at       path
	host     *routev3.VirtualHost
	of       *routev3.Route
	clusters []string
	asked    []string // the paths of inference requests that take it
	prefix   string   // that it removes before a worker sees the path
	picked   bool     // selected after Sightline has answered
	guarded  bool     // leads to workers
}

// elsewhere reports whether a route leads to another service.
func (w *way) elsewhere() bool { return w.of.GetRoute() != nil && !w.guarded }

// ways returns the routes of all virtual hosts for which is holds.
func (s *site) ways(is func(*way) bool) (list []*way) {
	for i := range s.hosts {
		for _, w := range s.hosts[i].routes {
			if is(w) {
				list = append(list, w)
			}
		}
	}
	return list
}

// others returns the names of the other services that this connection manager serves: clusters, or the route's place.
func (s *site) others() (names []string) {
	for _, w := range s.ways((*way).elsewhere) {
		name := cmp.Or(strings.Join(w.clusters, ", "), w.at.String())
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

func (s *site) shared() bool { return len(s.others()) > 0 }

func look(b Bootstrap, w Want) *checker {
	if len(w.Options.Sightline) == 0 {
		w.Options.Sightline = envoy.Default().Sightline
	}
	w.Header = cmp.Or(strings.ToLower(w.Header), "x-target-worker")
	if w.Resolve == nil {
		w.Resolve = func(string) []netip.Addr { return nil }
	}
	c := &checker{known: known{b, w}, report: report{settings: strings.NewReplacer("BODY_LIMIT", fmt.Sprint(w.BodyLimit),
		"LONGEST", seconds(envoy.LongestWait(w.MessageTimeout, w.BodyLimit)), "TIMEOUT", seconds(w.MessageTimeout))}}
	c.version()
	if !c.identify() {
		return c
	}
	led := false
	c.managers(func(s *site, routes *routev3.RouteConfiguration, at path) {
		if c.lead(s, routes, at) {
			led = true
			c.site(s, routes)
		}
	})
	if !led {
		c.find("no_route", path{"static_resources", "listeners"}, "no route of a virtual host leads POST /v1/chat/completions to a cluster")
	}
	c.process()
	return c
}

// managers calls do for each HTTP connection manager, with its routes and their place.
func (c *checker) managers(do func(*site, *routev3.RouteConfiguration, path)) {
	for _, l := range c.listeners {
		one := func(at path, chain *listenerv3.FilterChain) {
			for i, f := range chain.GetFilters() {
				hcm, ok := as[*hcmv3.HttpConnectionManager](f.GetTypedConfig())
				if !ok {
					continue
				}
				s := &site{at: at.to("filters", i, "typed_config"), listener: l, hcm: hcm}
				routes, place := hcm.GetRouteConfig(), s.at.to("route_config")
				if rds := hcm.GetRds(); rds != nil {
					told, ok := c.routes[rds.GetRouteConfigName()]
					routes, place = told.of, told.at
					if !ok {
						c.as(Note, "no_route", s.at.to("rds"), rds.GetRouteConfigName())
					}
				}
				do(s, routes, place)
			}
		}
		for i, chain := range l.of.GetFilterChains() {
			one(l.at.to("filter_chains", i), chain)
		}
		if d := l.of.GetDefaultFilterChain(); d != nil {
			one(l.at.to("default_filter_chain"), d)
		}
	}
}

// lead finds the routes that lead inference requests to workers, and reports whether there are any.
func (c *checker) lead(s *site, routes *routev3.RouteConfiguration, at path) (any bool) {
	for i, v := range routes.GetVirtualHosts() {
		h := host{at: at.to("virtual_hosts", i), of: v}
		asked := slices.Clone(denied.Endpoints)
		for j, r := range v.GetRoutes() {
			w := &way{at: h.at.to("routes", j), host: v, of: r, clusters: clustersOf(r.GetRoute())}
			w.guarded = slices.ContainsFunc(w.clusters, c.workers)
			h.routes = append(h.routes, w)
			for _, e := range denied.Endpoints {
				if p := before(r, e); p != "" && !slices.Contains(asked, p) {
					asked = append(asked, p)
				}
			}
		}
		for _, e := range asked {
			var earlier [][]string // conditions of earlier routes for it
			for _, w := range h.routes {
				conditions, ok := takes(w.of.GetMatch(), e)
				within := func(some []string) bool {
					return !slices.ContainsFunc(some, func(x string) bool { return !slices.Contains(conditions, x) })
				}
				if !ok || slices.ContainsFunc(earlier, within) {
					continue
				}
				earlier = append(earlier, conditions)
				if !w.guarded {
					continue
				}
				w.asked, h.leads, any = append(w.asked, e), true, true
				w.picked = slices.ContainsFunc(conditions, func(x string) bool { return strings.Contains(x, "x-target-worker") })
				for _, plain := range denied.Endpoints {
					if before(w.of, plain) == e {
						w.prefix = strings.TrimSuffix(e, plain)
					}
				}
			}
		}
		s.hosts = append(s.hosts, h)
	}
	return any
}

// before returns the path that a route's prefix rewrite turns into an endpoint; "": there is none.
func before(r *routev3.Route, endpoint string) string {
	prefix, action := r.GetMatch().GetPrefix()+r.GetMatch().GetPathSeparatedPrefix(), r.GetRoute()
	became := action.GetPrefixRewrite()
	if became == "" && action.GetRegexRewrite() == nil {
		return ""
	}
	if re := action.GetRegexRewrite(); re != nil {
		pattern, err := regexp.Compile(re.GetPattern().GetRegex())
		if err != nil {
			return ""
		}
		became = pattern.ReplaceAllString(prefix, group.ReplaceAllString(re.GetSubstitution(), "$${$1}"))
	}
	rest, ok := strings.CutPrefix(endpoint, became)
	if !ok || became == prefix {
		return ""
	}
	return prefix + rest
}

// group matches a reference to a capture group in a rewrite.
var group = regexp.MustCompile(`\\(\d)`)

// takes reports whether a route may take a POST to a path, and under which conditions.
func takes(m *routev3.RouteMatch, at string) (conditions []string, may bool) {
	same := func(a, b string) bool { return a == b }
	if c := m.GetCaseSensitive(); c != nil && !c.GetValue() {
		same = strings.EqualFold
	}
	begins := func(p string) bool { return len(at) >= len(p) && same(at[:len(p)], p) }
	switch p := m.GetPathSpecifier().(type) {
	case *routev3.RouteMatch_Prefix:
		may = begins(p.Prefix)
	case *routev3.RouteMatch_Path:
		may = same(at, p.Path)
	case *routev3.RouteMatch_PathSeparatedPrefix:
		may = same(at, p.PathSeparatedPrefix) || begins(p.PathSeparatedPrefix+"/")
	case *routev3.RouteMatch_SafeRegex:
		re := whole(p.SafeRegex.GetRegex())
		may = re != nil && re.MatchString(at)
	}
	for _, h := range m.GetHeaders() {
		if exact := h.GetStringMatch().GetExact(); h.GetName() == ":method" && exact != "" && !h.GetInvertMatch() {
			may = may && exact == http.MethodPost
			continue
		}
		conditions = append(conditions, prototext.Format(h))
	}
	for _, q := range m.GetQueryParameters() {
		conditions = append(conditions, prototext.Format(q))
	}
	for _, d := range m.GetDynamicMetadata() {
		conditions = append(conditions, prototext.Format(d))
	}
	if f := m.GetRuntimeFraction(); f != nil {
		conditions = append(conditions, prototext.Format(f))
	}
	return conditions, may
}

func clustersOf(a *routev3.RouteAction) (out []string) {
	if n := a.GetCluster(); n != "" {
		out = append(out, n)
	}
	for _, w := range a.GetWeightedClusters().GetClusters() {
		out = append(out, w.GetName())
	}
	return out
}

func (c *known) cluster(name string) (located[*clusterv3.Cluster], bool) {
	i := slices.IndexFunc(c.clusters, func(p located[*clusterv3.Cluster]) bool { return p.of.GetName() == name })
	if i < 0 {
		return located[*clusterv3.Cluster]{}, false
	}
	return c.clusters[i], true
}

// isSightline reports whether a gRPC service is Sightline: by its cluster's name or addresses, or its target's.
func (c *known) isSightline(g *corev3.GrpcService) bool {
	for _, kv := range g.GetInitialMetadata() {
		if strings.HasPrefix(kv.GetKey(), "x-sightline-") {
			return true
		}
	}
	name := g.GetEnvoyGrpc().GetClusterName() + g.GetGoogleGrpc().GetTargetUri()
	if strings.Contains(name, "sightline") {
		return true
	}
	there, ok := c.cluster(name)
	return ok && c.has(there.of, c.sightlineAddrs()) || slices.Contains(c.sightlineAddrs(), name)
}

// sightlineAddrs returns the addresses at which Sightline is reached.
func (c *known) sightlineAddrs() []string {
	return strings.Split(strings.ReplaceAll(c.want.Options.Sightline, " ", ""), ",")
}

// kind returns the extension that a configuration is for, independent of its name: jwt_authn for
// envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication.
func kind(packed *anypb.Any) string {
	parts := strings.Split(packed.GetTypeUrl(), ".")
	if len(parts) < 3 {
		return ""
	}
	return parts[len(parts)-3]
}
