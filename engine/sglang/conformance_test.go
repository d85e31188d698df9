package sglang

import (
	"encoding/base64"
	"testing"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/lab/eventtest"
	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/mmhash/block"
)

// tree is what a worker holds according to its events: engine hash → the block and its parent.
type tree map[uint64]node

type node struct {
	local, parent uint64
	hasParent     bool
	copies        int
}

func (w tree) apply(t *testing.T, b kvevent.Batch) {
	for _, e := range b.Events {
		switch e.Kind {
		case kvevent.Cleared:
			clear(w)
		case kvevent.Removed:
			for _, h := range e.EngineHashes {
				n := w[h]
				n.copies--
				if n.copies < 0 {
					t.Errorf("removes %d, which is not held", h)
				}
				w[h] = n
				if n.copies == 0 {
					delete(w, h)
				}
			}
		case kvevent.Stored:
			parent, has := e.Parent, e.HasParent
			for i, h := range e.EngineHashes {
				if _, ok := w[parent]; has && !ok {
					t.Errorf("block %d follows %d, which is not held", h, parent)
				}
				if old, ok := w[h]; ok && old.local != e.Locals[i] {
					t.Errorf("block %d stands for two contents", h)
				}
				w[h] = node{e.Locals[i], parent, has, w[h].copies + 1}
				parent, has = h, true
			}
		}
	}
}

// leading returns how many of a prompt's blocks are held, in a chain from the root.
func (w tree) leading(locals []uint64) int {
	next := func(local, parent uint64, has bool) (uint64, bool) {
		for h, n := range w {
			if n.local == local && n.hasParent == has && (!has || n.parent == parent) {
				return h, true
			}
		}
		return 0, false
	}
	at, has := uint64(0), false
	for i, l := range locals {
		h, ok := next(l, at, has)
		if !ok {
			return i
		}
		at, has = h, true
	}
	return len(locals)
}

// localsOfIDs is the request side's rule applied to ids, page by page.
func localsOfIDs(ids []uint64, size int, salt, lora string, pairs bool) (out []uint64) {
	width := size
	if pairs {
		width++
	}
	root := block.Fixed().Root(lora, salt)
	for at := 0; at+width <= len(ids); at += size {
		out = append(out, block.Fixed().Local64(nil, ids[at:at+width], root.First))
		root.First = root.Rest
	}
	return out
}

// TestConformanceCacheTrees replays real cache trees at page sizes 1 to 64: after each step the inserted prompt is held completely
// and found by its own ids, the prefix held before is as long as the tree reported, and evicted pages were held.
func TestConformanceCacheTrees(t *testing.T) {
	var scenarios []struct {
		Name     string
		PageSize int `json:"page_size"`
		Options  struct {
			Eagle bool
			LoRA  map[string]string
		}
		Steps []struct {
			Op       string
			IDs      []uint64 `json:"token_ids"`
			Salt     string   `json:"cache_salt"`
			ExtraKey string   `json:"extra_key"`
			Prefix   int      `json:"prefix_len"`
			Payload  []byte
		}
	}
	golden.JSON(t, &scenarios, golden.Dir(t, "sglang", "events.json.gz"))
	steps, blocks := 0, 0
	for _, s := range scenarios {
		t.Run(s.Name, func(t *testing.T) {
			var d Decoder
			held, bad := tree{}, uint64(0)
			for i, st := range s.Steps {
				lora := s.Options.LoRA[st.ExtraKey]
				want := localsOfIDs(st.IDs, s.PageSize, st.Salt, lora, s.Options.Eagle)
				if before := held.leading(want); st.Op == "insert" && (st.ExtraKey == "" || lora != "") &&
					before*s.PageSize != st.Prefix && s.Name != "extra_key" {
					t.Errorf("step %d: %d blocks held before, the tree found %d tokens", i, before, st.Prefix)
				}
				if st.Payload != nil {
					b, err := d.Decode(st.Payload)
					if err != nil {
						t.Fatal(err)
					}
					held.apply(t, b)
					blocks += eventtest.Blocks(b)
					bad += b.Bad + b.Unknown + b.UnknownKeys
				}
				if st.Op == "insert" && held.leading(want) != len(want) {
					t.Errorf("step %d: %d of %d blocks held after", i, held.leading(want), len(want))
				}
				steps++
			}
			if bad > 0 {
				t.Errorf("%d events were not read, want 0", bad)
			}
		})
	}
	t.Logf("conformance: %d scenarios, %d steps, %d blocks", len(scenarios), steps, blocks)
}

// TestConformanceServerText replays a real server's text requests: the ids of each request are found, and as many of them as it
// reported as cached.
func TestConformanceServerText(t *testing.T) {
	var rec struct {
		Steps []struct {
			Step    string
			Request struct {
				IDs      []uint64 `json:"input_ids"`
				Salt     string   `json:"cache_salt"`
				ExtraKey string   `json:"extra_key"`
			}
			Response struct {
				Meta struct {
					Cached *int `json:"cached_tokens"`
				} `json:"meta_info"`
			}
			Events []struct{ Frames []string }
		}
	}
	golden.JSON(t, &rec, golden.Dir(t, "sglang", "server_text.json.gz"))
	var d Decoder
	held, compared, blocks, bad := tree{}, 0, 0, uint64(0)
	for _, s := range rec.Steps {
		want := localsOfIDs(s.Request.IDs, 16, s.Request.Salt, "", false)
		if s.Response.Meta.Cached != nil && len(want) > 0 && s.Request.ExtraKey == "" {
			if n := min(held.leading(want)*16, (len(s.Request.IDs)-1)/16*16); n != *s.Response.Meta.Cached {
				t.Errorf("%s: got %d tokens predicted, %d reported, want %d", s.Step, n, *s.Response.Meta.Cached, *s.Response.Meta.Cached)
			}
			compared++
		}
		for _, e := range s.Events {
			payload, err := base64.StdEncoding.DecodeString(e.Frames[2])
			if err != nil {
				t.Fatal(err)
			}
			b, err := d.Decode(payload)
			if err != nil {
				t.Fatal(err)
			}
			held.apply(t, b)
			blocks += eventtest.Blocks(b)
			bad += b.Bad + b.Unknown + b.UnknownKeys
		}
	}
	if bad > 0 || compared == 0 {
		t.Errorf("%d events not read, %d compared, want 0, some", bad, compared)
	}
	t.Logf("conformance: %d requests, %d with cached tokens compared, %d blocks", len(rec.Steps), compared, blocks)
}
