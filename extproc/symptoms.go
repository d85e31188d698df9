package extproc

import (
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	accessv3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	endpointsvc "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sightline-router/sightline/internal/denied"
)

// Stray is a request for a prompt that was not decided here, as Envoy's access log has it.
type Stray struct {
	At    time.Time
	Addr  string // ip:port that got it, undecided and uncleaned; "": Envoy ended it before
	Code  int
	Flags string // Envoy's, such as NR
	Why   string // Envoy's words (response_code_details)
}

// RefusedCall is a call or connection to listen that was refused.
type RefusedCall struct {
	At   time.Time
	From string // its host
	What string // decisions, access logs, endpoints, connections, other calls
	Why  string
}

var callNames = map[string]string{
	extprocv3.ExternalProcessor_Process_FullMethodName:                  "decisions",
	accesslogv3.AccessLogService_StreamAccessLogs_FullMethodName:        "access logs",
	endpointsvc.EndpointDiscoveryService_StreamEndpoints_FullMethodName: "endpoints",
}

// ourDetails begins Envoy's words for a request that Sightline has answered itself.
const ourDetails = "sightline_"

// maxNoted is how many of the last undecided requests and refused calls are kept.
const maxNoted = 256

// recent keeps the last maxNoted entries.
type recent[T any] struct {
	mu   sync.Mutex
	list [maxNoted]T
	n    int
}

func (r *recent[T]) add(one T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list[r.n%maxNoted] = one
	r.n++
}

func (r *recent[T]) all() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]T(nil), r.list[:min(r.n, maxNoted)]...)
}

// remove removes those that are out of date.
func (r *recent[T]) remove(which func(T) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept := slices.DeleteFunc(append([]T(nil), r.list[:min(r.n, maxNoted)]...), which)
	r.n = copy(r.list[:], kept)
}

// Strays returns the last requests for a prompt that were not decided here, in no order.
func (s *Server) Strays() []Stray { return s.strays.all() }

// RefusedCalls returns the last calls and connections to listen that were refused, in no order.
func (s *Server) RefusedCalls() []RefusedCall { return s.refusals.all() }

// DecidedLate returns when the last requests were decided that Envoy had sent on before, in no order.
func (s *Server) DecidedLate() []time.Time { return s.late.all() }

func (s *Server) refusedCall(from net.Addr, what, why string) {
	s.refusals.add(RefusedCall{time.Now(), hostOf(from), what, why})
	s.anyRefused.Store(true)
}

// admitted forgets what was refused to the sender of a call that is admitted.
func (s *Server) admitted(from net.Addr) {
	if !s.anyRefused.Load() {
		return
	}
	host := hostOf(from)
	s.refusals.remove(func(c RefusedCall) bool { return c.From == host })
	s.anyRefused.Store(len(s.refusals.all()) > 0)
}

func hostOf(a net.Addr) string {
	host, _, err := net.SplitHostPort(a.String())
	if err != nil { // a unix socket
		return "this host"
	}
	return host
}

// stray notes a request for a prompt that ended without a decision's id, unless the client left or Sightline refused it.
func (s *Server) stray(kind accessv3.AccessLogType, e *accessv3.HTTPAccessLogEntry) {
	path, _, _ := strings.Cut(e.GetRequest().GetPath(), "?") // with the route's prefix
	isEnd := kind == accessv3.AccessLogType_DownstreamEnd && e.GetRequest().GetRequestMethod() == corev3.RequestMethod_POST
	if !isEnd || !slices.ContainsFunc(denied.Endpoints, func(one string) bool { return strings.HasSuffix(path, one) }) {
		return
	}
	common := e.GetCommonProperties()
	one := Stray{At: time.Now(), Addr: hostPort(common.GetUpstreamRemoteAddress()), Code: int(e.GetResponse().GetResponseCode().GetValue()),
		Flags: flagsOf(common.GetResponseFlags()), Why: e.GetResponse().GetResponseCodeDetails()}
	if one.Addr != "" || one.Code != 0 && !strings.HasPrefix(one.Why, ourDetails) {
		s.strays.add(one)
	}
}

// flagsOf writes Envoy's response flags as its text logs do, joined by commas; "": none.
func flagsOf(f *accessv3.ResponseFlags) string {
	if f == nil {
		return ""
	}
	var list []string
	for _, flag := range []struct {
		set  bool
		name string
	}{
		{f.NoRouteFound, "NR"}, {f.NoClusterFound, "NC"}, {f.NoHealthyUpstream, "UH"}, {f.DnsResolutionFailure, "DF"},
		{f.UpstreamOverflow, "UO"}, {f.UpstreamConnectionFailure, "UF"}, {f.UpstreamConnectionTermination, "UC"},
		{f.UpstreamRemoteReset, "UR"}, {f.UpstreamProtocolError, "UPE"}, {f.UpstreamRequestTimeout, "UT"}, {f.StreamIdleTimeout, "SI"},
		{f.DurationTimeout, "DT"}, {f.UpstreamMaxStreamDurationReached, "UMSDR"}, {f.LocalReset, "LR"}, {f.OverloadManager, "OM"},
		{f.UpstreamRetryLimitExceeded, "URX"}, {f.RateLimited, "RL"}, {f.RateLimitServiceError, "RLSE"},
		{f.GetUnauthorizedDetails() != nil, "UAEX"}, {f.InvalidEnvoyRequestHeaders, "IH"}, {f.DownstreamProtocolError, "DPE"},
		{f.FaultInjected, "FI"}, {f.NoFilterConfigFound, "NFCF"}, {f.DownstreamConnectionTermination, "DC"}, {f.DownstreamRemoteReset, "DR"},
	} {
		if flag.set {
			list = append(list, flag.name)
		}
	}
	return strings.Join(list, ",")
}
