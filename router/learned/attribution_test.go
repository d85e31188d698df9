package learned

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/sglang"
	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/lab/golden"
)

// recordedRequest is a prompt that an engine stored, and the events that this caused; no prompt: events of nobody's request.
type recordedRequest struct {
	ids     []uint64
	payload []byte
}

type decoding func([]byte) (kvevent.Batch, error)

// taughtChain is what is remembered of a prompt.
type taughtChain struct {
	blocks []uint64
	proven bool
}

// playRecorded plays requests so that some are open at once, in the engine's order, and returns what is remembered of each.
func playRecorded(t *testing.T, list []recordedRequest, size, atOnce int, counts bool, decode decoding) map[int]taughtChain {
	w := newWorker(t, size)
	paths := make(map[int]Path)
	batches := make([]kvevent.Batch, len(list))
	for i := range list {
		if len(list[i].payload) > 0 {
			batch, err := decode(list[i].payload)
			if err != nil {
				t.Fatal(err)
			}
			batches[i] = batch
		}
	}
	for from := 0; from < len(list); from += atOnce {
		part := list[from:min(from+atOnce, len(list))]
		for i, r := range part {
			unknown := func(e kvevent.Event) bool { return e.MediaUnknown } // such requests are not watched: engine.Facts
			if len(r.ids) == 0 || slices.ContainsFunc(batches[from+i].Events, unknown) {
				continue
			}
			text := fmt.Sprintf(`{"model":"m","prompt":[%s]}`, strings.Trim(strings.Join(strings.Fields(fmt.Sprint(r.ids)), ","), "[]"))
			var s body.Skeleton
			var req body.Request
			if err := body.Read([][]byte{[]byte(text)}, &s, &req); err != nil {
				t.Fatal(err)
			}
			w.hasher.Read(&w.path, Head{Endpoint: "/v1/completions", Model: "m"}, &s, &req)
			path, p := Path{Steps: slices.Clone(w.path.Steps)}, Recalled{}
			w.memory.Recall(1, &path, &p)
			paths[from+i] = path
			w.learner.Watch(&Request{ID: fmt.Sprint(from + i), Slot: w.slot, Class: 1, Size: size, Path: path, AtEnd: true,
				Begin: slices.Clone(p.Blocks[:p.Learned])})
		}
		for i := range part {
			w.apply(batches[from+i])
		}
		for i, r := range part {
			report := Report{-1, -1}
			if counts {
				report = Report{len(r.ids), 0}
			}
			w.learner.End(fmt.Sprint(from+i), report)
		}
		w.now = w.now.Add(2 * grace)
		w.learner.Settle(w.now)
	}
	out := make(map[int]taughtChain)
	for i, path := range paths {
		var p Recalled
		w.memory.Recall(1, &path, &p)
		out[i] = taughtChain{slices.Clone(p.Blocks[:p.Learned]), !p.Estimate}
	}
	return out
}

// checkAttribution compares what is remembered when several requests are open at once, without sessions, with what is remembered of one
// after another. What is proven must be right.
func checkAttribution(t *testing.T, name string, list []recordedRequest, size int, decoder func() decoding, right, all *int) {
	truth := playRecorded(t, list, size, 1, true, decoder())
	for _, counts := range []bool{true, false} {
		for i, got := range playRecorded(t, list, size, 3, counts, decoder()) {
			want := truth[i]
			n := common(want.blocks, got.blocks)
			if n < min(len(got.blocks), len(want.blocks)) && got.proven && want.proven {
				t.Errorf("%s, request %d, counts %v: %d blocks are called proven, want at most %d", name, i, counts, len(got.blocks), n)
			}
			if len(want.blocks) > 0 && len(got.blocks) > 0 {
				*all++
				if n == min(len(got.blocks), len(want.blocks)) {
					*right++
				}
			}
		}
	}
}

// TestConformanceAttribution: three requests at once whose events name no session, in the order of SGLang's real cache trees and of
// TensorRT-LLM's answers.
func TestConformanceAttribution(t *testing.T) {
	var trees []struct {
		Name  string
		Size  int `json:"page_size"`
		Steps []struct {
			Op      string
			IDs     []uint64 `json:"token_ids"`
			Payload []byte
		}
		Options struct{ Eagle bool }
	}
	golden.JSON(t, &trees, golden.Dir(t, "sglang", "events.json.gz"))
	right, all := 0, 0
	for _, tree := range trees {
		var list []recordedRequest
		for _, s := range tree.Steps {
			if s.Op != "insert" {
				s.IDs = nil
			}
			list = append(list, recordedRequest{s.IDs, s.Payload})
		}
		checkAttribution(t, tree.Name, list, tree.Size, func() decoding {
			d := &sglang.Decoder{}
			return d.Decode
		}, &right, &all)
	}
	t.Logf("conformance: SGLang: %d of %d attributed right", right, all)
	if all < 50 || right < all {
		t.Errorf("SGLang: %d of %d attributed right, want all", right, all)
	}
	var drained []struct {
		Size   int      `json:"tokens_per_block"`
		IDs    []uint64 `json:"prompt_token_ids"`
		Events json.RawMessage
	}
	golden.JSON(t, &drained, golden.Dir(t, "trtllm", "events.json.gz"))
	bySize := map[int][]recordedRequest{}
	for _, s := range drained {
		bySize[s.Size] = append(bySize[s.Size], recordedRequest{s.IDs, s.Events})
	}
	right, all = 0, 0
	for size, list := range bySize {
		checkAttribution(t, fmt.Sprint("blocks of ", size), list, size, func() decoding {
			return func(b []byte) (kvevent.Batch, error) { return new(trtllm.Decoder).Decode(b) }
		}, &right, &all)
	}
	t.Logf("conformance: TensorRT-LLM: %d of %d attributed right", right, all)
	if all < 10 || right < all {
		t.Errorf("TensorRT-LLM: %d of %d attributed right, want all", right, all)
	}
}
