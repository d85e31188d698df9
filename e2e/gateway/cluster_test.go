// Package gateway runs examples/kubernetes against a real kube-apiserver with etcd, and against what a real Envoy Gateway
// makes of them. run.sh beside this file (make e2e-gateway) builds the programs and starts these tests in a network
// namespace of their own.
//
//	pool_test.go          an InferencePool and its pods, two replicas of Sightline
//	discovery_test.go     EndpointSlices by the production RBAC: pods come, are not ready, terminate, go; versions expire
//	manifests_test.go     every folder applied as it is
//	helm_test.go          the chart of 0.1.0 installed, upgraded, rolled back and uninstalled by the real Helm
//	envoygateway_test.go  the folder envoy-gateway served by a real Envoy Gateway
//	standalone_test.go    the same without Kubernetes, from files
//	translate_test.go     the same translated by egctl, in a real Envoy
//	traffic_test.go       the requests that go through a gateway
package gateway

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

const (
	manifests = "../../examples/kubernetes/"
	modelDir  = "../../examples/models/qwen2.5-vl"
	model     = "Qwen/Qwen2.5-VL-7B-Instruct" // as in base/sightline.yaml
	apiAddr   = "127.0.0.1:27443"
	account   = "/var/run/secrets/kubernetes.io/serviceaccount/"
)

func need(t *testing.T) {
	if os.Getenv("SIGHTLINE_GATEWAY") == "" {
		t.Skip("needs programs and a network of its own: make e2e-gateway")
	}
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// process is a program that ends with the test.
type process struct {
	cmd  *exec.Cmd
	gone chan struct{}

	mu  sync.Mutex
	log bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func run(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(args[0], args[1:]...), gone: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = p, p, append(os.Environ(), env...)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { _ = p.cmd.Wait(); close(p.gone) }()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			text := p.log.Bytes()
			t.Logf("%s, the end of its log:\n%s", args[0], text[max(0, len(text)-4000):])
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.gone
}

// cluster is an API server and nothing else: no controllers, no nodes. Who is there is what a test writes.
type cluster struct {
	*testing.T
	dir  string
	args []string // of the API server
	api  *process
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	need(t)
	c := &cluster{T: t, dir: t.TempDir()}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	c.write("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
	c.write("tokens.csv", `admintoken,admin,admin,"system:masters"`+"\n")
	c.write("kubeconfig", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c",
		"clusters":[{"name":"c","cluster":{"server":"https://%s","certificate-authority":"%s/certs/apiserver.crt"}}],
		"users":[{"name":"admin","user":{"token":"admintoken"}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"admin"}}]}`,
		apiAddr, c.dir))
	run(t, nil, "etcd", "--data-dir", c.dir+"/etcd", "--listen-client-urls", "http://127.0.0.1:27379",
		"--advertise-client-urls", "http://127.0.0.1:27379",
		"--listen-peer-urls", "http://127.0.0.1:27380", "--initial-advertise-peer-urls", "http://127.0.0.1:27380",
		"--initial-cluster", "default=http://127.0.0.1:27380")
	c.args = []string{"kube-apiserver", "--etcd-servers=http://127.0.0.1:27379", "--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1", "--secure-port=27443",
		"--cert-dir=" + c.dir + "/certs", "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.dir + "/sa.key",
		"--service-account-signing-key-file=" + c.dir + "/sa.key", "--token-auth-file=" + c.dir + "/tokens.csv", "--authorization-mode=RBAC",
		"--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none", "--disable-admission-plugins=ServiceAccount"}
	c.startAPI()
	return c
}

func (c *cluster) startAPI() {
	c.Helper()
	c.api = run(c.T, nil, c.args...)
	eventually(c, "the API server is ready", func() bool {
		select {
		case <-c.api.gone:
			c.Fatal("the API server ended")
		default:
		}
		_, err := c.try("", "get", "--raw", "/readyz")
		return err == nil
	})
}

func (c *cluster) write(name, text string) string {
	c.Helper()
	file := filepath.Join(c.dir, name)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		c.Fatal(err)
	}
	return file
}

func (c *cluster) try(in string, args ...string) (string, error) {
	cmd := exec.Command("kubectl", append([]string{"--kubeconfig", c.dir + "/kubeconfig"}, args...)...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *cluster) kubectl(args ...string) string {
	c.Helper()
	out, err := c.try("", args...)
	if err != nil {
		c.Fatalf("kubectl %v: %v\n%s", args, err, out)
	}
	return out
}

// crds applies the definitions that the manifests need; false: InferencePool's is not here.
func (c *cluster) crds() (pools bool) {
	c.Helper()
	dir := os.Getenv("GATEWAY_CRDS")
	c.kubectl("apply", "--server-side", "-f", dir+"/gatewayapi-crds.yaml", "-f", dir+"/generated", "-f", os.Getenv("ISTIO_CRDS"))
	more, _ := filepath.Glob(os.Getenv("SIGHTLINE_CRDS") + "/crd_inference*.yaml")
	for _, file := range more {
		c.kubectl("apply", "--server-side", "-f", file)
		pools = pools || filepath.Base(file) == "crd_inferencepools.yaml"
	}
	c.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
	return pools
}

// state is how a pod stands in its EndpointSlice.
type state struct {
	ip                 string
	ready, terminating bool
}

// put writes the EndpointSlice of a Service, as the controller that is not here would: pod vllm-N has the address 10.0.0.1N.
func (c *cluster) put(service, portName string, port int, pods ...state) {
	c.Helper()
	endpoints := []any{}
	for _, p := range pods {
		endpoints = append(endpoints, map[string]any{"addresses": []string{p.ip},
			"conditions": map[string]any{"ready": p.ready, "serving": p.ready, "terminating": p.terminating},
			"targetRef":  map[string]any{"kind": "Pod", "name": fmt.Sprintf("%s-%s", service, p.ip[len(p.ip)-1:]), "namespace": "llm"}})
	}
	text, err := json.Marshal(map[string]any{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
		"metadata":  map[string]any{"name": service + "-x", "namespace": "llm", "labels": map[string]any{"kubernetes.io/service-name": service}},
		"endpoints": endpoints, "ports": []any{map[string]any{"name": portName, "port": port, "protocol": "TCP"}}})
	if err != nil {
		c.Fatal(err)
	}
	if out, err := c.try(string(text), "apply", "-f", "-"); err != nil {
		c.Fatalf("%v\n%s", err, out)
	}
}

func ready(ip string) state       { return state{ip: ip, ready: true} }
func notReady(ip string) state    { return state{ip: ip} }
func terminating(ip string) state { return state{ip: ip, ready: true, terminating: true} } // as with publishNotReadyAddresses

// startPod runs a simulated worker at a pod's address, with the ports of workers/vllm.yaml.
func startPod(t *testing.T, ip string) *sim.Worker {
	t.Helper()
	prompts, err := lab.NewPrompts(modelDir, sim.VLLM, model, 16)
	if err != nil {
		t.Fatal(err)
	}
	w, err := sim.New(sim.Config{Model: model, Prompt: prompts, Listen: ip + ":8000", Events: ip + ":5557", Replay: ip + ":5558"})
	if err != nil {
		t.Fatal(err)
	}
	w.Start()
	t.Cleanup(w.Close)
	return w
}

// production is the configuration of the folder base, but for where the model lies, and that this machine may look at the page.
func production(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(manifests + "base/sightline.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := filepath.Abs(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	return strings.NewReplacer("dir: /models/hub", "dir: "+dir, "admin: 0.0.0.0:", "admin: 127.0.0.1:").Replace(string(text))
}

// account writes the files of the ServiceAccount where a pod has them.
func (c *cluster) account() {
	c.Helper()
	ca, err := os.ReadFile(c.dir + "/certs/apiserver.crt")
	if err == nil {
		err = os.MkdirAll(account, 0o755)
	}
	if err != nil {
		c.Fatal(err)
	}
	for name, text := range map[string]string{"ca.crt": string(ca), "namespace": "llm",
		"token": c.kubectl("create", "token", "sightline", "-n", "llm")} {
		if err := os.WriteFile(account+name, []byte(text), 0o600); err != nil {
			c.Fatal(err)
		}
	}
}

// startSightline runs the production configuration with the ServiceAccount's token.
func (c *cluster) startSightline() *process {
	c.Helper()
	c.account()
	return run(c.T, []string{"KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=27443"},
		os.Getenv("SIGHTLINE"), "serve", "-c", c.write("sightline.yaml", production(c.T)))
}

// get is a page; "" unless its status is 200.
func get(url string) string {
	resp, err := http.Get(url)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(page)
}
