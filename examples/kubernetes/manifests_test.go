// Package kubernetes holds manifests; its tests follow what one says of another. e2e/manifests validates each by the
// schemas of its kind, e2e/gateway runs them.
package kubernetes

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	"github.com/goccy/go-yaml"
	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/tidwall/gjson"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/indexer/source/bus"
)

// object is one manifest as JSON.
type object struct {
	file string
	gjson.Result
}

func (o object) String() string {
	return fmt.Sprintf("%s: %s %s", o.file, o.Get("kind").Str, o.Get("metadata.name").Str)
}

// read gives all manifests of the folders, by folder; duplicate keys and broken YAML fail the test.
func read(t *testing.T) map[string][]object {
	t.Helper()
	files, err := filepath.Glob("*/*.yaml")
	if err != nil || len(files) < 10 {
		t.Fatalf("%v: %d files, want no error, at least 10", err, len(files))
	}
	out := map[string][]object{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dec := yaml.NewDecoder(bytes.NewReader(data))
		for {
			var doc map[string]any
			if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			text, err := json.Marshal(doc)
			if err != nil {
				t.Fatalf("%s: got %v, want no error", file, err)
			}
			out[filepath.Dir(file)] = append(out[filepath.Dir(file)], object{file, gjson.ParseBytes(text)})
		}
	}
	return out
}

func find(list []object, kind, name string) (object, bool) {
	i := slices.IndexFunc(list, func(o object) bool { return o.Get("kind").Str == kind && o.Get("metadata.name").Str == name })
	if i < 0 {
		return object{}, false
	}
	return list[i], true
}

func TestEveryManifestIsUsed(t *testing.T) {
	for folder, list := range read(t) {
		k, ok := find(list, "Kustomization", "")
		if !ok {
			t.Fatalf("%s has no kustomization", folder)
		}
		named := []string{"kustomization.yaml"}
		for _, r := range append(k.Get("resources").Array(), k.Get("configMapGenerator.#.files|@flatten").Array()...) {
			if _, err := os.Stat(filepath.Join(folder, r.Str)); err != nil {
				t.Errorf("%s: got %v, want no error", k.file, err)
			}
			named = append(named, r.Str)
		}
		for _, o := range list {
			if !slices.Contains(named, filepath.Base(o.file)) {
				t.Errorf("%s is not in its kustomization", o.file)
			}
			kind := o.Get("kind").Str
			if filepath.Base(o.file) == "sightline.yaml" || kind == "Kustomization" {
				continue
			}
			clusterWide := kind == "Namespace" || kind == "GatewayClass"
			if ns := o.Get("metadata.namespace").Str; clusterWide != (ns == "") || !clusterWide && ns != "llm" {
				t.Errorf("%v: namespace %q", o, ns)
			}
		}
	}
}

// selects reports whether a selector fits a set of labels.
func selects(selector, labels gjson.Result) bool {
	want := selector.Map()
	have := labels.Map()
	for k, v := range want {
		if have[k].Str != v.Str {
			return false
		}
	}
	return len(want) > 0
}

// What selects, names or asks for something else finds it.
func TestReferences(t *testing.T) {
	all := read(t)
	base, workers := all["base"], all["workers"]
	deployment, _ := find(base, "Deployment", "sightline")
	service, _ := find(base, "Service", "sightline")
	role, _ := find(base, "Role", "sightline")
	binding, _ := find(base, "RoleBinding", "sightline")
	pods := deployment.Get("spec.template.metadata.labels")
	vllm, _ := find(workers, "Deployment", "vllm")
	vllmService, _ := find(workers, "Service", "vllm")
	vllmPods := vllm.Get("spec.template.metadata.labels")

	pdb, _ := find(base, "PodDisruptionBudget", "sightline")
	hpa, _ := find(base, "HorizontalPodAutoscaler", "sightline")
	policy, _ := find(base, "NetworkPolicy", "sightline")
	workersPolicy, _ := find(base, "NetworkPolicy", "vllm")
	for what, ok := range map[string]bool{
		"Deployment":          selects(deployment.Get("spec.selector.matchLabels"), pods),
		"Service":             selects(service.Get("spec.selector"), pods),
		"PodDisruptionBudget": selects(pdb.Get("spec.selector.matchLabels"), pods),
		"NetworkPolicy":       selects(policy.Get("spec.podSelector.matchLabels"), pods),
		"workers' Deployment": selects(vllm.Get("spec.selector.matchLabels"), vllmPods),
		"workers' Service":    selects(vllmService.Get("spec.selector"), vllmPods),
		"workers' policy":     selects(workersPolicy.Get("spec.podSelector.matchLabels"), vllmPods),
		"HPA's target": hpa.Get("spec.scaleTargetRef.name").Str == "sightline" &&
			hpa.Get("spec.minReplicas").Int() == deployment.Get("spec.replicas").Int(),
		"PDB allows drains": pdb.Get("spec.maxUnavailable").Int() == 1 && !pdb.Get("spec.minAvailable").Exists(),
		"role binding": binding.Get("roleRef.name").Str == "sightline" &&
			binding.Get("subjects.0.name").Str == deployment.Get("spec.template.spec.serviceAccountName").Str &&
			binding.Get("subjects.0.namespace").Str == "llm",
		"rights, and no other": role.Get("rules").Raw != "" && role.Get("rules.#").Int() == 1 &&
			role.Get("rules.0.verbs").Raw == `["list","watch"]` && role.Get("rules.0.resources").Raw == `["endpointslices"]`,
	} {
		if !ok {
			t.Errorf("%s does not fit", what)
		}
	}

	// Sightline's own configuration says the same.
	cfg, err := config.Load("base/sightline.yaml")
	if err != nil {
		t.Fatal(err)
	}
	container := deployment.Get("spec.template.spec.containers.0")
	port := func(name string) string { return ":" + container.Get(`ports.#(name=="`+name+`").containerPort`).Raw }
	if !strings.HasSuffix(cfg.Listen, port("grpc")) || !strings.HasSuffix(cfg.Admin, port("admin")) {
		t.Errorf("listen %s, admin %s do not fit the container's ports", cfg.Listen, cfg.Admin)
	}
	if grace := deployment.Get("spec.template.spec.terminationGracePeriodSeconds").Int(); grace < 2*int64(cfg.Drain.Seconds()) {
		t.Errorf("a pod has %d s to end, its drain alone takes %v, want at least %d", grace, cfg.Drain, 2*int64(cfg.Drain.Seconds()))
	}
	for _, probe := range []string{"startupProbe", "readinessProbe", "livenessProbe"} {
		if container.Get(probe+".httpGet.port").Str != "admin" {
			t.Errorf("%s asks another port", probe)
		}
	}
	group := cfg.Kubernetes.Workers[0]
	if group.Service != vllmService.Get("metadata.name").Str || !vllmService.Get(`spec.ports.#(name=="`+group.Port+`")`).Exists() {
		t.Errorf("the group %+v finds no Service", group)
	}
	flags := vllm.Get("spec.template.spec.containers.0.args").String()
	m := cfg.Models[0]
	for _, want := range []string{"--model=" + m.Name, fmt.Sprintf("--block-size=%d", m.BlockSize),
		fmt.Sprintf("--max-model-len=%d", m.MaxModelLen), "tcp://*:5557", "tcp://*:5558"} {
		if !strings.Contains(flags, want) {
			t.Errorf("the workers' flags %s lack %s, want %q in it", flags, want, want)
		}
	}
	if image := vllm.Get("spec.template.spec.containers.0.image").Str; !strings.HasSuffix(image, ":v"+m.EngineVersion) {
		t.Errorf("the workers run %s, the configuration says %s, want %q last", image, m.EngineVersion, ":v"+m.EngineVersion)
	}

	// Gateways name Services and ports that there are.
	for _, folder := range []string{"envoy-gateway", "inference-pool"} {
		for _, o := range all[folder] {
			for _, path := range []string{"spec.extProc.0.backendRefs.0", "spec.rules.0.backendRefs.0",
				"spec.telemetry.accessLog.settings.0.sinks.0.als.backendRefs.0"} {
				ref := o.Get(path)
				if !ref.Exists() || ref.Get("kind").Str == "InferencePool" {
					continue
				}
				_, a := find(base, "Service", ref.Get("name").Str)
				s, b := find(workers, "Service", ref.Get("name").Str)
				if a {
					s, _ = find(base, "Service", ref.Get("name").Str)
				}
				if !a && !b || !s.Get("spec.ports.#(port=="+ref.Get("port").Raw+")").Exists() {
					t.Errorf("%v: %s finds no Service and port", o, ref.Raw)
				}
			}
			for _, ref := range o.Get("spec.targetRefs").Array() {
				if _, ok := find(all[folder], ref.Get("kind").Str, ref.Get("name").Str); !ok {
					t.Errorf("%v: no target %s", o, ref.Raw)
				}
			}
		}
	}
	pool, _ := find(all["inference-pool"], "InferencePool", "vllm")
	if !selects(pool.Get("spec.selector.matchLabels"), vllmPods) || pool.Get("spec.endpointPickerRef.name").Str != "sightline" {
		t.Errorf("%v does not fit", pool)
	}
}

// The agents' way: the same workers, each with an agent; keys and users of one Secret, each where it belongs; a server that takes them.
func TestNATS(t *testing.T) {
	all := read(t)["nats"]
	workers, _ := find(all, "StatefulSet", "vllm")
	plain, _ := find(read(t)["workers"], "Deployment", "vllm")
	service, _ := find(all, "Service", "nats")
	cfg, err := config.Load("nats/sightline.yaml")
	if err != nil {
		t.Fatal(err)
	}
	base, err := config.Load("base/sightline.yaml")
	if err != nil {
		t.Fatal(err)
	}
	base.NATS, base.Kubernetes = cfg.NATS, cfg.Kubernetes
	said := func(c config.Config) string {
		text, err := yaml.Marshal(c) // without the place that references are taken from
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if said(base) != said(cfg) {
		t.Errorf("nats/sightline.yaml differs from base's in more than its events:\n%v\n%v", cfg, base)
	}
	pod := workers.Get("spec.template.spec")
	if got, want := pod.Get("containers.0.args").Raw, plain.Get("spec.template.spec.containers.0.args").Raw; got != want {
		t.Errorf("the workers run with %s, want %s", got, want)
	}
	agent := pod.Get(`containers.#(name=="agent")`)
	flags := agent.Get("args").String()
	mount := agent.Get("volumeMounts.0")
	for _, want := range []string{"--worker=$(POD_NAME)", "--nats=" + cfg.NATS.URL, "--nats-auth=" + mount.Get("mountPath").Str} {
		if !strings.Contains(flags, want) {
			t.Errorf("the agent's flags %s lack %s, want %q in it", flags, want, want)
		}
	}
	if want := fmt.Sprintf("nats://%s:%s", service.Get("metadata.name").Str, service.Get("spec.ports.0.port").Raw); cfg.NATS.URL != want {
		t.Errorf("nats.url is %s, the Service %s, want %q", cfg.NATS.URL, want, want)
	}

	// What the README's commands put into the Secret has every name that is mounted, and the server takes the users.
	dir := t.TempDir()
	if _, err := bus.WriteUsers(dir, []string{"vllm-0", "vllm-1", "vllm-2"}); err != nil {
		t.Fatal(err)
	}
	kustomization, _ := find(all, "Kustomization", "")
	server, _ := find(all, "StatefulSet", "nats")
	mounted := []string{"router.nk", server.Get("spec.template.spec.volumes.0.projected.sources.1.secret.items.0.key").Str}
	for i := range workers.Get("spec.replicas").Int() {
		mounted = append(mounted, strings.ReplaceAll(mount.Get("subPathExpr").Str, "$(POD_NAME)", fmt.Sprint("vllm-", i)))
	}
	for _, name := range mounted {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	if patch := kustomization.Get("patches.0.patch").Str; !strings.Contains(patch, "key: router.nk") ||
		!strings.Contains(patch, filepath.Dir(cfg.NATS.Auth)) {
		t.Errorf("Sightline's key %s is not mounted by %s, want %q in it, %q in it",
			cfg.NATS.Auth, patch, "key: router.nk", filepath.Dir(cfg.NATS.Auth))
	}
	conf, err := os.ReadFile("nats/nats-server.conf")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "nats-server.conf"), conf, 0o600); err != nil {
		t.Fatal(err)
	}
	o, err := natsserver.ProcessConfigFile(filepath.Join(dir, "nats-server.conf"))
	if err != nil || len(o.Nkeys) != 4 || o.StoreDir != server.Get("spec.template.spec.containers.0.volumeMounts.1.mountPath").Str {
		t.Errorf("%v: %+v", err, o)
	}
}

// The parts of EnvoyFilter that its schema leaves open are Envoy's own messages, read strictly.
func TestEnvoyFilter(t *testing.T) {
	filter, ok := find(read(t)["istio"], "EnvoyFilter", "sightline")
	if !ok {
		t.Fatal("not there")
	}
	seen := map[string]bool{}
	for _, p := range filter.Get("spec.configPatches").Array() {
		value := p.Get("patch.value").Raw
		into := map[string]proto.Message{"HTTP_FILTER": &hcmv3.HttpFilter{}, "NETWORK_FILTER": &listenerv3.Filter{},
			"LISTENER":     &listenerv3.Listener{},
			"VIRTUAL_HOST": &routev3.VirtualHost{}, "CLUSTER": &clusterv3.Cluster{}}[p.Get("applyTo").Str]
		if into == nil {
			t.Errorf("applyTo %s: got %v, want one", p.Get("applyTo").Str, into)
			continue
		}
		seen[p.Get("applyTo").Str] = true
		if err := protojson.Unmarshal([]byte(value), into); err != nil {
			t.Errorf("%s: got %v, want no error", p.Get("applyTo").Str, err)
		}
	}
	if len(seen) != 5 {
		t.Errorf("patches of %v: got %d, want 5", slices.Sorted(maps.Keys(seen)), len(seen))
	}
}

// TestConnections: each gateway has of connections to workers what envoy/envoy.yaml has: how long they may be idle and how long one
// may take to open; and a generation may be silent for as long.
func TestConnections(t *testing.T) {
	all := read(t)
	text, err := os.ReadFile("../../envoy/override_host.yaml")
	if err == nil {
		text, err = yaml.YAMLToJSON(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	workers := gjson.GetBytes(text, "static_resources.clusters.1")
	seconds := func(v gjson.Result) time.Duration {
		d, err := time.ParseDuration(v.Str)
		if err != nil {
			t.Error(err)
		}
		return d
	}
	idle := seconds(workers.Get(`typed_extension_protocol_options.envoy\.extensions\.upstreams\.http\.v3\.HttpProtocolOptions.common_http_protocol_options.idle_timeout`))
	connect := seconds(workers.Get("connect_timeout"))
	silent := seconds(gjson.GetBytes(text, "static_resources.listeners.0.filter_chains.0.filters.0.typed_config.stream_idle_timeout"))
	rule, _ := find(all["istio"], "DestinationRule", "vllm")
	backend, _ := find(all["envoy-gateway"], "BackendTrafficPolicy", "llm")
	client, _ := find(all["envoy-gateway"], "ClientTrafficPolicy", "llm")
	for what, is := range map[string]bool{
		"istio, idle":             seconds(rule.Get("spec.trafficPolicy.connectionPool.http.idleTimeout")) == idle,
		"istio, connect":          seconds(rule.Get("spec.trafficPolicy.connectionPool.tcp.connectTimeout")) == connect,
		"envoy-gateway, idle":     seconds(backend.Get("spec.timeout.http.connectionIdleTimeout")) == idle,
		"envoy-gateway, connect":  seconds(backend.Get("spec.timeout.tcp.connectTimeout")) == connect,
		"envoy-gateway, silence":  seconds(client.Get("spec.timeout.http.streamIdleTimeout")) == silent,
		"envoy.yaml has remedies": idle > 0 && idle < 5*time.Second && connect > 0 && silent > 0,
	} {
		if !is {
			t.Errorf("%s: not as in envoy.yaml (%v, %v, %v)", what, idle, connect, silent)
		}
	}
}

// Each gateway takes from clients the headers that envoy/envoy.yaml takes, before anything reads them.
func TestNobodySteers(t *testing.T) {
	const names, prefixes = "#.remove", "#.remove_on_match.key_matcher.prefix"
	all := read(t)
	text, err := os.ReadFile("../../envoy/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text, err = yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatal(err)
	}
	mutations := gjson.GetBytes(text,
		"static_resources.listeners.0.filter_chains.0.filters.0.typed_config.early_header_mutation_extensions.0.typed_config.mutations")
	want := mutations.Get(names).Raw + mutations.Get(prefixes).Raw
	if len(mutations.Array()) < 10 {
		t.Fatalf("envoy.yaml removes %s", want)
	}
	filter, _ := find(all["istio"], "EnvoyFilter", "sightline")
	mutations = filter.Get(`spec.configPatches.#(applyTo=="NETWORK_FILTER").patch.value.typed_config.early_header_mutation_extensions.0.typed_config.mutations`)
	if got := mutations.Get(names).Raw + mutations.Get(prefixes).Raw; got != want {
		t.Errorf("istio removes %s, want %s", got, want)
	}
	policy, _ := find(all["envoy-gateway"], "ClientTrafficPolicy", "llm")
	early := policy.Get("spec.headers.earlyRequestHeaders")
	if got := early.Get("remove").Raw + early.Get(`removeOnMatch.#(type=="Prefix")#.value`).Raw; got != want {
		t.Errorf("envoy-gateway removes %s, want %s", got, want)
	}
}

var update = flag.Bool("update", false, "write the configuration's part of the chart's schema")

// plain is a schema without what only explains it: descriptions and defaults.
func plain(schema any) any {
	switch s := schema.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, v := range s {
			if k == "properties" { // by the configuration's keys, any of which may be called default
				keys := map[string]any{}
				for name, key := range v.(map[string]any) {
					keys[name] = plain(key)
				}
				out[k] = keys
			} else if k != "description" && k != "default" {
				out[k] = plain(v)
			}
		}
		return out
	case []any:
		out := make([]any, len(s))
		for i, v := range s {
			out[i] = plain(v)
		}
		return out
	}
	return schema
}

// TestChartSchema: the chart's schema of config takes the keys and values that the configuration's own takes, and no others.
func TestChartSchema(t *testing.T) {
	const file, from, to = "../helm/values.schema.json", `"$comment": "of app/config/schema.json", "properties": {`, "}},\n    \"models\":"
	var own map[string]any
	if err := json.Unmarshal([]byte(config.Schema), &own); err != nil {
		t.Fatal(err)
	}
	keys := plain(own).(map[string]any)["properties"].(map[string]any)
	var want bytes.Buffer
	e := json.NewEncoder(&want)
	e.SetEscapeHTML(false)
	for i, name := range slices.Sorted(maps.Keys(keys)) {
		if i > 0 {
			want.Truncate(want.Len() - 1)
			want.WriteString(",\n")
		}
		fmt.Fprintf(&want, "      %q: ", name)
		if err := e.Encode(keys[name]); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, a := strings.Cut(string(text), from)
	got, tail, b := strings.Cut(rest, to)
	if !a || !b {
		t.Fatalf("%s has no part between %s and %s: got %v, %v, want true, true", file, from, to, a, b)
	}
	if *update {
		if err := os.WriteFile(file, []byte(head+from+"\n"+strings.TrimSuffix(want.String(), "\n")+to+tail), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if got != "\n"+strings.TrimSuffix(want.String(), "\n") {
		t.Errorf("%s has for config\n%s\nwant\n%s\n(go test ./examples/kubernetes -run TestChartSchema -update)", file, got, want.String())
	}
	if config := gjson.Get(head+from+got+to+tail, "properties.config"); config.Get("additionalProperties").Raw != "false" {
		t.Errorf("the chart's config takes keys that the configuration has not: additionalProperties %s, want false",
			config.Get("additionalProperties").Raw)
	}
}
