package sglang

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/lab/eventtest"
	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/mmhash/block"
)

// release is one entry of testdata/versions.json.gz: a list of events as one release encodes it.
type release struct {
	Version string
	Batches []struct {
		Rank    *int `json:"attn_dp_rank"`
		Payload []byte
	}
	Events [][2]json.RawMessage // class, and its fields
}

func releases(t testing.TB) (out []release) {
	golden.JSON(t, &out, "testdata/versions.json.gz")
	return out
}

func hashOf(ids []uint64, lora, salt string) uint64 {
	return block.Fixed().Local64(nil, ids, block.Fixed().Root(lora, salt).First)
}

// TestReleases: the decoded form of the recorded list of events, for every form of every release. The list has, in this order, a
// clear, two text blocks in a chain, a page with a pad, two blocks of an adapter in host memory, then (maps) a salt, a session and
// a named adapter, two pages of pairs, and two removals.
func TestReleases(t *testing.T) {
	for _, r := range releases(t) {
		t.Run(r.Version, func(t *testing.T) {
			for _, b := range r.Batches {
				d := Decoder{Keep: true}
				batch, err := d.Decode(b.Payload)
				if err != nil {
					t.Fatal(err)
				}
				if batch.Bad+batch.Unknown+batch.UnknownKeys > 0 || len(batch.Events) != len(r.Events) {
					t.Fatalf("%+v of %d events: got %d, %d, want 0, %d",
						batch, len(r.Events), batch.Bad+batch.Unknown+batch.UnknownKeys, len(batch.Events), len(r.Events))
				}
				check(t, batch.Events)
			}
		})
	}
}

func check(t *testing.T, events []kvevent.Event) {
	t.Helper()
	if events[0].Kind != kvevent.Cleared {
		t.Errorf("first: got %v, want %v", events[0].Kind, kvevent.Cleared)
	}
	var stored []kvevent.Event
	for _, e := range events {
		if e.Kind == kvevent.Stored {
			stored = append(stored, e)
		}
	}
	one, two, pad, cpu, pairs := stored[0], stored[1], stored[2], stored[3], stored[len(stored)-1]
	neg := func(v int64) uint64 { return uint64(v) }
	if one.HasParent || one.BlockSize != 4 || !slices.Equal(one.EngineHashes, []uint64{neg(-3488128144981237669)}) ||
		one.Locals[0] != hashOf([]uint64{1, 2, 3, 4}, "", "") || !slices.Equal(one.Tokens, []uint32{1, 2, 3, 4}) || one.Tier != kvevent.GPU {
		t.Errorf("first block %+v", one)
	}
	if !two.HasParent || two.Parent != neg(-3488128144981237669) || two.Locals[0] != hashOf([]uint64{5, 6, 7, 8}, "", "") {
		t.Errorf("second block %+v", two)
	}
	if pad.Locals[0] != hashOf([]uint64{1, 2, 163254319, 163254319}, "", "") {
		t.Errorf("block with a pad %+v", pad)
	}
	if len(cpu.EngineHashes) != 2 || cpu.LoRA != "lora_id 7" || cpu.Locals[1] != hashOf([]uint64{5, 6, 7, 8}, "lora_id 7", "") {
		t.Errorf("adapter's blocks %+v", cpu)
	}
	if !slices.Equal(pairs.EngineHashes, []uint64{12, 13}) || pairs.Locals[0] != hashOf([]uint64{1, 2, 3}, "", "") ||
		pairs.Locals[1] != hashOf([]uint64{3, 4, 5}, "", "") ||
		!slices.Equal(pairs.Tokens, []uint32{1, 2, 3, 4}) {
		t.Errorf("pairs %+v", pairs)
	}
	for _, e := range stored[4 : len(stored)-1] { // maps
		salt, lora := "", ""
		switch e.EngineHashes[0] {
		case 9:
			salt = "tenant-a"
		case 10:
			if e.Session != "s1" {
				t.Errorf("session %q, want %q", e.Session, "s1")
			}
		case 11:
			lora = "adapter-x"
		}
		if e.LoRA != lora || e.Locals[0] != hashOf([]uint64{1, 2, 3, 4}, lora, salt) {
			t.Errorf("block %d: %+v, want e.LoRA == lora, e.Locals[0] == hashOf([]uint64{1, 2, 3, 4}, lora, salt)", e.EngineHashes[0], e)
		}
	}
	last := events[len(events)-2:]
	if last[0].Kind != kvevent.Removed || !slices.Equal(last[0].EngineHashes, []uint64{neg(-1), 1<<63 - 1}) ||
		!slices.Equal(last[1].EngineHashes, []uint64{5}) {
		t.Errorf("removals %+v", last)
	}
}

// batch wraps raw events.
func batch(events ...[]byte) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 1)
	b = msgp.AppendArrayHeader(b, uint32(len(events)))
	for _, e := range events {
		b = append(b, e...)
	}
	return msgp.AppendNil(b)
}

func encode(t testing.TB, v any) []byte {
	b, err := msgp.AppendIntf(nil, v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ordered returns a map whose keys keep this order.
func ordered(t testing.TB, pairs ...any) msgp.Raw {
	b := msgp.AppendMapHeader(nil, uint32(len(pairs)/2))
	for _, v := range pairs {
		b = append(b, encode(t, v)...)
	}
	return b
}

// TestOneBadEvent: a bad or unknown event loses only itself; unknown fields lose nothing.
func TestOneBadEvent(t *testing.T) {
	good := map[string]any{"type": "BlockStored", "block_hashes": []any{uint64(7)}, "parent_block_hash": nil,
		"token_ids":  []any{uint64(1), uint64(1) << 62},
		"block_size": 2, "lora_id": nil, "new_field": map[string]any{"a": []any{1}}}
	with := func(key string, v any) map[string]any {
		m := map[string]any{}
		maps.Copy(m, good)
		m[key] = v
		return m
	}
	for name, c := range map[string]struct {
		event        any
		bad, unknown uint64
	}{
		"other type":         {map[string]any{"type": "BlockMoved", "block_hashes": "x"}, 0, 1},
		"other type, first":  {ordered(t, "type", "BlockMoved", "block_hashes", "x"), 0, 1},
		"other type, behind": {ordered(t, "block_hashes", "x", "type", "BlockMoved"), 0, 1},
		"our type, behind":   {ordered(t, "block_hashes", "x", "type", "BlockRemoved"), 1, 0},
		"other tag":          {[]any{"BlockMoved", 1, 2}, 0, 1},
		"no type":            {map[string]any{"block_hashes": []any{1}}, 1, 0},
		"empty":              {[]any{}, 1, 0},
		"a number":           {5, 1, 0},
		"negative id":        {with("token_ids", []any{int64(1), int64(-1)}), 1, 0},
		"too few ids":        {with("token_ids", []any{uint64(1)}), 1, 0},
		"size zero":          {with("block_size", 0), 1, 0},
		"pairs mixed":        {with("token_ids", []any{uint64(1), []any{uint64(1), uint64(2)}}), 1, 0},
		"pairs no chain":     {with("token_ids", []any{[]any{uint64(1), uint64(2)}, []any{uint64(3), uint64(4)}}), 1, 0},
		"triple":             {with("token_ids", []any{[]any{1, 2, 3}, []any{2, 3, 4}}), 1, 0},
		"hash of a float":    {with("block_hashes", []any{1.5}), 1, 0},
	} {
		var d Decoder
		got, err := d.Decode(batch(encode(t, good), encode(t, c.event), encode(t, good)))
		if err != nil {
			t.Errorf("%s: got %v, want no error", name, err)
			continue
		}
		if got.Bad != c.bad || got.Unknown != c.unknown || len(got.Events) != 2 ||
			got.Events[1].Locals[0] != hashOf([]uint64{1, 1 << 62}, "", "") {
			t.Errorf("%s: %+v", name, got)
		}
	}
	var d Decoder
	whole := batch(encode(t, good))
	for cut := range whole[:len(whole)-1] {
		if got, err := d.Decode(whole[:cut]); err == nil || len(got.Events) > 0 {
			t.Fatalf("cut at %d: got %d events, error %v, want an error, 0", cut, len(got.Events), err)
		}
	}
}

// TestKeysOfVLLM: fields that only vLLM sends are not read here, and count as unknown.
func TestKeysOfVLLM(t *testing.T) {
	for key, v := range map[string]any{"extra_keys": []any{nil}, "group_idx": 0} {
		e := map[string]any{"type": "BlockStored", "block_hashes": []any{uint64(7)}, "parent_block_hash": nil,
			"token_ids": []any{1, 2}, "block_size": 2, key: v}
		var d Decoder
		if got, err := d.Decode(batch(encode(t, e))); err != nil || got.UnknownKeys != 1 || got.UnknownKey != key || len(got.Events) != 1 {
			t.Errorf("%s: %v, %+v; got %d, want no error, UnknownKeys 1, UnknownKey %q, 1", key, err, got, len(got.Events), key)
		}
	}
}

// TestPads: for a run of pads, Pad is called once for each of the four, and for no text token.
func TestPads(t *testing.T) {
	ids := []any{uint64(5), uint64(1 << 40), uint64(1<<40 + 1), uint64(1<<40 + 2), uint64(1<<40 + 3), uint64(1 << 40),
		uint64(1<<40 + 1), uint64(6)}
	e := map[string]any{"type": "BlockStored", "block_hashes": []any{uint64(7)}, "parent_block_hash": nil, "token_ids": ids, "block_size": 8}
	var got []uint64
	d := Decoder{Pad: func(id uint64) { got = append(got, id) }}
	if _, err := d.Decode(batch(encode(t, e))); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, []uint64{1 << 40, 1<<40 + 1, 1<<40 + 2, 1<<40 + 3}) {
		t.Errorf("told %d, want %v", got, []uint64{1 << 40, 1<<40 + 1, 1<<40 + 2, 1<<40 + 3})
	}
}

func FuzzDecode(f *testing.F) {
	for _, r := range releases(f) {
		f.Add(r.Batches[0].Payload)
	}
	d := Decoder{Keep: true, Pad: func(uint64) {}}
	eventtest.Fuzz(f, true, d.Decode)
}

// text returns a stored event of 1,024 tokens and an image of 256, in pages of size.
func text(t testing.TB, size int) []byte {
	var hashes, ids []any
	for i := range 1024 / size {
		hashes = append(hashes, uint64(0x9E3779B97F4A7C15)*uint64(i+1))
	}
	for i := range 1024 {
		id := uint64(i * 7919 % 150000)
		if i >= 512 && i < 768 {
			id = 1<<61 + uint64(i%4)
		}
		ids = append(ids, id)
	}
	return batch(encode(t, map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil,
		"token_ids": ids, "block_size": size, "medium": "GPU"}))
}

func TestDecodeAllocatesNothing(t *testing.T) {
	payload := text(t, 16)
	var d Decoder
	run := func() {
		if _, err := d.Decode(payload); err != nil {
			t.Fatal(err)
		}
	}
	run()
	if n := testing.AllocsPerRun(10, run); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// BenchmarkDecode reads and hashes stored events at the recommended page size and at SGLang's default.
func BenchmarkDecode(b *testing.B) {
	for name, size := range map[string]int{"page16": 16, "page1": 1} {
		b.Run(name, func(b *testing.B) {
			payload := text(b, size)
			var d Decoder
			b.ReportAllocs()
			blocks := 0
			for b.Loop() {
				batch, _ := d.Decode(payload)
				blocks += eventtest.Blocks(batch)
			}
			b.ReportMetric(float64(blocks)/b.Elapsed().Seconds(), "blocks/s")
		})
	}
}
