package trtllm

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/lab/eventtest"
	"github.com/sightline-router/sightline/mmhash/block"
)

// The events here are written by hand, in the layouts of KVCacheEventSerializer (1.0 to 1.3), with blocks of four tokens.

type key struct {
	Hash  string `json:"hash"`
	Start int    `json:"start_offset"`
}

// aBlock returns one stored_block. ids may contain digests; keys nil: a release without them.
func aBlock(engineHash any, keys []key, ids ...any) map[string]any {
	var tokens []any
	for _, id := range ids {
		tokens = append(tokens, map[string]any{"type": "unique_token", "token_id": id, "token_extra_id": 0})
	}
	b := map[string]any{"type": "stored_block", "block_hash": engineHash, "tokens": tokens, "cache_level": 0, "priority": 35}
	if keys != nil {
		b["mm_keys"] = keys
	}
	return b
}

func data(kind string, more ...any) map[string]any {
	d := map[string]any{"type": kind}
	for i := 0; i+1 < len(more); i += 2 {
		d[more[i].(string)] = more[i+1]
	}
	return d
}

func stores(parent any, blocks ...map[string]any) map[string]any {
	return data("stored", "parent_hash", parent, "blocks", blocks)
}

// numbered wraps events in envelopes with consecutive numbers, beginning at first.
func numbered(first int, events ...map[string]any) []byte {
	var list []any
	for i, e := range events {
		list = append(list, map[string]any{"event_id": first + i, "window_size": 4096, "data": e})
	}
	b, err := json.Marshal(list)
	if err != nil {
		panic(err)
	}
	return b
}

// told returns a batch in short form: "cleared", "stored gpu 1,2 after 9", "removed gpu 1".
func told(t *testing.T, d *Decoder, payload []byte) (string, kvevent.Batch) {
	t.Helper()
	b, err := d.Decode(payload)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range b.Events {
		s := e.Kind.String()
		if e.Kind != kvevent.Cleared {
			s += " " + e.Tier.String() + strings.ReplaceAll(fmt.Sprint(e.EngineHashes), "[]", " -")
		}
		if e.HasParent {
			s += fmt.Sprint("<", e.Parent)
		}
		out = append(out, s)
	}
	return strings.Join(out, "; "), b
}

func TestIncarnations(t *testing.T) {
	text := func(h int) map[string]any { return aBlock(h, []key{}, h, h, h, h) }
	d := &Decoder{BlockSize: 4}
	var unknown, bad, gaps uint64
	for _, c := range []struct {
		name    string
		payload []byte
		want    string
		partial bool
	}{
		{"a new engine", numbered(0, data("created", "num_blocks_per_cache_level", []int{10, 5})),
			"cleared", false},
		{"two blocks and a short tail", numbered(1, stores(nil, text(1), text(2), aBlock(3, []key{}, 7, 7))), "stored gpu[1 2]", false},
		{"a child", numbered(2, stores(2, text(4))), "stored gpu[4]<2", false},
		{"to host memory; a change of priority",
			numbered(3, data("updated", "block_hash", 4, "cache_level", map[string]any{"type": "event_diff", "old_value": 0,
				"new_value": 1}, "priority", nil),
				data("updated", "block_hash", 4, "cache_level", nil, "priority", map[string]any{"old_value": 1, "new_value": 2})),
			"copied cpu[4]; removed gpu[4]", false},
		{"removed from where they lie", numbered(5, data("removed", "block_hashes", []int{4, 2})), "removed cpu[4]; removed gpu[2]", false},
		{"an unknown event and one that cannot be read cost only themselves",
			numbered(6, data("dreamt"), data("stored", "blocks", 7), stores(1, text(8))), "stored gpu[8]<1", false},
		{"a gap", numbered(10, stores(1, text(9))), "cleared; stored gpu[9]<1", true},
		{"another rank", []byte(`[{"event_id":0,"attention_dp_rank":1,"data":{"type":"removed","block_hashes":[1]}}]`), "", false},
		{"a new incarnation, heard late", numbered(3, stores(nil, text(1))), "cleared; stored gpu[1]", true},
		{"a new incarnation", numbered(0, stores(nil, text(1))), "cleared; stored gpu[1]", false},
		{"hex and text", numbered(1, stores("00000000000000ff"+strings.Repeat("0", 48),
			aBlock("0000000000000007"+strings.Repeat("1", 48), []key{}, 1, 2, 3, 4))), "stored gpu[7]<255", false},
	} {
		got, b := told(t, d, c.payload)
		unknown, bad, gaps = unknown+b.Unknown, bad+b.Bad, gaps+b.Gaps
		if got != c.want || b.Partial != c.partial {
			t.Errorf("%s:\n got %s, partial %v\nwant %s, partial %v", c.name, got, b.Partial, c.want, c.partial)
		}
	}
	if unknown != 1 || bad != 1 || gaps != 1 {
		t.Errorf("%d unknown, %d bad, %d gaps, want 1 of each", unknown, bad, gaps)
	}
	if _, err := d.Decode([]byte(`[{"event_id":2,"data":{"type":"removed","blo`)); err == nil {
		t.Errorf("a cut payload was read: got %v, want an error", err)
	}
}

// TestWindows: of several windows the largest counts, whichever comes first.
func TestWindows(t *testing.T) {
	in := func(id, window int, d map[string]any) map[string]any {
		return map[string]any{"event_id": id, "window_size": window, "data": d}
	}
	pack := func(l ...map[string]any) []byte { b, _ := json.Marshal(l); return b }
	one := func(h int) map[string]any { return stores(nil, aBlock(h, []key{}, 1, 2, 3, 4)) }
	d := &Decoder{BlockSize: 4}
	got, b := told(t, d, pack(in(0, 512, data("created")), in(1, 4096, data("created")), in(2, 512, one(1)), in(3, 4096, one(2))))
	if got != "cleared; stored gpu[2]" || b.Partial {
		t.Errorf("with both announced: got %s, partial %v, want %q, false", got, b.Partial, "cleared; stored gpu[2]")
	}
	d = &Decoder{BlockSize: 4}
	got, b = told(t, d, pack(in(7, 512, one(1)), in(8, 4096, one(2)), in(9, 512, data("removed", "block_hashes", []int{2}))))
	if got != "cleared; stored gpu[1]; cleared; stored gpu[2]" || !b.Partial {
		t.Errorf("joined late: got %s, partial %v, want %q, true", got, b.Partial, "cleared; stored gpu[1]; cleared; stored gpu[2]")
	}
}

// TestBlockSizeLearned: without a configured block size, the first event of two blocks determines it.
func TestBlockSizeLearned(t *testing.T) {
	d := new(Decoder)
	got, _ := told(t, d, numbered(0, stores(nil, aBlock(1, []key{}, 1, 2)), stores(nil, aBlock(2, []key{}, 1, 2, 3, 4),
		aBlock(3, []key{}, 5)), stores(2, aBlock(4, []key{}, 1, 2, 3, 4))))
	if got != "cleared; stored gpu[2]; stored gpu[4]<2" || d.BlockSize != 4 {
		t.Errorf("%s, block size %d, want %q, 4", got, d.BlockSize, "cleared; stored gpu[2]; stored gpu[4]<2")
	}
}

// TestNames: blocks have the names of a request with the same items, in every form in which the engine writes its keys.
func TestNames(t *testing.T) {
	const a, b = "aaaaaaaaaaaaaaaa000000000000000000000000000000000000000000000000",
		"bbbbbbbbbbbbbbbb000000000000000000000000000000000000000000000000"
	m := 1001 // vocab_size + 1
	want := func(ids []uint32, spans ...block.Span) []uint64 {
		return block.Fixed().Locals(nil, ids, block.Form{Size: 4}, spans, block.Root{})
	}
	for _, c := range []struct {
		name   string
		events []map[string]any
		want   []uint64
	}{
		{"two items in a block, one of them over two", []map[string]any{stores(nil, aBlock(1, []key{{a, 0}}, 5, m, m, m),
			aBlock(2, []key{{a, 3}, {b, 0}}, m, 6, m, m))},
			want([]uint32{5, 1001, 1001, 1001, 1001, 6, 1001, 1001}, block.Span{Offset: 1, Length: 4, Name: block.Fixed().Name(inEvents(a))},
				block.Span{Offset: 6, Length: 2, Name: block.Fixed().Name(inEvents(b))})},
		{"two runs of one item in a block", []map[string]any{stores(nil, aBlock(1, []key{{a, 0}, {a, 1}}, m, 6, m, m))},
			want([]uint32{1001, 6, 1001, 1001}, block.Span{Offset: 0, Length: 4, Name: block.Fixed().Name(inEvents(a))})},
		{"the same image twice in a block", []map[string]any{stores(nil, aBlock(1, []key{{a, 0}, {a, 0}}, m, m, m, m))},
			want([]uint32{1001, 1001, 1001, 1001}, block.Span{Offset: 0, Length: 2, Name: block.Fixed().Name(inEvents(a))},
				block.Span{Offset: 2, Length: 2, Name: block.Fixed().Name(inEvents(a))})},
		{"V2 with keys", []map[string]any{stores(nil, aBlock(1, []key{{a, 0}}, 5, a, m, m+1), aBlock(2, []key{{a, 3}, {b, 0}}, m+2, 6, b, m))},
			want([]uint32{5, 1001, 1001, 1001, 1001, 6, 1001, 1001}, block.Span{Offset: 1, Length: 4, Name: block.Fixed().Name(inEvents(a))},
				block.Span{Offset: 6, Length: 2, Name: block.Fixed().Name(inEvents(b))})},
		{"V2 without keys, the item cut by text and by the event's end", []map[string]any{
			stores(nil, aBlock(1, []key{}, 5, a, m, m+1), aBlock(2, []key{}, m+2, 6, b, m)),
			stores(2, aBlock(3, []key{}, 7, 7, 7, 7), aBlock(4, []key{}, 8, m+1, m+2, 8))},
			want([]uint32{5, 1001, 1001, 1001, 1001, 6, 1001, 1001, 7, 7, 7, 7, 8, 1001, 1001, 8},
				block.Span{Offset: 1, Length: 4, Name: block.Fixed().Name(inEvents(a))},
				block.Span{Offset: 6, Length: 2, Name: block.Fixed().Name(inEvents(b))}, block.Span{Offset: 13, Length: 2,
					Name: block.Fixed().Name(inEvents(b))})},
	} {
		d := &Decoder{BlockSize: 4, Keep: true}
		batch, err := d.Decode(numbered(0, c.events...))
		if err != nil {
			t.Fatal(err)
		}
		var got []uint64
		for _, e := range batch.Events {
			got = append(got, e.Locals...)
			// a name passed on by a parent is known only as a hash
			if e.Kind == kvevent.Stored && (e.MediaUnknown || !e.HasParent && !slices.Equal(e.Locals, localsOf(&e))) {
				t.Errorf("%s: media %v beside tokens %v", c.name, e.Media, e.Tokens)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %x, want %x", c.name, got, c.want)
		}
	}
	salted := aBlock(1, []key{}, 1, 2, 3, 4)
	salted["cache_salt"] = "tenant"
	batch, _ := new(Decoder).Decode(numbered(0, stores(nil, salted, aBlock(2, []key{}, 1, 2, 3, 4))))
	if w := block.Fixed().Locals(nil, []uint32{1, 2, 3, 4, 1, 2, 3, 4}, block.Form{Size: 4}, nil,
		block.Fixed().Root("", "tenant")); !slices.Equal(batch.Events[1].Locals, w) {
		t.Errorf("salted: %x, want %x", batch.Events[1].Locals, w)
	}
	batch, _ = (&Decoder{BlockSize: 4}).Decode(numbered(0, stores(nil, aBlock(1, nil, m, m, m, m))))
	if !batch.Events[1].MediaUnknown {
		t.Error("a release without mm_keys: media taken as known")
	}
}

// localsOf hashes the tokens and names that Keep kept. A mention without an offset covers the whole block.
func localsOf(e *kvevent.Event) (out []uint64) {
	for i := range e.EngineHashes {
		var names []uint64
		for _, m := range e.Media {
			if m.Block == i {
				names = append(names, block.Fixed().Name(inEvents(string(m.Name))))
			}
		}
		out = append(out, block.Fixed().Local(e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize], names, 0))
	}
	return out
}

// TestUnknownKeys: a key that no release sends is counted once per event, wherever it is.
func TestUnknownKeys(t *testing.T) {
	token, media := `{"type":"unique_token","token_id":1,"token_extra_id":0`, `{"type":"mm_key","hash":"aa","start_offset":0,"uuid":"x"`
	whole := `[{"event_id":0,"window_size":4,"layer_group_id":0,"attention_dp_rank":0,"hash_algo":"v1","data":{"type":"stored","parent_hash":null,"blocks":[{"type":"stored_block",` +
		`"block_hash":1,"cache_level":0,"priority":3,"cache_salt":null,"tokens":[` + token + `}],"mm_keys":[` + media + `}]}]}}]`
	for _, at := range []string{"", `"event_id":0`, `"parent_hash":null`, `"block_hash":1`, `"token_id":1`, `"start_offset":0`} {
		payload, want, key := whole, uint64(0), ""
		if at != "" {
			payload, want, key = strings.Replace(whole, at, at+`,"future":"a secret","more":1`, 1), 1, "future"
		}
		if got, b := told(t, &Decoder{BlockSize: 1}, []byte(payload)); got != "cleared; stored gpu[1]" || b.UnknownKeys != want ||
			b.UnknownKey != key {
			t.Errorf("behind %q: got %s, %+v, want %q, UnknownKeys %d, UnknownKey %q", at, got, b, "cleared; stored gpu[1]", want, key)
		}
	}
}

// The same over ZeroMQ.
func TestMsgpack(t *testing.T) {
	const a = "aaaaaaaaaaaaaaaa000000000000000000000000000000000000000000000000"
	encode := func(v any) []byte {
		b, err := msgp.AppendIntf(nil, v)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	stored := map[string]any{"type": "BlockStored", "block_hashes": []any{int64(-2), uint64(3)}, "parent_block_hash": nil,
		"token_ids": []any{5, a, 1001, 1002, 1003, 6, 6, 6}, "block_size": 4,
		"lora_id": nil, "medium": "GPU", "lora_name": nil, "future": 1,
		"mm_keys": []any{[]any{map[string]any{"type": "mm_key", "hash": a, "start_offset": 0}}, []any{}}}
	stored["mm_keys"].([]any)[1] = []any{map[string]any{"hash": a, "start_offset": 3, "uuid": "x"}}
	d := new(Decoder)
	got, b := told(t, d,
		encode([]any{1.5, []any{stored, map[string]any{"type": "Novel"}, 7, map[string]any{"type": "BlockRemoved",
			"block_hashes": []any{uint64(3)}, "medium": "GPU"},
			map[string]any{"type": "BlockRemoved", "block_hashes": []any{uint64(3)}, "medium": "GPU", "group_idx": 2},
			map[string]any{"type": "AllBlocksCleared"}}, 1}))
	if want := "stored gpu[18446744073709551614 3]; removed gpu[3]; removed gpu[" + fmt.Sprint(kvevent.InGroup(3, 2)) +
		"]; cleared"; got != want || b.Unknown != 1 || b.Bad != 1 || b.UnknownKeys != 1 || b.UnknownKey != "future" {
		t.Errorf("got %s\nwant %s; %+v", got, want, b)
	}
	if w := block.Fixed().Locals(nil, []uint32{5, 1001, 1001, 1001, 1001, 6, 6, 6}, block.Form{Size: 4},
		[]block.Span{{Offset: 1, Length: 4, Name: block.Fixed().Name(inEvents(a))}}, block.Root{}); !slices.Equal(b.Events[0].Locals, w) {
		t.Errorf("%x, want %x", b.Events[0].Locals, w)
	}
	stored["lora_name"] = "en"
	_, b = told(t, d, encode([]any{1.5, []any{stored}}))
	if w := block.Fixed().Locals(nil, []uint32{5, 1001, 1001, 1001, 1001, 6, 6, 6}, block.Form{Size: 4},
		[]block.Span{{Offset: 1, Length: 4, Name: block.Fixed().Name(inEvents(a))}},
		block.Fixed().Root("en", "")); !slices.Equal(b.Events[0].Locals, w) {
		t.Errorf("adapter: %x, want %x", b.Events[0].Locals, w)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(numbered(0, data("created", "num_blocks_per_cache_level", []int{1, 2}),
		stores(nil, aBlock(1, []key{{"a", 0}}, 5, "aa", 9, 10), aBlock("ff", nil, 1, 2, 3, 4))))
	f.Add(numbered(3, data("updated", "block_hash", 4, "cache_level", map[string]any{"old_value": 0, "new_value": 1}),
		data("removed", "block_hashes", []int{4, 2})))
	f.Add([]byte(`[{"event_id":0,"data":{"type":"stored","blocks":[{"block_hash":-1,"tokens":[{"token_id":1}],"mm_keys":[{"hash":"\u0041\"","start_offset":1}]}]}}, {}, [], "}", 1e9]`))
	b, _ := msgp.AppendIntf(nil,
		[]any{1.5, []any{map[string]any{"type": "BlockStored", "block_hashes": []any{1}, "token_ids": []any{5, "a"},
			"block_size": 2, "mm_keys": []any{[]any{}}}}})
	f.Add(b)
	d := Decoder{Keep: true}
	eventtest.Fuzz(f, true, d.Decode)
}
