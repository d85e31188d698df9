package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/internal/fakekube"
	"github.com/sightline-router/sightline/internal/sim"
)

// pod is a simulated worker on a loopback address of its own; all pods have the same ports, as in a cluster.
type pod struct {
	*sim.Worker
	name, ip string
}

// podPorts finds HTTP, event and replay ports that are free on the addresses 127.0.1.1 to 127.0.1.n.
func podPorts(t *testing.T) (ports [3]string) {
	for i := range ports {
		_, port, _ := strings.Cut(freeAddr(t), ":")
		ports[i] = port
	}
	return ports
}

func startPod(t *testing.T, n int, ports [3]string) *pod {
	t.Helper()
	p, err := prompts()
	if err != nil {
		t.Fatal(err)
	}
	x := &pod{name: fmt.Sprint("vllm-", n), ip: fmt.Sprint("127.0.1.", n)}
	x.Worker, err = sim.New(sim.Config{Model: "sim-vl", Prompt: p, Listen: x.ip + ":" + ports[0], Events: x.ip + ":" + ports[1], Replay: x.ip + ":" + ports[2]})
	if err != nil {
		t.Fatal(err)
	}
	x.Start()
	t.Cleanup(x.Close)
	return x
}

// Sightline as it runs in a cluster: pods found by the API server, a fleet that grows and shrinks while requests run.
func TestKubernetesWorkers(t *testing.T) {
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	api, err := fakekube.Start(dir, "llm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	ports := podPorts(t)
	var httpPort int
	fmt.Sscan(ports[0], &httpPort)
	list := func(change func(name string, p *fakekube.Pod), pods ...*pod) {
		var all []fakekube.Pod
		for _, p := range pods {
			fp := fakekube.Pod{Name: p.name, IP: p.ip, Ready: true}
			if change != nil {
				change(p.name, &fp)
			}
			all = append(all, fp)
		}
		api.Put("vllm-x1", "vllm", httpPort, all...)
	}
	first, second := startPod(t, 1, ports), startPod(t, 2, ports)
	list(nil, first)

	o := envoy.Default()
	o.Listen, o.Admin, o.Sightline = freeAddr(t), freeAddr(t), freeAddr(t)
	o.Workers = []string{first.Addr()}
	o.Allow = []envoy.Range{{Prefix: netip.MustParsePrefix("127.0.1.0/24"), FirstPort: httpPort, LastPort: httpPort}}
	admin := freeAddr(t)
	model, err := filepath.Abs(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "sightline.yaml")
	text := fmt.Sprintf(`
listen: %s
admin: %s
models: [{name: sim-vl, dir: %s}]
kubernetes:
  api: %s
  ca_file: %s
  token_file: %s
  workers:
    - {namespace: llm, service: vllm, port: http, events: {zmq: "tcp://{ip}:%s", replay: "tcp://{ip}:%s"}}
`, o.Sightline, admin, model, api.URL, api.CAFile, api.TokenFile, ports[1], ports[2])
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log lockedBuffer
	serve := exec.Command(bin, "serve", "-c", file)
	serve.Stdout, serve.Stderr = &log, &log
	if err := serve.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = serve.Process.Signal(syscall.SIGTERM)
		if err := serve.Wait(); err != nil {
			t.Errorf("serve: %v", err)
		}
		if t.Failed() {
			t.Logf("Sightline's log:\n%s", &log)
		}
	})
	gateway, err := envoy.Start(t.Context(), binary(t), o, &log, "--concurrency", "2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(gateway.Stop)

	get := func(url string) string { // "" unless the status is 200
		resp, err := http.Get(url)
		if err != nil {
			return ""
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return ""
		}
		page, _ := io.ReadAll(resp.Body)
		return string(page)
	}
	// fleet is who is there and how: "vllm-1:live vllm-2:not ready".
	fleet := func() (out string) {
		for _, w := range gjson.Parse(get("http://" + admin + "/workers")).Array() {
			out += " " + w.Get("name").Str + ":" + w.Get("events").Str
		}
		return strings.TrimSpace(out)
	}
	wantFleet := func(want string) {
		t.Helper()
		eventually(t, want, func() bool { return fleet() == want })
	}
	// ask sends a conversation of some blocks and gives the tokens that the worker found in its cache.
	ask := func(topic string) int64 {
		t.Helper()
		body := fmt.Sprintf(`{"model":"sim-vl","max_tokens":1,"messages":[{"role":"user","content":%q}]}`, strings.Repeat(topic+" ", 200))
		resp, err := http.Post("http://"+o.Listen+"/v1/chat/completions", "application/json", bytes.NewReader([]byte(body)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		page, _ := io.ReadAll(resp.Body)
		if resp.StatusCode != 200 {
			t.Fatalf("status %d: %s", resp.StatusCode, page)
		}
		return gjson.GetBytes(page, "usage.prompt_tokens_details.cached_tokens").Int()
	}
	eventually(t, "readiness", func() bool {
		resp, err := http.Get("http://" + admin + "/readyz")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusOK
	})
	wantFleet("vllm-1:live")
	eventually(t, "Envoy's health check", func() bool {
		return strings.Contains(get("http://"+o.Admin+"/stats?filter=cluster.sightline.membership_healthy"), ": 1")
	})
	ask("alpha")

	// One more: it gets what is new, the first keeps what it holds.
	list(nil, first, second)
	wantFleet("vllm-1:live vllm-2:live")
	eventually(t, "the second pod gets requests", func() bool { ask(fmt.Sprint("beta", first.Stats().Requests)); return second.Stats().Requests > 0 })
	before := second.Stats().Requests
	if got := ask("alpha"); got == 0 || second.Stats().Requests != before {
		t.Errorf("the first pod's conversation: %d tokens cached, want some and the same pod", got)
	}

	// Not ready: nothing goes there, but what it holds is not forgotten.
	list(func(name string, p *fakekube.Pod) { p.Ready = name != "vllm-1" }, first, second)
	wantFleet("vllm-1:not ready vllm-2:live")
	at := first.Stats().Requests
	for i := range 6 {
		ask(fmt.Sprint("gamma", i%2))
	}
	ask("alpha")
	if first.Stats().Requests != at {
		t.Error("a pod that is not ready got a request")
	}
	list(nil, first, second)
	wantFleet("vllm-1:live vllm-2:live")

	// The API server goes away and comes back; a version expires; a pod leaves for good.
	api.Cut()
	api.Expire()
	list(nil, second)
	wantFleet("vllm-2:live")
	if got := ask("alpha"); got == 0 {
		t.Error("the second pod has seen alpha, but nothing was cached")
	}
	if first.Stats().Requests != at {
		t.Error("a pod that left got a request")
	}
}
