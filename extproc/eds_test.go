package extproc

import (
	"slices"
	"testing"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointsvc "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
)

// TestEndpointsAreTold checks that a cluster gets its workers when it asks, and again with each change, but not without one.
func TestEndpointsAreTold(t *testing.T) {
	roster := NewRoster()
	r := newRig(t, always(pick), Options{Roster: roster})
	stream, err := endpointsvc.NewEndpointDiscoveryServiceClient(r.conn).StreamEndpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ask := func(names ...string) {
		t.Helper()
		if err := stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: typeEndpoints, ResourceNames: names}); err != nil {
			t.Fatal(err)
		}
	}
	told := func(want map[string][]string) {
		t.Helper()
		res, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if len(res.GetResources()) != len(want) || res.GetVersionInfo() == "" || res.GetNonce() == "" {
			t.Fatalf("%v, want %v", res, want)
		}
		for _, packed := range res.GetResources() {
			var a endpointv3.ClusterLoadAssignment
			if err := packed.UnmarshalTo(&a); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, e := range a.GetEndpoints()[0].GetLbEndpoints() {
				got = append(got, hostPort(e.GetEndpoint().GetAddress()))
			}
			if !slices.Equal(got, want[a.GetClusterName()]) {
				t.Errorf("%s: %v, want %v", a.GetClusterName(), got, want[a.GetClusterName()])
			}
		}
	}
	ask("all", "model/b", "model/none") // before any worker is known: no answer, so that Envoy keeps its list
	roster.Set([]Endpoint{{"[fd00::1]:8000", "b"}, {"10.0.0.1:8000", "a"}, {"a.name:8000", "a"}})
	told(map[string][]string{"all": {"10.0.0.1:8000", "[fd00::1]:8000"}, "model/b": {"[fd00::1]:8000"}, "model/none": nil})
	roster.Set([]Endpoint{{"10.0.0.1:8000", "a"}, {"a.name:8000", "a"}, {"[fd00::1]:8000", "b"}}) // the same in another order
	ask("all", "model/b", "model/none")                                                           // Envoy's acknowledgement
	ask("model/a")
	told(map[string][]string{"model/a": {"10.0.0.1:8000"}})
	roster.Set(nil)
	told(map[string][]string{"model/a": nil})
}
