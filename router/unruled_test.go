package router

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Chats with images of a model that no rule reads: exact up to the image, or nothing where the engine rewrites such a prompt, and at the
// second sighting all of it, by what the worker's events have taught.
func TestImagesWithoutARule(t *testing.T) {
	for _, c := range []struct {
		engine, release, arch, modelType string
		rewritten                        bool
	}{
		{"vllm", "0.32.0", "KimiVLForConditionalGeneration", "kimi_vl", false},
		{"vllm", "0.32.0", "MiniCPMV", "minicpmv", false},
		{"vllm", "0.32.0", "MolmoForCausalLM", "molmo", true},
		{"vllm", "0.32.0", "Phi3VForCausalLM", "phi3_v", true},
		{"trtllm", "1.2.0", "Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", false},
	} {
		t.Run(c.engine+" "+c.arch, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(shippedModel)); err != nil {
				t.Fatal(err)
			}
			config, err := json.Marshal(map[string]any{"architectures": []string{c.arch}, "model_type": c.modelType,
				"vision_config": map[string]any{}})
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "config.json"), config, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			media, err := engine.NewMedia(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer media.Close()
			s := engine.DefaultServer()
			s.Engine, s.EngineVersion = c.engine, c.release
			live, err := engine.LoadLive("m", dir, s, media)
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, 3)
			o := w.opt
			o.Models, o.LearnedBytes, o.Metrics = []Model{{Name: "m", Prompts: live}}, 1<<20, nil
			w.Router = New(o)

			chat := fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":%s}]}`,
				text(200, 3), picture(7, 640, 480))
			var skeleton body.Skeleton
			var req body.Request
			if err := body.Read([][]byte{[]byte(chat)}, &skeleton, &req); err != nil {
				t.Fatal(err)
			}
			ps, err := live.Model().Read(t.Context(), "/v1/chat/completions", "", &req)
			if err != nil || ps.List[0].Exact {
				t.Fatalf("read by a rule, or not at all: %v", err)
			}
			size := s.BlockSize
			known := ps.List[0].Locals(nil, block.Form{Size: size}, "")
			if (len(known) == 0) != c.rewritten {
				t.Fatalf("%d blocks are known before the image", len(known))
			}
			// What the engine makes of it: these blocks, and others for the image and what follows.
			locals := known
			for i := range 30 {
				locals = append(locals[:len(locals):len(locals)], uint64(1000+i))
			}
			hashes := block.Fixed().Chain(nil, locals)

			first := w.decide(chat)
			slot := w.slots[workerOf(t, &first)]
			w.Learner().Stored(slot.ID, &kvevent.Event{Kind: kvevent.Stored, Tier: kvevent.GPU, BlockSize: size, Locals: locals,
				EngineHashes: hashes})
			if err := w.index.Store(slot.ID, kvevent.GPU, 0, false, hashes, locals); err != nil {
				t.Fatal(err)
			}
			w.Observe(Outcome{ID: first.ID, Phase: Ended, Addr: first.Targets[0].Addr, Code: 200, CachedTokens: 0,
				PromptTokens: len(locals)*size + 3, OutputTokens: 1})
			w.now = w.now.Add(time.Minute) // what was on its way is forgotten
			other := w.decide(fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":%s}]}`,
				text(200, 3), picture(8, 640, 480)))
			if exact := other.Reason == Exact; exact == c.rewritten || exact && other.CachedTokens != len(known)*size {
				t.Errorf("another image: %d tokens, want %d: %s (%s)", other.CachedTokens, len(known)*size, other.Reason, other.Why)
			}
			w.Observe(Outcome{ID: other.ID, Phase: Ended, Addr: other.Targets[0].Addr, Code: 500, CachedTokens: -1})
			w.Learner().Settle(w.now)
			again := w.decide(chat)
			if again.Reason != Learned || again.CachedTokens != len(locals)*size || again.Targets[0].Addr != first.Targets[0].Addr {
				t.Errorf("second sighting: %s, %d tokens at %s, want %d at %s (%s)", again.Reason, again.CachedTokens, again.Targets[0].Addr,
					len(locals)*size, first.Targets[0].Addr, again.Why)
			}
		})
	}
}

func workerOf(t *testing.T, d *Decision) int {
	t.Helper()
	var n int
	if len(d.Targets) == 0 {
		t.Fatalf("no target: %s (%s)", d.Reason, d.Why)
	}
	if _, err := fmt.Sscanf(d.Targets[0].Addr, "10.0.0.%d:8000", &n); err != nil {
		t.Fatal(err)
	}
	return n - 1
}
