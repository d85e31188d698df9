package extproc

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/sightline-router/sightline/router"
)

func TestHealth(t *testing.T) {
	r := newRig(t, always(pick), Options{})
	for name, want := range map[string]codes.Code{"": codes.OK, "envoy.service.ext_proc.v3.ExternalProcessor": codes.OK,
		"other": codes.NotFound} {
		res, err := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		if status.Code(err) != want || err == nil && res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("%q: got %v, %v, want code %v, and that it serves if it is OK", name, res, err, want)
		}
	}
}

// TestStarting checks that a starting server is alive, and ready after Ready.
func TestStarting(t *testing.T) {
	r := newRig(t, always(pick), Options{Starting: true})
	for _, ready := range []bool{false, true} {
		if ready {
			r.Ready()
		}
		for name, serves := range map[string]bool{"": true, "liveness": true, "readiness": ready,
			"envoy.service.ext_proc.v3.ExternalProcessor": ready} {
			res, err := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
			if err != nil || (res.GetStatus() == healthpb.HealthCheckResponse_SERVING) != serves {
				t.Errorf("ready %v, %q: got %v, %v, want it serving: %v", ready, name, res, err, serves)
			}
		}
	}
}

// TestGracefulStop checks that a stop waits for requests in progress, but not for access log streams, which never end.
func TestGracefulStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inside, release := make(chan struct{}), make(chan struct{})
		r := newStillRig(t, func(context.Context, *router.Request) router.Decision {
			close(inside)
			<-release
			return pick
		}, Options{})
		logs, err := accesslogv3.NewAccessLogServiceClient(r.conn).StreamAccessLogs(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := logs.Send(&accesslogv3.StreamAccessLogsMessage{}); err != nil {
			t.Fatal(err)
		}
		answers := make(chan []*extprocv3.ProcessingResponse, 1)
		go func() { answers <- r.talk(t, headersMsg(nil, false, chat()...), bodyMsg("{}", true)) }()
		<-inside
		r.stop()
		eventually(t, "health says so", func() bool {
			res, err := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
			return err != nil || res.GetStatus() == healthpb.HealthCheckResponse_NOT_SERVING
		})
		begin := time.Now()
		close(release)
		if got := <-answers; len(got) != 2 {
			t.Errorf("%d answers, want the request in progress to be answered", len(got))
		}
		if err := <-r.gone; err != nil {
			t.Errorf("Serve: got %v, want no error", err)
		}
		if d := time.Since(begin); d > 5*time.Second {
			t.Errorf("stop took %v after the last answer, want at most %v", d, 5*time.Second)
		}
	})
}

// TestDrain checks that a stopping server says so at once and goes on deciding for a while, and that an open stream is served to
// its end, even after that.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newStillRig(t, always(pick), Options{Drain: 3 * time.Second, Starting: true})
		r.Ready()
		open, err := extprocv3.NewExternalProcessorClient(r.conn).Process(t.Context())
		if err == nil {
			err = open.Send(headersMsg(nil, false, chat()...))
		}
		if err == nil {
			_, err = open.Recv()
		}
		if err != nil {
			t.Fatal(err)
		}
		says := func(service string) healthpb.HealthCheckResponse_ServingStatus {
			res, _ := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
			return res.GetStatus()
		}
		r.stop()
		for _, service := range []string{"", "readiness", "envoy.service.ext_proc.v3.ExternalProcessor"} {
			eventually(t, service+" is not serving", func() bool { return says(service) == healthpb.HealthCheckResponse_NOT_SERVING })
		}
		r.Ready() // too late
		if says("readiness") == healthpb.HealthCheckResponse_SERVING || says("liveness") != healthpb.HealthCheckResponse_SERVING {
			t.Error("want it alive and not ready")
		}
		if got := r.talk(t, headersMsg(nil, false, chat()...), bodyMsg("{}", true)); len(got) != 2 {
			t.Errorf("%d answers, want requests to be decided", len(got))
		}
		eventually(t, "it listens no more", func() bool {
			res, err := healthpb.NewHealthClient(r.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
			return res == nil && err != nil
		})
		select {
		case err := <-r.gone:
			t.Fatalf("got an end (%v) with a stream open, want none", err)
		default:
		}
		if err := open.Send(bodyMsg("{}", true)); err != nil {
			t.Error(err)
		}
		if m, err := open.Recv(); m.GetRequestBody() == nil {
			t.Errorf("%v, %v: want the decision", m, err)
		}
		if err := <-r.gone; err != nil {
			t.Error(err)
		}
	})
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	stale, live, file := filepath.Join(dir, "stale"), filepath.Join(dir, "live"), filepath.Join(dir, "file")
	old, err := net.Listen("unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	old.(*net.UnixListener).SetUnlinkOnClose(false) // as after SIGKILL
	_ = old.Close()
	busy, err := net.Listen("unix", live)
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for addr, want := range map[string]string{
		taken.Addr().String():       "is another Sightline running, or one that is stopping?",
		"unix:" + stale:             "",
		"unix:" + dir + "/new":      "",
		"127.0.0.1:0":               "",
		"unix:" + live:              "another process answers there",
		"unix:" + file:              "not a socket",
		"unix:" + dir + "/no/where": "listen address",
		"9002":                      "want host:port",
	} {
		lis, err := Listen(addr)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", addr, err, want)
		}
		if err == nil {
			_ = lis.Close()
		}
	}
	if b, _ := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("a file that is no socket was removed: got %q, want %q", string(b), "precious")
	}
}

func TestNewRefuses(t *testing.T) {
	if _, err := New(always(pick), nil, Options{MaxBody: 1 << 31}); err == nil {
		t.Errorf("a 2 GiB body: no error; got %v, want an error", err)
	}
}
