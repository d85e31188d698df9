package vllm

import (
	"encoding/hex"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Payloads made with each generation's own kv_events.py of vLLM: BlockStored (tokens 101 102 151655 151655, block 4, the image "aa"
// at offset 2 if the release has extra keys), BlockRemoved, AllBlocksCleared.
var generations = map[string]struct {
	payload string
	handle  uint64
	media   bool
}{
	"0.24 map": {"93cb3ff8000000000000938ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cff000000000000001b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473946566ce00025067ce00025067aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b657973919192a2616102a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391cff000000000000001a66d656469756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400",
		0xF000000000000001, true},
	"0.24 map, digests": {"93cb3ff8000000000000938ba474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391c4200101010101010101010101010101010101010101010101010101010101010101b1706172656e745f626c6f636b5f68617368c0a9746f6b656e5f696473946566ce00025067ce00025067aa626c6f636b5f73697a6504a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c0aa65787472615f6b657973919192a2616102a967726f75705f69647800b26b765f63616368655f737065635f6b696e64ae66756c6c5f617474656e74696f6e84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f68617368657391c4200101010101010101010101010101010101010101010101010101010101010101a66d656469756da3475055a967726f75705f6964780081a474797065b0416c6c426c6f636b73436c656172656400",
		0x0101010101010101, true},
	"0.23 array": {"93cb3ff8000000000000939cab426c6f636b53746f72656491cff000000000000001c0946566ce00025067ce0002506704c0a3475055c0919192a261610200ae66756c6c5f617474656e74696f6ec094ac426c6f636b52656d6f76656491cff000000000000001a34750550091b0416c6c426c6f636b73436c656172656400",
		0xF000000000000001, true},
}

func TestGenerations(t *testing.T) {
	tokens := []uint32{101, 102, 151655, 151655}
	for name, g := range generations {
		payload, err := hex.DecodeString(g.payload)
		if err != nil {
			t.Fatal(err)
		}
		var d Decoder
		batch, err := d.Decode(payload)
		if err != nil {
			t.Fatalf("%s: got %v, want no error", name, err)
		}
		if len(batch.Events) != 3 || batch.UnknownKeys > 0 {
			t.Fatalf("%s: %+v; got %d, want 3, UnknownKeys 0", name, batch, len(batch.Events))
		}
		var spans []block.Span
		if g.media {
			spans = []block.Span{{Offset: 2, Length: 2, Name: block.Fixed().Name("aa")}}
		}
		want := []kvevent.Event{
			{Kind: kvevent.Stored, BlockSize: 4, EngineHashes: []uint64{g.handle}, MediaUnknown: !g.media,
				Locals: block.Fixed().Locals(nil, tokens, block.Form{Size: 4}, spans, block.Root{})},
			{Kind: kvevent.Removed, EngineHashes: []uint64{g.handle}},
			{Kind: kvevent.Cleared},
		}
		if !reflect.DeepEqual(batch.Events, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, batch.Events, want)
		}
	}
}

// value converts v to msgpack: nil, int, uint64, string, []byte, float64, list or object.
type (
	list   []any
	object []any // a map in order: key, value, …
)

func value(b []byte, v any) []byte {
	switch v := v.(type) {
	case nil:
		return msgp.AppendNil(b)
	case int:
		return msgp.AppendInt(b, v)
	case int64:
		return msgp.AppendInt64(b, v)
	case uint64:
		return msgp.AppendUint64(b, v)
	case float64:
		return msgp.AppendFloat64(b, v)
	case string:
		return msgp.AppendString(b, v)
	case []byte:
		return msgp.AppendBytes(b, v)
	case list:
		b = msgp.AppendArrayHeader(b, uint32(len(v)))
		for _, e := range v {
			b = value(b, e)
		}
		return b
	case object:
		b = msgp.AppendMapHeader(b, uint32(len(v)/2))
		for _, e := range v {
			b = value(b, e)
		}
		return b
	}
	panic("value of an unknown type")
}

func batchOf(events ...any) []byte { return value(nil, list{1.5, list(events), 0}) }

// mapStored returns a stored event of 0.32 with the given extra keys, block size 2.
func mapStored(hashes list, parent any, tokens list, more ...any) object {
	return append(object{"type", "BlockStored", "block_hashes", hashes, "parent_block_hash", parent, "token_ids", tokens,
		"block_size", 2, "lora_id", nil, "medium", "GPU", "lora_name", nil}, more...)
}

func locals(root block.Root, tokens []uint32, names ...[]uint64) (out []uint64) {
	for i := 0; i*2 < len(tokens); i++ {
		var n []uint64
		if i < len(names) {
			n = names[i]
		}
		out = append(out, block.Fixed().Local(tokens[2*i:2*i+2], n, root.First))
		root.First = root.Rest
	}
	return out
}

// TestForms: forms that releases send and that the recordings lack, written by hand.
func TestForms(t *testing.T) {
	four := []uint32{1, 2, 3, 4}
	tokens := list{1, 2, 3, 4}
	hashes := list{uint64(11), uint64(12)}
	aa, bb, salt := block.Fixed().Name("aa"), block.Fixed().Name("bb"), "tenant-a"
	hex64 := strings.Repeat("0a", 32)
	full := []any{"group_idx", 0, "kv_cache_spec_kind", "full_attention"}
	plain := func(e kvevent.Event) kvevent.Event {
		e.Kind, e.BlockSize = kvevent.Stored, 2
		if e.EngineHashes == nil {
			e.EngineHashes = []uint64{11, 12}
		}
		return e
	}
	for _, c := range []struct {
		name  string
		event any
		want  *kvevent.Event
	}{
		{name: "negative and short integers as hashes",
			event: list{"BlockStored", list{int64(-2), 5}, int64(-1), tokens, 2, nil, "GPU"},
			want: &kvevent.Event{EngineHashes: []uint64{math.MaxUint64 - 1, 5}, HasParent: true, Parent: math.MaxUint64,
				Locals: locals(block.Root{}, four), MediaUnknown: true}},
		{name: "16-byte digests", event: mapStored(list{make([]byte, 16), append(make([]byte, 15), 7)}, []byte("0123456789abcdef"), tokens,
			append(full, "extra_keys", list{nil, nil})...),
			want: &kvevent.Event{EngineHashes: []uint64{0, 7}, HasParent: true, Parent: kvevent.FoldDigest([]byte("89abcdef")),
				Locals: locals(block.Root{}, four)}},
		{name: "adapter by number only", event: list{"BlockStored", hashes, nil, tokens, 2, 3, "GPU"},
			want: &kvevent.Event{Locals: locals(block.Fixed().Root("lora_id 3", ""), four), LoRA: "lora_id 3", MediaUnknown: true}},
		{name: "adapter, media and salt",
			event: object{"type", "BlockStored", "block_hashes", hashes, "parent_block_hash", nil, "token_ids", tokens, "block_size", 2,
				"lora_id", 1, "medium", "GPU", "lora_name", "sql", "extra_keys",
				list{list{"sql", list{"aa", 1}, list{"bb", 1}, "tenant-a"}, list{"sql", list{"bb", -1}}}},
			want: &kvevent.Event{LoRA: "sql", Locals: locals(block.Fixed().Root("sql", salt), four, []uint64{aa, bb}, []uint64{bb})}},
		{name: "salt that looks like a name", event: mapStored(hashes, nil, tokens, "extra_keys", list{list{hex64}, nil}),
			want: &kvevent.Event{Locals: locals(block.Fixed().Root("", hex64), four)}},
		{name: "prompt embeddings", event: mapStored(hashes, nil, tokens, "extra_keys",
			list{list{[]byte("0123456789abcdef0123456789abcdef")}, nil}),
			want: &kvevent.Event{Locals: locals(block.Root{}, four, []uint64{block.Fixed().Digest([]byte("0123456789abcdef0123456789abcdef"))})}},
		{name: "a text behind the first block, as 0.18 names media",
			event: mapStored(hashes, nil, tokens, "extra_keys", list{nil, list{"my-uuid"}}),
			want:  &kvevent.Event{Locals: locals(block.Root{}, four, nil, []uint64{rawHash("my-uuid")})}},
		{name: "a key of a form to come", event: mapStored(hashes, nil, tokens, "extra_keys", list{list{list{"mm", "aa", 3}}, nil}),
			want: &kvevent.Event{Locals: locals(block.Root{}, four, []uint64{rawHash(list{"mm", "aa", 3})})}},
		{name: "a salt apart", event: mapStored(hashes, nil, tokens, "extra_keys", list{nil, nil}, "cache_salt", "tenant-a"),
			want: &kvevent.Event{Locals: locals(block.Root{}, four)}},
		{name: "keys in another order, unknown fields", event: object{"lookahead_token_ids", nil, "extra_keys", list{nil, nil}, "block_size", 2,
			"token_ids", tokens, "block_hashes", hashes, "parent_block_hash", uint64(9), "new", object{"a", list{}}, "type", "BlockStored"},
			want: &kvevent.Event{HasParent: true, Parent: 9, Locals: locals(block.Root{}, four)}},
		{name: "offload tier, self-describing", event: object{"type", "BlockStored", "block_hashes", hashes, "parent_block_hash",
			nil, "token_ids", tokens,
			"block_size", 2, "lora_id", nil, "medium", "cpu", "lora_name", nil, "group_idx", 0, "kv_cache_spec_kind",
			"full_attention", "locality", "LOCAL"},
			want: &kvevent.Event{Tier: kvevent.CPU, Locals: locals(block.Root{}, four), MediaUnknown: true}},
		{name: "a store shared by workers", event: mapStored(hashes, nil, tokens, "extra_keys", list{nil, nil}, "locality", "REMOTE"),
			want: &kvevent.Event{Tier: kvevent.Remote, Locals: locals(block.Root{}, four)}},
		{name: "full attention in the last group", event: mapStored(hashes, uint64(9), tokens, "group_idx", 6,
			"kv_cache_spec_kind", "full_attention", "extra_keys", list{nil, nil}),
			want: &kvevent.Event{HasParent: true, Parent: 9, Locals: locals(block.Root{}, four)}},
		{name: "sliding window, empty", event: mapStored(list{}, uint64(9), tokens, "group_idx", 1, "kv_cache_spec_kind",
			"sliding_window", "kv_cache_spec_sliding_window", 8),
			want: &kvevent.Event{Kind: kvevent.GroupStored, Group: 1, Spec: kvevent.Spec{Need: kvevent.NeedWindow, Window: 8, BlockSize: 2}}},
		{name: "chunks", event: mapStored(list{uint64(1)}, nil, tokens, "group_idx", 1, "kv_cache_spec_kind", "chunked_local_attention"),
			want: &kvevent.Event{Kind: kvevent.GroupStored, Group: 1, Spec: kvevent.Spec{Need: kvevent.NeedChunk,
				Window: llama4Chunk, BlockSize: 2}, EngineHashes: []uint64{1}}},
		{name: "a window of an unknown size", event: mapStored(list{uint64(1)}, nil, tokens, "group_idx", 1,
			"kv_cache_spec_kind", "sliding_window"),
			want: &kvevent.Event{Kind: kvevent.GroupStored, Group: 1, Spec: kvevent.Spec{Need: kvevent.NeedWindow, BlockSize: 2},
				EngineHashes: []uint64{1}}},
		{name: "a group of an unknown kind", event: mapStored(list{uint64(1)}, nil, tokens, "group_idx", 1, "kv_cache_spec_kind", "new")},
		{name: "no kind, group 1", event: mapStored(hashes, nil, tokens, "group_idx", 1, "extra_keys", list{nil, nil})},
	} {
		var d Decoder
		batch, err := d.Decode(batchOf(c.event))
		if err != nil {
			t.Errorf("%s: got %v, want no error", c.name, err)
			continue
		}
		var want []kvevent.Event
		switch {
		case c.want == nil:
		case c.want.Kind == kvevent.GroupStored:
			want = []kvevent.Event{*c.want}
		default:
			want = []kvevent.Event{plain(*c.want)}
		}
		unclear := map[string]bool{"a window of an unknown size": true, "a group of an unknown kind": true, "no kind, group 1": true}
		if len(batch.Events) != len(want) || len(want) > 0 && !reflect.DeepEqual(batch.Events, want) {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, batch.Events, want)
		}
		if again, _ := d.Decode(batchOf()); batch.UpperBound != unclear[c.name] || again.UpperBound != batch.UpperBound {
			t.Errorf("%s: an upper bound: got %v, and then %v, want %v, %v",
				c.name, batch.UpperBound, again.UpperBound, unclear[c.name], batch.UpperBound)
		}
		if key := map[string]string{"a key of a form to come": "extra_keys of another form",
			"a text behind the first block, as 0.18 names media": "extra_keys of another form", "a salt apart": "cache_salt",
			"keys in another order, unknown fields": "new"}[c.name]; batch.UnknownKey != key {
			t.Errorf("%s: unknown key %q, want %q", c.name, batch.UnknownKey, key)
		}
		if batch.Unknown+batch.Bad > 0 {
			t.Errorf("%s: %d unknown, %d not read; got %d, want 0", c.name, batch.Unknown, batch.Bad, batch.Unknown+batch.Bad)
		}
	}
}

// TestPlaceholdersAndGroups: a connector's placeholder identifies a block only by its hash; removals follow the group of the store, and the
// other groups' events come after the main group's. The index may know a group that the decoder does not (yet).
func TestPlaceholdersAndGroups(t *testing.T) {
	var d Decoder
	placeholder := func(hash uint64, group int) object {
		return object{"type", "BlockStored", "block_hashes", list{hash}, "parent_block_hash", nil, "token_ids", list{}, "block_size", 0,
			"lora_id", nil, "medium", "CPU", "lora_name", nil, "group_idx", group}
	}
	removed := func(hash uint64, group int) object {
		return object{"type", "BlockRemoved", "block_hashes", list{hash}, "medium", "GPU", "group_idx", group}
	}
	batch, err := d.Decode(batchOf(
		mapStored(list{uint64(1)}, nil, list{1, 2}, "group_idx", 0, "kv_cache_spec_kind", "sliding_window", "extra_keys", list{nil}),
		mapStored(list{uint64(1)}, nil, list{1, 2}, "group_idx", 6, "kv_cache_spec_kind", "full_attention", "extra_keys", list{nil}),
		placeholder(1, 6), removed(1, 0), removed(1, 6), removed(1, 3),
	))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range batch.Events {
		got = append(got, e.Kind.String()+" "+e.Tier.String())
		if e.EngineHashes[0] != 1 {
			t.Errorf("%s: engine hash %x, want 1", e.Kind, e.EngineHashes[0])
		}
	}
	if want := []string{"stored gpu", "copied cpu", "removed gpu", "group stored gpu", "group removed gpu",
		"group removed gpu"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestBadEvents: an event that cannot be read loses only itself; a truncated payload yields nothing.
func TestBadEvents(t *testing.T) {
	good := mapStored(list{uint64(1)}, nil, list{1, 2}, "extra_keys", list{nil})
	bad := []any{
		42,
		list{},
		list{7, 8},
		object{"block_hashes", list{}},
		mapStored(list{uint64(1)}, nil, list{1, 2, 3}, "extra_keys", list{nil}),   // hashes do not cover the tokens
		mapStored(list{uint64(1)}, nil, list{1, 2}, "extra_keys", list{nil, nil}), // keys for two blocks
		mapStored(list{uint64(1)}, nil, list{1, "x"}, "extra_keys", list{nil}),    // a token that is text
		mapStored(list{uint64(1)}, nil, list{1, uint64(1 << 40)}),                 // a token over 32 bits
		mapStored(list{1.5}, nil, list{1, 2}),                                     // a hash that is a fraction
		mapStored(list{[]byte("short")}, nil, list{1, 2}),                         // a digest too short
		mapStored(list{uint64(1)}, nil, list{1, 2}, "block_size", -1),             //
		mapStored(list{uint64(1)}, nil, list{1, 2}, "extra_keys", "not an array"), //
		list{"BlockRemoved", 5}, //
	}
	events := []any{good}
	for _, b := range bad {
		events = append(events, b, good)
	}
	events = append(events, object{"type", "BlockInactive", "block_hashes", "anything"}, list{"Heartbeat", list{}}, good)
	payload := batchOf(events...)
	var d Decoder
	batch, err := d.Decode(payload)
	if err != nil {
		t.Fatal(err)
	}
	if len(batch.Events) != len(bad)+2 {
		t.Errorf("%d events, want %d", len(batch.Events), len(bad)+2)
	}
	for i, e := range batch.Events {
		if e.Kind != kvevent.Stored || len(e.EngineHashes) != 1 || e.EngineHashes[0] != 1 ||
			e.Locals[0] != locals(block.Root{}, []uint32{1, 2})[0] {
			t.Errorf("event %d: %+v", i, e)
		}
	}
	if batch.Bad != uint64(len(bad)) || batch.Unknown != 2 {
		t.Errorf("%d bad, want %d; %d unknown, want 2", batch.Bad, len(bad), batch.Unknown)
	}
	for cut := range payload {
		batch, err := d.Decode(payload[:cut])
		if err == nil && cut < len(payload)-1 { // the last field, the rank, is optional
			t.Fatalf("cut at %d of %d: no error", cut, len(payload))
		}
		if err != nil && len(batch.Events) > 0 {
			t.Fatalf("cut at %d: %d events of a cut batch", cut, len(batch.Events))
		}
	}
}

func rawHash(v any) uint64 {
	var d Decoder
	d.h.key = block.Fixed()
	if _, err := d.unknownKey(value(nil, v)); err != nil {
		panic(err)
	}
	return d.h.names[0]
}
