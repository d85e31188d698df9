package extproc

import (
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
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
