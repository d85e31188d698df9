package gateway

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab/envoytest"
)

// putPod writes a pod as a kubelet that is not here would: 10.0.0.1N is vllm-N.
func (c *cluster) putPod(ip string, ready bool) {
	c.Helper()
	name := "vllm-" + ip[len(ip)-1:]
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"llm","labels":{"app":"vllm"}},
		"spec":{"nodeName":"none","containers":[{"name":"vllm","image":"none"}]}}`, name)
	if out, err := c.try(text, "apply", "-f", "-"); err != nil {
		c.Fatalf("%v\n%s", err, out)
	}
	status := map[bool]string{true: "True", false: "False"}[ready]
	c.kubectl("patch", "pod", name, "-n", "llm", "--subresource=status", "--type=merge", "-p",
		fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}],"conditions":[{"type":"Ready","status":%q}]}}`, ip, ip, status))
}

// live lists the workers whose events a replica hears, by its metrics; its page is closed beyond loopback.
func live(metrics string) string {
	var names []string
	for line := range strings.Lines(get("http://" + metrics + "/metrics")) {
		if rest, ok := strings.CutPrefix(line, `sightline_event_stream_age_seconds{`); ok && strings.HasSuffix(strings.TrimSpace(rest), " 0") {
			_, name, _ := strings.Cut(rest, `worker="`)
			name, _, _ = strings.Cut(name, `"`)
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// The folder inference-pool before a real API server: the pool is all that Sightline is told. Its pods are found and asked, and
// conversations find their worker again; pods come, are not ready, change labels and go, the pool's ports change; of two replicas one is
// killed under load.
func TestInferencePool(t *testing.T) {
	c := startCluster(t)
	if !c.crds() {
		t.Skip("NOT RUN: SIGHTLINE_CRDS names no folder with crd_inferencepools.yaml")
	}
	c.kubectl("apply", "--server-side", "-k", manifests+"inference-pool")
	for _, r := range []struct {
		verb, resource string
		want           bool
	}{{"watch", "pods", true}, {"list", "inferencepools.inference.networking.k8s.io", true}, {"get", "pods", false},
		{"watch", "inferenceobjectives.inference.networking.x-k8s.io", true},
		{"list", "secrets", false}, {"delete", "pods", false}, {"create", "pods", false}} {
		out, _ := c.try("", "auth", "can-i", r.verb, r.resource, "-n", "llm", "--as=system:serviceaccount:llm:sightline")
		if got := strings.HasSuffix(strings.TrimSpace(out), "yes"); got != r.want {
			t.Errorf("%s %s: %q, want %t", r.verb, r.resource, out, r.want)
		}
	}
	pods := startPods(t)
	c.account()
	args := func(more ...string) *process {
		kube := []string{"KUBERNETES_SERVICE_HOST=127.0.0.1", "KUBERNETES_SERVICE_PORT=27443"}
		return run(t, kube, append([]string{os.Getenv("SIGHTLINE"), "--pool-name", "vllm", "--secure-serving=false"}, more...)...)
	}
	args()
	second := args("--grpc-port", "9012", "--grpc-health-port", "9013", "--metrics-port", "9091")
	want := func(names string) {
		t.Helper()
		for _, replica := range []string{"127.0.0.1:9090", "127.0.0.1:9091"} {
			eventually(t, replica+" hears "+names, func() bool { return live(replica) == names })
		}
	}
	o := envoy.Default()
	o.Sightline = "127.0.0.1:9002,127.0.0.1:9012"
	o.Workers = []string{podIPs[0] + ":8000"}
	o.Allow = []envoy.Range{{Prefix: netip.MustParsePrefix("10.0.0.0/24"), FirstPort: 8000, LastPort: 8007}}
	proxy, err := envoytest.Start(t.Context(), os.Getenv("ENVOY"), o, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Stop)
	url := "http://" + o.Listen

	for _, ip := range podIPs {
		c.putPod(ip, true)
	}
	began := time.Now()
	want("vllm-1 vllm-2 vllm-3")
	round := 0
	eventually(t, "conversations find their worker again", func() bool {
		round++
		for _, again := range []bool{false, true} {
			for i := range 12 {
				status, hit := ask(t, url, fmt.Sprint("topic", round, i), nil, 0)
				if status != 200 || again && !hit {
					return false
				}
			}
			time.Sleep(50 * time.Millisecond) // the other replica learns by events alone
		}
		return true
	})
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("routed by cache %v after the pods were there, want 10 s", took)
	} else {
		t.Logf("routed by cache %v after the pods were there", took)
	}

	// The pool's objects decide too: a name that no worker serves, rewritten.
	for _, object := range []string{
		`{"kind":"InferenceObjective","metadata":{"name":"urgent","namespace":"llm"},"spec":{"priority":10,"poolRef":{"name":"vllm"}}}`,
		`{"kind":"InferenceModelRewrite","metadata":{"name":"fast","namespace":"llm"},"spec":{"poolRef":{"name":"vllm"},"rules":[
			{"matches":[{"model":{"value":"fast"}}],"targets":[{"modelRewrite":"` + model + `"}]}]}}`} {
		whole := strings.Replace(object, "{", `{"apiVersion":"inference.networking.x-k8s.io/v1alpha2",`, 1)
		if out, err := c.try(whole, "apply", "--validate=strict", "-f", "-"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	eventually(t, "the model is renamed", func() bool {
		resp, err := http.Post(url+"/v1/chat/completions", "application/json",
			strings.NewReader(`{"model":"fast","max_tokens":1,"messages":[{"role":"user","content":"hello"}]}`))
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})

	// avoided waits until a pod gets none of many requests, all of which are answered.
	avoided := func(what string, pod int) {
		t.Helper()
		round := 0
		eventually(t, what+" gets no requests", func() bool {
			before := pods[pod].Stats().Requests
			round++
			for i := range 20 {
				if status, _ := ask(t, url, fmt.Sprint(what, round, i), nil, 0); status != 200 {
					t.Errorf("%s: status %d, want 200", what, status)
				}
			}
			return pods[pod].Stats().Requests == before
		})
	}
	c.putPod(podIPs[0], false)
	avoided("a pod that is not ready", 0)
	c.putPod(podIPs[0], true)
	c.kubectl("label", "pod", "vllm-2", "-n", "llm", "--overwrite", "app=old")
	want("vllm-1 vllm-3")
	c.kubectl("label", "pod", "vllm-2", "-n", "llm", "--overwrite", "app=vllm")
	want("vllm-1 vllm-2 vllm-3")
	c.kubectl("delete", "pod", "vllm-3", "-n", "llm", "--wait=false") // no kubelet ends it: it stays terminating
	avoided("a pod that is terminating", 2)
	c.kubectl("delete", "pod", "vllm-3", "-n", "llm", "--force", "--grace-period=0")
	want("vllm-1 vllm-2")
	c.putPod(podIPs[2], true)
	want("vllm-1 vllm-2 vllm-3")
	c.kubectl("patch", "inferencepool", "vllm", "-n", "llm", "--type=merge", "-p", `{"spec":{"targetPorts":[{"number":8000},{"number":8001}]}}`)
	want("vllm-1-rank-0 vllm-2-rank-0 vllm-3-rank-0") // nobody answers at the second port
	c.kubectl("patch", "inferencepool", "vllm", "-n", "llm", "--type=merge", "-p", `{"spec":{"targetPorts":[{"number":8000}]}}`)
	want("vllm-1 vllm-2 vllm-3")
	c.api.kill() // those that are known stay
	want("vllm-1 vllm-2 vllm-3")
	c.startAPI()

	// One of two replicas is killed while requests run.
	var failed, sent atomic.Int64
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 4 {
		clients.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				sent.Add(1)
				if status, _ := ask(t, url, fmt.Sprint("load", i, n%5), nil, 0); status != 200 {
					failed.Add(1)
				}
			}
		})
	}
	time.Sleep(time.Second)
	second.kill()
	time.Sleep(3 * time.Second)
	close(stop)
	clients.Wait()
	if failed.Load() > 0 {
		t.Errorf("%d of %d requests failed when one of two replicas was killed, want 0", failed.Load(), sent.Load())
	}
	t.Logf("%d requests, one of two replicas killed among them: %d failed", sent.Load(), failed.Load())
	if n := gjson.Get(c.kubectl("get", "pods", "-n", "llm", "-o", "json"), "items.#").Int(); n != 3 {
		t.Errorf("%d pods, want 3", n)
	}
}
