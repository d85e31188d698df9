package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image/jpeg"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/engine/sglang"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
	"github.com/sightline-router/sightline/prompt/vision"
)

// The other engines' workers, each as it tells its cache: the first worker is heard directly, the second through an agent
// and NATS. A repeated image goes to its holder, what is predicted is what the worker reports, and the audit finds every
// prompt stored as predicted. Only of a prompt that begins with an image whose name was not known yet, no block is
// predicted: where its event tells no tokens to compare, as those through an agent, it is nobody's and no verdict.
func TestOtherEngines(t *testing.T) {
	t.Parallel()
	facts := vision.FactsOf("qwen3_vl", "")
	processor := sglang.Processor{ModelType: "qwen3_vl", Architectures: []string{"Qwen3VLForConditionalGeneration"},
		Class: facts.ProcessorClass, Wrapper: facts.WrapperClass}
	fingerprint := processor.Candidates([]string{"5.19.0"})[0]
	for _, c := range []struct {
		engine sim.Engine
		block  int
		ranks  int
		reason string // TensorRT-LLM could not be run: its rules were read, not compared
	}{
		{sim.SGLang, 1, 0, "exact"},
		{sim.SGLang, 16, 2, "exact"},
		{sim.TRTLLM, 32, 0, "predicted"},
		{sim.TRTLLMZMQ, 32, 0, "predicted"},
		{sim.Standalone, 32, 0, "predicted"},
	} {
		t.Run(fmt.Sprint(c.engine, " ", c.block), func(t *testing.T) {
			l := startEngines(t, c.engine, c.block, func(o *lab.Options) {
				o.Workers, o.Ranks = 2, c.ranks
				o.Sim = func(i int, s *sim.Config) { s.BlockSize, s.Blocks, s.Fingerprint = c.block, 1<<16/c.block, fingerprint }
			})
			const images = 4
			url := func(i int) string { return pngURL(uint64(60 + i)) }
			ask(t, l, "The first picture shows how pictures are named", url(100))
			settled(t, l)
			ask(t, l, "The first picture, again", url(100))
			home, ranks := make([]int, images), map[string]bool{}
			for i := range home {
				ask(t, l, "Seen before it was asked for", url(i)) // TensorRT-LLM's pixels are decoded beside the requests
				settled(t, l)
				r := ask(t, l,
					fmt.Sprintf("%d? A question of its own, long enough for a block of thirty-two tokens in every engine that is tried here", i), url(i))
				settled(t, l)
				home[i] = r.worker
				if r.status != 200 {
					t.Fatalf("got %+v, want status 200", r)
				}
			}
			for i, want := range home {
				r := ask(t, l, fmt.Sprintf("And what is picture %d?", i), url(i))
				d := lastDecision(t, l)
				ranks[d.Get("addr").Str+"#"+d.Get("rank").Raw] = true
				if predicted := int(d.Get("cached_tokens").Int()); r.worker != want || r.cached != predicted || r.cached < 250 ||
					d.Get("reason").Str != c.reason {
					t.Errorf("image %d: worker %d (held by %d), %d cached, decision %s", i, r.worker, want, r.cached, d.Raw)
				}
				settled(t, l)
			}
			if len(ranks) < max(2, c.ranks) {
				t.Errorf("images on %v alone, want at least %d of them", ranks, max(2, c.ranks))
			}
			other := ask(t, l, "And what is picture 0?", url(9)) // the same ids, another image
			if d := lastDecision(t, l); other.cached > 64 || other.cached != int(d.Get("cached_tokens").Int()) {
				t.Errorf("another image: got %d cached, decision %s; want at most 64, and as many as decided",
					other.cached, d.Raw)
			}
			raw, err := lab.Get("http://" + l.Admin + "/decisions?n=100")
			if err != nil {
				t.Fatal(err)
			}
			all, unnamed := gjson.ParseBytes(raw).Array(), 0
			for _, d := range all {
				if strings.HasPrefix(d.Get("why").Str, "media name not comput") {
					unnamed++
				}
			}
			eventually(t, "a verdict on every request", func() bool { return metric(t, l, "sightline_audit_total", "") == float64(len(all)) })
			equal, open := metric(t, l, "sightline_audit_total", `verdict="equal"`), metric(t, l, "sightline_audit_total", `verdict="unattributed"`)
			if int(equal+open) != len(all) || int(open) > unnamed {
				findings, _ := lab.Get("http://" + l.Admin + "/audit")
				t.Errorf("of %d requests, %d with an image not named yet: %v equal, %v unattributed; %s; got %d, %d, want %d, at most %d",
					len(all), unnamed, equal, open, findings, int(equal+open), int(open), len(all), unnamed)
			}
		})
	}
}

// A TensorRT-LLM whose rule for images' names is not the one of the release that is configured: two requests are not
// stored as predicted, and then the name is known as the engine has it.
func TestNamesAreLearned(t *testing.T) {
	t.Parallel()
	l := startEngines(t, sim.TRTLLM, 32, func(o *lab.Options) {
		o.Workers = 1
		o.Sim = func(_ int, c *sim.Config) { c.BlockSize = 32 }
		theirs := o.Config
		o.Config = func(keys map[string]any) {
			theirs(keys)
			keys["models"].([]any)[0].(map[string]any)["engine_version"] = "1.2.0"
		}
	})
	known := false
	for i := range 8 { // a system message of its own each, so that all of it is told
		question := map[string]any{"type": "text", "text": "What is this?"}
		image := map[string]any{"type": "image_url", "image_url": map[string]any{"url": pngURL(77)}}
		system := strings.Repeat(fmt.Sprint("Assistant number ", i, " answers briefly. "), 8)
		body := func(end string) map[string]any {
			return map[string]any{"messages": []any{map[string]any{"role": "system", "content": system},
				map[string]any{"role": "user", "content": []any{image, question}},
				map[string]any{"role": "assistant", "content": "A picture."}, map[string]any{"role": "user", "content": end}}}
		}
		judged := metric(t, l, "sightline_audit_total", "")
		post(t, l, body("And this?"), nil)
		settled(t, l)
		eventually(t, "a verdict", func() bool { return metric(t, l, "sightline_audit_total", "") > judged })
		r := post(t, l, body("And that?"), nil)
		d := lastDecision(t, l)
		known = int(d.Get("cached_tokens").Int()) == r.cached && r.cached > 391
		if known {
			if i < 1 {
				t.Errorf("known at once: the rules do not differ; got %d, want some", i)
			}
			break
		}
		settled(t, l)
	}
	if !known {
		t.Error("the name was never learned")
	}
}

// startEngines is startLab with workers of another engine.
func startEngines(t *testing.T, engine sim.Engine, block int, change func(*lab.Options)) *lab.Lab {
	t.Helper()
	dir, model := modelDir, map[string]any{"engine": "trtllm", "engine_version": "1.3.0", "block_size": block}
	if engine == sim.SGLang {
		dir, model = qwen3(t), map[string]any{"engine": "sglang", "block_size": block}
	}
	read, err := lab.NewPrompts(dir, engine, lab.ModelName, block)
	if err != nil {
		t.Fatal(err)
	}
	return startLab(t, func(o *lab.Options) {
		o.Engine, o.ModelDir, o.Prompts = engine, dir, read
		o.Config = func(keys map[string]any) {
			for k, v := range model {
				keys["models"].([]any)[0].(map[string]any)[k] = v
			}
		}
		change(o)
	})
}

// settled waits until the index holds what the workers hold, and no work is counted there.
func settled(t *testing.T, l *lab.Lab) {
	t.Helper()
	eventually(t, "the index to hold what the workers hold", func() bool {
		rows, err := lab.Get("http://" + l.Admin + "/workers")
		held := map[string]int{}
		for _, r := range gjson.ParseBytes(rows).Array() {
			if r.Get("in_flight").Int() > 0 || r.Get("backlog_tokens").Float() > 0 {
				return false
			}
			held[r.Get("addr").Str] += int(r.Get("blocks_held").Int())
		}
		for _, w := range l.Sims {
			if err != nil || held[w.Addr()] != len(w.Blocks()) {
				return false
			}
		}
		return true
	})
}

// qwen3 is a model directory as that of the examples, but of the family whose images SGLang names by their bytes.
func qwen3(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	from, err := filepath.Abs(modelDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} {
		if err := os.Symlink(filepath.Join(from, f), filepath.Join(dir, f)); err != nil {
			t.Fatal(err)
		}
	}
	config, err := os.ReadFile(filepath.Join(from, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer("qwen2_5_vl", "qwen3_vl", "Qwen2_5_VL", "Qwen3VL", `"patch_size": 14`,
		`"patch_size": 16`).Replace(string(config))
	processor := `{"processor_class": "Qwen3VLProcessor", "image_processor_type": "Qwen2VLImageProcessorFast", "size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16, "merge_size": 2, "temporal_patch_size": 2}`
	for f, text := range map[string]string{"config.json": text, "preprocessor_config.json": processor} {
		if err := os.WriteFile(filepath.Join(dir, f), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// pngURL is a photo without losses.
func pngURL(seed uint64) string {
	img, err := jpeg.Decode(bytes.NewReader(photo(seed)))
	if err != nil {
		return ""
	}
	var b bytes.Buffer
	_ = png.Encode(&b, img)
	return "data:image/png;base64," + base64.StdEncoding.EncodeToString(b.Bytes())
}
