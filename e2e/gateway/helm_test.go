package gateway

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// release010 is the commit of release 0.1.0.
const release010 = "d6af6775cf6e899a3dae81b5a11ec3e989296090"

// TestHelm runs the real Helm against the API server: the chart of 0.1.0 is installed, upgraded to this one and to a pool, rolled back and
// uninstalled. What a release of the chart no longer has is gone, and at the end nothing is left. Values that were renamed are refused,
// and the release stays as it was.
func TestHelm(t *testing.T) {
	c := startCluster(t)
	c.crds()
	const now = "../../examples/helm"
	helm := func(args ...string) (string, error) {
		cmd := exec.Command("helm", append([]string{"--kubeconfig", c.dir + "/kubeconfig", "-n", "llm"}, args...)...)
		cmd.Env = append(os.Environ(), "HOME="+c.dir)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(args ...string) string {
		t.Helper()
		out, err := helm(args...)
		if err != nil {
			t.Fatalf("helm %v: %v\n%s", args, err, out)
		}
		return out
	}
	const kinds = "deployments,services,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,poddisruptionbudgets," +
		"horizontalpodautoscalers"
	objects := func() string {
		t.Helper()
		list := strings.Fields(c.kubectl("get", kinds, "-n", "llm", "-l", "app.kubernetes.io/instance=sightline", "-o", "name"))
		for i, name := range list {
			kind, _, _ := strings.Cut(name, "/")
			list[i], _, _ = strings.Cut(kind, ".")
		}
		slices.Sort(list)
		return strings.Join(list, " ")
	}
	image := func() string {
		t.Helper()
		return c.kubectl("get", "deployment", "sightline", "-n", "llm", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	}
	const all = "configmap deployment horizontalpodautoscaler networkpolicy poddisruptionbudget role rolebinding service serviceaccount"

	mine := c.write("mine.yaml", "image: {repository: r/sightline}\nreplicas: 3\n")
	old := filepath.Join(c.dir, "old")
	unpack := exec.Command("sh", "-c", `mkdir "$0" && cd ../.. && git archive "$1" examples/helm | tar -x -C "$0"`, old, release010)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("the chart of 0.1.0 (this clone needs the commit %s): %v\n%s", release010, err, out)
	}
	must("install", "sightline", old+"/examples/helm", "--create-namespace", "-f", mine)
	if got := objects(); got != all || image() != "r/sightline:0.1.0" {
		t.Fatalf("0.1.0: got %s, image %s, want %q, %q", got, image(), all, "r/sightline:0.1.0")
	}
	uid := c.kubectl("get", "deployment", "sightline", "-n", "llm", "-o", "jsonpath={.metadata.uid}")

	renamed := c.write("renamed.yaml", "image: {repository: r/sightline, pullSecrets: [{name: x}]}\nnetwork: {enabled: false}\n")
	out, err := helm("upgrade", "sightline", now, "-f", renamed)
	if err == nil || !strings.Contains(out, "network") || !strings.Contains(out, "pullSecrets") {
		t.Errorf("renamed values: %v\n%s", err, out)
	}
	if history := must("history", "sightline"); strings.Count(history, "\n") != 2 || !strings.Contains(history, "deployed") {
		t.Errorf("after a refused upgrade:\n%s", history)
	}

	notes := must("upgrade", "sightline", now, "-f", mine, "--set", "image.tag=v2")
	if got := objects(); got != all || image() != "r/sightline:v2" || !strings.Contains(notes, "It routes nothing until a gateway asks it") {
		t.Errorf("upgraded: %s, image %s\n%s", got, image(), notes)
	}
	if now := c.kubectl("get", "deployment", "sightline", "-n", "llm", "-o", "jsonpath={.metadata.uid}"); now != uid {
		t.Error("the Deployment was made anew: all replicas would go at once")
	}
	can := func(verb, resource string) bool {
		out, _ := c.try("", "auth", "can-i", verb, resource, "-n", "llm", "--as=system:serviceaccount:llm:sightline")
		return strings.HasSuffix(strings.TrimSpace(out), "yes")
	}
	if !can("watch", "endpointslices.discovery.k8s.io") || can("list", "pods") || can("get", "secrets") {
		t.Error("the Role is not that of EndpointSlices alone")
	}

	must("upgrade", "sightline", now, "-f", mine, "--set", "pool.name=chat,pool.maxInFlight=64,autoscaling.enabled=false")
	if got, want := objects(), strings.TrimPrefix(strings.Replace(all, "horizontalpodautoscaler ", "", 1), "configmap "); got != want {
		t.Errorf("of a pool: %s, want %s", got, want)
	}
	for _, kind := range []string{"inferencepools.inference.networking.k8s.io", "pods", "inferenceobjectives.inference.networking.x-k8s.io",
		"inferencemodelrewrites.inference.networking.x-k8s.io"} {
		if !can("watch", kind) {
			t.Errorf("the Role of a pool may not watch %s", kind)
		}
	}
	if can("watch", "endpointslices.discovery.k8s.io") {
		t.Error("the Role of a pool may watch EndpointSlices, which it needs no more")
	}
	must("rollback", "sightline", "1")
	if got := objects(); got != all || image() != "r/sightline:0.1.0" {
		t.Errorf("rolled back: got %s, image %s, want %q, %q", got, image(), all, "r/sightline:0.1.0")
	}
	must("uninstall", "sightline")
	if got := objects(); got != "" || c.kubectl("get", "secrets", "-n", "llm", "-l", "owner=helm", "-o", "name") != "" {
		t.Errorf("uninstalled, and still there: %s", got)
	}
}
