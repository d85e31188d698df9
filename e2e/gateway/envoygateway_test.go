package gateway

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"
)

// serverConfig is Envoy Gateway beside the API server: resources from there, Envoy as a process of this machine.
const serverConfig = `apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyGateway
gateway: {controllerName: gateway.envoyproxy.io/gatewayclass-controller}
provider:
  type: Custom
  custom:
    resource: {type: Kubernetes, kubernetes: {leaderElection: {disable: true}}}
    infrastructure: {type: Host, host: {configHome: DIR/config, dataHome: DIR/data, stateHome: DIR/state, runtimeDir: DIR/run}}
`

// startEnvoyGateway runs the server with certificates of its own making. /certs is where it reads them.
func (c *cluster) startEnvoyGateway(version string) {
	c.Helper()
	config := c.write("envoy-gateway.yaml", strings.ReplaceAll(serverConfig, "DIR", c.dir))
	kube := "KUBECONFIG=" + c.dir + "/kubeconfig"
	c.kubectl("create", "namespace", "envoy-gateway-system")
	certgen := exec.Command("envoy-gateway", "certgen", "--disable-topology-injector")
	certgen.Env = append(os.Environ(), kube)
	if out, err := certgen.CombinedOutput(); err != nil {
		c.Fatalf("certgen: %v\n%s", err, out)
	}
	for secret, dir := range map[string]string{"envoy-gateway": "/certs", "envoy": c.dir + "/config/certs/envoy"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			c.Fatal(err)
		}
		for name, data := range gjson.Get(c.kubectl("get", "secret", secret, "-n", "envoy-gateway-system", "-o", "json"), "data").Map() {
			text, err := base64.StdEncoding.DecodeString(data.Str)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name), text, 0o600)
			}
			if err != nil {
				c.Fatal(err)
			}
		}
	}
	installEnvoy(c.T, c.dir, version)
	runEnvoyGateway(c.T, []string{kube}, config)
}

// envoyVersion is the release of $ENVOY.
func envoyVersion(t *testing.T) string {
	t.Helper()
	out, err := exec.Command(os.Getenv("ENVOY"), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, of, _ := strings.Cut(string(out), "version: ") // "<commit>/1.40.0/Clean/RELEASE/BoringSSL"
	return strings.Split(of+"/", "/")[1]
}

// installEnvoy puts $ENVOY where Envoy Gateway's launcher looks before it fetches one.
func installEnvoy(t *testing.T, dir, version string) {
	t.Helper()
	bin := filepath.Join(dir, "data/envoy-versions", version, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", "-L", os.Getenv("ENVOY"), bin+"/envoy").CombinedOutput(); err != nil {
		t.Fatalf("got %v: %s, want no error", err, out)
	}
}

func runEnvoyGateway(t *testing.T, env []string, config string) {
	t.Helper()
	p := run(t, env, "envoy-gateway", "server", "--config-path", config)
	t.Cleanup(func() { // it ends its Envoy
		_ = p.cmd.Process.Signal(os.Interrupt)
		eventually(t, "Envoy Gateway ends", func() bool {
			select {
			case <-p.gone:
				return true
			default:
				return false
			}
		})
	})
}

// The folder envoy-gateway as a user applies it, before a real API server and a real Envoy Gateway, which starts Envoy.
func TestEnvoyGateway(t *testing.T) {
	c := startCluster(t)
	c.crds()
	c.kubectl("apply", "--server-side", "-k", manifests+"envoy-gateway")
	c.kubectl("apply", "--server-side", "-k", manifests+"workers")
	version := envoyVersion(t)
	c.kubectl("patch", "envoyproxy", "sightline", "-n", "llm", "--type", "merge",
		"-p", fmt.Sprintf(`{"spec":{"provider":{"type":"Host","host":{"envoyVersion":%q}}}}`, version))
	pods := startPods(t)
	all := []state{ready(podIPs[0]), ready(podIPs[1]), ready(podIPs[2])}
	c.put("vllm", "http", 8000, all...)
	sightline := c.startSightline()
	wantFleet(t, "vllm-1:live vllm-2:live vllm-3:live")
	c.put("sightline", "grpc", 9002, ready("10.0.0.20"))
	c.startEnvoyGateway(version)

	const url = "http://127.0.0.1:80"
	eventually(t, "the gateway answers", func() bool { status, _ := ask(t, url, "first", nil, 0); return status == 200 })
	for _, policy := range []string{"envoyextensionpolicy/sightline", "clienttrafficpolicy/llm", "backendtrafficpolicy/llm"} {
		var page string
		eventually(t, policy+" is accepted", func() bool {
			page, _ = c.try("", "get", policy, "-n", "llm", "-o", "json")
			return gjson.Get(page, `status.ancestors.0.conditions.#(type=="Accepted").status`).Str == "True"
		})
	}

	// A pod that is not ready gets nothing, though the gateway would dial it.
	c.put("vllm", "http", 8000, notReady(podIPs[0]), all[1], all[2])
	wantFleet(t, "vllm-1:not ready vllm-2:live vllm-3:live")
	before := pods[0].Stats().Requests
	for i := range 20 {
		if status, _ := ask(t, url, fmt.Sprint("unready", i), nil, 0); status != 200 {
			t.Errorf("with a pod that is not ready: status %d, want 200", status)
		}
	}
	if n := pods[0].Stats().Requests - before; n > 0 {
		t.Errorf("a pod that is not ready got %d requests", n)
	}
	c.put("vllm", "http", 8000, all...)
	wantFleet(t, "vllm-1:live vllm-2:live vllm-3:live")
	drive(t, url, pods, sightline)
}
