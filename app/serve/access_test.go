package serve

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	endpointsvc "github.com/envoyproxy/go-control-plane/envoy/service/endpoint/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/lab/certs"
)

// guarded is a server that authenticates callers on every listener, and one worker that does.
type guarded struct {
	*reloading
	listen, relay, authority, tokens string
	good, other                      certs.CA
	envoy, stranger                  certs.Signed

	mu    sync.Mutex
	asked map[string]string // path → key of the last request
}

const (
	envoyToken = "0123456789abcdef-envoy"
	workerKey  = "0123456789abcdef-worker"
)

func startGuarded(t *testing.T) *guarded {
	t.Helper()
	dir := t.TempDir()
	g := &guarded{good: certs.NewCA(t, dir, "good"), other: certs.NewCA(t, dir, "other"), asked: map[string]string{},
		authority: filepath.Join(dir, "clients"), tokens: filepath.Join(dir, "tokens"), listen: unused(t), relay: unused(t)}
	g.envoy, g.stranger = g.good.Sign(t, "envoy", time.Hour), g.other.Sign(t, "stranger", time.Hour)
	ours := g.good.Sign(t, "sightline", time.Hour)
	text, err := os.ReadFile(g.good.File)
	if err != nil {
		t.Fatal(err)
	}
	write(t, g.authority, text)
	write(t, g.tokens, []byte(envoyToken+"\n"))
	write(t, filepath.Join(dir, "api-key"), []byte(workerKey+"\n"))

	worker := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.asked[r.URL.Path] = r.Header.Get("Authorization")
		g.mu.Unlock()
		if r.Header.Get("Authorization") != "Bearer "+workerKey {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, map[string]string{"/v1/models": `{"data":[{"id":"m","owned_by":"vllm"}]}`,
			"/version": `{"version":"0.32.0"}`}[r.URL.Path])
	}))
	worker.TLS = &tls.Config{Certificates: []tls.Certificate{g.good.Sign(t, "worker", time.Hour).Pair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: g.good.Pool}
	worker.StartTLS()
	t.Cleanup(worker.Close)

	pair := fmt.Sprintf("cert: %s, key: %s", ours.Cert, ours.Key)
	g.reloading = startReloading(t, fmt.Sprintf(`
listen: %s
admin: ADMIN
tls: {%s, client_ca: %s}
listen_token_file: %s
admin_tls: {%s}
worker_access: {ca: %s, %s, api_key_file: %s}
media: {relay: {listen: %s, url: "https://%s", tls: {%s, client_ca: %s}}}
envoy:
  sightline_tls: {ca: %s, cert: %s, key: %s}
  sightline_token_file: %s
models:
- {name: m, dir: DIR/model, engine_version: 0.32.0}
workers:
- {name: a, addr: "%s"}
`, g.listen, pair, g.authority, g.tokens, pair, g.good.File, pair, filepath.Join(dir, "api-key"), g.relay, g.relay, pair, g.authority,
		g.good.File, g.envoy.Cert, g.envoy.Key, g.tokens, worker.Listener.Addr()),
		func(f *config.Fixed) { f.HealthEvery, f.LoadEvery = 100*time.Millisecond, 100*time.Millisecond })
	return g
}

// unused returns an address where nobody listens.
func unused(t *testing.T) string {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	return lis.Addr().String()
}

// as returns the TLS settings of a client, with or without a certificate.
func (g *guarded) as(who ...certs.Signed) *tls.Config {
	c := &tls.Config{RootCAs: g.good.Pool, MinVersion: tls.VersionTLS12}
	for _, s := range who {
		c.Certificates = append(c.Certificates, s.Pair)
	}
	return c
}

// call opens each of the services that Envoy uses, and returns how each ended: OK if Sightline answered.
func (g *guarded) call(under credentials.TransportCredentials, token string) map[string]codes.Code {
	g.t.Helper()
	conn, err := grpc.NewClient(g.listen, grpc.WithTransportCredentials(under))
	if err != nil {
		g.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(g.t.Context(), 2*time.Minute)
	defer cancel()
	got := map[string]codes.Code{}
	_, err = healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: "liveness"})
	got["health"] = status.Code(err)
	if token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", token)
	}
	decide, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err == nil {
		_ = decide.Send(&extprocv3.ProcessingRequest{}) // Recv returns the error
		_ = decide.CloseSend()
		_, err = decide.Recv()
		if err == io.EOF {
			err = nil
		}
	}
	got["ext_proc"] = status.Code(err)
	logs, err := accesslogv3.NewAccessLogServiceClient(conn).StreamAccessLogs(ctx)
	if err == nil {
		_, err = logs.CloseAndRecv()
		if status.Code(err) == codes.Internal {
			err = nil // it was admitted: this service answers nothing
		}
	}
	got["access log"] = status.Code(err)
	eds, err := endpointsvc.NewEndpointDiscoveryServiceClient(conn).StreamEndpoints(ctx)
	if err == nil {
		_ = eds.Send(&discoveryv3.DiscoveryRequest{ResourceNames: []string{"all"}})
		var told *discoveryv3.DiscoveryResponse
		told, err = eds.Recv()
		if err == nil {
			var list endpointv3.ClusterLoadAssignment
			if err := told.GetResources()[0].UnmarshalTo(&list); err != nil || len(list.GetEndpoints()[0].GetLbEndpoints()) != 1 {
				g.t.Errorf("told %v, %v", &list, err)
			}
		}
	}
	got["EDS"] = status.Code(err)
	return got
}

func (g *guarded) want(what string, got map[string]codes.Code, health, rest codes.Code) {
	g.t.Helper()
	for service, code := range got {
		if want := map[bool]codes.Code{true: health, false: rest}[service == "health"]; code != want {
			g.t.Errorf("%s: %s of %s, want %s", what, code, service, want)
		}
	}
}

// get sends a request over TLS, on a connection of its own; 0: it failed.
func (g *guarded) get(under *tls.Config, method, url, host, token string) int {
	g.t.Helper()
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: under, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(g.t.Context(), method, url, nil)
	if err != nil {
		g.t.Fatal(err)
	}
	req.Host = host
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestWhoMaySpeak checks who is admitted on every listener by one configuration: Envoy with a certificate and a token, people
// with the token, workers that fetch images with a certificate; and that workers are polled for health, load and by the probe
// with our certificate and key.
func TestWhoMaySpeak(t *testing.T) {
	g := startGuarded(t)
	mine, nobody, stranger := g.as(g.envoy), g.as(), g.as(g.stranger)
	for name, c := range map[string]struct {
		under        credentials.TransportCredentials
		token        string
		health, rest codes.Code
	}{
		"Envoy":                      {credentials.NewTLS(mine), envoyToken, codes.OK, codes.OK},
		"Envoy, as Bearer":           {credentials.NewTLS(mine), "Bearer " + envoyToken, codes.OK, codes.OK},
		"without a token":            {credentials.NewTLS(mine), "", codes.OK, codes.Unauthenticated},
		"with another token":         {credentials.NewTLS(mine), envoyToken + "x", codes.OK, codes.Unauthenticated},
		"without a certificate":      {credentials.NewTLS(nobody), envoyToken, codes.Unavailable, codes.Unavailable},
		"another authority's":        {credentials.NewTLS(stranger), envoyToken, codes.Unavailable, codes.Unavailable},
		"in plain text, with all it": {insecure.NewCredentials(), envoyToken, codes.Unavailable, codes.Unavailable},
	} {
		g.want(name, g.call(c.under, c.token), c.health, c.rest)
	}

	page := "https://" + g.admin
	for name, c := range map[string]struct {
		method, path, host, token string
		want                      int
	}{
		"metrics":                            {"GET", "/metrics", "", "", 200},
		"the page, on loopback":              {"GET", "/", "", "", 200},
		"profiles, on loopback":              {"GET", "/debug/pprof/cmdline", "", "", 200},
		"profiles by a name that leads here": {"GET", "/debug/pprof/cmdline", "evil.example", "", 401},
		"profiles with the token":            {"GET", "/debug/pprof/cmdline", "evil.example", adminToken, 200},
		"a resync":                           {"POST", "/workers/resync?worker=none", "", "", 401},
		"a reload":                           {"POST", "/reload", "", "", 401},
		"a reload with another token":        {"POST", "/reload", "", adminToken + "x", 401},
		"a decision":                         {"POST", "/v1/route", "", "", 401},
		"a probe":                            {"POST", "/probes", "", "", 401},
		"a profile, by POST":                 {"POST", "/debug/pprof/profile", "", "", 401},
		"a resync with the token":            {"POST", "/workers/resync?worker=none", "", adminToken, 404},
	} {
		if got := g.get(nobody, c.method, page+c.path, c.host, c.token); got != c.want {
			t.Errorf("%s: status %d, want %d", name, got, c.want)
		}
	}
	if got := g.get(nobody, "GET", "http://"+g.admin+"/metrics", "", adminToken); got != 400 {
		t.Errorf("the page in plain text: status %d, want 400", got)
	}

	image := "https://" + g.relay + "/none"
	for name, c := range map[string]struct {
		under *tls.Config
		want  int
	}{"a worker": {mine, 403}, "without a certificate": {nobody, 0}, "another authority's": {stranger, 0}} { // 403: not signed
		if got := g.get(c.under, "GET", image, "", ""); got != c.want {
			t.Errorf("the relay, %s: status %d, want %d", name, got, c.want)
		}
	}

	g.wait("the worker is asked for health, load and by the probe, with the key", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, path := range []string{"/health", "/metrics", "/v1/models", "/version", "/tokenize"} {
			if g.asked[path] != "Bearer "+workerKey {
				return false
			}
		}
		return true
	})

	// Files are read again: another client authority, another token.
	text, err := os.ReadFile(g.other.File)
	if err != nil {
		t.Fatal(err)
	}
	write(t, g.authority, text)
	write(t, g.tokens, []byte(envoyToken+"-renewed\n"))
	g.wait("who the old authority signed is let in no more, who the new one did is", func() bool {
		return g.get(mine, "GET", image, "", "") == 0 && g.get(stranger, "GET", image, "", "") == 403
	})
	g.wait("so at the door of Envoy", func() bool {
		return g.call(credentials.NewTLS(mine), envoyToken+"-renewed")["health"] == codes.Unavailable &&
			g.call(credentials.NewTLS(stranger), envoyToken+"-renewed")["EDS"] == codes.OK
	})
	g.want("the old token", g.call(credentials.NewTLS(stranger), envoyToken), codes.OK, codes.Unauthenticated)
}

// TestAdminOnAllInterfaces checks that on all interfaces only probes and Prometheus are answered without the token, even to
// callers on loopback.
func TestAdminOnAllInterfaces(t *testing.T) {
	r := startReloading(t, strings.Replace(strings.Replace(goodConfig, "127.0.0.1:9002", unused(t), 1), "models:",
		"admin: 0.0.0.0:ADMINPORT\nmodels:", 1))
	for path, want := range map[string]int{"/metrics": 200, "/healthz": 200, "/": 401, "/workers": 401, "/events": 401,
		"/decisions": 401, "/debug/pprof/heap": 401, "/debug/pprof/": 401} {
		resp, err := http.Get("http://" + r.admin + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("%s: status %d, want %d", path, resp.StatusCode, want)
		}
	}
	if code, _ := r.ask("GET", "/debug/pprof/cmdline"); code != 200 {
		t.Errorf("profiles with the token: status %d, want 200", code)
	}
}
