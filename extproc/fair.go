package extproc

import (
	"context"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/metadata"

	"github.com/sightline-router/sightline/internal/fair"
)

// Fair names the headers, in lower case, by which the last free places are shared out (router.Options.Fair); "": none. Envoy, or
// a filter before ours, sets them.
type Fair struct{ Tenant, Priority string }

const (
	maxTenant   = 255 // bytes of a tenant's name that are kept
	maxPriority = 100 // limit of the priority, both ways
)

// parse returns the tenant and the priority of a request. Several tenant headers count as one tenant with all their values.
func (f Fair) parse(hs []*corev3.HeaderValue) (tenant string, priority int) {
	if f == (Fair{}) {
		return "", 0
	}
	var names []string
	for _, h := range hs {
		switch h.GetKey() {
		case "":
		case f.Tenant:
			names = append(names, value(h))
		case f.Priority:
			n, _ := strconv.Atoi(value(h))
			priority = max(-maxPriority, min(n, maxPriority))
		}
	}
	slices.Sort(names)
	tenant = strings.Join(names, ",")
	return tenant[:min(len(tenant), maxTenant)], priority
}

// namedObjectives returns the objectives (Options.Objective) that a request names, under the header's present name and its former one.
func namedObjectives(hs []*corev3.HeaderValue) (names []string) {
	for _, h := range hs {
		if key := h.GetKey(); key == "x-llm-d-inference-objective" || key == "x-gateway-inference-objective" {
			names = append(names, value(h))
		}
	}
	return names
}

// keyClient is the gRPC metadata in which Envoy tells a client's address (grpc_service.initial_metadata of the filter, with
// %DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%). A client cannot set metadata. x-forwarded-for is not read, since it is the
// client's own wherever Envoy is not told otherwise.
const keyClient = "x-sightline-client"

// ipv6Client is the length of the prefix of an IPv6 address that counts as one client: a host that has one address has 2^64.
const ipv6Client = 64

// client returns whose request this is: its tenant's, else its address's; 0 if Envoy tells neither.
func (c *call) client(ctx context.Context) fair.Client {
	switch {
	case c.tenant != "":
		return fair.ClientOf("tenant " + c.tenant)
	case len(c.head.tenants) == 1:
		return fair.ClientOf("tenant " + c.head.tenants[0])
	}
	md, _ := metadata.FromIncomingContext(ctx)
	v := md.Get(keyClient)
	if len(v) == 0 {
		return 0
	}
	ip, err := netip.ParseAddr(v[0])
	switch {
	case err != nil: // a Unix socket, or an Envoy that writes what it could not fill in as it is
		return 0
	case ip.Unmap().Is6():
		ip = netip.PrefixFrom(ip.WithZone(""), ipv6Client).Masked().Addr()
	}
	return fair.ClientOf(ip.Unmap().String())
}
