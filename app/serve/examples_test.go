package serve

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/envoy"
)

// TestEnvoyOfSeveral checks that with several Sightlines Envoy uses and reports to all of them, and with one to its listen
// address.
func TestEnvoyOfSeveral(t *testing.T) {
	for keys, want := range map[string]int{"": 0, "envoy: {sightlines: [\"10.0.0.2:9002\", \"10.0.0.3:9002\"]}": 2} {
		cfg, err := config.Parse([]byte(keys))
		if err != nil {
			t.Fatal(err)
		}
		text, err := EnvoyYAML(cfg, "", "")
		if err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if got := strings.Contains(string(text), fmt.Sprintf("name: sightline_log_%d", i)); got != (i < want) {
				t.Errorf("%q: got a log for number %d: %v, want %v", keys, i, got, i < want)
			}
		}
	}
}

// TestPrintedMessages: what is wrong with the values for Envoy is named by the file and its key.
func TestPrintedMessages(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s.yaml")
	for text, key := range map[string]string{
		"models: [{name: m, dir: d}]\nworkers: [{addr: \"localhost:8000\"}]": ": envoy.worker_networks: empty",
		"envoy: {listen: \"localhost:80\"}":                                  ": envoy.listen",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Load(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := PrintEnvoy(cfg, "", "", io.Discard, io.Discard); err == nil || !strings.HasPrefix(err.Error(), file+key) {
			t.Errorf("%v, want one that begins with %s%s", err, file, key)
		}
	}
}

// TestApplyAsks: with --apply nothing is written while several clusters may be the workers'.
func TestApplyAsks(t *testing.T) {
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	const own = `static_resources:
  listeners:
  - filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          route_config:
            virtual_hosts:
            - domains: ["*"]
              routes:
              - { match: { path: /v1/chat/completions }, route: { cluster: a } }
              - { match: { prefix: / }, route: { cluster: b } }
  clusters: [{ name: a, type: EDS }, { name: b, type: EDS }]
`
	if err := os.WriteFile(file, []byte(own), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		clusters []string
		apply    bool
		want     string
	}{{nil, true, "want --cluster"}, {nil, false, ""}, {[]string{"a"}, true, ""}} {
		var out, warn bytes.Buffer
		_, err := FitEnvoy(t.Context(), config.Default(), "", "", file, c.clusters, map[bool]string{true: "apply"}[c.apply], &out, &warn)
		if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || out.Len() > 0) || c.want == "" && err != nil {
			t.Errorf("%+v: %v\n%s, want c.want == \"\" or (an error, %q in err.Error(), out.Len() <= 0), c.want != \"\" or no "+
				"error", c, err, &out, c.want)
		}
		if asks := strings.Contains(out.String(), "error: which_clusters"); asks != (c.clusters == nil && !c.apply) {
			t.Errorf("%+v:\n%s, want asks == (c.clusters == nil && !c.apply)", c, &out)
		}
	}
	var out, warn bytes.Buffer
	fits, err := FitEnvoy(t.Context(), config.Default(), "", "", file, nil, "remove", &out, &warn)
	if err != nil || !fits || out.String() != own || !strings.Contains(warn.String(), "no line of --apply") {
		t.Errorf("--remove without a line of --apply: %v, %v, %s\n%s, want no error, fits, out.String() == %v, \"no line of "+
			"--apply\" in warn.String()", fits, err, &warn, &out, own)
	}
}

// TestTenantStays: the tenant's header is removed by every printed form, whatever it is called.
func TestTenantStays(t *testing.T) {
	cfg, err := config.Parse([]byte("tenants: {header: X-Customer}"))
	if err != nil {
		t.Fatal(err)
	}
	for _, variant := range envoy.VariantNames() {
		text, err := EnvoyYAML(cfg, variant, "")
		if err != nil || !strings.Contains(string(text), `request_headers_to_remove: ["x-customer"]`) {
			t.Errorf("%s: %v, the header is not removed, want no error, `request_headers_to_remove: [\"x-customer\"]` in "+
				"string(text)", variant, err)
		}
	}
}

// TestExampleEnvoy checks that the committed envoy.yaml of an example is what its configuration prints.
func TestExampleEnvoy(t *testing.T) {
	const dir = "../../examples/compose/"
	cfg, err := config.Load(dir + "sightline.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want, err := EnvoyYAML(cfg, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(dir + "envoy.yaml"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v: envoy.yaml is not what `sightline envoy` prints (make generated writes it), want no error, bytes.Equal(got, want)", err)
	}
}

// TestComposeEnds: when the Envoy of the example is stopped, it is taken out of rotation and told to drain, and ends once no request is
// left.
func TestComposeEnds(t *testing.T) {
	const dir = "../../examples/compose/"
	text, err := os.ReadFile(dir + "docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct{ Entrypoint, Command, Volumes []string }
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	began, asked := make(chan bool, 1), make(chan string, 64)
	left := 2
	admin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.URL.String()
		if r.URL.Path == "/began" {
			began <- true
		}
		if r.URL.Path == "/stats" {
			left--
			fmt.Fprintf(w, "http.ingress.downstream_rq_active: %d\n", left)
		}
	}))
	defer admin.Close()
	at, bin, e := strings.TrimPrefix(admin.URL, "http://"), t.TempDir(), file.Services["envoy"]
	script := fmt.Sprintf("#!/bin/bash\ntrap 'echo ended \"$@\"; exit 0' TERM\nexec 3<>/dev/tcp/%s\n"+
		"printf 'GET /began HTTP/1.0\\r\\n\\r\\n' >&3\nwhile :; do sleep 0.05; done", strings.Replace(at, ":", "/", 1))
	if err := os.WriteFile(bin+"/envoy", []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	run := strings.NewReplacer("$$", "$", "/etc/envoy/end.sh", dir+"../envoy/end.sh "+at).Replace(e.Entrypoint[2])
	cmd := exec.CommandContext(t.Context(), e.Entrypoint[0], append([]string{"-c", run, e.Entrypoint[3]}, e.Command...)...)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	out := new(bytes.Buffer)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-began
	_ = cmd.Process.Signal(syscall.SIGTERM)
	if err := cmd.Wait(); err != nil || out.String() != "ended -c /etc/envoy/envoy.yaml --disable-hot-restart\n" {
		t.Errorf("got %q, %v, want that it ends with its arguments", out, err)
	}
	close(asked)
	var got []string
	for one := range asked {
		got = append(got, one)
	}
	const stats = `GET /stats?filter=^http\.ingress\.downstream_rq_active$`
	want := []string{"GET /began", "POST /healthcheck/fail", "POST /drain_listeners?graceful", stats, stats}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if !slices.Contains(e.Volumes, "../envoy/end.sh:/etc/envoy/end.sh:ro") {
		t.Errorf("got the volumes %q, want end.sh among them", e.Volumes)
	}
}

// TestComposeFile checks that what docker-compose.yml mounts exists, and that its services are those that Sightline's
// configuration beside it names.
func TestComposeFile(t *testing.T) {
	const dir = "../../examples/compose/"
	text, err := os.ReadFile(dir + "docker-compose.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Build struct {
				Context, Dockerfile string
			}
			Entrypoint []string
			Command    []string
			Volumes    []string
			DependsOn  []string `yaml:"depends_on"`
		}
		Volumes map[string]any
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	agents := map[string]string{} // event source by worker, through NATS
	for name, s := range file.Services {
		for _, v := range s.Volumes {
			from, _, _ := strings.Cut(v, ":")
			_, volume := file.Volumes[from]
			if _, err := os.Stat(dir + from); err != nil && !volume {
				t.Errorf("%s mounts %s, which is neither a file nor a volume, want no error or volume", name, from)
			}
		}
		if s.Build.Dockerfile != "" {
			if _, err := os.Stat(filepath.Join(dir, s.Build.Context, s.Build.Dockerfile)); err != nil {
				t.Errorf("%q: got %v, want no error", name, err)
			}
		}
		for _, other := range s.DependsOn {
			if _, ok := file.Services[other]; !ok {
				t.Errorf("%s depends on %s, which is no service, want ok", name, other)
			}
		}
		if len(s.Command) > 4 && s.Command[0] == "agent" {
			agents[s.Command[2]] = s.Command[4]
		}
	}
	cfg, err := config.Load(dir + "sightline.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range cfg.Workers {
		host, port, _ := strings.Cut(w.Addr, ":")
		command := file.Services[host].Command
		if entry := file.Services[host].Entrypoint; !slices.Equal(entry, []string{"/sightline-lab"}) {
			t.Errorf("%s: service %s starts %q, want %q", w.Name, host, entry, []string{"/sightline-lab"})
		}
		events := strings.Replace(w.Events.ZMQ, "{ip}", host, 1)
		if w.Events.NATS {
			events = agents[w.Name]
		}
		_, eventsPort, _ := strings.Cut(strings.TrimPrefix(events, "tcp://"), ":")
		if len(command) == 0 || command[0] != "worker-sim" || !slices.Contains(command, "0.0.0.0:"+port) ||
			events != "tcp://"+host+":"+eventsPort || !slices.Contains(command, "0.0.0.0:"+eventsPort) {
			t.Errorf(`%s: service %v, events from %q, want len(command) != 0, command[0] == "worker-sim", `+
				`slices.Contains(command, "0.0.0.0:"+port), events == "tcp://"+host+":"+eventsPort, slices.Contains(command, `+
				`"0.0.0.0:"+eventsPort)`, w.Name, command, events)
		}
	}
	if len(cfg.Workers) != 3 {
		t.Errorf("%d workers, want three", len(cfg.Workers))
	}
}
