package manifests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"sigs.k8s.io/yaml"
)

// examples/llm-d/values.yaml puts Sightline in the place of llm-d's endpoint picker, in its charts: those are in no Go module, so they are
// rendered where SIGHTLINE_LLMD names llm-d-router's config/charts, with routerlib copied into each chart's charts folder.
func TestLLMDValues(t *testing.T) {
	text, err := os.ReadFile("../../examples/llm-d/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := os.Getenv("SIGHTLINE_LLMD")
	for _, name := range []string{"llm-d-router-gateway", "llm-d-router-standalone"} {
		var given map[string]any
		if err := yaml.UnmarshalStrict(text, &given); err != nil {
			t.Fatal(err)
		}
		image := at(given, "router", "epp", "image")
		if at(image, "registry") == nil || at(image, "repository") != "sightline" {
			t.Fatalf("image %v", image)
		}
		if dir == "" {
			t.Logf("%s: NOT RENDERED: SIGHTLINE_LLMD names no folder of llm-d-router's charts", name)
			continue
		}
		chart, err := loader.Load(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		at(given, "router").(map[string]any)["modelServers"] = map[string]any{"matchLabels": map[string]any{"llm-d.ai/guide": "x"}}
		if err := chartutil.ProcessDependencies(chart, given); err != nil {
			t.Fatal(err)
		}
		all, err := chartutil.ToRenderValues(chart, given, chartutil.ReleaseOptions{Name: "chat", Namespace: "llm", IsInstall: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		files, err := engine.Render(chart, all)
		if err != nil {
			t.Fatal(err)
		}
		out := fmt.Sprint(files)
		for _, want := range []string{"image: registry.example/sightline:v1", "- --pool-name", "- --grpc-health-port"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q", name, want)
			}
		}
	}
}
