package manifests

import (
	"bytes"
	"errors"
	"path"
	"path/filepath"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
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
