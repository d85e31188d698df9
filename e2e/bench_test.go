package e2e

import (
	"bytes"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/bench"
	"github.com/sightline-router/sightline/lab/sim"
)

// With envoy.debug_headers an answer names its decision, and a client cannot say so itself; what is not decided names none.
func TestDebugHeaders(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) { o.Debug = true })
	for body, reasons := range map[string]string{
		`{"model":"` + lab.ModelName + `","max_tokens":1,"messages":[{"role":"user","content":"hello"}]}`: "exact predicted affinity load",
		`{"model":"` + lab.ModelName + `","messages":[{"role":"user","content":"hello","uuid":{}}]`:       "refused load",
	} {
		req, _ := http.NewRequest(http.MethodPost, l.URL+"/v1/chat/completions", strings.NewReader(body))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-Sightline-Id", "mine")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		h := resp.Header
		if len(h["X-Sightline-Id"]) != 1 || h.Get("X-Sightline-Id") == "mine" || !strings.Contains(reasons, h.Get("X-Sightline-Reason")) {
			t.Errorf("%s: status %d, %v", body, resp.StatusCode, h)
		}
		if resp.StatusCode == http.StatusOK && !slices.ContainsFunc(l.Sims, func(w *sim.Worker) bool {
			return w.Addr() == h.Get("X-Sightline-Worker")
		}) {
			t.Errorf("%q is no worker", h.Get("X-Sightline-Worker"))
		}
	}
	resp, err := http.Get(l.URL + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.Header.Get("X-Sightline-Reason") != "" {
		t.Errorf("a request that is not decided: %v", resp.Header)
	}
}

// `sightline-lab bench` on a real Envoy and on Sightline alone: no request fails, and of images that are asked about again the
// engines find much cached.
func TestBench(t *testing.T) {
	l := startLab(t, nil)
	o := bench.Options{Model: lab.ModelName, Shape: "images", Reuse: 0.8, Rate: 20, Seconds: 2, Speed: 1000, Most: 60,
		Answer: 4, Clients: 8, Seed: 3, JSON: true}
	for what, change := range map[string]func(*bench.Options){
		"Envoy":           func(o *bench.Options) { o.URL = l.URL },
		"Sightline alone": func(o *bench.Options) { o.ExtProc = l.ExtProc; o.Seed++ },
	} {
		o := o
		change(&o)
		var out bytes.Buffer
		if err := bench.Run(t.Context(), o, &out, nil); err != nil {
			t.Fatalf("%s: %v\n%s", what, err, out.String())
		}
		var said struct {
			Requests, Failed int
			HitRate          float64 `json:"hit_rate"`
		}
		if err := json.Unmarshal(out.Bytes(), &said); err != nil || said.Requests < 30 || said.Failed != 0 || said.HitRate < 0.4 {
			t.Errorf("%s: %v: %s; got %d, %d, %v, want no error, at least 30, 0, at least 0.4",
				what, err, out.String(), said.Requests, said.Failed, said.HitRate)
		}
	}
}
