// Package extproc implements Envoy's protocols: an ext_proc stream becomes a router.Request, and its router.Decision becomes
// headers for Envoy; the access log service receives how requests end. It does not copy bodies. A decision takes 0.4 ms for 1 KB,
// 4.3 ms for 3.7 MB. A fault here costs a request its choice; the client gets an error only for a body that cannot be read or
// comes too late.
//
//	Envoy ── headers ──▶ gate ── "go on, send the body" ─▶ Envoy     (or: "not ours, stream it through")
//	Envoy ── body ─────▶ decide ─ x-target-worker, … ────▶ Envoy     stream ends here, not with the generation
//	Envoy ── access log entries ─▶ observe: started on worker X, ended with status Y
//
// The files, in the order of a request's life: route.go (settings of its route), gate.go (is it ours?), codec.go (how the body is
// received), stream.go and duplex.go (the state machine), answer.go (the answer to Envoy), follow.go and accesslog.go (how it
// ended). The package supports Sightline's own headers and those of the endpoint-picker protocol of Gateway API's Inference
// Extension.
package extproc

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	endpointsvc "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/repeat"
	"github.com/sightline-router/sightline/internal/sockets"
	"github.com/sightline-router/sightline/router"
)

// Decide decides one request; normally (*router.Router).Decide. It must not keep req.Body, which is nil for a request that names
// a stored answer and for one of the endpoint-picker protocol without a prompt: there is nothing to match.
type Decide func(ctx context.Context, req *router.Request) router.Decision

// Observe receives Envoy's reports on decided requests; normally (*router.Router).Observe. It is called from several goroutines
// and must not block.
type Observe func(router.Outcome)

// Traced receives a decision after its answer was sent: when it began and how long it took, the request's path, and the W3C
// traceparent of its parent span, unchecked and possibly hostile; "" for none. It must not block.
type Traced func(traceparent, path string, d router.Decision, began time.Time, took time.Duration)

// DefaultMaxBody is the default limit of a request body, in bytes: two dozen 720p images as PNG data URLs.
const DefaultMaxBody = 64 << 20

// DefaultBodyTimeout is the default time limit for a body to arrive: 64 MiB at 1.8 Mbit/s.
const DefaultBodyTimeout = 5 * time.Minute

// Options configure a Server. The zero value works.
type Options struct {
	// MaxBody is the largest body in bytes; a larger one is answered with 413. 0: DefaultMaxBody. Envoy's
	// request_body_buffer_limit should be equal.
	MaxBody int
	// BodyTimeout is the time from the headers within which the body must arrive; then the client gets 408. 0:
	// DefaultBodyTimeout.
	BodyTimeout time.Duration
	// EnvoyWaits is how long Envoy waits for an answer (its message_timeout) before it sends the request on unchanged; 0: for
	// ever. A decision gets half of it; the other half is for transferring the body here and back.
	EnvoyWaits time.Duration
	// EnvoyMayWait is how long Envoy waits for the answer to a large body if it is asked to (its max_message_timeout); 0: it is not asked.
	EnvoyMayWait time.Duration
	// RefuseUnread refuses every body that cannot be read and cleaned, and every body for a path that is not an endpoint, except
	// for the paths of Pass. Envoy must fail closed too (failure_mode_allow: false), since it does not ask while we are down.
	RefuseUnread bool
	Pass         []string
	Route        Route   // defaults for what a stream's metadata does not set
	Tenants      Tenants // the tenant of a request
	Fair         Fair    // headers for sharing out the last free places
	// Objective, if set, returns the priority of a request whose headers name these objectives, and whether requests of a higher
	// priority than 0 are known (router.Request). Fair.Priority replaces it.
	Objective func(named []string) (priority int, urgent bool)
	TLS       *tls.Config // nil: plain text
	// Admit reports whether a caller with this authorization header ("": none) is admitted; nil: everybody is. Health checks need
	// no authorization.
	Admit func(authorization string) bool
	// Starting makes the health service report NOT_SERVING for ext_proc and "readiness" until Ready is called.
	Starting bool
	// Drain is how long a stopping server goes on deciding with health NOT_SERVING, so that every Envoy has left before it ends.
	Drain  time.Duration
	Models []string // if not empty: the answer to GET /v1/models
	// Instance begins the ids of all decisions; "" if there are no replicas.
	Instance string
	// Forward, if set, passes Envoy's report on a request that another replica decided to that replica, and the end of a log
	// stream to all. It returns false if that replica is not known. It must not block.
	Forward  func(to string, o router.Outcome) bool
	NoRoom   func(what string)           // is called for each connection that was closed to make room for another; nil: not
	Services func(grpc.ServiceRegistrar) // if set, registers further services
	Roster   *Roster                     // the workers for Envoy's fallback clusters; nil: those are told nothing
	Traced   Traced                      // receives each decision; nil: none
	Log      *zap.Logger                 // nil: silent
	Metrics  prometheus.Registerer       // nil: none
}

// Server serves Envoy on one listener: ext_proc, access logs, endpoint discovery and gRPC health checks.
type Server struct {
	decide     Decide
	observe    Observe
	opt        Options
	log        *zap.Logger                                  // sampled: each message once a minute
	models     atomic.Pointer[extprocv3.ProcessingResponse] // nil: workers answer for themselves
	metrics    *metrics
	outcomes   *outcomeFilter
	strays     *recent[Stray]
	late       *recent[time.Time]
	refusals   *recent[RefusedCall]
	anyRefused atomic.Bool
	sources    atomic.Uint64 // number of connections so far
	lists      atomic.Int32  // whether gateways take a list of endpoints: listsUnknown, listsWork or listsFail

	// bodyBytes is the bytes of bodies in memory, maxBodyBytes its limit: beyond it requests are answered with 503, so that a burst
	// of large uploads cannot exhaust memory; no client can take all of it. What gRPC has received of an incomplete message does not
	// count: with buffered bodies Envoy sends a message only when it has all of it, so those are few, and Envoy's own heap limit
	// bounds them.
	bodyBytes    *fair.Room
	maxBodyBytes int64
	moreTime     encoded       // asks Envoy to wait for Options.EnvoyMayWait
	lingers      time.Duration // see call.linger

	grpc      *grpc.Server
	health    *health.Server
	readyOnce sync.Once // set by Ready or by a stop, whichever is first
	stopping  chan struct{}

	// The embedded stubs answer methods that this server does not implement.
	extprocv3.UnimplementedExternalProcessorServer
	accesslogv3.UnimplementedAccessLogServiceServer
	endpointsvc.UnimplementedEndpointDiscoveryServiceServer
}

// Settings of the gRPC transport. Measured with a 3.7 MB body on two cores (BenchmarkDecision), p50 against gRPC's defaults: 0.9x
// over a unix socket, no difference beyond the noise over loopback TCP. Large windows are for a network.
const (
	streamWindow   = 16 << 20         // a body of this size is sent without waiting for us
	connWindow     = 128 << 20        // eight of them at once on one connection
	readBuffer     = 256 << 10        // fewer read calls; 32 KB is the default
	maxStreams     = 65536            // the same as the circuit breaker in our envoy.yaml
	maxConnections = 4096             // or a quarter of the process's files
	maxProbes      = 64               // on a connection to the health service alone
	connectionTime = 10 * time.Second // for the handshake
	idleTime       = 15 * time.Minute // without a stream
	stackedIdle    = 128              // goroutines that wait for streams; beyond, each stream starts one
	headroom       = 64 << 10         // size of a body message besides the body: attributes, metadata
	bodiesAtOnce   = 16               // × MaxBody = maxBodyBytes
	fewBytes       = 1 << 20          // bodies that announce no more than this have a quarter of maxBodyBytes to themselves
	lastStreams    = 10 * time.Minute // after a drain: streams of the endpoint-picker protocol last as long as the responses
	sampledPeriod  = time.Minute
)

// New returns a Server. It fails if MaxBody is more than a gRPC message can hold.
func New(decide Decide, observe Observe, opt Options) (*Server, error) {
	opt.MaxBody = cmp.Or(max(0, opt.MaxBody), DefaultMaxBody)
	opt.BodyTimeout = cmp.Or(max(0, opt.BodyTimeout), DefaultBodyTimeout)
	if opt.MaxBody > math.MaxInt32-headroom {
		return nil, fmt.Errorf("largest body: %d bytes, want less than 2 GiB (a gRPC message cannot hold more)", opt.MaxBody)
	}
	opt.Log = cmp.Or(opt.Log, zap.NewNop())
	if opt.NoRoom == nil {
		opt.NoRoom = func(string) {}
	}
	if opt.Roster == nil {
		opt.Roster = NewRoster()
	}
	m := newMetrics(opt.Metrics)
	s := &Server{
		decide:       decide,
		observe:      observe,
		opt:          opt,
		log:          repeat.Once(opt.Log, sampledPeriod),
		metrics:      m,
		outcomes:     newOutcomeFilter(maxSeenOutcomes),
		strays:       &recent[Stray]{},
		late:         &recent[time.Time]{},
		refusals:     &recent[RefusedCall]{},
		bodyBytes:    fair.Shared(bodiesAtOnce*int64(opt.MaxBody), 0),
		maxBodyBytes: bodiesAtOnce * int64(opt.MaxBody),
		moreTime:     encode(&extprocv3.ProcessingResponse{OverrideMessageTimeout: durationpb.New(opt.EnvoyMayWait)}),
		lingers:      lingers,
		health:       health.NewServer(),
		stopping:     make(chan struct{}),
	}
	s.grpc = s.newGRPC()
	s.SetModels(opt.Models)
	extprocv3.RegisterExternalProcessorServer(s.grpc, s)
	accesslogv3.RegisterAccessLogServiceServer(s.grpc, s)
	endpointsvc.RegisterEndpointDiscoveryServiceServer(s.grpc, s)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	if opt.Services != nil {
		opt.Services(s.grpc)
	}
	// The health package sets "". Envoy's check in our envoy.yaml asks for the service by name; deployments of the
	// endpoint-picker protocol ask for the other two.
	s.health.SetServingStatus("liveness", healthpb.HealthCheckResponse_SERVING)
	s.setReadiness(healthpb.HealthCheckResponse_SERVING)
	if opt.Starting {
		s.setReadiness(healthpb.HealthCheckResponse_NOT_SERVING)
	}
	return s, nil
}

// Ready ends Options.Starting. Earlier requests are answered too.
func (s *Server) Ready() {
	s.readyOnce.Do(func() { s.setReadiness(healthpb.HealthCheckResponse_SERVING) })
}

func (s *Server) setReadiness(to healthpb.HealthCheckResponse_ServingStatus) {
	// The last is what the light picker of the Inference Extension is asked for by its manifests.
	for _, name := range []string{extprocv3.ExternalProcessor_ServiceDesc.ServiceName, "readiness", "inference-extension"} {
		s.health.SetServingStatus(name, to)
	}
}

// loggedHandshakes notes why connections fail: an Envoy without TLS or with a certificate that has expired only says that it has no
// healthy host.
type loggedHandshakes struct {
	credentials.TransportCredentials
	log    *zap.Logger
	server *Server
}

// ServerHandshake implements credentials.TransportCredentials.
func (l loggedHandshakes) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := l.TransportCredentials.ServerHandshake(c)
	if err != nil && !errors.Is(err, io.EOF) {
		l.log.Warn("a TLS handshake failed at listen: does the client speak TLS, and does each side trust the other's certificate?",
			zap.Stringer("client", c.RemoteAddr()), zap.Error(err))
		l.server.refusedCall(c.RemoteAddr(), "connections", "TLS: "+err.Error())
	}
	return secured, info, err
}

// Clone implements credentials.TransportCredentials.
func (l loggedHandshakes) Clone() credentials.TransportCredentials {
	return loggedHandshakes{l.TransportCredentials.Clone(), l.log, l.server}
}

func (s *Server) newGRPC() *grpc.Server {
	creds := insecure.NewCredentials()
	if s.opt.TLS != nil {
		creds = loggedHandshakes{credentials.NewTLS(s.opt.TLS), repeat.Once(s.opt.Log, sampledPeriod), s}
	}
	return grpc.NewServer(
		grpc.Creds(creds),
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(s.opt.MaxBody+headroom),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.NumStreamWorkers(stackedIdle), // a new goroutine's stack would be copied four times while it grows, a tenth of a decision
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ReadBufferSize(readBuffer),
		experimental.BufferPool(newFrames()),
		grpc.StreamInterceptor(s.admit),
		grpc.ConnectionTimeout(connectionTime),
		// An Envoy that vanished without a FIN is noticed within 40 s; one that pings often is tolerated. One that asks nothing for
		// long is told to connect anew (GOAWAY), which costs no request.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second, MaxConnectionIdle: idleTime}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
}

// admit is an interceptor that requires a token, if Options.Admit is set, and marks the connections of those who are admitted.
// Everything but health checks is a stream.
func (s *Server) admit(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if info.FullMethod == healthpb.Health_Watch_FullMethodName {
		return handle(srv, stream)
	}
	from, _ := peer.FromContext(stream.Context())
	given := append(metadata.ValueFromIncomingContext(stream.Context(), "authorization"), "")[0]
	if s.opt.Admit != nil && !s.opt.Admit(given) {
		s.metrics.errors.WithLabelValues("no token").Inc()
		why := "a token that is not in listen_token_file"
		if given == "" {
			why = "no token"
		}
		if from != nil {
			s.refusedCall(from.Addr, cmp.Or(callNames[info.FullMethod], "other calls"), why)
		}
		return status.Error(codes.Unauthenticated, "want authorization: Bearer, with a token of listen_token_file")
	}
	if from != nil && callNames[info.FullMethod] != "" {
		s.admitted(from.Addr)
	}
	keep(stream.Context())
	return handle(srv, stream)
}

// Serve answers on lis until ctx ends, then stops gracefully: health turns NOT_SERVING at once, except "liveness"; requests are
// still decided for Options.Drain; streams open by then get ten minutes. It closes lis and must be called only once. A stop by
// ctx is not an error.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	stopped := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(stopped)
		s.readyOnce.Do(func() {}) // a later Ready has no effect
		s.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
		s.setReadiness(healthpb.HealthCheckResponse_NOT_SERVING)
		time.Sleep(s.opt.Drain)
		close(s.stopping) // access log streams never end by themselves
		s.health.Shutdown()
		hard := time.AfterFunc(lastStreams, s.grpc.Stop)
		defer hard.Stop()
		s.grpc.GracefulStop()
	})
	lis = sockets.Limit(lis, sockets.Share(4, maxConnections), func() { s.opt.NoRoom("connections to listen") })
	err := s.grpc.Serve(&numberedListener{Listener: lis, server: s})
	if !unhook() {
		<-stopped
	}
	if ctx.Err() != nil && (err == nil || errors.Is(err, grpc.ErrServerStopped)) {
		return nil
	}
	return err
}

// ServeHealth answers health checks alone, in plain text, until Serve's drain is over: probes cannot speak the TLS of its listener.
func (s *Server) ServeHealth(lis net.Listener) error {
	g := grpc.NewServer(grpc.ConnectionTimeout(connectionTime), grpc.MaxConcurrentStreams(maxProbes), grpc.MaxRecvMsgSize(headroom))
	healthpb.RegisterHealthServer(g, s.health)
	go func() {
		<-s.stopping
		g.Stop()
	}()
	return g.Serve(lis)
}

// Stopping returns a channel that is closed when the drain is over: streams that never end by themselves must end then.
func (s *Server) Stopping() <-chan struct{} { return s.stopping }

// Listen opens "host:port" or "unix:/path/to/socket". A socket file left by a dead process is removed; one on which a process
// still answers is an error.
func Listen(addr string) (lis net.Listener, err error) {
	if path, isUnix := strings.CutPrefix(addr, "unix:"); isUnix {
		lis, err = listenUnix(path)
	} else {
		lis, err = net.Listen("tcp", addr)
		if err != nil {
			want := "host:port, such as 127.0.0.1:9002, or unix:/path"
			if errors.Is(err, syscall.EADDRINUSE) {
				want = "a free port; is another Sightline running, or one that is stopping?"
			}
			err = fmt.Errorf("%w (want %s)", err, want)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("listen address %q: %w", addr, err)
	}
	return lis, nil
}

func listenUnix(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, errors.New("a file that is not a socket exists there; remove it or choose another path")
		}
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, errors.New("another process answers there; stop it or choose another path")
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("stale socket: %w", err)
		}
	}
	lis, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	// Envoy often runs as another user; the directory's permissions decide who may reach the socket.
	if err := os.Chmod(path, 0o666); err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	return lis, nil
}

// metrics are this package's counters. Every label value is a constant or a decision's reason, never client text.
type metrics struct {
	streams   prometheus.Counter
	gates     *prometheus.CounterVec
	answers   *prometheus.CounterVec
	bytesRead prometheus.Counter
	errors    *prometheus.CounterVec
	entries   *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	of := meter.At(reg)
	m := &metrics{
		streams:   of.Counter("extproc_streams_total", "ext_proc streams that Envoy opened, one per request."),
		bytesRead: of.Counter("extproc_body_bytes_total", "Request body bytes read."),
		gates: of.Counters("extproc_gate_total", "Requests by their headers: readable, unreadable (refused), not ours.",
			"verdict", "why"),
		answers: of.Counters("extproc_answers_total",
			"Answers to Envoy by the decision's reason.", "reason"),
		errors: of.Counters("extproc_errors_total",
			"Streams that ended without a decision; decided too late: after envoy.message_timeout.",
			"what"),
		entries: of.Counters("access_log_entries_total", "Entries of Envoy's access log.", "kind"),
	}
	m.errors.WithLabelValues(tooSlow) // start at 0: an alert sees no increase in a counter that first appears as 1
	m.gates.WithLabelValues(string(unreadable), busy)
	m.gates.WithLabelValues(string(unreadable), late)
	return m
}

func (m *metrics) gate(g gate, why string) {
	m.gates.WithLabelValues(string(g), why).Inc()
}

func (m *metrics) answered(d router.Decision) {
	reason := string(d.Reason)
	if d.Refuse != nil {
		reason = refused
	}
	m.answers.WithLabelValues(reason).Inc()
}
