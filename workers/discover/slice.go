package discover

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"
)

// Kubernetes follows the EndpointSlices that match a label selector, in one namespace. It needs only the verbs list and watch on
// endpointslices of discovery.k8s.io.
type Kubernetes struct {
	Cluster
	Selector string // such as kubernetes.io/service-name=vllm
	Port     string // name or number; "": the only one
	Log      *zap.Logger
	Retry    time.Duration // first wait after a failure, doubled up to 64 times that; 0: 500 ms
}

func (k *Kubernetes) server() *server { return &server{k.Cluster, k.Log, k.Retry} }

func (k *Kubernetes) resource() resource {
	return resource{group: "discovery.k8s.io", version: "v1", namespace: k.Namespace, kind: "endpointslices",
		query: url.Values{"labelSelector": {k.Selector}}}
}

// Follow calls found with the whole set after each change, until ctx ends.
func (k *Kubernetes) Follow(ctx context.Context, found func([]Endpoint)) {
	told := &reporter{found: found, log: k.Log.With(zap.String("selector", k.Selector))}
	follow(ctx, k.server(), k.resource(), func(list map[string]*endpointSlice) {
		told.report(endpointsOf(list, k.Port))
	})
}

// List returns the current endpoints.
func (k *Kubernetes) List(ctx context.Context) ([]Endpoint, error) {
	slices, err := list[endpointSlice](ctx, k.server(), k.resource())
	if err != nil {
		return nil, err
	}
	return endpointsOf(slices, k.Port)
}

// reporter calls found with a set that differs from the one before, and logs a new reason why an endpoint is left out.
type reporter struct {
	found func([]Endpoint)
	log   *zap.Logger
	known bool
	last  []Endpoint
	said  string
}

func (r *reporter) report(now []Endpoint, err error) {
	if err != nil && err.Error() != r.said {
		r.said = err.Error()
		r.log.Warn("not every endpoint can be used", zap.Error(err))
	}
	if !r.known || !slices.Equal(now, r.last) {
		r.known, r.last = true, now
		r.found(now)
	}
}

// endpointSlice is the part of a discovery.k8s.io/v1 EndpointSlice that is used.
type endpointSlice struct {
	described
	AddressType string // IPv4, IPv6; FQDN is ignored
	Endpoints   []struct {
		Addresses  []string // interchangeable; consumers take the first
		Conditions struct{ Ready, Serving, Terminating *bool }
		TargetRef  *struct{ Kind, Name string }
		Zone       string
	}
	Ports []struct {
		Name *string
		Port *int
	}
}

// endpointsOf merges slices into one set, by address. port is a number, used as is, or the name of a port of the slices, or "" if
// they have only one. While the control plane moves an address, it may be in several slices: ready in one is ready. A pod with an
// IPv4 and an IPv6 address is one worker, by IPv4.
//
// An endpoint is ready if its conditions ready and serving are true or unset and it is not terminating: with
// publishNotReadyAddresses every pod is ready, and only serving reflects its readiness probe.
func endpointsOf(list map[string]*endpointSlice, port string) ([]Endpoint, error) {
	byAddr := make(map[netip.AddrPort]Endpoint)
	family4 := make(map[string]bool) // pods known by an IPv4 address
	var wrong error
	for _, s := range list {
		if s.AddressType == "FQDN" || len(s.Endpoints) == 0 {
			continue
		}
		p, err := s.port(port)
		if err != nil {
			wrong = err
			continue
		}
		for _, e := range s.Endpoints {
			if len(e.Addresses) == 0 {
				continue
			}
			ip, err := netip.ParseAddr(e.Addresses[0])
			if err != nil || ip.Zone() != "" {
				wrong = fmt.Errorf("EndpointSlice %s: %q is not an address", s.Metadata.Name, e.Addresses[0])
				continue
			}
			ep := Endpoint{Addr: netip.AddrPortFrom(ip.Unmap(), p), Role: s.Metadata.Labels["llm-d.ai/role"],
				Revision: s.Metadata.Labels[revisionLabel], Zone: e.Zone}
			ep.Ready = boolOr(e.Conditions.Ready, true) && boolOr(e.Conditions.Serving, true) && !boolOr(e.Conditions.Terminating, false)
			ep.Terminating = boolOr(e.Conditions.Terminating, false)
			if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
				ep.Name = e.TargetRef.Name
				family4[ep.Name] = family4[ep.Name] || ip.Unmap().Is4()
			}
			ep.Ready = ep.Ready || byAddr[ep.Addr].Ready
			byAddr[ep.Addr] = ep
		}
	}
	out := make([]Endpoint, 0, len(byAddr))
	for _, ep := range byAddr {
		if ep.Name == "" || ep.Addr.Addr().Is4() || !family4[ep.Name] {
			out = append(out, ep)
		}
	}
	return sorted(out, wrong)
}

// sorted sorts endpoints by name and address, and cuts them off at maxEndpoints.
func sorted(out []Endpoint, wrong error) ([]Endpoint, error) {
	slices.SortFunc(out, func(a, b Endpoint) int { return cmp.Or(cmp.Compare(a.Name, b.Name), a.Addr.Compare(b.Addr)) })
	if len(out) > maxEndpoints {
		wrong = fmt.Errorf("%d endpoints, only %d are used (narrow the selector)", len(out), maxEndpoints)
		out = out[:maxEndpoints]
	}
	return out, wrong
}

// boolOr returns a condition's value, or otherwise if it is unset.
func boolOr(condition *bool, otherwise bool) bool {
	if condition == nil {
		return otherwise
	}
	return *condition
}

func (s *endpointSlice) port(want string) (uint16, error) {
	if n, err := strconv.ParseUint(want, 10, 16); err == nil && n > 0 {
		return uint16(n), nil
	}
	var found []int
	for _, p := range s.Ports {
		if p.Port != nil && (want == "" || p.Name != nil && *p.Name == want) {
			found = append(found, *p.Port)
		}
	}
	if len(found) != 1 || found[0] < 1 || found[0] > 65535 {
		return 0, fmt.Errorf("EndpointSlice %s: %d ports fit %q (want one: give a port's name or number)", s.Metadata.Name, len(found), want)
	}
	return uint16(found[0]), nil
}
