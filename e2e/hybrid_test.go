package e2e

import (
	"bytes"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
	"github.com/sightline-router/sightline/lab/vllmcache"
)

// Workers of hybrid models, one heard directly, one by an agent over NATS: what is predicted of conversations, common instructions and
// an image is what the worker then reports, also after a restart of Sightline. The workers keep of windows and states only what vLLM
// keeps by default, and have room for a part of the traffic.
func TestHybridWorkers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, groups string
		blocks       int
	}{
		{"window", "window:16:64,full:16", 150},
		{"state", "state:32,state:32,full:32", 80},
		{"chunk", "chunk:16:128,full:16", 150},
		{"windows of smaller blocks", "window:16:96,window:16:96,full:32", 150},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			groups, err := vllmcache.ParseGroups(c.groups)
			if err != nil {
				t.Fatal(err)
			}
			model := t.TempDir() // the chunk's size is in config.json and not in events
			if err := os.CopyFS(model, os.DirFS(modelDir)); err != nil {
				t.Fatal(err)
			}
			config, err := os.ReadFile(filepath.Join(model, "config.json"))
			if err != nil {
				t.Fatal(err)
			}
			config = bytes.Replace(config, []byte("{"), []byte(`{"attention_chunk_size": 128, `), 1)
			if err := os.WriteFile(filepath.Join(model, "config.json"), config, 0o644); err != nil {
				t.Fatal(err)
			}
			l := startLab(t, func(o *lab.Options) {
				o.ModelDir = model
				o.Workers, o.Blocks = 2, c.blocks
				o.Sim = func(_ int, s *sim.Config) { s.Groups = groups }
				o.Config = func(keys map[string]any) {
					keys["fixed"] = map[string]any{"predicted_ttl": "100ms"} // what counts is what the index knows
				}
			})
			// behind is how many batches have not come by way of each worker, but for a number that stays while Sightline runs.
			behind := func() (n [2]int64) {
				rows, err := lab.Get("http://" + l.Admin + "/workers")
				agent, err2 := lab.Get("http://" + l.AgentAdmin[0] + "/state")
				if err != nil || err2 != nil {
					return [2]int64{1 << 60}
				}
				rank := gjson.GetBytes(agent, "ranks.0")
				n[0] = int64(l.Sims[0].Stats().Batches) - gjson.GetBytes(rows, "0.event_batches").Int()
				n[1] = int64(l.Sims[1].Stats().Batches) - rank.Get("heard.Batches").Int() + rank.Get("published.Pending").Int()<<20 +
					(rank.Get("published.Messages").Int()-gjson.GetBytes(rows, "1.event_batches").Int())<<40
				return n
			}
			before := behind()
			heard := func() { eventually(t, "what the workers told", func() bool { return behind() == before }) }
			rng := rand.New(rand.NewPCG(7, 7))
			image, text := dataURL(photo(11)), func(n int) map[string]any { return map[string]any{"type": "text", "text": words(rng, n)} }
			var apps []any
			for range 3 {
				apps = append(apps, map[string]any{"role": "system", "content": words(rng, 90)})
			}
			talks := make([][]any, 9)
			found, cached := 0, 0
			request := func(i int) {
				talks[i] = append(talks[i], map[string]any{"role": "user", "content": []any{text(40)}})
				r := post(t, l, map[string]any{"messages": talks[i], "max_tokens": 20}, nil)
				d := lastDecision(t, l)
				if predicted := int(d.Get("cached_tokens").Int()); r.status != http.StatusOK || predicted != r.cached ||
					r.cached > 0 && d.Get("reason").Str != "exact" {
					t.Errorf("request of %d tokens: status %d, %d tokens predicted (%s), the worker had %d", r.prompt, r.status,
						predicted, d.Get("reason").Str, r.cached)
				}
				talks[i] = append(talks[i], map[string]any{"role": "assistant", "content": gjson.Get(r.body, "choices.0.message.content").Str})
				cached += r.cached
				if r.cached > 0 {
					found++
				}
				heard()
			}
			corrections := func() float64 {
				return metric(t, l, "sightline_blocks_corrected_total", "") + metric(t, l, "sightline_corrections_refused_total", "") +
					metric(t, l, "sightline_resyncs_total", "")
			}
			requests := 0
			for turn := range 4 {
				for i := range talks {
					if turn == 0 {
						talks[i] = []any{apps[i%3]}
						if i%3 == 2 {
							talks[i] = append(talks[i], map[string]any{"role": "user",
								"content": []any{map[string]any{"type": "image_url", "image_url": map[string]any{"url": image}}, text(3)}},
								map[string]any{"role": "assistant", "content": "yes"})
						}
					}
					request(i)
					requests++
				}
				if turn == 1 {
					if n := corrections(); n > 0 {
						t.Errorf("%g corrections and resyncs, want 0", n)
					}
					l.KillSightline()
					if err := l.StartSightline(); err != nil {
						t.Fatal(err)
					}
					if err := l.WaitReady(t.Context()); err != nil {
						t.Fatal(err)
					}
					before = behind()
				}
			}
			stats := [2]sim.Stats{l.Sims[0].Stats(), l.Sims[1].Stats()}
			t.Logf("%d of %d requests found something, %d tokens in all; the workers got %d and %d", found, requests, cached,
				stats[0].Requests, stats[1].Requests)
			if n := corrections(); n > 0 {
				t.Errorf("%g corrections and resyncs, want 0", n)
			}
			for _, what := range []string{"unknown_blocks", "unknown_parents", "other_block_size", "gaps"} {
				if n := metric(t, l, "sightline_events_total", `what="`+what+`"`); n > 0 {
					t.Errorf("got %g %s, want 0", n, what)
				}
			}
		})
	}
}
