package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// A LoRA adapter that is loaded while all runs, and that nobody configured, is found at the workers that have it, is a prefix of
// its own there, and is gone when they unload it. Without the lists two of three requests would get a 404.
func TestAdaptersComeAndGo(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) {
		o.Sim = func(_ int, c *sim.Config) {
			c.Adapters = []sim.Adapter{{Name: "cats", Path: "/cats/1", Later: true}, {Name: "cats", Path: "/cats/2", Later: true}}
		}
		o.Config = func(keys map[string]any) { keys["fixed"] = unprobed("health_every", "100ms") }
	})
	change := func(i int, what, path string) {
		t.Helper()
		res, err := http.Post("http://"+l.Sims[i].Addr()+"/v1/"+what+"_lora_adapter", "application/json",
			strings.NewReader(fmt.Sprintf(`{"lora_name":"cats","lora_path":%q}`, path)))
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%q: got %v %+v, want no error, StatusCode %d", what, err, res, http.StatusOK)
		}
		res.Body.Close()
	}
	ask := func(text string) (status int, cached string) {
		t.Helper()
		res, err := http.Post(l.URL+"/v1/chat/completions", "application/json",
			strings.NewReader(fmt.Sprintf(`{"model":"cats","max_tokens":2,"messages":[{"role":"user","content":%q}]}`, text)))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		answer, _ := io.ReadAll(res.Body)
		_, cached, _ = strings.Cut(string(answer), `"cached_tokens":`)
		cached, _, _ = strings.Cut(cached, ",")
		return res.StatusCode, cached
	}
	known := func(line string) func() bool {
		return func() bool {
			page, err := lab.Get("http://" + l.Admin + "/metrics")
			return err == nil && bytes.Contains(page, []byte(line))
		}
	}
	if status, _ := ask("nobody has it"); status != http.StatusNotFound {
		t.Fatalf("an adapter that nobody has: got %d, want %d", status, http.StatusNotFound)
	}
	change(1, "load", "/cats/1")
	eventually(t, "worker-2 lists it", known(`sightline_worker_adapters{worker="worker-2"} 1`))
	long := strings.Repeat("All cats are grey at night. ", 40)
	for i := range 12 {
		if status, _ := ask(fmt.Sprint(i, long)); status != http.StatusOK {
			t.Fatalf("request %d: got %d, want %d", i, status, http.StatusOK)
		}
	}
	if _, cached := ask("0" + long); cached == "0" || cached == "" {
		t.Errorf("a prompt again: cached %q, want other than %q, some", cached, "0")
	}
	change(0, "load", "/cats/1")
	eventually(t, "worker-1 lists it", known(`sightline_worker_adapters{worker="worker-1"} 1`))
	change(1, "unload", "")
	eventually(t, "worker-2 does not", func() bool { return !known(`sightline_worker_adapters{worker="worker-2"}`)() })
	for i := range 6 {
		if status, _ := ask(fmt.Sprint(i, long)); status != http.StatusOK {
			t.Fatalf("request %d after it moved: got %d, want %d", i, status, http.StatusOK)
		}
	}
	change(0, "load", "/cats/2")
	change(0, "unload", "")
	eventually(t, "it was loaded anew", known(`sightline_worker_adapters_reloaded_total{worker="worker-1"} 1`))
	for i := range 2 { // the first is as long as its blocks count; its answer says that they are not held
		if status, cached := ask("0" + long); status != http.StatusOK || i == 0 && cached != "0" || i == 1 && cached == "0" {
			t.Errorf("request %d after it was loaded anew: %d, cached %q", i, status, cached)
		}
	}
}
