// Package extproc speaks Envoy's protocols: external processing (ext_proc v3) on the way in, the access log service on
// the way out. It turns one stream into one router.Request and the router.Decision into headers that Envoy obeys.
//
//	Envoy ── headers ──▶ gate ── "go on, send the body" ─▶ Envoy     (or: "not ours, stream it through")
//	Envoy ── body ─────▶ decide ─ x-target-worker, … ────▶ Envoy     stream ends here, not with the generation
//	Envoy ── access log entries ─▶ observe: started on worker X, ended with status Y
//
// The files, in the order of a request's life: route.go (what its route asks for), gate.go (is it ours?), codec.go (how
// the body is received), stream.go and duplex.go (the state machine), answer.go (what Envoy is told), follow.go and
// accesslog.go (how it ended).
//
// Two tongues are spoken: Sightline's own, for the envoy.yaml that it prints, and the endpoint-picker protocol of
// Gateway API's Inference Extension, for gateways that know it.
//
// A request never fails because of this package: whatever goes wrong here, Envoy is told to go on without a choice.
package extproc

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	endpointsvc "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/sightline-router/sightline/router"
)

// Decide takes the decision for one request; normally (*router.Router).Decide. A request whose body cannot be read
// here (there was no room for it) comes with a nil Body and is to be routed by load. It must not keep req.Body.
type Decide func(ctx context.Context, req *router.Request) router.Decision

// Observe takes what Envoy reported of a decided request; normally (*router.Router).Observe. It is called from several
// goroutines and must not block.
type Observe func(router.Outcome)

// DefaultMaxBody is the largest request body that is read, in bytes: two dozen 720p images as PNG data URLs.
const DefaultMaxBody = 64 << 20

// DefaultBodyTimeout is how long a body may take: 64 MiB at 1.8 Mbit/s.
const DefaultBodyTimeout = 5 * time.Minute

// Options are what an operator may set. The zero value works.
type Options struct {
	// MaxBody is the largest body in bytes; larger ones are routed by load. 0: DefaultMaxBody. Keep Envoy's
	// request_body_buffer_limit equal.
	MaxBody int
	// BodyTimeout is how long a body may take to come, from its headers on; then the client gets 408. 0: DefaultBodyTimeout.
	BodyTimeout time.Duration
	// EnvoyWaits is how long Envoy waits for an answer (its message_timeout) before it goes on with the request as it came;
	// 0: for ever. A decision is given half of it: the other half is for the body's way here and back.
	EnvoyWaits time.Duration
	Route      Route                 // what a stream's metadata leaves open
	TLS        *tls.Config           // nil: plain text
	Models     []string              // if any: what GET /v1/models is answered with
	Roster     *Roster               // the workers for Envoy's fallback clusters; nil: they are told nothing
	Log        *zap.Logger           // nil: silent
	Metrics    prometheus.Registerer // nil: none
}

// Server serves Envoy on one listener: ext_proc, access logs and gRPC health checks.
type Server struct {
	decide  Decide
	observe Observe
	maxBody int
	route   Route
	models  *extprocv3.ProcessingResponse // nil: workers answer for themselves
	log     *zap.Logger                   // sampled: each message once a minute
	metrics *metrics
	ended   *joiner
	sources atomic.Uint64 // connections and access log streams so far
	roster  *Roster

	// Bodies that are here, in bytes, and their limit: past it requests are refused for a moment, so that a burst of large
	// uploads cannot take the process down. What gRPC has received of a message that is not whole does not count: with
	// buffered bodies Envoy sends one when it has all of it, so those are few, and Envoy's own heap limit bounds them.
	inFlight    atomic.Int64
	maxInFlight int64
	bodyTimeout time.Duration
	envoyWaits  time.Duration

	grpc     *grpc.Server
	health   *health.Server
	stopping chan struct{}
	stopOnce sync.Once

	// The embedded stubs answer what this server has no use for.
	extprocv3.UnimplementedExternalProcessorServer
	accesslogv3.UnimplementedAccessLogServiceServer
	endpointsvc.UnimplementedEndpointDiscoveryServiceServer
}

// How the gRPC transport is set up. Measured with a 3.7 MB body on two cores (BenchmarkDecision), p50 against gRPC's
// defaults: 0.9x over a unix socket, no difference beyond the noise over loopback TCP. Large windows are for a network.
const (
	streamWindow  = 16 << 20  // a body of that size is sent without waiting for us
	connWindow    = 128 << 20 // eight of them at once on one connection
	readBuffer    = 256 << 10 // fewer read calls; 32 KB is the default
	maxStreams    = 65536     // the same as the circuit breaker in our envoy.yaml
	stackedIdle   = 128       // goroutines that wait for streams; beyond, each stream starts one
	headroom      = 64 << 10  // what a body message holds besides the body: attributes, metadata
	bodiesAtOnce  = 16        // × MaxBody = most body bytes here
	fewBytes      = 1 << 20   // announced: a quarter of them is for such bodies alone
	graceOnStop   = 5 * time.Second
	sampledPeriod = time.Minute
)

// New builds a server. It returns an error only if a metric cannot be registered.
func New(decide Decide, observe Observe, opt Options) (*Server, error) {
	if opt.MaxBody <= 0 {
		opt.MaxBody = DefaultMaxBody
	}
	if opt.MaxBody > math.MaxInt32-headroom {
		return nil, fmt.Errorf("largest body: %d bytes, want less than 2 GiB (a gRPC message cannot hold more)", opt.MaxBody)
	}
	if opt.BodyTimeout <= 0 {
		opt.BodyTimeout = DefaultBodyTimeout
	}
	if opt.Log == nil {
		opt.Log = zap.NewNop()
	}
	if opt.Roster == nil {
		opt.Roster = NewRoster()
	}
	m, err := newMetrics(opt.Metrics)
	if err != nil {
		return nil, err
	}
	s := &Server{
		decide:      decide,
		observe:     observe,
		maxBody:     opt.MaxBody,
		route:       opt.Route,
		models:      modelList(opt.Models, time.Now().Unix()),
		maxInFlight: bodiesAtOnce * int64(opt.MaxBody),
		bodyTimeout: opt.BodyTimeout,
		envoyWaits:  opt.EnvoyWaits,
		log: opt.Log.WithOptions(zap.WrapCore(func(c zapcore.Core) zapcore.Core {
			return zapcore.NewSamplerWithOptions(c, sampledPeriod, 1, 0)
		})),
		metrics:  m,
		ended:    newJoiner(joinCapacity),
		roster:   opt.Roster,
		health:   health.NewServer(),
		stopping: make(chan struct{}),
	}
	creds := insecure.NewCredentials()
	if opt.TLS != nil {
		creds = credentials.NewTLS(opt.TLS)
	}
	s.grpc = grpc.NewServer(
		grpc.Creds(creds),
		grpc.ForceServerCodecV2(codec{}),
		grpc.MaxRecvMsgSize(opt.MaxBody+headroom),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.NumStreamWorkers(stackedIdle), // a new goroutine's stack is copied four times on the way, a tenth of a decision
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ReadBufferSize(readBuffer),
		experimental.BufferPool(newFrames()),
		// An Envoy that vanished without a FIN is noticed within 40 s; one that pings often is not told off.
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: time.Second, PermitWithoutStream: true}),
	)
	extprocv3.RegisterExternalProcessorServer(s.grpc, s)
	accesslogv3.RegisterAccessLogServiceServer(s.grpc, s)
	endpointsvc.RegisterEndpointDiscoveryServiceServer(s.grpc, s)
	healthpb.RegisterHealthServer(s.grpc, s.health)
	// "" is set by the health package; Envoy's check in our envoy.yaml asks for the service by name.
	for _, probe := range []string{"liveness", "readiness"} { // what the endpoint-picker protocol's deployments ask for
		s.health.SetServingStatus(probe, healthpb.HealthCheckResponse_SERVING)
	}
	s.health.SetServingStatus(extprocv3.ExternalProcessor_ServiceDesc.ServiceName, healthpb.HealthCheckResponse_SERVING)
	return s, nil
}

// Serve answers on lis until ctx ends, then stops gracefully: health turns to NOT_SERVING, requests in progress get
// five seconds. It closes lis. A stop by ctx is not an error.
func (s *Server) Serve(ctx context.Context, lis net.Listener) error {
	stopped := make(chan struct{})
	unhook := context.AfterFunc(ctx, func() {
		defer close(stopped)
		s.stop()
	})
	err := s.grpc.Serve(&numbered{Listener: lis, server: s})
	if !unhook() {
		<-stopped
	}
	if ctx.Err() != nil && (err == nil || errors.Is(err, grpc.ErrServerStopped)) {
		return nil
	}
	return err
}

func (s *Server) stop() {
	s.stopOnce.Do(func() {
		s.health.Shutdown()
		close(s.stopping) // access log streams never end by themselves
		hard := time.AfterFunc(graceOnStop, s.grpc.Stop)
		defer hard.Stop()
		s.grpc.GracefulStop()
	})
}

// Listen opens "host:port" or "unix:/path/to/socket". A socket file that a dead process left behind is removed; one on
// which somebody still answers is an error.
func Listen(addr string) (net.Listener, error) {
	path, isUnix := strings.CutPrefix(addr, "unix:")
	if !isUnix {
		lis, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, fmt.Errorf("listen address %q: %w (want host:port, such as 127.0.0.1:9002, or unix:/path)", addr, err)
		}
		return lis, nil
	}
	if info, err := os.Lstat(path); err == nil {
		if info.Mode()&os.ModeSocket == 0 {
			return nil, fmt.Errorf("listen address %q: a file is there which is no socket; remove it or choose another path", addr)
		}
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("listen address %q: another process answers there; stop it or choose another path", addr)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen address %q: stale socket: %w", addr, err)
		}
	}
	lis, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen address %q: %w", addr, err)
	}
	// Envoy often runs as another user; who may reach the socket is the directory's business.
	if err := os.Chmod(path, 0o666); err != nil {
		_ = lis.Close()
		return nil, fmt.Errorf("listen address %q: %w", addr, err)
	}
	return lis, nil
}
