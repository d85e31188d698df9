// Package manifests validates examples/kubernetes and examples/helm against the schemas that an API server would use: structural schema,
// unknown fields, list keys and CEL rules of the CRDs, and Kubernetes' own types for built-in kinds. A module of its own,
// so that none of these dependencies is the product's; versions are those of go.mod:
//
//	Gateway API and Envoy Gateway   github.com/envoyproxy/gateway (it embeds both)
//	Istio                           istio.io/api
//	the chart of examples/helm      helm.sh/helm, which renders it
//	the folders of examples/kubernetes  sigs.k8s.io/kustomize, which renders them
//	KEDA                            github.com/kedacore/keda, of which only a file is read
//	InferencePool, AI Gateway, KServe   files of their Go modules, which crds.sh copies to the folder that SIGHTLINE_CRDS names
package manifests

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/json"
)

func load(t *testing.T) *schemas {
	t.Helper()
	s, err := newSchemas(os.Getenv("SIGHTLINE_CRDS"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// committed gives all manifests by file; what is for Kustomize or for Sightline is none.
func committed(t *testing.T) map[string][][]byte {
	t.Helper()
	files, err := filepath.Glob("../../examples/kubernetes/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string][][]byte{}
	for _, f := range files {
		if base := filepath.Base(f); base == "kustomization.yaml" || base == "sightline.yaml" {
			continue
		}
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[f], err = documents(text)
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
	}
	return out
}

// TestAutoscaling: the KEDA example is what KEDA's definition wants; a wrong key is refused. examples/kubernetes has the autoscaler of
// Sightline itself, which TestManifests validates.
func TestAutoscaling(t *testing.T) {
	const keda = "github.com/kedacore/keda/v2@v2.21.0"
	said, err := exec.Command("go", "mod", "download", "-json", keda).Output()
	var module struct{ Dir string }
	if err := errors.Join(err, json.Unmarshal(said, &module)); err != nil {
		t.Fatalf("%s: %v\n%s", keda, err, said)
	}
	s := &schemas{custom: map[string]*custom{}}
	for _, file := range []string{filepath.Join(module.Dir, "config/crd/bases/keda.sh_scaledobjects.yaml"), "../../examples/prometheus/keda.yaml"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		docs, err := documents(text)
		if err != nil || len(docs) != 1 {
			t.Fatalf("%s: %d documents, %v", file, len(docs), err)
		}
		if err := s.define(docs[0]); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(file, "crd") {
			continue
		}
		if err := s.validate(docs[0]); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		wrong := bytes.Replace(docs[0], []byte(`"maxReplicaCount"`), []byte(`"maxReplicas"`), 1)
		if err := s.validate(wrong); err == nil || !strings.Contains(err.Error(), "maxReplicas") {
			t.Errorf("a wrong key: %v", err)
		}
	}
}

// fetched matches the kinds whose CRDs make crds fetches.
var fetched = regexp.MustCompile(`"apiVersion":"(inference\.networking\.k8s\.io|aigateway\.envoyproxy\.io|serving\.kserve\.io)/`)

func TestManifests(t *testing.T) {
	s, seen := load(t), 0
	for file, docs := range committed(t) {
		for i, doc := range docs {
			err := s.validate(doc)
			if errors.Is(err, errUnknownKind) && fetched.Match(doc) {
				t.Logf("%s: NOT VALIDATED: %v (SIGHTLINE_CRDS names no folder with its crd_*.yaml; make crds)", file, err)
				continue
			}
			if err != nil {
				t.Errorf("%s, document %d: %v", file, i+1, err)
			}
			seen++
		}
	}
	if seen < 25 {
		t.Errorf("only %d manifests", seen)
	}
}

// What an API server refuses is refused here: each case is a committed manifest with one thing made wrong.
func TestWrongManifests(t *testing.T) {
	s, all := load(t), committed(t)
	for _, c := range []struct{ file, kind, from, to, want string }{
		{"base/deployment.yaml", "Deployment", `"replicas":2`, `"replica":2`, `unknown field "spec.replica"`},
		{"base/rbac.yaml", "Role", `"verbs"`, `"verb"`, `unknown field`},
		{"envoy-gateway/policies.yaml", "EnvoyExtensionPolicy", `"failOpen":true`, `"failopen":true`, "unknown field spec.extProc[0].failopen"},
		// CEL: not with failOpen
		{"envoy-gateway/policies.yaml", "EnvoyExtensionPolicy", `"body":"Buffered"`, `"body":"FullDuplexStreamed"`, "FullDuplexStreamed"},
		{"envoy-gateway/policies.yaml", "EnvoyExtensionPolicy", `"body":"Buffered"`, `"body":"Whole"`, "Unsupported value"},
		{"envoy-gateway/policies.yaml", "BackendTrafficPolicy", `"type":"LeastRequest"`,
			`"type":"RoundRobin","slowStart":{"window":"soon"}`, "slowStart.window"},
		{"envoy-gateway/policies.yaml", "ClientTrafficPolicy", `"bufferLimit":"64Mi"`, `"bufferLimit":"64 MB"`, "bufferLimit"},
		// CEL: kind
		{"envoy-gateway/policies.yaml", "ClientTrafficPolicy", `"targetRefs"`,
			`"targetRef":{"group":"gateway.networking.k8s.io","kind":"HTTPRoute","name":"x"},"targetRefs"`, "targetRef"},
		{"envoy-gateway/gateway.yaml", "Gateway", `"port":80`, `"port":99999`, "65535"},
		{"envoy-gateway/gateway.yaml", "HTTPRoute", `,"port":8000`, ``, "Must have port for Service reference"}, // CEL
		{"istio/destinations.yaml", "DestinationRule", `"LEAST_REQUEST"`, `"FEWEST"`, "Unsupported value"},
		{"istio/envoyfilter.yaml", "EnvoyFilter", `"applyTo":"HTTP_FILTER"`, `"applyTo":"FILTER"`, "Unsupported value"},
		{"istio/gateway.yaml", "VirtualService", `"retryOn"`, `"retry_on"`, "unknown field spec.http[0].retries.retry_on"},
		{"ai-gateway/route.yaml", "Backend", `"port":8000`, `"port":80000`, "65535"},
		// CEL
		{"inference-pool/pool.yaml", "InferencePool", `"targetPorts":[{"number":8000}]`,
			`"targetPorts":[{"number":8000},{"number":8000}]`, "unique"},
		{"inference-pool/pool.yaml", "InferencePool", `"failureMode":"FailOpen"`, `"failureMode":"Open"`, "Unsupported value"},
	} {
		if c.kind == "InferencePool" && s.custom["inference.networking.k8s.io/v1 InferencePool"] == nil {
			continue
		}
		found := false
		for _, doc := range all[filepath.Join("../../examples/kubernetes", c.file)] {
			var o map[string]any
			if err := json.Unmarshal(doc, &o); err != nil || o["kind"] != c.kind || !strings.Contains(string(doc), c.from) {
				continue
			}
			found = true
			err := s.validate([]byte(strings.Replace(string(doc), c.from, c.to, 1)))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s with %s: %v, want an error with %q", c.file, c.to, err, c.want)
			}
		}
		if !found {
			t.Errorf("%s: no %s with %s", c.file, c.kind, c.from)
		}
	}
}
