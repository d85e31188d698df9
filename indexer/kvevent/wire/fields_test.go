package wire

import (
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// TestUnknownKeys checks that what releases send is known, whether it is read or not, and that a further key or element is
// counted once an event, named by the first, and costs neither the event nor an allocation.
func TestUnknownKeys(t *testing.T) {
	type (
		list   = []any
		object = map[string]any
	)
	stored := func(more ...any) list {
		return append(list{"BlockStored", list{1}, nil, list{1, 2}, 2, nil, "GPU", nil, nil, 0, "sliding_window", 128}, more...)
	}
	for name, c := range map[string]struct {
		events []any
		want   uint64
		key    string
	}{
		"all that arrays have": {[]any{stored(), list{"BlockRemoved", list{1}, "GPU", 0}, list{"AllBlocksCleared"}}, 0, ""},
		"all that maps have": {[]any{object{"type": "BlockStored", "block_hashes": list{1}, "parent_block_hash": nil,
			"token_ids": list{1, 2}, "block_size": 2, "lora_id": nil,
			"medium": "GPU", "lora_name": nil, "extra_keys": nil, "group_idx": 0, "kv_cache_spec_kind": "full_attention",
			"kv_cache_spec_sliding_window": 9, "locality": "LOCAL",
			"ownership": "x", "session_id": "s", "lookahead_token_ids": list{1}, "cache_salt": nil, "mm_keys": nil, "block_mm_infos": nil},
			object{"type": "BlockRemoved", "block_hashes": list{1}, "medium": "GPU", "group_idx": 0, "locality": "LOCAL",
				"ownership": "x"}, object{"type": "AllBlocksCleared"}}, 0, ""},
		"a longer stored":  {[]any{stored("a secret"), stored("a secret", 2, 3)}, 2, "BlockStored[12]"},
		"a longer removed": {[]any{stored(), list{"BlockRemoved", list{1}, "GPU", 0, nil}}, 1, "BlockRemoved[4]"},
		"a longer cleared": {[]any{list{"AllBlocksCleared", "a secret"}}, 1, "AllBlocksCleared[1]"},
		"another key": {[]any{object{"type": "BlockRemoved", "block_hashes": list{1}, "hash_version": "a secret"},
			stored()}, 1, "hash_version"},
		"a key without a name":     {[]any{object{"type": "AllBlocksCleared", "": 1}}, 1, "an empty key"},
		"an event of another type": {[]any{object{"type": "BlockMoved", "whither": 1}, list{"BlockMoved", 1, 2, 3, 4}}, 0, ""},
	} {
		payload, err := msgp.AppendIntf(nil, list{1.5, c.events, 0})
		if err != nil {
			t.Fatal(err)
		}
		var a kvevent.Arena
		var f Fields
		emitted := 0
		read := func() (kvevent.Batch, error) {
			return Batch(payload, &a, &f, msgp.Skip, func() error { emitted++; return nil })
		}
		got, err := read()
		if err != nil || got.UnknownKeys != c.want || got.UnknownKey != c.key || got.Bad > 0 || emitted+int(got.Unknown) != len(c.events) {
			t.Errorf("%s: %v, %+v of %d events read", name, err, got, emitted)
		}
		if n := testing.AllocsPerRun(10, func() { a.Reset(); _, _ = read() }); n > 0 {
			t.Errorf("%s: got %v allocations, want 0", name, n)
		}
	}
	payload, _ := msgp.AppendIntf(nil, list{1.5, list{}, 0, "a secret"})
	var a kvevent.Arena
	if got, err := Batch(payload, &a, new(Fields), nil, nil); err != nil || got.UnknownKeys != 1 || got.UnknownKey != "batch[3]" {
		t.Errorf("a longer batch: got %v, %+v, want no error, UnknownKeys 1, UnknownKey %q", err, got, "batch[3]")
	}
}
