package check

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strings"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
)

// Which clusters are the workers': nothing of another service may be changed.

// workers reports whether a cluster counts as one of workers. A missing one does.
func (c *known) workers(name string) bool {
	_, there := c.cluster(name)
	return len(c.want.Clusters) == 0 || slices.Contains(c.want.Clusters, name) || !there
}

// identify sets want.Clusters. It returns false, with a finding, if several clusters may be the workers'.
func (c *checker) identify() bool {
	if len(c.want.Clusters) > 0 {
		return true
	}
	var have, dial []string
	for _, p := range c.clusters {
		if header, _ := c.reads(p.of.GetName()); header != "" {
			dial = append(dial, p.of.GetName())
		} else if c.has(p.of, c.want.Workers) {
			have = append(have, p.of.GetName())
		}
	}
	if len(have) > 0 {
		c.want.Clusters = append(have, dial...)
		return true
	}
	groups, follow := c.led()
	if len(groups) == 1 && len(follow) == 0 && !slices.ContainsFunc(groups[0], c.mayBe) {
		c.find("which_clusters", path{"static_resources", "clusters"}, "POST /v1/chat/completions is led to "+strings.Join(groups[0], ", ")+
			", which has no worker's address or port")
		return false
	}
	if len(groups) < 2 {
		return true
	}
	byPort := slices.DeleteFunc(slices.Clone(groups), func(g []string) bool { return !slices.ContainsFunc(g, c.portOfWorkers) })
	switch {
	case len(byPort) == 1:
		c.want.Clusters = append(byPort[0], dial...)
	case len(follow) > 0:
		c.want.Clusters = append(follow, dial...)
	default:
		names := strings.Join(slices.Concat(groups...), ", ")
		c.find("which_clusters", path{"static_resources", "clusters"}, "POST /v1/chat/completions is led to "+names)
		return false
	}
	others := slices.DeleteFunc(slices.Concat(groups...), func(n string) bool { return slices.Contains(c.want.Clusters, n) })
	c.as(Note, "which_clusters", path{"static_resources", "clusters"}, "taken for another service: "+strings.Join(others, ", "))
	return true
}

// led returns the clusters that inference requests are led to and whose balancing would change, those of one route in one group;
// and the clusters of requests for which some cluster follows Sightline's choice.
func (c *checker) led() (groups [][]string, follow []string) {
	c.managers(func(s *site, routes *routev3.RouteConfiguration, at path) {
		c.lead(s, routes, at)
		for _, h := range s.hosts {
			for _, w := range h.routes {
				beside := func(o *way) bool { // a route of the same requests whose cluster follows the choice
					same := slices.ContainsFunc(w.asked, func(p string) bool { return slices.Contains(o.asked, p) })
					return same && slices.ContainsFunc(o.clusters, c.follows)
				}
				if slices.ContainsFunc(h.routes, beside) {
					follow = append(follow, w.clusters...)
				}
				group := slices.DeleteFunc(slices.Clone(w.clusters), func(n string) bool { return slices.Contains(follow, n) })
				if len(w.asked) == 0 || len(group) == 0 {
					continue
				}
				for i := 0; i < len(groups); i++ { // groups that share a cluster become one
					if slices.ContainsFunc(groups[i], func(n string) bool { return slices.Contains(group, n) }) {
						group = append(group, groups[i]...)
						groups = slices.Delete(groups, i, i+1)
						i--
					}
				}
				slices.Sort(group)
				groups = append(groups, slices.Compact(group))
			}
		}
	})
	if len(follow) > 0 && len(groups) > 0 {
		groups = append(groups, follow)
	}
	return groups, follow
}

func (c *known) follows(name string) bool {
	_, reads := c.reads(name)
	return reads
}

// endpointsOf returns a cluster's addresses, as far as they are known: as they are written, and as a running Envoy resolved them.
func (c *known) endpointsOf(of *clusterv3.Cluster) []string {
	told, ok := c.endpoints[cmp.Or(of.GetEdsClusterConfig().GetServiceName(), of.GetName())]
	if !ok {
		told = addresses(of.GetLoadAssignment())
	}
	for _, e := range c.live[of.GetName()] {
		told = append(told[:len(told):len(told)], e.addr)
	}
	return told
}

// has reports whether a cluster has one of these addresses: as it is written, or as it resolves.
func (c *known) has(of *clusterv3.Cluster, addrs []string) bool {
	have := c.endpointsOf(of)
	if slices.ContainsFunc(have, func(a string) bool { return slices.Contains(addrs, a) }) {
		return true
	}
	have = c.ips(have)
	return slices.ContainsFunc(c.ips(addrs), func(a string) bool { return slices.Contains(have, a) })
}

// ips returns addresses with their names resolved. A name that does not resolve is left out.
func (c *known) ips(addrs []string) (out []string) {
	for _, a := range addrs {
		host, port, err := net.SplitHostPort(a)
		if err != nil {
			continue // a unix socket
		}
		if _, err := netip.ParseAddr(host); err == nil {
			out = append(out, a)
			continue
		}
		for _, ip := range c.want.Resolve(host) {
			out = append(out, net.JoinHostPort(ip.String(), port))
		}
	}
	return out
}

// mayBe reports whether a cluster may be the workers': one of them has a port of it, or not all of either is known.
func (c *known) mayBe(name string) bool {
	there, ok := c.cluster(name)
	return !ok || len(c.want.Workers) == 0 || len(c.endpointsOf(there.of)) == 0 || c.portOfWorkers(name)
}

// portOfWorkers reports whether a cluster has an endpoint with the port of a worker.
func (c *known) portOfWorkers(name string) bool {
	there, _ := c.cluster(name)
	return slices.ContainsFunc(c.endpointsOf(there.of), func(a string) bool {
		_, port, err := net.SplitHostPort(a)
		return err == nil && slices.ContainsFunc(c.want.Workers, func(w string) bool { return strings.HasSuffix(w, ":"+port) })
	})
}
