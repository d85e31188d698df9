package e2e

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/sightline-router/sightline/internal/bench"
	"github.com/sightline-router/sightline/internal/testkit/lab"
)

// `sightline bench` on a real Envoy and on Sightline alone: no request fails, and of pictures that are asked about again the
// engines find much cached.
func TestBench(t *testing.T) {
	l := startLab(t, nil)
	o := bench.Options{Model: lab.ModelName, Shape: "images", Reuse: 0.8, Rate: 20, Seconds: 2, Speed: 1000, Most: 60, Answer: 4, Clients: 8, Seed: 3, JSON: true}
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
			t.Errorf("%s: %v: %s", what, err, out.String())
		}
	}
}
