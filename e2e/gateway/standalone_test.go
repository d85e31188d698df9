package gateway

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// standaloneConfig is Envoy Gateway without Kubernetes: resources are files, Envoy a process of this machine.
const standaloneConfig = `apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyGateway
gateway: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
provider:
  type: Custom
  custom:
    resource: {type: File, file: {paths: [DIR/resources]}}
    infrastructure: {type: Host, host: {configHome: DIR/config, dataHome: DIR/data, stateHome: DIR/state, runtimeDir: DIR/run}}
extensionApis: {enableBackend: true}
`

// standalone is the folder envoy-gateway as a user without a cluster has it: Envoy Gateway reads no Services and no
// EndpointSlices from files, so each reference to a Service becomes one to a Backend of the same name.
func standalone(t *testing.T, version string, backends map[string][]string) string {
	t.Helper()
	var out []string
	add := func(object map[string]any) {
		text, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, string(text))
	}
	for _, file := range []string{"gateway.yaml", "policies.yaml"} {
		text, err := os.ReadFile(manifests + "envoy-gateway/" + file)
		if err != nil {
			t.Fatal(err)
		}
		for doc := range strings.SplitSeq(string(text), "\n---\n") {
			var object map[string]any
			if err := yaml.Unmarshal([]byte(doc), &object); err != nil {
				t.Fatalf("%q: got %v, want no error", file, err)
			}
			toBackends(object)
			if object["kind"] == "EnvoyProxy" {
				object["spec"].(map[string]any)["provider"] = map[string]any{"type": "Host", "host": map[string]any{"envoyVersion": version}}
			}
			add(object)
		}
	}
	for name, addrs := range backends {
		var endpoints []any
		for _, addr := range addrs {
			ip, port, _ := strings.Cut(addr, ":")
			endpoints = append(endpoints, map[string]any{"ip": map[string]any{"address": ip, "port": json.Number(port)}})
		}
		add(map[string]any{"apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "Backend",
			"metadata": map[string]any{"name": name, "namespace": "llm"},
			"spec":     map[string]any{"endpoints": endpoints}})
	}
	return strings.Join(out, "\n---\n")
}

func toBackends(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			list, ok := x.([]any)
			if k != "backendRefs" || !ok {
				toBackends(x)
				continue
			}
			for i, ref := range list {
				list[i] = map[string]any{"group": "gateway.envoyproxy.io", "kind": "Backend", "name": ref.(map[string]any)["name"]}
			}
		}
	case []any:
		for _, x := range v {
			toBackends(x)
		}
	}
}

// The folder envoy-gateway on a machine without Kubernetes: a real Envoy Gateway reads it from files, starts Envoy, and
// requests are routed as in a cluster.
func TestStandalone(t *testing.T) {
	need(t)
	dir := t.TempDir()
	version := envoyVersion(t)
	var workers []string
	for _, ip := range podIPs {
		workers = append(workers, ip+":8000")
	}
	for name, text := range map[string]string{
		"resources/all.yaml": standalone(t, version, map[string][]string{"vllm": workers, "sightline": {"10.0.0.20:9002"}}),
		"envoy-gateway.yaml": strings.ReplaceAll(standaloneConfig, "DIR", dir),
		"sightline.yaml":     listed(t),
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command("envoy-gateway", "certgen", "--local", "--config-home", dir+"/config").CombinedOutput(); err != nil {
		t.Fatalf("certgen: %v\n%s", err, out)
	}
	installEnvoy(t, dir, version)
	pods := startPods(t)
	sightline := run(t, nil, os.Getenv("SIGHTLINE"), "serve", "-c", filepath.Join(dir, "sightline.yaml"))
	wantFleet(t, "10.0.0.11:8000:live 10.0.0.12:8000:live 10.0.0.13:8000:live")
	runEnvoyGateway(t, nil, filepath.Join(dir, "envoy-gateway.yaml"))
	const url = "http://127.0.0.1:80"
	eventually(t, "the gateway answers", func() bool { status, _ := ask(t, url, "first", nil, 0); return status == 200 })
	drive(t, url, pods, sightline)
}

// listed is the production configuration with the pods as its workers, for where no API server tells of them.
func listed(t *testing.T) string {
	t.Helper()
	own, _, _ := strings.Cut(production(t), "kubernetes:")
	own += "workers:\n"
	for _, ip := range podIPs {
		own += fmt.Sprintf("  - {addr: \"%s:8000\", events: {zmq: \"tcp://{ip}:5557\", replay: \"tcp://{ip}:5558\"}}\n", ip)
	}
	return own
}
