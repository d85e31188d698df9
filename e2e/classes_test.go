package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// In the middle of a rolling upgrade, with servers of two block sizes: four workers of one model, each of its own class,
// each with its own names for an image or its own blocks. Every prediction is what the worker then reports.
func TestWorkerClasses(t *testing.T) {
	t.Parallel()
	kinds := []struct {
		class, version string
		block          int
		reason         string // 0.23.0 is read by rules that were not compared with it
	}{{"", "0.32.0", 16, "exact"}, {"wide", "0.32.0", 32, "exact"}, {"old", "0.30.0", 16, "exact"}, {"old-wide", "0.23.0", 32, "predicted"}}
	l := startLab(t, func(o *lab.Options) {
		o.Workers = len(kinds)
		o.Sim = func(i int, c *sim.Config) { c.Version, c.BlockSize = kinds[i].version, kinds[i].block }
		o.Config = func(keys map[string]any) {
			keys["admin_token"] = "a-token-of-this-test"
			model := keys["models"].([]any)[0].(map[string]any)
			var classes []any
			for i, k := range kinds {
				if k.class != "" {
					classes = append(classes, map[string]any{"name": k.class, "engine_version": k.version, "block_size": k.block})
					keys["workers"].([]any)[i].(map[string]any)["class"] = k.class
				}
			}
			model["classes"] = classes
		}
	})
	settled := func() {
		t.Helper()
		eventually(t, "the index to hold what the workers hold", func() bool {
			rows, err := lab.Get("http://" + l.Admin + "/workers")
			for i, w := range l.Sims {
				if err != nil || int(gjson.GetBytes(rows, fmt.Sprint(i, ".blocks_held")).Int()) != len(w.Blocks()) || len(w.Blocks()) == 0 {
					return false
				}
			}
			return true
		})
	}
	const images = 8
	home := make([]int, images)
	for i := range home {
		home[i] = ask(t, l, "What is this?", dataURL(photo(uint64(100+i)))).worker
	}
	settled()
	equal := map[string]int{}
	for i, want := range home {
		r := ask(t, l, fmt.Sprintf("And what is picture %d?", i), dataURL(photo(uint64(100+i))))
		d := lastDecision(t, l)
		if predicted := int(d.Get("cached_tokens").Int()); r.worker != want || r.cached != predicted || r.cached < 380 ||
			d.Get("reason").Str != kinds[want].reason {
			t.Errorf("image %d: worker %d (first %d), %d cached, decision %s", i, r.worker, want, r.cached, d.Raw)
			continue
		}
		if r.cached%kinds[want].block != 0 {
			t.Errorf("%d tokens are no blocks of %d: got %d, want 0", r.cached, kinds[want].block, r.cached%kinds[want].block)
		}
		equal[kinds[want].class]++
	}
	if len(equal) != len(kinds) {
		t.Errorf("predicted = reported by class: %v, want some of each of %d", equal, len(kinds))
	}
	// Texts too, whose tokens all classes read alike: a conversation grows on each worker.
	text := strings.Repeat("A long story about routers and their caches, told once more. ", 30)
	for turn := range 4 {
		settled()
		r := ask(t, l, text[:len(text)*(turn+1)/4])
		if d := lastDecision(t, l); int(d.Get("cached_tokens").Int()) != r.cached || turn > 0 && r.cached == 0 {
			t.Errorf("turn %d: %d cached, decision %s", turn, r.cached, d.Raw)
		}
	}
	// What the index has of a worker can be listed, and told anew.
	held := func() int {
		out, err := lab.Get("http://" + l.Admin + "/index?worker=worker-2&rank=0")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(out), `"tiers":["gpu"]`)
	}
	settled()
	if n, want := held(), len(l.Sims[1].Blocks()); n != want {
		t.Errorf("/index lists %d blocks of worker-2, it holds %d, want %d", n, want, want)
	}
	resp, err := http.Post("http://anyone:a-token-of-this-test@"+l.Admin+"/workers/resync?worker=worker-2", "", nil)
	if err != nil || resp.StatusCode != http.StatusAccepted {
		t.Fatalf("resync: got %v %v, want no error, StatusCode %d", resp, err, http.StatusAccepted)
	}
	resp.Body.Close()
	settled()
	if n := metric(t, l, "sightline_resyncs_total", `why="asked"`); n != 1 {
		t.Errorf("%v resyncs counted, want 1", n)
	}
	if n := metric(t, l, "sightline_cached_tokens_reported_total", `verdict="equal"`); n < images {
		t.Errorf("Envoy told of %v equal counts, want %d or more", n, images)
	}
	if n := metric(t, l, "sightline_events_total", `what="other_block_size"`); n != 0 {
		t.Errorf("%v blocks of a size that their class has not, want 0", n)
	}
}

// The classes of a model read one request side by side. With several images in it as base64, in Anthropic's form, each
// worker stores what was predicted of it: no image was taken for another.
func TestClassesReadOneRequest(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 2
		o.Sim = func(i int, c *sim.Config) { c.Version = []string{"0.32.0", "0.30.0"}[i] }
		o.Config = func(keys map[string]any) {
			keys["models"].([]any)[0].(map[string]any)["classes"] = []any{map[string]any{"name": "old", "engine_version": "0.30.0"}}
			keys["workers"].([]any)[1].(map[string]any)["class"] = "old"
			keys["fixed"] = unprobed()
		}
	})
	const clients, each = 4, 10
	var all sync.WaitGroup
	for c := range clients {
		all.Go(func() {
			for i := range each {
				var content []any
				for k := range 4 {
					content = append(content, map[string]any{"type": "image", "source": map[string]any{"type": "base64", "media_type": "image/jpeg",
						"data": base64.StdEncoding.EncodeToString(photo(uint64(10_000 + 100*c + 4*i + k)))}})
				}
				content = append(content, map[string]any{"type": "text", "text": fmt.Sprintf("What do these show, %d of %d?", i, c)})
				raw, err := json.Marshal(map[string]any{"model": lab.ModelName, "max_tokens": 2,
					"messages": []any{map[string]any{"role": "user", "content": content}}})
				if err != nil {
					t.Error(err)
					return
				}
				resp, err := http.Post(l.URL+"/v1/messages", "application/json", bytes.NewReader(raw))
				if err != nil {
					t.Error(err)
					return
				}
				text, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Errorf("status %d: %s, want %d", resp.StatusCode, text, http.StatusOK)
				}
			}
		})
	}
	all.Wait()
	eventually(t, "a verdict on every request", func() bool { return metric(t, l, "sightline_audit_total", "verdict") >= clients*each })
	if n := metric(t, l, "sightline_audit_total", `verdict="equal"`); n != clients*each {
		findings, _ := lab.Get("http://" + l.Admin + "/audit")
		t.Errorf("%v of %d requests were stored as predicted: %s, want %v", n, clients*each, findings, clients*each)
	}
	for class, w := range l.Sims {
		if len(w.Blocks()) == 0 {
			t.Errorf("worker %d got no request", class)
		}
	}
}
