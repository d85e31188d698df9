// Package discover finds workers that come and go, in a Kubernetes API server's EndpointSlices or behind a DNS name.
//
//	kubernetes.go  list and watch, over plain net/http
//	slice.go       EndpointSlice → endpoints
//	dns.go         a name looked up again and again
//
// A finder tells the whole set each time that it changed. What cannot be asked changes nothing: a router that lost its
// API server or its resolver goes on with the workers that it knew last.
package discover

import "net/netip"

// Endpoint is one address at which a worker may be.
type Endpoint struct {
	Name string // the pod's; "" where nothing tells
	Addr netip.AddrPort
	// Ready endpoints may be given requests. One that is not (still loading, failing its probe, or terminating) may yet
	// be there and tell KV events.
	Ready bool
	// Role is the label llm-d.ai/role that its EndpointSlice has from its Service; "": none.
	Role string
	Zone string // the node's, as its EndpointSlice tells; "": not known
}

// maxEndpoints bounds one finder's set, far above any fleet behind one router.
const maxEndpoints = 4096
