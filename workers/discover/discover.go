// Package discover finds workers that come and go: by a Kubernetes API server's EndpointSlices, by an InferencePool and its pods, or
// behind a DNS name.
//
//	apiserver.go  list and watch of one kind of objects, over plain net/http
//	slice.go      EndpointSlice → endpoints
//	pool.go       InferencePool and pods → endpoints
//	deletioncost.go  what removals cost → the pods' annotations
//	dns.go        periodic lookups of a name
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
	// Terminating: it is being deleted. It may still answer what it has begun.
	Terminating bool
	// Role is the label llm-d.ai/role, which an EndpointSlice copies from its Service; "": none.
	Role string
	// Revision is the label disaggregatedset.x-k8s.io/revision of the pod, or that an EndpointSlice copies from its Service; "": none. Pods of
	// one revision of prefill and decode workers have the same.
	Revision string
	Zone     string // the node's, from the EndpointSlice or the pod's label; "": not known
	Pod      Pod    // of an InferencePool
}

// Pod is what a pod of an InferencePool says of itself. Empty fields are not said.
type Pod struct {
	Port   int    // the number of its port among the pool's targetPorts: a data-parallel rank, or an engine of its own
	Engine string // label llm-d.ai/engine-type or inference.networking.k8s.io/engine-type
	Model  string // annotation sightline/model: the name of the model that it serves
	Events string // annotation sightline/events: where it publishes KV events, such as tcp://{ip}:5557
	Replay string // annotation sightline/replay: its replay socket
}

const revisionLabel = "disaggregatedset.x-k8s.io/revision"

// maxEndpoints limits one finder's set, far above any fleet behind one router.
const maxEndpoints = 4096
