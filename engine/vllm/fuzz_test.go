package vllm

import (
	"encoding/hex"
	"testing"

	"github.com/sightline-router/sightline/lab/eventtest"
	"github.com/sightline-router/sightline/lab/recorded"
)

func FuzzDecode(f *testing.F) {
	for _, g := range generations {
		b, _ := hex.DecodeString(g.payload)
		f.Add(b)
	}
	f.Add(batchOf(mapStored(list{uint64(1)}, nil, list{1, 2}, "extra_keys", list{list{"a", list{"b", -1}, "salt", []byte("12345678")}})))
	w := loneWorker{more: []any{"group_idx", 0, "kv_cache_spec_kind", "sliding_window", "kv_cache_spec_sliding_window", 7}}
	f.Add(batchOf(w.store(counted(40), 0, 20, 14, 16, 18), w.store(counted(40), 18, 30, 28, 30), w.store(counted(40), 30, 36, 36),
		object{"type", "BlockRemoved", "block_hashes", list{hashAfter(counted(18)), hashAfter(counted(28))}, "medium", "GPU", "group_idx", 0}))
	d := Decoder{Keep: true}
	eventtest.Fuzz(f, true, d.Decode)
}

func TestDecodeAllocatesNothing(t *testing.T) {
	payloads := stream(t)
	var d Decoder
	all := func() {
		for _, p := range payloads {
			if _, err := d.Decode(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	all()
	if n := testing.AllocsPerRun(5, all); n != 0 {
		t.Errorf("%v allocations for %d batches, want 0", n, len(payloads))
	}
}

// stream returns a worker's recorded batches.
func stream(t testing.TB) [][]byte { return recorded.Selection(t).Payloads("qwen2.5-vl-b16") }

// BenchmarkDecode reads and hashes stored events: text of 64 blocks, and a recorded stream with images.
func BenchmarkDecode(b *testing.B) {
	run := func(b *testing.B, payloads [][]byte) {
		var d Decoder
		for _, p := range payloads {
			if _, err := d.Decode(p); err != nil {
				b.Fatal(err)
			}
		}
		blocks := 0
		b.ReportAllocs()
		b.ResetTimer()
		for b.Loop() {
			for _, p := range payloads {
				batch, _ := d.Decode(p)
				blocks += eventtest.Blocks(batch)
			}
		}
		b.ReportMetric(float64(blocks)/b.Elapsed().Seconds(), "blocks/s")
	}
	b.Run("text", func(b *testing.B) {
		var hashes, tokens, keys list
		for i := range 64 {
			hashes, keys = append(hashes, uint64(0x9E3779B97F4A7C15)*uint64(i+1)), append(keys, nil)
			for j := range 16 {
				tokens = append(tokens, (i*16+j)*7919%150000)
			}
		}
		e := mapStored(hashes, uint64(1)<<63, tokens, "extra_keys", keys, "group_idx", 0, "kv_cache_spec_kind", "full_attention")
		e[9] = 16 // block_size
		run(b, [][]byte{batchOf(e)})
	})
	b.Run("recorded", func(b *testing.B) { run(b, stream(b)) })
}
