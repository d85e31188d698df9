package extproc

import (
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// Fair names the headers, in lower case, by which few free places are shared out (router.Options.Fair); "": none. Envoy, or a filter
// in front of ours, sets them.
type Fair struct{ Tenant, Priority string }

const (
	maxTenant   = 255 // bytes of a tenant's name that count
	maxPriority = 100 // as far as urgency goes, both ways
)

// of is whose a request is and how urgent. Several headers of a name count as one tenant of all their values.
func (f Fair) of(hs []*corev3.HeaderValue) (tenant string, priority int) {
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
