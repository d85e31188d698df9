// Package discover finds workers that come and go, in a Kubernetes API server's EndpointSlices or behind a DNS name.
//
//	kubernetes.go  list and watch, over plain net/http
//	slice.go       EndpointSlice → endpoints
//	dns.go         periodic lookups of a name
//
// A finder reports its whole set after each change. A failed lookup changes nothing: a router that has lost its API server or its
// resolver goes on with the workers that it knew last.
package discover

import "net/netip"

// Endpoint is an address at which a worker may be.
type Endpoint struct {
	Name string // the pod's; "": not known
	Addr netip.AddrPort
	// Ready endpoints may be given requests. An endpoint that is not ready (loading, failing its probe, or terminating) may still
	// exist and send KV events.
	Ready bool
	// Role is the label llm-d.ai/role, which an EndpointSlice copies from its Service; "": none.
	Role string
	Zone string // the node's, from the EndpointSlice; "": not known
}

// maxEndpoints limits one finder's set, far above any fleet behind one router.
const maxEndpoints = 4096
