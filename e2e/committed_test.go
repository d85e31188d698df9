package e2e

import (
	"crypto/tls"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	pathpkg "path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/certs"
	"github.com/sightline-router/sightline/lab/envoytest"
)

// Every file committed under envoy/ serves as it is, but for its ports and for where its certificates lie: the choice is
// obeyed, and without Sightline requests go on. Each on the release it is made for, the default on 1.39 too.
func TestCommittedFilesServe(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../envoy/*.yaml")
	if err != nil || len(files) != len(envoy.VariantNames())+1 {
		t.Fatalf("%v, %d files, want one for each variant and one for 1.36", err, len(files))
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { serveCommitted(t, file, envoy.Version) })
	}
	t.Run("envoy.yaml on 1.39", func(t *testing.T) { serveCommitted(t, "../envoy/envoy.yaml", "1.39.3") })
}

var ports = regexp.MustCompile(`upstream_port_range: \{ start: \d+, end: \d+ \}`)

func serveCommitted(t *testing.T, file, release string) {
	name := filepath.Base(file)
	if name == "envoy-1.36.yaml" {
		release = "1.36.2"
	}
	cache := filepath.Join(filepath.Dir(absolute(t, ".")), ".cache")
	if dir := os.Getenv("SIGHTLINE_CACHE"); dir != "" {
		cache = dir
	}
	binary, err := envoy.Release(t.Context(), release, cache, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	host := "127.0.0.1"
	if name == "ipv6.yaml" {
		host = "::1"
	}
	free := func() (net.Listener, string) {
		ports, err := lab.FreePorts(1) // no connection of others takes it before Envoy or Sightline does
		if err != nil {
			t.Fatal(err)
		}
		port := strconv.Itoa(ports[0])
		lis, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Fatal(err)
		}
		return lis, port
	}
	text := ports.ReplaceAllString(string(raw), "upstream_port_range: { start: 1, end: 65535 }")
	w := &world{t: t, log: &lockedBuffer{}, client: &http.Client{Timeout: 30 * time.Second}}
	dir := t.TempDir()
	opt := extproc.Options{Roster: extproc.NewRoster()}
	var server *tls.Config
	if name == "tls.yaml" {
		text = strings.ReplaceAll(text, "/etc/sightline/tls/", dir+"/")
		workers, ours := certs.NewCA(t, dir, "workers"), certs.NewCA(t, dir, "sl")
		if err := os.Rename(ours.File, filepath.Join(dir, "ca.pem")); err != nil {
			t.Fatal(err)
		}
		ours.Sign(t, "envoy", time.Hour)
		opt.TLS = &tls.Config{Certificates: []tls.Certificate{ours.Sign(t, "server", time.Hour).Pair}, ClientCAs: ours.Pool,
			ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: []string{"h2"}}
		server = &tls.Config{Certificates: []tls.Certificate{workers.Sign(t, "worker", time.Hour).Pair}}
	}
	var known []extproc.Endpoint
	for i := range 3 {
		lis, port := free()
		addr := lis.Addr().String()
		if server != nil {
			lis = tls.NewListener(lis, server)
		}
		w.workers = append(w.workers, startWorkerOn(t, lis, addr))
		known = append(known, extproc.Endpoint{Addr: addr, Model: "m"})
		text = strings.ReplaceAll(text, fmt.Sprint("port_value: ", 8001+i, " "), "port_value: "+port+" ")
	}
	opt.Roster.Set(known)
	at := map[string]string{}
	for _, fixed := range []string{"10000", "9901", "9002"} {
		lis, port := free()
		_ = lis.Close()
		at[fixed] = net.JoinHostPort(host, port)
		text = strings.ReplaceAll(text, "port_value: "+fixed+" ", "port_value: "+port+" ")
	}
	w.url, w.sightline = "http://"+at["10000"], at["9002"]
	if name == "unix.yaml" {
		w.sightline = "unix:" + dir + "/s"
		text = strings.ReplaceAll(text, "/run/sightline/sightline.sock", dir+"/s")
	}
	w.envoy, err = envoytest.Run(t.Context(), binary, []byte(text), at["9901"], w.log, "--concurrency", "1")
	if err != nil {
		t.Fatalf("%v\n%s", err, w.log)
	}
	t.Cleanup(func() {
		w.client.CloseIdleConnections()
		w.envoy.Stop()
		if t.Failed() {
			t.Logf("Envoy's log, its end:\n%s", w.log)
		}
	})
	ask := func(i int) reply {
		req, err := http.NewRequest("POST", w.url+"/v1/chat/completions", strings.NewReader(chat(script{Targets: []string{w.workers[i].addr}})))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("content-type", "application/json")
		if name == "models.yaml" { // each model is asked for in its own way
			switch i {
			case 0:
				req.URL.Path = "/qwen" + req.URL.Path
			case 1:
				req.Host = "llava.example.com"
			case 2:
				req.Header.Set("x-model", "pixtral")
			}
		}
		return do(w.client, req)
	}
	_, stop := w.serveSightline(opt)
	for i := range w.workers {
		eventually(t, "the choice is obeyed", func() bool {
			r := ask(i)
			return r.err == nil && r.status == 200 && r.id() != "" && r.Worker == w.workers[i].addr
		})
	}
	if name != "envoy-1.36.yaml" { // which cannot limit it
		for _, path := range []string{"/quitquitquit", "/drain_listeners", "/healthcheck/other", "/logging?level=trace"} {
			res, err := w.client.Post("http://"+at["9901"]+path, "text/plain", nil)
			if err != nil {
				t.Fatalf("POST %s at Envoy's admin address: got %v, want no error", path, err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusForbidden {
				t.Errorf("POST %s at Envoy's admin address: %d, want 403", path, res.StatusCode)
			}
		}
		for _, path := range []string{"/stats?usedonly", "/stats/prometheus", "/config_dump?include_eds", "/server_info", "/"} {
			if _, err := w.envoy.Get(t.Context(), path); err != nil {
				t.Error(err)
			}
		}
	}
	if name == "eds.yaml" {
		eventually(t, "Envoy is told the workers", func() bool { return w.stat("cluster.workers_any.membership_healthy") == 3 })
	}
	stop()
	want := http.StatusOK
	if name == "fail_closed.yaml" {
		want = http.StatusServiceUnavailable
	}
	eventually(t, "requests pass without Sightline, or do not", func() bool {
		r := ask(0)
		return r.err == nil && r.status == want && r.id() == ""
	})
}

// users are the tests that read the committed configurations, each with the words by which it finds its files. Folders of
// tests' own data are not listed.
var users = []struct{ files, test, name, by string }{
	{"envoy/*.yaml", "e2e/committed_test.go", "TestCommittedFilesServe", `"../envoy/*.yaml"`},
	{"examples/*/sightline.yaml", "examples/examples_test.go", "TestConfigurations", `"*/sightline.yaml"`},
	{"examples/compose/envoy.yaml", "app/serve/examples_test.go", "TestExampleEnvoy", `"envoy.yaml"`},
	{"examples/compose/docker-compose.yml", "app/serve/examples_test.go", "TestComposeFile", `"docker-compose.yml"`},
	{"examples/kubernetes/*/*.yaml", "examples/kubernetes/manifests_test.go", "TestEveryManifestIsUsed", `"*/*.yaml"`},
	{"examples/kubernetes/base/sightline.yaml", "examples/kubernetes/manifests_test.go", "TestReferences",
		`config.Load("base/sightline.yaml")`},
	{"examples/kubernetes/*/*.yaml", "e2e/manifests/manifests_test.go", "TestManifests", `"../../examples/kubernetes/*/*.yaml"`},
	{"examples/helm/*.*", "e2e/manifests/chart_test.go", "TestChartIsTheBase", `"../../examples/helm"`},
	{"examples/llm-d/values.yaml", "e2e/manifests/llmd_test.go", "TestLLMDValues", `"../../examples/llm-d/values.yaml"`},
	{"examples/prometheus/keda.yaml", "e2e/manifests/manifests_test.go", "TestAutoscaling", `"../../examples/prometheus/keda.yaml"`},
	{"examples/helm/templates/*.yaml", "e2e/manifests/chart_test.go", "TestChartValues", `"../../examples/helm"`},
	{"e2e/vllm/hybrids.json", "e2e/vllmhybrid_test.go", "TestRealVLLMHybrids", `"vllm/hybrids.json"`},
	{"app/config/schema.json", "app/config/schema_test.go", "TestSchema", `os.WriteFile("schema.json"`},
	{"examples/prometheus/keda.yaml", "app/serve/signals_test.go", "TestSignalsHoldTogether", `"examples/prometheus/keda.yaml"`},
	{"examples/prometheus/*.yml", "app/serve/signals_test.go", "TestSignalsAreExported",
		`"examples/prometheus/rules.yml", "examples/prometheus/rules_test.yml"`},
	{"examples/grafana/sightline.json", "app/serve/signals_test.go", "TestSignalsHoldTogether",
		`read(t, "examples/grafana/sightline.json")`},
	{"examples/models/*/*.json", "router/router_test.go", "TestConcurrentDecisions", `.LoadLive("m", shippedModel`},
}

// Every configuration in the repository is used by a test, and every test of the list is there and has its files.
func TestEveryFileIsUsed(t *testing.T) {
	used := make([]int, len(users))
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		path = filepath.ToSlash(strings.TrimPrefix(path, ".."+string(filepath.Separator)))
		if d.IsDir() {
			if base := d.Name(); path != ".." && strings.HasPrefix(base, ".") || base == "testdata" || base == "bin" {
				return fs.SkipDir
			}
			return nil
		}
		switch ext := filepath.Ext(path); {
		case strings.HasPrefix(d.Name(), "."): // a tool's settings
			return nil
		case ext != ".yaml" && ext != ".yml" && ext != ".json":
			return nil
		}
		found := false
		for i, u := range users {
			if ok, _ := pathpkg.Match(u.files, path); ok {
				found = true
				used[i]++
			}
		}
		if !found {
			t.Errorf("%s: no test uses it (delete it, or name the test that does in users)", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, u := range users {
		text, err := os.ReadFile("../" + u.test)
		if err != nil || !strings.Contains(string(text), "\nfunc "+u.name+"(") || !strings.Contains(string(text), u.by) || used[i] == 0 {
			t.Errorf("%s, used by %s in %s by %s: %v, %d files", u.files, u.name, u.test, u.by, err, used[i])
		}
	}
}
