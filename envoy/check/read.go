package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	codecv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sightline-router/sightline/internal/document"
)

// Bounds: the size of a file or a response, and the time for both responses of an Envoy.
const (
	maxBytes = 64 << 20
	maxWait  = 20 * time.Second
)

// Bootstrap is an Envoy's configuration: from an envoy.yaml, or from a running Envoy with what it got dynamically.
type Bootstrap struct {
	Envoy string // the running release, such as 1.40.0; "" if a file does not say

	text      []byte // of that file
	file      any    // an envoy.yaml as written, for Apply; nil for a dump
	listeners []located[*listenerv3.Listener]
	clusters  []located[*clusterv3.Cluster]
	routes    map[string]located[*routev3.RouteConfiguration] // from RDS
	endpoints map[string][]string                             // from EDS
	live      map[string][]endpoint                           // of a running Envoy's clusters, as it resolved and checked them
	adminOpen bool                                            // the admin page takes what changes the process
	layers    *bootstrapv3.LayeredRuntime
}

type endpoint struct {
	addr   string
	failed bool // its health check
	out    bool // Envoy does not use it
}

// Endpoints returns how many endpoints a running Envoy has of a cluster or at these addresses, and how many of them it uses. One that
// several clusters name is one.
func (b *Bootstrap) Endpoints(cluster string, addrs []string) (all, used int) {
	known := map[string]bool{} // used, by address
	for name, list := range b.live {
		for _, e := range list {
			if name == cluster || slices.Contains(addrs, e.addr) {
				known[e.addr] = known[e.addr] || !e.out
			}
		}
	}
	for _, in := range known {
		used += boolean(in)
	}
	return len(known), used
}

// located is a part of the configuration with the path where it was found.
type located[T any] struct {
	at path
	of T
}

// path is a place in the configuration: names of members and indexes of elements.
type path []any

// to returns a path below p; p itself is not changed.
func (p path) to(steps ...any) path { return append(p[:len(p):len(p)], steps...) }

// String formats a path in yq's syntax: a.b[0].c, and ["a.b"] for names with dots.
func (p path) String() string {
	var b strings.Builder
	for _, step := range p {
		switch s := step.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", s)
		case string:
			if strings.Contains(s, ".") {
				fmt.Fprintf(&b, "[%q]", s)
				continue
			}
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s)
		}
	}
	return b.String()
}

// Load reads an envoy.yaml, a saved config dump, or the dump of the Envoy whose admin page is at from, such as
// http://127.0.0.1:9901.
func Load(ctx context.Context, from string) (b Bootstrap, err error) {
	if !strings.HasPrefix(from, "http://") && !strings.HasPrefix(from, "https://") {
		f, err := os.Open(from)
		if err != nil {
			return b, err
		}
		defer f.Close()
		text, err := bounded(f)
		if err != nil {
			return b, fmt.Errorf("%s: %w", from, err)
		}
		b, err = Read(text)
		if err != nil {
			return b, fmt.Errorf("%s: %w", from, err)
		}
		return b, nil
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	admin, _, _ := strings.Cut(strings.TrimRight(from, "/"), "/config_dump")
	dump, err := fetch(ctx, admin+"/config_dump?include_eds")
	if err != nil {
		return b, err
	}
	b, err = Read(dump)
	if err != nil {
		return b, fmt.Errorf("%s/config_dump: %w", admin, err)
	}
	info, err := fetch(ctx, admin+"/server_info")
	if err != nil {
		return b, err
	}
	var said adminv3.ServerInfo
	if err := relaxed.Unmarshal(info, &said); err != nil {
		return b, fmt.Errorf("%s/server_info: %w", admin, err)
	}
	b.Envoy = release.FindString(said.GetVersion())
	if list, err := fetch(ctx, admin+"/clusters?format=json"); err == nil { // else what a cluster resolves to is not known
		var said adminv3.Clusters
		if err := relaxed.Unmarshal(list, &said); err != nil {
			return b, fmt.Errorf("%s/clusters: %w", admin, err)
		}
		b.live = map[string][]endpoint{}
		for _, cluster := range said.GetClusterStatuses() {
			list := []endpoint{}
			for _, h := range cluster.GetHostStatuses() {
				if s := h.GetAddress().GetSocketAddress(); s != nil {
					addr := net.JoinHostPort(s.GetAddress(), strconv.Itoa(int(s.GetPortValue())))
					health, _ := proto.Clone(h.GetHealthStatus()).(*adminv3.HostHealthStatus)
					failed := health.GetFailedActiveHealthCheck()
					if health.GetEdsHealthStatus() == corev3.HealthStatus_HEALTHY {
						health.EdsHealthStatus = corev3.HealthStatus_UNKNOWN
					}
					list = append(list, endpoint{addr, failed, proto.Size(health) > 0})
				}
			}
			b.live[cluster.GetName()] = list
		}
	}
	return b, nil
}

var release = regexp.MustCompile(`\b\d+\.\d+\.\d+`)

func fetch(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d (want an Envoy's admin page, such as http://127.0.0.1:9901)", url, res.StatusCode)
	}
	text, err := bounded(res.Body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	return text, nil
}

func bounded(r io.Reader) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err == nil && len(text) > maxBytes {
		err = fmt.Errorf("longer than %d bytes", maxBytes)
	}
	return text, err
}

// relaxed tolerates what a newer or an extended Envoy may send: unknown members are dropped, and of unknown extensions only the
// name is kept.
var relaxed = protojson.UnmarshalOptions{DiscardUnknown: true, Resolver: linked{protoregistry.GlobalTypes}}

// linked resolves messages' types. A type that is not linked in is replaced by one without members.
type linked struct{ *protoregistry.Types }

func (k linked) FindMessageByURL(url string) (protoreflect.MessageType, error) {
	if t, err := k.Types.FindMessageByURL(url); err == nil {
		return t, nil
	}
	return (*codecv3.UpstreamCodec)(nil).ProtoReflect().Type(), nil
}

// Read reads an envoy.yaml (YAML or JSON), or the output of Envoy's /config_dump. The error says what cannot be read.
func Read(text []byte) (b Bootstrap, err error) {
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' {
		var dump adminv3.ConfigDump
		if relaxed.Unmarshal(trimmed, &dump) == nil && len(dump.GetConfigs()) > 0 {
			return ofDump(&dump)
		}
	}
	root, err := document.Parse(text)
	if err != nil {
		return b, err
	}
	if root == nil {
		return b, b.usable()
	}
	file := treeOf(root)
	if err := ofKubernetes(file); err != nil {
		return b, err
	}
	var boot bootstrapv3.Bootstrap
	if err := fill(boot.ProtoReflect(), target(root), nil); err != nil {
		return b, fmt.Errorf("no Envoy configuration: %w", err)
	}
	b.file, b.text = file, bytes.Clone(text)
	b.addStatic(&boot)
	return b, b.usable()
}

func (b *Bootstrap) usable() error {
	if len(b.listeners) == 0 {
		return errors.New("no listener in it (want an envoy.yaml with static_resources, a config dump, or for what a control " +
			"plane tells, the admin address of the Envoy that was told)")
	}
	return nil
}

// ofKubernetes refuses a Kubernetes object, and says where its Envoy's configuration is.
func ofKubernetes(file any) error {
	kind, _ := get(file, path{"kind"})
	if version, ok := get(file, path{"apiVersion"}); !ok || version == nil || kind == nil {
		return nil
	}
	const running = "the admin address of the Envoy that was told, such as after kubectl port-forward POD 15000 (Istio) or 19000 " +
		"(Envoy Gateway)"
	if kind != "ConfigMap" {
		return fmt.Errorf("a Kubernetes object, %v, of which a control plane makes a part of Envoy's configuration (want an envoy.yaml, or %s)",
			kind, running)
	}
	name, _ := get(file, path{"metadata", "name"})
	data, _ := get(file, path{"data"})
	keys := []string{}
	if members, ok := data.(yaml.MapSlice); ok {
		for _, m := range members {
			keys = append(keys, fmt.Sprint(m.Key))
		}
	}
	at := "KEY"
	if len(keys) == 1 {
		at = strings.ReplaceAll(keys[0], ".", `\.`)
	}
	return fmt.Errorf("a ConfigMap (want the envoy.yaml that it holds: kubectl get configmap %v -o jsonpath='{.data.%s}' > envoy.yaml; "+
		"its keys: %s)",
		name, at, strings.Join(keys, ", "))
}

func (b *Bootstrap) addStatic(boot *bootstrapv3.Bootstrap) {
	b.adminOpen = boot.GetAdmin().GetAddress() != nil && len(boot.GetAdmin().GetAllowPaths()) == 0
	b.layers = boot.GetLayeredRuntime()
	at := path{"static_resources"}
	for i, l := range boot.GetStaticResources().GetListeners() {
		b.listeners = append(b.listeners, located[*listenerv3.Listener]{at.to("listeners", i), l})
	}
	for i, c := range boot.GetStaticResources().GetClusters() {
		b.clusters = append(b.clusters, located[*clusterv3.Cluster]{at.to("clusters", i), c})
	}
}

// ofDump reads a running Envoy's dump: its static file and its dynamic configuration.
func ofDump(dump *adminv3.ConfigDump) (b Bootstrap, err error) {
	b.routes, b.endpoints = map[string]located[*routev3.RouteConfiguration]{}, map[string][]string{}
	for _, packed := range dump.GetConfigs() {
		part, err := packed.UnmarshalNew()
		if err != nil {
			continue // a part of an unknown type
		}
		switch d := part.(type) {
		case *adminv3.BootstrapConfigDump:
			b.Envoy = ofNode(d.GetBootstrap().GetNode())
			b.addStatic(d.GetBootstrap())
		case *adminv3.ListenersConfigDump:
			for _, l := range d.GetDynamicListeners() {
				if m, ok := as[*listenerv3.Listener](l.GetActiveState().GetListener()); ok {
					b.listeners = append(b.listeners, located[*listenerv3.Listener]{path{"dynamic_listeners", l.GetName()}, m})
				}
			}
		case *adminv3.ClustersConfigDump:
			for _, c := range d.GetDynamicActiveClusters() {
				if m, ok := as[*clusterv3.Cluster](c.GetCluster()); ok {
					b.clusters = append(b.clusters, located[*clusterv3.Cluster]{path{"dynamic_active_clusters", m.GetName()}, m})
				}
			}
		case *adminv3.RoutesConfigDump:
			for _, r := range d.GetDynamicRouteConfigs() {
				if m, ok := as[*routev3.RouteConfiguration](r.GetRouteConfig()); ok {
					b.routes[m.GetName()] = located[*routev3.RouteConfiguration]{path{"dynamic_route_configs", m.GetName()}, m}
				}
			}
		case *adminv3.EndpointsConfigDump:
			for _, e := range d.GetDynamicEndpointConfigs() {
				if m, ok := as[*endpointv3.ClusterLoadAssignment](e.GetEndpointConfig()); ok {
					b.endpoints[m.GetClusterName()] = addresses(m)
				}
			}
		}
	}
	return b, b.usable()
}

// ofNode returns the release in a bootstrap's node.
func ofNode(n *corev3.Node) string {
	v := n.GetUserAgentBuildVersion().GetVersion()
	if v == nil {
		return ""
	}
	return fmt.Sprintf("%d.%d.%d", v.GetMajorNumber(), v.GetMinorNumber(), v.GetPatch())
}

// as unpacks an extension's configuration if it has the expected type.
func as[T proto.Message](packed *anypb.Any) (m T, ok bool) {
	if packed == nil {
		return m, false
	}
	some, err := packed.UnmarshalNew()
	if err != nil {
		return m, false
	}
	m, ok = some.(T)
	return m, ok
}

func addresses(a *endpointv3.ClusterLoadAssignment) (out []string) {
	for _, locality := range a.GetEndpoints() {
		for _, e := range locality.GetLbEndpoints() {
			if s := e.GetEndpoint().GetAddress().GetSocketAddress(); s != nil {
				out = append(out, net.JoinHostPort(s.GetAddress(), strconv.Itoa(int(s.GetPortValue()))))
			}
			if p := e.GetEndpoint().GetAddress().GetPipe(); p != nil {
				out = append(out, "unix:"+p.GetPath())
			}
		}
	}
	return out
}
