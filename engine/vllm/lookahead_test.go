package vllm

import (
	"testing"

	"github.com/sightline-router/sightline/mmhash/block"
)

// TestLookaheadImageBehindBlock: with vLLM 0.33 and EAGLE or MTP the extra keys of a block also have an image that begins right
// after it. The block's local hash is the request's nevertheless.
func TestLookaheadImageBehindBlock(t *testing.T) {
	tokens := list{1, 2, 9, 9, 3, 4}
	ids := []uint32{1, 2, 9, 9, 3, 4}
	want := block.Fixed().Locals(nil, ids, 2, []block.Span{{Offset: 2, Length: 2, Name: block.Fixed().Name("aa")}}, block.Root{})
	for name, keys := range map[string]list{
		"without lookahead": {nil, list{list{"aa", 0}}, nil},
		"lookahead 1":       {list{list{"aa", 2}}, list{list{"aa", 0}}, nil},
	} {
		e := mapStored(list{uint64(1), uint64(2), uint64(3)}, nil, tokens, "extra_keys", keys, "group_idx", 0, "kv_cache_spec_kind", "full_attention",
			"lookahead_token_ids", list{list{9}, list{3}, list{5}})
		var d Decoder
		b, err := d.Decode(batchOf(e))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: unknown keys %d", name, b.UnknownKeys)
		for i, l := range b.Events[0].Locals {
			if l != want[i] {
				t.Errorf("%s: block %d: local hash of the event %x, of the request %x", name, i, l, want[i])
			}
		}
	}
}
