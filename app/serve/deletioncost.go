package serve

import (
	"cmp"
	"math"
	"net/netip"

	"github.com/sightline-router/sightline/router/peers"
	"github.com/sightline-router/sightline/workers/discover"
)

// deletionCosts returns what annotates a pool's pods with what their removal costs. A worker that an operator has taken out of service, or
// that does not answer, costs least.
func (r *running) deletionCosts() *discover.DeletionCosts {
	return &discover.DeletionCosts{
		Writer: cmp.Or(r.peers.hooks().instance, peers.Instance()),
		Told:   func(why string) { r.sources.costsFailing.Store(&why) },
		Of: func() func(netip.AddrPort) (float64, bool) {
			removals := r.router.Removals()
			return func(at netip.AddrPort) (float64, bool) {
				w := r.fleet.ByAddr(at.String())
				if w == nil {
					return 0, false
				}
				if !w.InService() || !w.IsHealthy() {
					return math.Inf(-1), true
				}
				removal, known := removals[w]
				return removal.Cost(), known
			}
		},
	}
}

// costsUnwritten returns why pods' deletion costs cannot be written; "": they can, or nobody asked for them.
func (s *sources) costsUnwritten() string {
	if why := s.costsFailing.Load(); why != nil && s.now.Load().cfg.Kubernetes.DeletionCost {
		return *why
	}
	return ""
}
