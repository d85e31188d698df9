package discover

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/lab/fakekube"
)

// watchPool follows the pool "chat" of a new API server.
func watchPool(t *testing.T) *watcher {
	t.Helper()
	return follows(t, func(api *fakekube.Server, log *zap.Logger) finder {
		return &Pool{Cluster: Cluster{API: api.URL, CAFile: api.CAFile, TokenFile: api.TokenFile, Namespace: "llm"}, Name: "chat", Log: log,
			Retry: 5 * time.Millisecond}
	})
}

func ready(n int) fakekube.Pod { return podIn(n, true) }

var vllmPods = map[string]string{"app": "vllm"}

// TestPoolAndItsPods runs a pool's life: it is waited for; pods come, become ready, change labels, terminate and go; its ports and its
// selector change; it is deleted and created again.
func TestPoolAndItsPods(t *testing.T) {
	w := watchPool(t)
	w.want(t, "")
	w.api.PutPod(ready(1), vllmPods, nil)
	w.api.PutPod(fakekube.Pod{Name: "r", IP: "10.0.9.9", Ready: true}, map[string]string{"app": "redis"}, nil)
	w.api.PutPool("another", map[string]string{"app": "redis"}, 6379)
	w.api.PutPool("chat", vllmPods, 8000)
	w.want(t, "p1=10.0.0.1:8000")
	unready := ready(2)
	unready.Ready = false
	w.api.PutPod(unready, vllmPods, nil)
	w.want(t, "p1=10.0.0.1:8000 p2=10.0.0.2:8000!")
	w.api.PutPod(ready(2), vllmPods, nil)
	w.want(t, "p1=10.0.0.1:8000 p2=10.0.0.2:8000")
	w.api.PutPod(ready(1), map[string]string{"app": "old"}, nil) // its labels fit no longer
	w.want(t, "p2=10.0.0.2:8000")
	w.api.PutPod(ready(1), vllmPods, nil)
	w.want(t, "p1=10.0.0.1:8000 p2=10.0.0.2:8000")
	leaving := ready(2)
	leaving.Terminating = true
	w.api.PutPod(leaving, vllmPods, nil)
	w.want(t, "p1=10.0.0.1:8000 p2=10.0.0.2:8000!-")
	w.api.Remove(fakekube.Pods, "p2")
	w.want(t, "p1=10.0.0.1:8000")

	w.api.PutPool("chat", vllmPods, 8000, 8001)
	w.want(t, "p1-rank-0=10.0.0.1:8000 p1-rank-1=10.0.0.1:8001")
	w.api.PutPod(ready(1), vllmPods, map[string]string{"inference.networking.k8s.io/active-ports": "8001, x,9"})
	w.want(t, "p1-rank-1=10.0.0.1:8001")
	w.api.PutPool("chat", map[string]string{"app": "redis"}, 6379)
	w.want(t, "r=10.0.9.9:6379")
	w.api.Remove(fakekube.Pools, "chat")
	w.want(t, "")
	w.api.PutPool("chat", vllmPods, 8001)
	w.want(t, "p1=10.0.0.1:8001")
	if n := w.log.FilterMessageSnippet("no such InferencePool").Len(); n != 2 {
		t.Errorf("%d lines on a pool that is not there, want 2: %v", n, w.log.All())
	}
}

// TestPoolSurvivesFailures checks that workers stay while the API server cannot be reached or refuses, and that changes arrive later.
func TestPoolSurvivesFailures(t *testing.T) {
	w := watchPool(t)
	w.api.PutPool("chat", vllmPods, 8000)
	w.api.PutPod(ready(1), vllmPods, nil)
	w.want(t, "p1=10.0.0.1:8000")
	w.api.Cut()
	w.api.PutPod(ready(2), vllmPods, nil)
	w.want(t, "p1=10.0.0.1:8000 p2=10.0.0.2:8000")
	if err := w.api.SetToken("another", false); err != nil {
		t.Fatal(err)
	}
	w.api.Cut()
	eventually(t, "refusals of both kinds", func() bool {
		return w.log.FilterMessageSnippet("list or watch pods").Len() > 1 && w.log.FilterMessageSnippet("inferencepools.inference").Len() > 1
	})
	w.want(t, "p1=10.0.0.1:8000 p2=10.0.0.2:8000")
	w.api.Expire()
	if err := w.api.SetToken("another", true); err != nil {
		t.Fatal(err)
	}
	w.api.Remove(fakekube.Pods, "p1")
	w.want(t, "p2=10.0.0.2:8000")
}

// TestPoolImport checks that an imported pool, whose pods are in other clusters, is named as what it is.
func TestPoolImport(t *testing.T) {
	w := watchPool(t)
	w.want(t, "")
	w.api.Set(fakekube.Imports, "chat", nil, map[string]any{"status": map[string]any{"controllers": []any{map[string]any{
		"exportingClusters": []any{map[string]any{"name": "east"}}}}}})
	w.api.PutPool("chat", vllmPods, 8000)
	w.api.Remove(fakekube.Pools, "chat")
	eventually(t, "the cluster that exports it", func() bool {
		for _, e := range w.log.FilterMessageSnippet("is imported").All() {
			return fmt.Sprint(e.ContextMap()["exported_by"]) == "[east]"
		}
		return false
	})
}

// TestPoolPolicies: objectives and rewrites of this pool are followed in both groups, those of another pool are not, and that a kind is
// not defined or may not be read is no failure.
func TestPoolPolicies(t *testing.T) {
	var now atomic.Pointer[Objectives]
	w := follows(t, func(api *fakekube.Server, log *zap.Logger) finder {
		return &Pool{Cluster: Cluster{API: api.URL, CAFile: api.CAFile, TokenFile: api.TokenFile, Namespace: "llm"}, Name: "chat", Log: log,
			Retry: 5 * time.Millisecond, Objectives: now.Store}
	})
	w.want(t, "")
	of := func(pool string, rest map[string]any) map[string]any {
		rest["poolRef"] = map[string]any{"name": pool}
		return map[string]any{"spec": rest}
	}
	rule := func(model, to string) map[string]any {
		r := map[string]any{"targets": []any{map[string]any{"modelRewrite": to}}}
		if model != "" {
			r["matches"] = []any{map[string]any{"model": map[string]any{"value": model}}}
		}
		return r
	}
	zero := func() float64 { return 0 }
	shows := func(named ...string) string {
		priority, urgent := now.Load().Priority(named)
		return fmt.Sprintf("%d %t %s %s", priority, urgent, now.Load().Rewrite("m", zero), now.Load().Rewrite("other", zero))
	}
	want := func(want string, named ...string) {
		t.Helper()
		eventually(t, want, func() bool { return shows(named...) == want })
	}
	want("0 false m other", "urgent")
	w.api.Set(fakekube.Goals, "urgent", nil, of("chat", map[string]any{"priority": 5}))
	w.api.Set(fakekube.Goals, "idle", nil, of("chat", map[string]any{"priority": -5}))
	w.api.Set(fakekube.Goals, "theirs", nil, of("another", map[string]any{"priority": 9}))
	w.api.Set(fakekube.OldGoals, "urgent", nil, of("chat", map[string]any{"priority": -9})) // the other group's counts
	w.api.Set(fakekube.OldGoals, "old", nil, of("chat", map[string]any{"priority": 2}))
	want("5 true m other", "urgent")
	want("2 true m other", "old")
	want("0 true m other", "theirs")
	want("-5 true m other", "urgent", "idle") // two headers: the lower one
	want("0 true m other", "urgent", "unknown")
	w.api.Set(fakekube.Renames, "b", nil, of("chat", map[string]any{"rules": []any{rule("", "any"), rule("m", "late")}}))
	want("0 true late any")
	w.api.Set(fakekube.Renames, "a", nil, of("chat", map[string]any{"rules": []any{rule("m", "first"), rule("m", "second")}}))
	want("0 true first any") // as old as b, and before it by name
	w.api.Remove(fakekube.Renames, "a")
	w.api.Remove(fakekube.Renames, "b")
	w.api.Remove(fakekube.Goals, "urgent")
	w.api.Remove(fakekube.OldGoals, "urgent")
	w.api.Remove(fakekube.OldGoals, "old")
	want("0 false m other")
	eventually(t, "the kind that may not be read is named", func() bool { // the fake server has no rewrites of the older group
		return w.log.FilterMessageSnippet("no inferencemodelrewrites.inference.networking.x-k8s.io are followed").Len() == 1
	})
}

// TestWeightedRewrites: names share requests by weight, or equally, and the same share gives the same name.
func TestWeightedRewrites(t *testing.T) {
	for _, c := range []struct{ what, targets, want string }{
		{"weights", `[{"modelRewrite":"a","weight":1},{"modelRewrite":"b","weight":3}]`, "abbb"},
		{"none has one", `[{"modelRewrite":"a"},{"modelRewrite":"b"}]`, "aabb"},
		{"some have none", `[{"modelRewrite":"a"},{"modelRewrite":"b","weight":3}]`, "bbbb"},
		{"no targets", `[]`, "mmmm"},
	} {
		var o objective
		if err := json.Unmarshal([]byte(`{"spec":{"rules":[{"targets":`+c.targets+`}]}}`), &o); err != nil {
			t.Fatal(err)
		}
		p, got := objectivesOf(nil, []map[string]*objective{{"o": &o}}), ""
		for _, share := range []float64{0, 0.3, 0.6, 0.999} {
			got += p.Rewrite("m", func() float64 { return share })
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
	many := &objective{}
	if err := json.Unmarshal([]byte(`{"spec":{"rules":[{}]}}`), many); err != nil {
		t.Fatal(err)
	}
	many.Spec.Rules[0].Targets = make([]target, 1_000_000) // with each looked at for each it would take an hour
	many.Spec.Rules[0].Targets[999_999].ModelRewrite = "last"
	if got := objectivesOf(nil, []map[string]*objective{{"o": many}}).Rewrite("m", func() float64 { return 0.9999999 }); got != "last" {
		t.Errorf("of a million: got %q, want %q", got, "last")
	}
	if none := (*Objectives)(nil); none.Rewrite("m", nil) != "m" {
		t.Error("without objects a name is changed")
	}
}

func TestPoolEndpoints(t *testing.T) {
	one := func(change func(*pod)) map[string]*pod {
		p := &pod{described: described{metadata{Name: "a", Labels: map[string]string{}, Annotations: map[string]string{}}}}
		p.Status.PodIP, p.Status.Phase, p.Status.Conditions = "10.0.0.1", "Running", []condition{{"Ready", "True"}}
		change(p)
		return map[string]*pod{"a": p}
	}
	for _, c := range []struct {
		what        string
		pods        map[string]*pod
		ports       []int
		want, wrong string
	}{
		{"as it should be", one(func(*pod) {}), []int{8000}, "a=10.0.0.1:8000", ""},
		{"without conditions", one(func(p *pod) { p.Status.Conditions = nil }), []int{8000}, "a=10.0.0.1:8000!", ""},
		{"without an address", one(func(p *pod) { p.Status.PodIP = "" }), []int{8000}, "", ""},
		{"ended", one(func(p *pod) { p.Status.Phase = "Failed" }), []int{8000}, "", ""},
		{"with nonsense for an address", one(func(p *pod) { p.Status.PodIP = "fe80::1%eth0" }), []int{8000}, "", "is not an address"},
		{"IPv6 and a zone", one(func(p *pod) {
			p.Status.PodIP, p.Metadata.Labels["topology.kubernetes.io/zone"] = "fd00::1", "z"
		}), []int{8000}, "a=[fd00::1]:8000@z", ""},
		{"no ports", one(func(*pod) {}), nil, "", "no targetPorts"},
		{"no active port", one(func(p *pod) { p.Metadata.Annotations["llm-d.ai/active-ports"] = "" }), []int{8000}, "", ""},
	} {
		got, err := poolEndpoints(c.pods, c.ports)
		if show(got) != c.want || (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %q, %v", c.what, show(got), err)
		}
	}
	said, _ := poolEndpoints(one(func(p *pod) {
		p.Metadata.Labels = map[string]string{"llm-d.ai/role": "decode", "disaggregatedset.x-k8s.io/revision": "r2",
			"inference.networking.k8s.io/engine-type": "sglang"}
		p.Metadata.Annotations = map[string]string{"sightline/model": "m", "sightline/events": "tcp://{ip}:5557",
			"sightline/replay": "tcp://{ip}:5558"}
	}), []int{8000})
	want := Pod{0, "sglang", "m", "tcp://{ip}:5557", "tcp://{ip}:5558"}
	if len(said) != 1 || said[0].Pod != want || said[0].Role != "decode" || said[0].Revision != "r2" {
		t.Errorf("%+v, want %+v", said, want)
	}
}

// FuzzPool checks that a pool and a pod as a server sends them are read without panics, and into endpoints that can be dialled.
func FuzzPool(f *testing.F) {
	f.Add([]byte(`{"type":"ADDED","object":{"metadata":{"name":"a"},"spec":{"selector":{"matchLabels":{"app":"x"}},"targetPorts":[{"number":8000},{"number":-1}]},`+
		`"status":{"phase":"Running","podIP":"10.0.0.1","conditions":[{"type":"Ready","status":"True"}]}}}`), 8000)
	f.Add([]byte(`{"type":"DELETED","object":null}`), 0)
	f.Fuzz(func(t *testing.T, line []byte, port int) {
		pools, pods := map[string]*inferencePool{}, map[string]*pod{}
		_, _, _ = apply(line, "pools", pools)
		if _, _, err := apply(line, "pods", pods); err != nil || port < 1 || port > 65535 {
			return
		}
		got, _ := poolEndpoints(pods, []int{port})
		for _, e := range got {
			if int(e.Addr.Port()) != port || !e.Addr.Addr().IsValid() {
				t.Fatalf("got %+v, want an address with port %d", e, port)
			}
		}
	})
}
