package vllm

import (
	"slices"
	"testing"

	"github.com/sightline-router/sightline/mmhash/block"
)

// TestLookahead: with vLLM 0.33 and EAGLE or MTP a block's hash covers the tokens after it, and the images that begin there; so do the
// local hashes of its event and of the request.
func TestLookahead(t *testing.T) {
	tokens := list{1, 2, 9, 9, 3, 4}
	prompt := []uint32{1, 2, 9, 9, 3, 4, 5, 6, 7}
	span := []block.Span{{Offset: 2, Length: 2, Name: block.Fixed().Name("aa")}}
	for _, c := range []struct {
		name      string
		keys      list
		lookahead any
		ahead     int
		bad       bool
	}{
		{"none", list{nil, list{list{"aa", 0}}, nil}, nil, 0, false},
		{"one token", list{list{list{"aa", 2}}, list{list{"aa", 0}}, nil}, list{list{9}, list{3}, list{5}}, 1, false},
		{"more than a block", list{list{list{"aa", 2}}, list{list{"aa", 0}}, nil}, list{list{9, 9, 3}, list{3, 4, 5}, list{5, 6, 7}}, 3, false},
		{"lists of different lengths", list{nil, nil, nil}, list{list{9}, list{3}, list{5, 6}}, 0, true},
		{"too few lists", list{nil, nil, nil}, list{list{9}, list{3}}, 0, true},
		{"not the next block's tokens", list{nil, nil, nil}, list{list{8}, list{3}, list{5}}, 0, true},
		{"too many tokens", list{nil, nil, nil}, list{make(list, 65), make(list, 65), make(list, 65)}, 0, true},
		{"no lists", list{nil, nil, nil}, 7, 0, true},
	} {
		e := mapStored(list{uint64(1), uint64(2), uint64(3)}, nil, tokens, "extra_keys", c.keys, "group_idx", 0,
			"kv_cache_spec_kind", "full_attention",
			"lookahead_token_ids", c.lookahead)
		d := Decoder{Keep: true}
		b, err := d.Decode(batchOf(e))
		if err != nil || (b.Bad > 0) != c.bad {
			t.Errorf("%s: %d events not read, %v, want no error, (b.Bad > 0) == c.bad", c.name, b.Bad, err)
		}
		if c.bad {
			continue
		}
		got := b.Events[0]
		want := block.Fixed().Locals(nil, prompt[:6+c.ahead], block.Form{Size: 2, Lookahead: c.ahead}, span, block.Root{})
		if got.Lookahead != c.ahead || !slices.Equal(got.Locals, want) || b.UpperBound || b.UnknownKeys > 0 {
			t.Errorf("%s: local hashes %x, %d tokens ahead, want %x", c.name, got.Locals, got.Lookahead, want)
		}
		if !slices.Equal(got.Tokens, prompt[:6]) || len(got.Media) != 1 || got.Media[0].Block != 1 || got.Media[0].Offset != 0 {
			t.Errorf("%s: tokens %v, media %v, want those of the blocks themselves", c.name, got.Tokens, got.Media)
		}
		payload := batchOf(e)
		d.Keep = false
		if n := testing.AllocsPerRun(20, func() { _, _ = d.Decode(payload) }); n != 0 {
			t.Errorf("%s: got %v allocations, want 0", c.name, n)
		}
	}
}
