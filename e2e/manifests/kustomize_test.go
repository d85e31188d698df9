package manifests

import (
	"bytes"
	"errors"
	"maps"
	"path"
	"path/filepath"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/resid"
)

// TestKustomize: every folder is rendered by the real Kustomize, as `kubectl apply -k` does it, and an API server has nothing against
// what comes out. A missing file, a patch that does not fit its object, and a name that is given twice are errors.
func TestKustomize(t *testing.T) {
	folders, err := filepath.Glob("../../examples/kubernetes/*/kustomization.yaml")
	if err != nil || len(folders) < 10 {
		t.Fatalf("%v: %d folders", err, len(folders))
	}
	s, k := load(t), krusty.MakeKustomizer(krusty.MakeDefaultOptions())
	for _, file := range folders {
		folder := path.Dir(file)
		objects, err := k.Run(filesys.MakeFsOnDisk(), folder)
		if err != nil {
			t.Errorf("%s: %v", folder, err)
			continue
		}
		text, err := objects.AsYaml()
		if err != nil {
			t.Fatal(err)
		}
		docs, err := documents(text)
		if err != nil || len(docs) != objects.Size() || len(docs) == 0 {
			t.Errorf("%s: %d documents of %d objects, %v", folder, len(docs), objects.Size(), err)
		}
		for _, doc := range docs {
			if err := s.validate(doc); err != nil && !(errors.Is(err, errUnknownKind) && fetched.Match(doc)) {
				t.Errorf("%s: %v\n%s", folder, err, doc)
			}
			if bytes.Contains(doc, []byte(`"kind":"Deployment"`)) && bytes.Contains(doc, []byte(`"image":"sightline"`)) {
				t.Errorf("%s: the image has no registry: %s", folder, doc)
			}
		}
	}
}

// TestJoin: the folder for a Gateway that exists brings none, nor a route or a class, and its policies are on the user's, which may refer
// to Sightline's Service.
func TestJoin(t *testing.T) {
	k := krusty.MakeKustomizer(krusty.MakeDefaultOptions())
	objects, err := k.Run(filesys.MakeFsOnDisk(), "../../examples/kubernetes/envoy-gateway-join")
	if err != nil {
		t.Fatal(err)
	}
	targets := map[string]string{}
	for _, o := range objects.Resources() {
		switch kind := o.GetKind(); kind {
		case "Gateway", "GatewayClass", "HTTPRoute", "EnvoyProxy":
			t.Errorf("got %s %s/%s, want what exists to stay as it is", kind, o.GetNamespace(), o.GetName())
		case "EnvoyExtensionPolicy", "BackendTrafficPolicy", "ClientTrafficPolicy":
			at, err := o.GetFieldValue("spec.targetRefs.0.name")
			if err != nil {
				t.Fatal(err)
			}
			targets[kind] = o.GetNamespace() + "/" + at.(string)
		}
	}
	want := map[string]string{"EnvoyExtensionPolicy": "web/my-route", "BackendTrafficPolicy": "web/my-route",
		"ClientTrafficPolicy": "web/my-gateway"}
	if !maps.Equal(targets, want) {
		t.Errorf("got policies on %v, want %v", targets, want)
	}
	grant := resid.NewGvk("gateway.networking.k8s.io", "v1", "ReferenceGrant")
	if _, err := objects.GetById(resid.NewResIdWithNamespace(grant, "sightline", "llm")); err != nil {
		t.Errorf("got %v, want a ReferenceGrant", err)
	}
}
