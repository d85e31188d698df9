package e2e

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/lab/fakekube"
	"github.com/sightline-router/sightline/lab/sim"
)

// pod is a simulated worker on a loopback address of its own; all pods have the same ports, as in a cluster.
type pod struct {
	*sim.Worker
	name, ip string
}

func startPod(t *testing.T, n int, ports [3]string) *pod {
	t.Helper()
	p, err := prompts()
	if err != nil {
		t.Fatal(err)
	}
	x := &pod{name: fmt.Sprint("vllm-", n), ip: fmt.Sprint("127.0.1.", n)}
	x.Worker, err = sim.New(sim.Config{Model: "sim-vl", Prompt: p, Listen: x.ip + ":" + ports[0], Events: x.ip + ":" +
		ports[1], Replay: x.ip + ":" + ports[2]})
	if err != nil {
		t.Fatal(err)
	}
	x.Start()
	t.Cleanup(x.Close)
	return x
}

// startCluster starts an API server, and finds HTTP, event and replay ports that are free on the addresses 127.0.1.1 to 127.0.1.n.
func startCluster(t *testing.T) (api *fakekube.Server, ports [3]string, httpPort int) {
	t.Helper()
	api, err := fakekube.Start(t.TempDir(), "llm")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	for i := range ports {
		_, port, _ := strings.Cut(freeAddr(t), ":")
		ports[i] = port
	}
	fmt.Sscan(ports[0], &httpPort)
	return api, ports, httpPort
}

// dials has Envoy dial all pods; without Sightline's answer, this one.
func dials(one *pod, httpPort int) func(*envoy.Options) {
	return func(o *envoy.Options) {
		o.Workers = []string{one.Addr()}
		o.Allow = []envoy.Range{{Prefix: netip.MustParsePrefix("127.0.1.0/24"), FirstPort: httpPort, LastPort: httpPort}}
	}
}

// Sightline as it runs in a cluster: pods found by the API server, a fleet that grows and shrinks while requests run.
func TestKubernetesWorkers(t *testing.T) {
	t.Parallel()
	api, ports, httpPort := startCluster(t)
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

	model, err := filepath.Abs(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, map[string]any{
		"hold": "3s", "envoy": map[string]any{"message_timeout": "20s"},
		"models": []any{map[string]any{"name": "sim-vl", "dir": model}},
		"fixed":  map[string]any{"service_account": filepath.Dir(api.CAFile)},
		"kubernetes": map[string]any{"api": api.URL, "workers": []any{
			map[string]any{"namespace": "llm", "service": "vllm", "port": "http",
				"events": map[string]any{"zmq": "tcp://{ip}:" + ports[1], "replay": "tcp://{ip}:" + ports[2]}},
		}},
	}, dials(first, httpPort))
	wantFleet := func(want string) {
		t.Helper()
		eventually(t, want, func() bool { return g.fleet() == want })
	}
	// ask sends a conversation of some blocks and gives the tokens that the worker found in its cache.
	ask := func(topic string) int64 {
		t.Helper()
		status, page := g.ask([]any{user(strings.Repeat(topic+" ", 200))}, map[string]any{"model": "sim-vl"}, nil)
		if status != http.StatusOK {
			t.Fatalf("status %d: %s", status, page)
		}
		return gjson.Get(page, "usage.prompt_tokens_details.cached_tokens").Int()
	}
	eventually(t, "readiness", func() bool { return strings.HasPrefix(g.page("/readyz"), "ready:") })
	g.ready(1)
	wantFleet("vllm-1:live")
	ask("alpha")

	// One more: it gets what is new, the first keeps what it holds.
	list(nil, first, second)
	wantFleet("vllm-1:live vllm-2:live")
	eventually(t, "the second pod gets requests", func() bool {
		ask(fmt.Sprint("beta", first.Stats().Requests))
		return second.Stats().Requests > 0
	})
	before := second.Stats().Requests
	if got := ask("alpha"); got == 0 || second.Stats().Requests != before {
		t.Errorf("the first pod's conversation: %d tokens cached, want some and the same pod", got)
	}

	// Not ready, or terminating and still called ready: nothing goes there, but what it holds is not forgotten.
	at := first.Stats().Requests
	for what, change := range map[string]func(*fakekube.Pod){
		"not ready":   func(p *fakekube.Pod) { p.Ready = false },
		"terminating": func(p *fakekube.Pod) { p.Terminating = true },
	} {
		list(func(name string, p *fakekube.Pod) {
			if name == "vllm-1" {
				change(p)
			}
		}, first, second)
		wantFleet("vllm-1:not ready vllm-2:live")
		at = first.Stats().Requests
		for i := range 6 {
			ask(fmt.Sprint(what, i%2))
		}
		ask("alpha")
		if first.Stats().Requests != at {
			t.Errorf("a pod that is %s got a request", what)
		}
		list(nil, first, second)
		wantFleet("vllm-1:live vllm-2:live")
	}

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

	// None is left: a request waits for one that comes, and gets 503 where none does.
	held := func(outcome string) float64 {
		return metricOf(t, g.admin, "sightline_requests_held_total", fmt.Sprintf("outcome=%q", outcome))
	}
	eventually(t, "a request that waited is served", func() bool {
		list(nil)
		wantFleet("")
		done, before := make(chan int, 1), metricOf(t, g.admin, "sightline_extproc_body_bytes_total", "")
		go func() {
			status, _ := g.ask([]any{user("gamma")}, map[string]any{"model": "sim-vl"}, nil)
			done <- status
		}()
		eventually(t, "it is here", func() bool {
			return metricOf(t, g.admin, "sightline_extproc_body_bytes_total", "") > before || len(done) > 0
		})
		list(nil, second)
		return <-done == http.StatusOK && held("served") > 0
	})
	list(nil)
	wantFleet("")
	status, page := g.ask([]any{user("delta")}, map[string]any{"model": "sim-vl"}, nil)
	if status != http.StatusServiceUnavailable || !strings.Contains(page, "no worker is there") || held("none came") == 0 {
		t.Errorf("without workers: %d, %s", status, page)
	}
	if first.Stats().Requests != at {
		t.Error("Envoy's fallback got a request that was held")
	}
}

// An InferencePool is all that is configured: its pods say what they serve and where they publish, and conversations stay where they
// are held, by what events teach. Pods come, change labels and go; the pool's ports change.
func TestInferencePool(t *testing.T) {
	t.Parallel()
	api, ports, httpPort := startCluster(t)
	labels, other := map[string]string{"app": "vllm"}, map[string]string{"app": "old"}
	pods := []*pod{startPod(t, 11, ports), startPod(t, 12, ports), startPod(t, 13, ports)}
	put := func(p *pod, labels map[string]string) {
		api.PutPod(fakekube.Pod{Name: p.name, IP: p.ip, Ready: true}, labels, nil)
	}
	g := startGateway(t, map[string]any{"fixed": map[string]any{"service_account": filepath.Dir(api.CAFile)},
		"kubernetes": map[string]any{"api": api.URL, "pool": "llm/chat"}}, dials(pods[0], httpPort))
	wantFleet := func(want string) {
		t.Helper()
		now := ""
		defer func() {
			if t.Failed() {
				t.Logf("now %q", now)
			}
		}()
		eventually(t, want, func() bool {
			words := strings.Fields(strings.ReplaceAll(g.fleet(), "not ready", "not-ready"))
			slices.Sort(words)
			now = strings.Join(words, " ")
			return now == want
		})
	}
	wantFleet("") // there is no pool yet
	for _, p := range pods {
		put(p, labels)
	}
	api.PutPool("chat", labels, httpPort)
	wantFleet("vllm-11:live vllm-12:live vllm-13:live")
	g.ready(3)
	ask := func(topic string) (cached int64, at *pod) {
		t.Helper()
		before := []int{pods[0].Stats().Requests, pods[1].Stats().Requests, pods[2].Stats().Requests}
		status, page := g.ask([]any{user(strings.Repeat(topic+" ", 200))}, map[string]any{"model": "sim-vl"}, nil)
		if status != http.StatusOK {
			t.Fatalf("status %d: %s", status, page)
		}
		for i, p := range pods {
			if p.Stats().Requests > before[i] {
				at = p
			}
		}
		return gjson.Get(page, "usage.prompt_tokens_details.cached_tokens").Int(), at
	}
	for _, topic := range []string{"alpha", "beta", "gamma", "delta"} {
		_, first := ask(topic)
		eventually(t, topic+" is held where it was", func() bool {
			cached, at := ask(topic)
			return cached > 0 && at == first
		})
	}
	put(pods[1], other) // its labels fit no longer
	wantFleet("vllm-11:live vllm-13:live")
	put(pods[1], labels)
	wantFleet("vllm-11:live vllm-12:live vllm-13:live")
	api.Remove(fakekube.Pods, pods[2].name)
	wantFleet("vllm-11:live vllm-12:live")
	api.PutPool("chat", labels, httpPort, httpPort+1) // nobody answers at the second
	wantFleet("vllm-11-rank-0:live vllm-12-rank-0:live")
	if status, page := g.ask([]any{user("hello")}, map[string]any{"model": "sim-vl"}, nil); status != http.StatusOK {
		t.Errorf("status %d: %s", status, page)
	}
	api.Remove(fakekube.Pools, "chat")
	wantFleet("")
}

// TestPoolPolicies: the objects of a pool decide. InferenceModelRewrites name another model, in the body that the worker gets;
// InferenceObjectives say who gets the last places. A client chooses among the objectives and gains nothing else.
func TestPoolPolicies(t *testing.T) {
	t.Parallel()
	api, ports, httpPort := startCluster(t)
	labels := map[string]string{"app": "vllm"}
	p := startPod(t, 21, ports)
	of := func(rest map[string]any) map[string]any {
		rest["poolRef"] = map[string]any{"name": "chat"}
		return map[string]any{"spec": rest}
	}
	api.PutPod(fakekube.Pod{Name: p.name, IP: p.ip, Ready: true}, labels, nil)
	api.PutPool("chat", labels, httpPort)
	api.Set(fakekube.Renames, "fast", nil, of(map[string]any{"rules": []any{map[string]any{
		"matches": []any{map[string]any{"model": map[string]any{"value": "fast"}}},
		"targets": []any{map[string]any{"modelRewrite": "sim-vl", "weight": 1}}}}}))
	api.Set(fakekube.Goals, "urgent", nil, of(map[string]any{"priority": 10}))
	api.Set(fakekube.Goals, "idle", nil, of(map[string]any{"priority": -1}))
	g := startGateway(t, map[string]any{"max_in_flight": 10, "fixed": map[string]any{"service_account": filepath.Dir(api.CAFile)},
		"kubernetes": map[string]any{"api": api.URL, "pool": "llm/chat"}}, dials(p, httpPort))
	eventually(t, "the pod", func() bool { return g.fleet() == p.name+":live" })
	g.ready(1)
	long := []any{user(strings.Repeat("alpha ", 200))}
	eventually(t, "the renamed model is served", func() bool {
		status, _ := g.ask(long, map[string]any{"model": "fast"}, nil)
		return status == http.StatusOK
	})
	eventually(t, "both names share what is cached", func() bool {
		_, page := g.ask(long, map[string]any{"model": "fast"}, nil)
		last := gjson.Get(g.page("/decisions?n=1"), "0")
		found := gjson.Get(page, "usage.prompt_tokens_details.cached_tokens").Int()
		below := found - last.Get("cached_tokens").Int() // without counts, the last block may be the prompt's end
		return found > 0 && last.Get("model").Str == "sim-vl" && below >= 0 && below <= 16
	})
	if status, page := g.ask(long, map[string]any{"model": "slow"}, nil); status != http.StatusNotFound {
		t.Errorf("a name without a rewrite: %d, %s", status, page)
	}

	p.SetFault(sim.Hang)
	var held sync.WaitGroup
	ctx, release := context.WithCancel(t.Context())
	defer held.Wait()
	defer release()
	asks := func(header string, objectives []string) *http.Request {
		body := fmt.Sprintf(`{"model":"sim-vl","messages":[{"role":"user","content":"%s"}]}`, header)
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, g.url+"/v1/chat/completions", strings.NewReader(body))
		req.Header = http.Header{"Content-Type": {"application/json"}, header: objectives}
		return req
	}
	inFlight := 0
	hold := func(objectives ...string) { // a request that stays in flight
		t.Helper()
		inFlight++
		held.Go(func() { do(http.DefaultClient, asks("X-Gateway-Inference-Objective", objectives)) })
		eventually(t, fmt.Sprint(inFlight, " in flight"), func() bool {
			return metricOf(t, g.admin, "sightline_worker_requests_in_flight", "") == float64(inFlight)
		})
	}
	refused := func(what string, objectives ...string) {
		t.Helper()
		for _, header := range []string{"X-Gateway-Inference-Objective", "X-Llm-D-Inference-Objective"} {
			if r := do(&http.Client{Timeout: 5 * time.Second}, asks(header, objectives)); r.status != http.StatusTooManyRequests {
				t.Errorf("%s: %+v", what, r)
			}
		}
	}
	for range 8 {
		hold()
	}
	refused("the last quarter, to one below 0", "idle")
	hold()
	refused("the last tenth, to one without an objective")
	refused("the last tenth, to one with an unknown objective", "mine")
	refused("the last tenth, to one that names two", "urgent", "idle")
	hold("urgent")
	release()
	held.Wait()
}

// TestDeletionCost: a pool's pods are told what their removal costs, so a Deployment that is scaled down loses those that cost least: first
// what an operator has taken out of service, then what holds little that is asked for again. No request fails, and what the pod that stays
// held is still found. Without the right to patch pods, the page says so.
func TestDeletionCost(t *testing.T) {
	t.Parallel()
	api, ports, httpPort := startCluster(t)
	labels := map[string]string{"app": "vllm"}
	pods := []*pod{startPod(t, 31, ports), startPod(t, 32, ports), startPod(t, 33, ports)}
	for _, p := range pods {
		api.PutPod(fakekube.Pod{Name: p.name, IP: p.ip, Ready: true}, labels, nil)
	}
	api.PutPool("chat", labels, httpPort)
	const token = "only-for-this-test"
	model, err := filepath.Abs(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	g := startGateway(t, map[string]any{"admin_token": token, "models": []any{map[string]any{"name": "sim-vl", "dir": model}},
		"fixed":      map[string]any{"service_account": filepath.Dir(api.CAFile)},
		"kubernetes": map[string]any{"api": api.URL, "pool": "llm/chat", "deletion_cost": true}}, dials(pods[0], httpPort))
	eventually(t, "three workers", func() bool { return len(strings.Fields(g.fleet())) == 3 })
	g.ready(3)

	failed, asked := 0, 0
	ask := func(text string) (cached int64, at *pod) {
		t.Helper()
		before := make([]int, len(pods))
		for i, p := range pods {
			before[i] = p.Stats().Requests
		}
		status, page := g.ask([]any{user(text)}, map[string]any{"model": "sim-vl"}, nil)
		asked++
		if status != http.StatusOK {
			failed++
			t.Errorf("status %d: %s", status, page)
		}
		for i, p := range pods {
			if p.Stats().Requests > before[i] {
				at = p
			}
		}
		return gjson.Get(page, "usage.prompt_tokens_details.cached_tokens").Int(), at
	}
	costs, grown := map[string]int{}, 0
	long := func() string { grown++; return strings.Repeat("alpha ", 2000+grown) }
	talk := func() { // a conversation that comes back, and prompts that do not
		ask(long())
		for range 3 {
			ask(fmt.Sprint("short ", asked))
		}
	}
	talk()
	within := func(what string, ok func() bool) { // costs are written every 30 s at most
		t.Helper()
		for end := time.Now().Add(100 * time.Second); !ok(); talk() {
			if time.Now().After(end) {
				t.Fatalf("never happened: %s (costs %v)", what, costs)
			}
			for _, p := range api.Patches() {
				costs[p.Pod], _ = strconv.Atoi(p.Annotations["controller.kubernetes.io/pod-deletion-cost"])
			}
		}
	}
	within("the page says what right is lacking", func() bool {
		return strings.Contains(g.page("/problems"), "want a Role with patch on pods") && len(api.Patches()) == 0
	})
	api.AllowPatch(true)
	within("pods have costs", func() bool { return len(costs) > 0 })
	within("the page has forgotten it", func() bool { return !strings.Contains(g.page("/problems"), "patch on pods") })

	out := pods[0]
	if _, at := ask(long()); at == out {
		out = pods[1]
	}
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+g.admin+"/workers/cordon?worker="+out.name, nil)
	req.Header.Set("Authorization", "Bearer "+token)
	if r := do(http.DefaultClient, req); r.status != http.StatusOK {
		t.Fatalf("cordon: %+v", r)
	}
	within("what is cordoned costs least", func() bool { return costs[out.name] == math.MinInt32 })
	_, keeps := ask(long())
	removed := api.ScaleDown("app", "vllm", 2)
	if !slices.Equal(removed, []string{out.name}) {
		t.Errorf("removed %v, want what was cordoned, %s; costs %v", removed, out.name, costs)
	}
	cheapest := ""
	for _, p := range pods {
		if p != out && (cheapest == "" || costs[p.name] < costs[cheapest]) {
			cheapest = p.name
		}
	}
	removed = api.ScaleDown("app", "vllm", 1)
	if !slices.Equal(removed, []string{cheapest}) || cheapest == keeps.name {
		t.Errorf("removed %v with costs %v, want the cheapest, and not %s, where the long conversation is", removed, costs, keeps.name)
	}
	eventually(t, "one worker", func() bool { return g.fleet() == keeps.name+":live" })
	talk()
	if cached, at := ask(long()); cached < 1500 || at != keeps {
		t.Errorf("%d tokens found, want those of the conversation at %s", cached, keeps.name)
	}
	last := map[string]time.Time{}
	for _, p := range api.Patches() {
		if at, again := last[p.Pod]; again && p.At.Sub(at) < 29*time.Second {
			t.Errorf("%s was changed again after %v, want 30 s at least", p.Pod, p.At.Sub(at))
		}
		last[p.Pod] = p.At
	}
	t.Logf("costs %v; %d of %d requests failed, %d patches", costs, failed, asked, len(api.Patches()))
}
