package gateway

import (
	"strings"
	"testing"
)

// Every folder is applied as a user would, in the README's order, and the server has nothing against it; a wrong field it refuses.
func TestManifestsApply(t *testing.T) {
	c := startCluster(t)
	pools := c.crds()
	for _, folder := range []string{"envoy-gateway", "workers", "base", "nats", "istio", "inference-pool"} {
		if folder == "inference-pool" && !pools {
			t.Log("inference-pool: NOT APPLIED: SIGHTLINE_CRDS names no folder with crd_inferencepools.yaml")
			continue
		}
		out := c.kubectl("apply", "--server-side", "--force-conflicts", "--validate=strict", "-k", manifests+folder)
		if !strings.Contains(out, "serverside-applied") {
			t.Errorf("%s: got %s, want %q in it", folder, out, "serverside-applied")
		}
	}
	out, err := c.try(`{"apiVersion":"gateway.envoyproxy.io/v1alpha1","kind":"BackendTrafficPolicy","metadata":{"name":"x","namespace":"llm"},"spec":{"retries":{}}}`,
		"apply", "--server-side", "--validate=strict", "-f", "-")
	if err == nil || !strings.Contains(out, "retries") {
		t.Errorf("an unknown field: got %v, %s, want an error, %q in it", err, out, "retries")
	}
}
