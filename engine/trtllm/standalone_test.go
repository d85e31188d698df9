package trtllm

import (
	"fmt"
	"slices"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

const (
	standaloneSize = 32
	replaced       = 151937 // TensorRT-LLM's id at an image's positions, Qwen2-VL-2B
)

// image is a run of a prompt's tokens, relative to the event's first.
type image struct {
	hash       uint64
	start, end int
}

// standalone writes one stored event as the example's worker publishes it: [time, [event], 0].
func standalone(engineHashes []uint64, tokens []uint32, images ...image) []byte {
	b := msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 3), 1.7e9)
	fields := uint32(4)
	if len(images) > 0 {
		fields++
	}
	b = msgp.AppendMapHeader(msgp.AppendArrayHeader(b, 1), fields)
	b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockStored")
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), uint32(len(engineHashes)))
	for _, h := range engineHashes {
		b = msgp.AppendUint64(b, h)
	}
	b = msgp.AppendArrayHeader(msgp.AppendString(b, "token_ids"), uint32(len(tokens)))
	for _, id := range tokens {
		b = msgp.AppendUint64(b, uint64(id))
	}
	b = msgp.AppendInt(msgp.AppendString(b, "block_size"), standaloneSize)
	if len(images) > 0 {
		b = msgp.AppendArrayHeader(msgp.AppendString(b, "block_mm_infos"), uint32(len(engineHashes)))
		for i := range engineHashes {
			var touching []image
			for _, p := range images {
				if (i+1)*standaloneSize > p.start && i*standaloneSize < p.end {
					touching = append(touching, p)
				}
			}
			if touching == nil {
				b = msgp.AppendNil(b)
				continue
			}
			b = msgp.AppendArrayHeader(msgp.AppendString(msgp.AppendMapHeader(b, 1), "mm_objects"), uint32(len(touching)))
			for _, p := range touching {
				b = msgp.AppendUint64(msgp.AppendString(msgp.AppendMapHeader(b, 2), "mm_hash"), p.hash)
				b = msgp.AppendArrayHeader(msgp.AppendArrayHeader(msgp.AppendString(b, "offsets"), 1), 2)
				b = msgp.AppendInt(msgp.AppendInt(b, p.start), p.end)
			}
		}
	}
	return msgp.AppendInt(b, 0)
}

// storedAlone decodes one such event, and checks that a request with the same tokens and images has the same blocks.
func storedAlone(t *testing.T, engineHashes []uint64, tokens []uint32, images ...image) *kvevent.Event {
	t.Helper()
	batch, err := (&Decoder{Standalone: true}).Decode(standalone(engineHashes, tokens, images...))
	if err != nil || len(batch.Events) != 1 || batch.Bad+batch.UnknownKeys > 0 || batch.Events[0].MediaUnknown {
		t.Fatalf("%v %+v: got %d, %d, want no error, 1, 0, Events[0].MediaUnknown false",
			err, batch, len(batch.Events), batch.Bad+batch.UnknownKeys)
	}
	var spans []block.Span
	for _, p := range images {
		digest := fmt.Sprintf("%016x%048x", p.hash, 1) // the name of the request's image; the event has its first 64 bits
		name := block.Fixed().Name(inEvents(digest))
		spans = append(spans, block.Span{Offset: p.start, Length: p.end - p.start, Name: name})
	}
	e := batch.Events[0]
	if want := block.Fixed().Locals(nil, tokens, block.Form{Size: standaloneSize}, spans, block.Root{}); !slices.Equal(e.Locals, want) {
		t.Errorf("blocks of the event %x, of the request %x, want %v", e.Locals, want, want)
	}
	return &e
}

func repeat(id uint32, n int) []uint32 { return slices.Repeat([]uint32{id}, n) }

// TestStandalone runs the multimodal scenarios of the standalone router's own tests, by name, on its workers' wire format.
func TestStandalone(t *testing.T) {
	t.Run("MM-1 hash computation", func(t *testing.T) {
		seen := map[uint64]bool{}
		for _, images := range [][]image{nil, {{0xDEADBEEF, 0, 32}}, {{0xCAFEBABE, 0, 32}}} {
			seen[storedAlone(t, []uint64{1}, repeat(100, 32), images...).Locals[0]] = true
		}
		if len(seen) != 3 {
			t.Errorf("%d different hashes, want 3", len(seen))
		}
	})
	t.Run("MM-2 routing distinction", func(t *testing.T) {
		ix := indexer.New(indexer.Options{})
		var prompts [2][]uint64
		var digests [2]indexer.SlotID
		for n, hash := range []uint64{0x1111111111111111, 0x2222222222222222} {
			e := storedAlone(t, []uint64{1, 2}, repeat(replaced, 64), image{hash, 0, 64})
			digests[n], prompts[n] = ix.Join(indexer.SlotOptions{}), slices.Clone(e.Locals)
			if err := ix.Store(digests[n], indexer.GPU, 0, false, e.EngineHashes, e.Locals); err != nil {
				t.Fatal(err)
			}
		}
		for n := range prompts {
			var m indexer.Matches
			ix.Match(prompts[n], &m)
			for _, h := range m.Slots {
				if h.Slot == digests[n] != (h.Blocks == 2) || h.Slot != digests[n] && h.Blocks > 0 {
					t.Errorf("image %d: slot %d has %d blocks", n, h.Slot, h.Blocks)
				}
			}
			if len(m.Slots) == 0 {
				t.Errorf("image %d: nobody has it; got %d, want some", n, len(m.Slots))
			}
		}
	})
	t.Run("MM-3 consistency", func(t *testing.T) {
		first := storedAlone(t, []uint64{1}, repeat(replaced, 32), image{0xDEADBEEFCAFEBABE, 0, 32}).Locals[0]
		for range 4 {
			if again := storedAlone(t, []uint64{7}, repeat(replaced, 32), image{0xDEADBEEFCAFEBABE, 0, 32}).Locals[0]; again != first {
				t.Errorf("%x, then %x, want %d", first, again, first)
			}
		}
	})
	t.Run("MM-4 which blocks an offset marks", func(t *testing.T) {
		tokens := repeat(100, 64)
		a := storedAlone(t, []uint64{1, 2}, tokens, image{5, 0, 8}).Locals
		b := storedAlone(t, []uint64{1, 2}, tokens, image{5, 9, 30}).Locals
		c := storedAlone(t, []uint64{1, 2}, tokens, image{5, 32, 40}).Locals
		if !slices.Equal(a, b) {
			t.Errorf("an offset within the same block changes its hash: got %v, want %v", a, b)
		}
		if a[0] == c[0] || a[1] == c[1] {
			t.Error("an image in another block leaves the hashes as they are")
		}
	})
	t.Run("MM-5 block boundary", func(t *testing.T) {
		plain := storedAlone(t, []uint64{1, 2, 3}, repeat(100, 96)).Locals
		over := storedAlone(t, []uint64{1, 2, 3}, repeat(100, 96), image{5, 20, 40}).Locals
		if plain[0] == over[0] || plain[1] == over[1] || plain[2] != over[2] {
			t.Error("an image over a border must mark both blocks and not the next")
		}
	})
}

// TestStandaloneImages: two images in one block keep their order (the example names both by the first); an invalid event loses
// only itself.
func TestStandaloneImages(t *testing.T) {
	a := storedAlone(t, []uint64{1}, repeat(100, 32), image{1, 0, 8}, image{2, 9, 20})
	b := storedAlone(t, []uint64{1}, repeat(100, 32), image{2, 0, 8}, image{1, 9, 20})
	if a.Locals[0] == b.Locals[0] {
		t.Error("swapped images have one hash")
	}
	bad := standalone([]uint64{1}, repeat(100, 32), image{1, 0, 8})
	bad = append(bad[:len(bad)-1], 0)
	for i := range bad { // byte by byte: never a panic, never a block without its image
		cut := slices.Clone(bad)
		cut[i] ^= 0xff
		_, _ = (&Decoder{Standalone: true}).Decode(cut)
	}
}
