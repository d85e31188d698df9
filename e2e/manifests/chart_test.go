package manifests

import (
	"fmt"
	"maps"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	"sigs.k8s.io/yaml"
)

const base = "../../examples/kubernetes/base"

// render gives the chart's manifests as `helm install NAME -n llm -f` of the values would send them, by kind and name.
func render(t *testing.T, name, values string) (map[string]map[string]any, error) {
	t.Helper()
	chart, err := loader.Load("../../examples/helm")
	if err != nil {
		t.Fatal(err)
	}
	var given map[string]any
	if err := yaml.UnmarshalStrict([]byte(values), &given); err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(chart, given, chartutil.ReleaseOptions{Name: name, Namespace: "llm", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	s, out := load(t), map[string]map[string]any{}
	for file, text := range files {
		if path.Ext(file) != ".yaml" || strings.TrimSpace(text) == "" {
			continue
		}
		docs, err := documents([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v\n%s", file, err, text)
		}
		for _, doc := range docs {
			if err := s.validate(doc); err != nil {
				t.Errorf("%s: %v\n%s", file, err, doc)
			}
			var o map[string]any
			if err := yaml.Unmarshal(doc, &o); err != nil {
				t.Fatal(err)
			}
			meta := o["metadata"].(map[string]any)
			if meta["namespace"] != "llm" {
				t.Errorf("%s: %v is in no namespace", file, meta["name"])
			}
			out[fmt.Sprint(o["kind"], "/", meta["name"])] = o
		}
	}
	return out, nil
}

// at walks down an object; nil where there is nothing.
func at(o any, keys ...string) any {
	for _, k := range keys {
		m, _ := o.(map[string]any)
		o = m[k]
	}
	return o
}

// As it stands, the chart installs what the base of the Kustomize folders does. Beside labels, the image's tag, the
// fingerprint of the configuration and the key of block hashes, which the chart makes, nothing may differ.
func TestChartIsTheBase(t *testing.T) {
	chart, err := render(t, "sightline", "")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for file, docs := range committed(t) {
		if path.Dir(file) != base {
			continue
		}
		for _, doc := range docs {
			var want map[string]any
			if err := yaml.Unmarshal(doc, &want); err != nil {
				t.Fatal(err)
			}
			key := fmt.Sprint(want["kind"], "/", at(want, "metadata", "name"))
			if key == "Namespace/llm" || key == "NetworkPolicy/vllm" { // helm's --create-namespace; the workers' own
				continue
			}
			got := chart[key]
			if got == nil {
				t.Errorf("the chart has no %s", key)
				continue
			}
			seen++
			delete(at(got, "metadata").(map[string]any), "labels")
			delete(at(want, "metadata").(map[string]any), "labels")
			if key == "Deployment/sightline" {
				template := at(got, "spec", "template", "metadata").(map[string]any)
				delete(template, "annotations")
				container := at(got, "spec", "template", "spec", "containers").([]any)[0].(map[string]any)
				if container["image"] != "registry.example/sightline:0.1.0" {
					t.Errorf("image %v", container["image"])
				}
				container["image"] = "sightline"
				delete(at(want, "spec").(map[string]any), "replicas") // the autoscaler's
				spec := at(got, "spec", "template", "spec").(map[string]any)
				for _, list := range []struct {
					of  map[string]any
					key string
				}{{spec, "volumes"}, {container, "volumeMounts"}} { // the chart makes a key
					n := 0
					list.of[list.key] = slices.DeleteFunc(list.of[list.key].([]any), func(v any) bool {
						own := v.(map[string]any)["name"] == "block-hashes"
						if own {
							n++
						}
						return own
					})
					if n != 1 {
						t.Errorf("%d %s of the key, want 1", n, list.key)
					}
				}
			}
			if !reflect.DeepEqual(got, want) {
				a, _ := yaml.Marshal(got)
				b, _ := yaml.Marshal(want)
				t.Errorf("%s is\n%s\nin the chart, and\n%s\nin %s", key, a, b, file)
			}
		}
	}
	if key, _ := at(chart["Secret/sightline-block-hashes"], "data", "key").(string); len(key) < 64 {
		t.Errorf("a key of %d letters, want 64 at least", len(key))
	}
	if seen != len(chart)-2 {
		t.Errorf("%d objects compared; the chart has %v", seen, slices.Sorted(maps.Keys(chart)))
	}
	text, err := os.ReadFile(path.Join(base, "sightline.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var want, got any
	written, _ := at(chart["ConfigMap/sightline"], "data", "sightline.yaml").(string)
	if err := yaml.Unmarshal(text, &want); err != nil {
		t.Fatal(err)
	}
	want.(map[string]any)["index"] = map[string]any{"key_file": "/block-hashes/key"}
	if err := yaml.Unmarshal([]byte(written), &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("configuration %v, %v; want %v", got, err, want)
	}
}

// Each value does what it says, under another name than the chart's.
func TestChartValues(t *testing.T) {
	o, err := render(t, "second", `
image: {repository: r/s, tag: v9, pullPolicy: Always}
imagePullSecrets: [{name: mine}]
replicas: 3
autoscaling: {enabled: false}
networkPolicy: {enabled: true, workerPorts: [8123], moreEgress: [{to: [{podSelector: {matchLabels: {app: nats}}}], ports: [{port: 4222}]}]}
config: {listen: "0.0.0.0:1234", admin: "0.0.0.0:4321", log_level: debug}
models: {volume: {persistentVolumeClaim: null, hostPath: {path: /data}}}
secret: keys
podAnnotations: {a/b: c}
nodeSelector: {disk: fast}
tolerations: [{key: gpu, operator: Exists}]
podDisruptionBudget: {maxUnavailable: 25%}
serviceAccount: {name: theirs, annotations: {iam/role: reader}}
extraArgs: [--one-more]
extraEnv: [{name: HF_HUB_CACHE, value: /models/hub}]
extraVolumes: [{name: scratch, emptyDir: {}}]
extraVolumeMounts: [{name: scratch, mountPath: /scratch}]
podLabels: {team: chat}
podSecurityContext: {runAsUser: 1000, runAsNonRoot: true}
topologySpreadConstraints: [{maxSkew: 2, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]
priorityClassName: high
`)
	if err != nil {
		t.Fatal(err)
	}
	all := fmt.Sprint(o)
	for _, want := range []string{"image:r/s:v9", "replicas:3", "port:8123", "port:4222", "port:1234", "containerPort:4321", "path:/data",
		"secretName:keys", "mountPath:/secrets", "a/b:c", "disk:fast", "key:gpu", "log_level: debug", "name:mine", "imagePullPolicy:Always", "maxUnavailable:25%",
		"serviceAccountName:theirs", "iam/role:reader", "--one-more", "HF_HUB_CACHE", "mountPath:/scratch", "team:chat", "runAsUser:1000",
		"topologyKey:zone", "priorityClassName:high"} {
		if !strings.Contains(all, want) {
			t.Errorf("no %s in %v", want, all)
		}
	}
	if o["HorizontalPodAutoscaler/second"] != nil || strings.Contains(all, "claimName") || strings.Contains(all, "app:sightline") {
		t.Errorf("what was switched off or renamed is still there: %v", all)
	}
	before := at(o["Deployment/second"], "spec", "template", "metadata", "annotations", "sightline/config")
	o, err = render(t, "second", `config: {log_level: info}`)
	if err != nil || before == nil || at(o["Deployment/second"], "spec", "template", "metadata", "annotations", "sightline/config") == before {
		t.Errorf("%v: a changed configuration starts no new pods", err)
	}
	for values, want := range map[string]string{
		"replica: 3":                            "replica",
		"config: {listen: nowhere}":             "listen",
		"image: {repository: ''}":               "repository",
		"network: {enabled: false}":             "network",
		"networkPolicy: {workerPorts: [a]}":     "workerPorts",
		"image: {digest: sha256:abc}":           "digest",
		"models: {hub: nowhere}":                "hub",
		"pool: {name: Chat}":                    "name",
		"podAnnotations: {a: 1}":                "podAnnotations",
		"serviceMonitor: {interval: sometimes}": "interval",
		"extraVolumeMounts: [{name: scratch}]":  "mountPath",
		"autoscaling: {cpu: 200}":               "cpu",
		"autoscaling: {min: 5, max: 2}":         "autoscaling.min",
		"config: {max_inflight: 4}":             "max_inflight",
		"config: {index: {max_byte: 1GiB}}":     "max_byte",
		"config: {audit: perhaps}":              "audit",
		"networkPolicy: {dns: {ports: [dns]}}":  "ports",
		"networkPolicy: {dns: {port: 53}}":      "port",
	} {
		if _, err := render(t, "x", values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", values, err, want)
		}
	}
}

// TestChartWorkers: a list of workers, or Dynamo, stands instead of the default group of Kubernetes and not beside it, and beside one
// that is given; names are asked where the values say.
func TestChartWorkers(t *testing.T) {
	const dns = `
networkPolicy: {dns: {to: [{ipBlock: {cidr: 169.254.20.10/32}}], ports: [53, 5353]}}`
	for _, config := range []string{"workers: [{addr: 10.0.0.1:8000}]", "dynamo: {discovery: /dynamo}"} {
		o, err := render(t, "x", "config: {"+config+"}"+dns)
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := yaml.Unmarshal([]byte(at(o["ConfigMap/x"], "data", "sightline.yaml").(string)), &got); err != nil {
			t.Fatal(err)
		}
		both, err := render(t, "x", "config: {kubernetes: {workers: [{service: mine, port: http}]}, "+config+"}")
		text := fmt.Sprint(both["ConfigMap/x"])
		if err != nil || !strings.Contains(text, "service: mine") || strings.Contains(text, "service: vllm") {
			t.Errorf("%v: got %s, want the group that is given", err, text)
		}
		if key, _, _ := strings.Cut(config, ":"); got["kubernetes"] != nil || got[key] == nil {
			t.Errorf("config {%s}: got %v, want it without kubernetes", config, got)
		}
		egress := fmt.Sprint(at(o["NetworkPolicy/x"], "spec", "egress"))
		for _, want := range []string{"cidr:169.254.20.10/32", "port:53 protocol:UDP", "port:5353 protocol:TCP"} {
			if !strings.Contains(egress, want) {
				t.Errorf("got %s, want %s", egress, want)
			}
		}
		if strings.Contains(egress, "kube-system") {
			t.Errorf("got %s, want no kube-system", egress)
		}
	}
}

// With a pool the chart needs neither configuration nor models, and asks the API server for pods.
func TestChartOfAPool(t *testing.T) {
	o, err := render(t, "picker", "pool: {name: chat, oneAddress: true, maxInFlight: 64, deletionCost: true}\nimage: {digest: \"sha256:"+
		strings.Repeat("ab", 32)+"\"}\nextraArgs: [--cert-path=/tls]")
	if err != nil {
		t.Fatal(err)
	}
	spec := at(o["Deployment/picker"], "spec", "template", "spec")
	container := at(spec, "containers").([]any)[0]
	want := []any{"serve", "--pool=chat", "--namespace=llm", "--grpc-port=9002", "--metrics-port=9903", "--one-address",
		"--deletion-cost", "--max-in-flight=64", "--cert-path=/tls"}
	if got := at(container, "args"); !reflect.DeepEqual(got, want) {
		t.Errorf("args %v, want %v", got, want)
	}
	if image := fmt.Sprint(at(container, "image")); !strings.Contains(image, "sightline@sha256:abab") {
		t.Errorf("image %s", image)
	}
	if o["ConfigMap/picker"] != nil || at(spec, "volumes") != nil && len(at(spec, "volumes").([]any)) > 0 {
		t.Errorf("a configuration or volumes: %v", o)
	}
	rules := fmt.Sprint(at(o["Role/picker"], "rules"))
	for _, kind := range []string{"inferencepools", "pods", "patch"} {
		if !strings.Contains(rules, kind) {
			t.Errorf("the Role lacks %s: %s", kind, rules)
		}
	}
	if strings.Contains(rules, "endpointslices") {
		t.Errorf("the Role may do more than is needed: %s", rules)
	}
	for _, values := range []string{"pool: {name: chat}", "pool: {name: chat, deletionCost: false}", ""} { // no pod is changed unless asked for
		o, err := render(t, "picker", values)
		if err != nil {
			t.Fatal(err)
		}
		if rules := fmt.Sprint(at(o["Role/picker"], "rules")); strings.Contains(rules, "patch") || !strings.Contains(rules, "list") {
			t.Errorf("with %q: the Role has %s, want list and no patch", values, rules)
		}
	}
}

// TestChartFetchesFiles: with a hub, the chart does what examples/kubernetes/files does.
func TestChartFetchesFiles(t *testing.T) {
	o, err := render(t, "sightline", "image: {tag: v1}\nmodels: {hub: 'https://hub.example', tokenSecret: hub}")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path.Join(base, "../files/kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var k struct{ Patches []struct{ Patch string } }
	var patch any
	if err := yaml.Unmarshal(text, &k); err != nil || len(k.Patches) != 1 {
		t.Fatalf("%v: %d patches", err, len(k.Patches))
	}
	if err := yaml.Unmarshal([]byte(k.Patches[0].Patch), &patch); err != nil {
		t.Fatal(err)
	}
	spec := at(o["Deployment/sightline"], "spec", "template", "spec")
	want := at(patch, "spec", "template", "spec", "initContainers").([]any)[0].(map[string]any)
	want["image"] = "registry.example/sightline:v1"
	delete(at(want["env"].([]any)[1], "valueFrom", "secretKeyRef").(map[string]any), "optional")
	if got := at(spec, "initContainers"); !reflect.DeepEqual(got, []any{any(want)}) {
		a, _ := yaml.Marshal(got)
		b, _ := yaml.Marshal(want)
		t.Errorf("is\n%s\nwant\n%s", a, b)
	}
	if volumes := fmt.Sprint(at(spec, "volumes")); !strings.Contains(volumes, "emptyDir:map[sizeLimit:1Gi]") ||
		strings.Contains(volumes, "persistentVolumeClaim") {
		t.Errorf("volumes %s", volumes)
	}
	if o, err = render(t, "picker", "models: {hub: 'https://hub.example'}\npool: {name: chat}"); err != nil ||
		at(o["Deployment/picker"], "spec", "template", "spec", "initContainers") != nil {
		t.Errorf("%v: a pool needs no files: %v", err, o)
	}
}

// Helm's own lint, as `helm lint --strict` runs it, has nothing against the chart.
func TestChartLint(t *testing.T) {
	for _, m := range lint.All("../../examples/helm", map[string]any{}, "llm", true).Messages {
		if m.Severity >= support.WarningSev {
			t.Errorf("%v", m)
		}
	}
}
