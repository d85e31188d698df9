package e2e

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// From running workers and nothing else: `sightline serve --worker`, and Envoy with what `sightline envoy --worker` prints. A
// conversation with an image goes back to its worker at its second sighting. A worker that answers later is taken in, one without
// KV events is told the flag, and one that claims the others' name for its adapter costs them nothing.
func TestServeWorkers(t *testing.T) {
	t.Parallel()
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	p, err := prompts()
	if err != nil {
		t.Fatal(err)
	}
	a, b := simulated(t, sim.Config{Model: lab.ModelName, Prompt: p}), simulated(t, sim.Config{Model: lab.ModelName, Prompt: p})
	silent, late := simulated(t, sim.Config{Model: lab.ModelName, Prompt: p, Bare: true}), freeAddr(t)
	hostile := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { // its adapter has the others' name
		fmt.Fprintf(rw, `{"version":"x","data":[{"id":"own","owned_by":"vllm"},{"id":%q,"parent":"own"}]}`, lab.ModelName)
	}))
	t.Cleanup(hostile.Close)
	l := &lab.Lab{Admin: freeAddr(t)}
	listen, clients, envoyAdmin := freeAddr(t), freeAddr(t), freeAddr(t)
	l.URL = "http://" + clients
	flags := []string{"--listen", listen}
	for _, addr := range []string{a.Addr(), late, b.Addr(), silent.Addr(), strings.TrimPrefix(hostile.URL, "http://")} {
		flags = append(flags, "--worker", addr)
	}
	printed, err := exec.Command(bin, append([]string{"envoy"}, flags...)...).Output()
	if err != nil {
		t.Fatal(err)
	}
	said := behindPrinted(t, l, string(printed), listen, 2, clients, envoyAdmin, bin,
		append([]string{"serve", "--admin", l.Admin}, flags...)...)
	for _, want := range []string{"worker " + late + " could not be identified", "left out, and asked again every 5s",
		silent.Addr() + ": the worker publishes no KV events", `its adapter "` + lab.ModelName + `" has the name of another`,
		"--kv-events-config", "Envoy's configuration: sightline envoy --worker " + a.Addr()} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("it does not say %q", want)
		}
	}

	image := []any{map[string]any{"type": "image_url", "image_url": map[string]any{"url": dataURL(photo(77))}},
		map[string]any{"type": "text", "text": "What is this?"}}
	send := func() (worker string, r result) {
		r = post(t, l, map[string]any{"messages": []any{map[string]any{"role": "user", "content": image}}}, nil)
		quiet(t, l)
		if r.status != 200 {
			t.Fatalf("got %+v, want status 200", r)
		}
		return lastDecision(t, l).Get("worker").Str, r
	}
	first, _ := send()
	for i := uint64(78); first == silent.Addr(); i++ { // what it made of the request is not known, so another one begins otherwise
		image[0] = map[string]any{"type": "image_url", "image_url": map[string]any{"url": dataURL(photo(i))}}
		first, _ = send()
	}
	eventually(t, "the request is learned", func() bool { return metric(t, l, "sightline_learned_requests_total", `"learned"`) > 0 })
	worker, r := send()
	if d := lastDecision(t, l); worker != first || d.Get("reason").Str != "learned" || !d.Get("memory").Bool() || r.cached < 380 ||
		int(d.Get("cached_tokens").Int()) != r.cached {
		t.Errorf("at %s with %d tokens cached, the first was at %s: %s", worker, r.cached, first, d.Raw)
	}

	c := simulated(t, sim.Config{Model: lab.ModelName, Prompt: p})
	there := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: c.Addr()})
	front := &http.Server{Addr: late, Handler: there}
	go func() { _ = front.ListenAndServe() }()
	t.Cleanup(func() { _ = front.Close() })
	eventually(t, "the worker that answers late is taken in", func() bool {
		return strings.Contains(said.String(), late+": vllm 0.32.0")
	})
	eventually(t, "it hears the late worker", func() bool {
		rows, err := lab.Get("http://" + l.Admin + "/workers")
		return err == nil && strings.Count(string(rows), `"events":"live"`) == 3 && strings.Contains(string(rows), late)
	})
	if worker, _ := send(); worker != first {
		t.Errorf("with the late worker the conversation goes to %s, not to %s, want %q", worker, first, first)
	}
}
