package extproc

import (
	"fmt"
	"net"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accessv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sightline-router/sightline/router"
)

// TestStrays: a request for a prompt that ended without a decision is noted, unless Sightline refused it or its client left.
func TestStrays(t *testing.T) {
	for name, c := range map[string]struct {
		path, addr, why string
		code            uint32
		want            int
	}{
		"reached a worker":       {"/v1/chat/completions", "10.0.0.5", "via_upstream", 200, 1},
		"below a route's prefix": {"/qwen/v1/completions?x=1", "10.0.0.5", "via_upstream", 200, 1},
		"ended by Envoy":         {"/v1/chat/completions", "", "route_not_found", 404, 1},
		"refused here":           {"/v1/chat/completions", "", ourDetails + "refused", 400, 0},
		"the client left":        {"/v1/chat/completions", "", "downstream_remote_disconnect", 0, 0},
		"no prompt":              {"/metrics", "10.0.0.5", "via_upstream", 200, 0},
	} {
		s, err := New(nil, func(router.Outcome) {}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.grpc.Stop)
		e := &accessv3.HTTPAccessLogEntry{CommonProperties: &accessv3.AccessLogCommon{AccessLogType: accessv3.AccessLogType_DownstreamEnd},
			Request:  &accessv3.HTTPRequestProperties{RequestMethod: corev3.RequestMethod_POST, Path: c.path},
			Response: &accessv3.HTTPResponseProperties{ResponseCode: wrapperspb.UInt32(c.code), ResponseCodeDetails: c.why}}
		if c.addr != "" {
			e.CommonProperties.UpstreamRemoteAddress = &corev3.Address{Address: &corev3.Address_SocketAddress{
				SocketAddress: &corev3.SocketAddress{Address: c.addr, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8000}}}}
		}
		s.logEntry(1, e)
		if got := len(s.Strays()); got != c.want {
			t.Errorf("%s: got %d strays, want %d", name, got, c.want)
		}
	}
}

// TestRefusedCalls: the last ones are kept, and forgotten once their sender is admitted.
func TestRefusedCalls(t *testing.T) {
	s, err := New(nil, func(router.Outcome) {}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.grpc.Stop)
	at := func(host string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(host), Port: 9} }
	for i := range 2 * maxNoted {
		s.refusedCall(at(fmt.Sprint("10.0.0.", i%2)), "decisions", "no token")
	}
	if got := len(s.RefusedCalls()); got != maxNoted {
		t.Errorf("got %d, want %d", got, maxNoted)
	}
	s.admitted(at("10.0.0.1"))
	if got := s.RefusedCalls(); len(got) != maxNoted/2 || got[0].From != "10.0.0.0" {
		t.Errorf("after one is admitted: got %d, want %d of the other", len(got), maxNoted/2)
	}
}
