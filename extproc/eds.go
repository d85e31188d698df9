package extproc

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointsvc "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/anypb"
)

// Envoy's fallback clusters get the list of workers here (endpoint discovery, state of the world): "all" of them, or "model/NAME"
// for those of one model. A stream gets an answer at once and another with each change. Envoy keeps the last list while we are
// down.

const (
	typeEndpoints = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	allEndpoints  = "all"
	modelPrefix   = "model/"
	maxResources  = 1024 // names that one stream may ask for
)

// Endpoint is a worker for Envoy's load balancers.
type Endpoint struct {
	Addr  string // ip:port
	Model string
}

// Roster is the list of workers for Envoy. It is safe for concurrent use.
type Roster struct {
	mu      sync.Mutex
	workers []Endpoint
	version uint64
	changed chan struct{} // closed at the next change
}

// NewRoster returns a Roster that is not published until Set.
func NewRoster() *Roster { return &Roster{changed: make(chan struct{})} }

// Set replaces the list. An equal list is not a change.
func (r *Roster) Set(workers []Endpoint) {
	workers = slices.Clone(workers)
	slices.SortFunc(workers, func(a, b Endpoint) int { return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Addr, b.Addr)) })
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.version > 0 && slices.Equal(r.workers, workers) {
		return
	}
	r.workers = workers
	r.version++
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Roster) now() ([]Endpoint, uint64, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.workers, r.version, r.changed
}

// StreamEndpoints serves one Envoy, or one of its clusters.
func (s *Server) StreamEndpoints(stream endpointsvc.EndpointDiscoveryService_StreamEndpointsServer) error {
	asked := make(chan *discoveryv3.DiscoveryRequest)
	go func() {
		defer close(asked)
		for {
			req, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case asked <- req:
			case <-stream.Context().Done():
				return
			}
		}
	}()
	var names []string // of the last request
	var sent uint64    // version
	for {
		workers, version, changed := s.opt.Roster.now()
		if len(names) > 0 && version > 0 && sent != version {
			out, err := discovery(names, workers, strconv.FormatUint(version, 10))
			if err != nil {
				return err
			}
			if err := stream.Send(out); err != nil {
				return nil
			}
			sent = version
		}
		select {
		case req, here := <-asked:
			if !here {
				return nil
			}
			if e := req.GetErrorDetail(); e != nil {
				s.log.Error("Envoy refuses the list of workers", zap.String("message", e.GetMessage()))
			}
			if n := req.GetResourceNames(); len(n) <= maxResources && !slices.Equal(n, names) {
				names, sent = n, 0
			}
		case <-changed:
		case <-s.stopping:
			return nil
		}
	}
}

func discovery(names []string, workers []Endpoint, version string) (*discoveryv3.DiscoveryResponse, error) {
	out := &discoveryv3.DiscoveryResponse{TypeUrl: typeEndpoints, VersionInfo: version, Nonce: version}
	for _, name := range names {
		packed, err := anypb.New(assignment(name, workers))
		if err != nil {
			return nil, err
		}
		out.Resources = append(out.Resources, packed)
	}
	return out, nil
}

// assignment lists one cluster's endpoints; an unknown name has none.
func assignment(name string, workers []Endpoint) *endpointv3.ClusterLoadAssignment {
	var list []*endpointv3.LbEndpoint
	for _, w := range workers {
		ap, err := netip.ParseAddrPort(w.Addr)
		if err != nil || name != allEndpoints && name != modelPrefix+w.Model {
			continue
		}
		list = append(list, &endpointv3.LbEndpoint{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: ap.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(ap.Port())},
			}}},
		}}})
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: list}}}
}
