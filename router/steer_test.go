package router

import (
	"context"
	"maps"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestCleanedInAnyCase checks that a body is cleaned whatever happens to the request: unknown model, unreadable prompt, an
// engine's refusal, or success.
func TestCleanedInAnyCase(t *testing.T) {
	media, err := engine.NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer media.Close()
	m, err := engine.LoadLive("m", shippedModel, engine.DefaultServer(), media)
	if err != nil {
		t.Fatal(err)
	}
	models := []Model{{Name: "m", Prompts: m}}
	counters := prometheus.NewRegistry()
	r := New(Options{Models: models, Fleet: fleet.New(nil), Index: indexer.New(indexer.Options{}), Metrics: counters})
	const data = `"type":"image_url","image_url":{"url":"http://x/y.png"}`
	parts := func(model, part string) string {
		return `{"kv_transfer_params":{},"model":"` + model + `","messages":[{"role":"user","content":[` + part + `]}]}`
	}
	for _, c := range []struct {
		name, path, body string
		edits, refuse    int
	}{
		{"read", "/v1/chat/completions", parts("m", `{`+data+`,"uuid":"x"}`), 2, 0},
		{"model unknown", "/v1/chat/completions", parts("other", `{`+data+`,"uuid":"x"}`), 2, 0},
		{"no model", "/v1/chat/completions", `{"mm_hashes":[],"messages":[{"content":[{` + data + `,"uuid":"x"}]}]}`, 2, 0},
		{"unknown part", "/v1/chat/completions", parts("m", `{"type":"hologram"},{`+data+`,"uuid":"x"}`), 2, 0},
		{"messages no list", "/v1/chat/completions", `{"model":"m","bootstrap_room":1,"messages":7}`, 1, 0},
		{"no messages", "/v1/chat/completions", `{"model":"m","bootstrap_room":1}`, 1, 0},
		{"completions", "/v1/completions", `{"model":"m","prompt":"x","routed_dp_rank":1}`, 1, 0},
		{"responses", "/v1/responses",
			`{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"http://x/y","uuid":1}]}],"routed_dp_rank":1}`, 2, 0},
		{"messages", "/v1/messages",
			`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"http://x"},"uuid":1}]}]}`, 1, 0},
		{"batch", "/v1/chat/completions/batch", `{"model":"m","messages":[[{"role":"user","content":[{` + data +
			`,"uuid":1}]}],[{"role":"user","content":[{` + data + `,"uuid":2}]}]]}`, 2, 0},
		{"another path", "/v1/other", parts("m", `{`+data+`,"uuid":"x"}`), 2, 0},
		{"uuid alone", "/v1/chat/completions", parts("m", `{"type":"image_url","image_url":null,"uuid":"x"}`), 0, 400},
		{"uuid alone, model unknown", "/v1/chat/completions", parts("other", `{"type":"image_url","image_url":null,"uuid":"x"}`), 0, 400},
		{"not JSON", "/v1/chat/completions", `{"kv_transfer_params":1`, 0, 400},
		{"JSON for Python", "/v1/chat/completions", `{"kv_transfer_params":1,"x":NaN}`, 0, 400},
		{"nothing to do", "/v1/chat/completions", strings.Replace(parts("m", `{`+data+`}`), `"kv_transfer_params":{},`, "", 1), 0, 0},
	} {
		d := r.Decide(context.Background(), &Request{ID: c.name, Path: c.path, Body: [][]byte{[]byte(c.body)}})
		status := 0
		if d.Refuse != nil {
			status = d.Refuse.Status
		}
		if len(d.Edits) != c.edits || status != c.refuse {
			t.Errorf("%s: %d edits, want %d; status %d, want %d (%s)", c.name, len(d.Edits), c.edits, status, c.refuse, d.Why)
		}
	}
	// Counted by the table's names, never the client's.
	got := map[string]float64{}
	families, err := counters.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "sightline_removed_fields_total" {
				got[m.Label[0].GetValue()] = m.Counter.GetValue()
			}
		}
	}
	if want := map[string]float64{"kv_transfer_params": 6, "uuid": 11, "mm_hashes": 1, "bootstrap_*": 2,
		"routed_dp_rank": 2}; !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}
