// Package eventtest checks decoders of KV events in tests.
package eventtest

import (
	"testing"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// Fuzz runs a decoder on arbitrary payloads: it must not panic, and its batches must be consistent. tokens: the decoder keeps
// tokens.
func Fuzz(f *testing.F, tokens bool, decode func(payload []byte) (kvevent.Batch, error)) {
	f.Add([]byte{0x93, 0, 0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		batch, err := decode(b)
		if err != nil && len(batch.Events) > 0 {
			t.Fatal("events beside an error")
		}
		for _, e := range batch.Events {
			if e.Kind == kvevent.Stored && (len(e.Locals) != len(e.EngineHashes) || tokens && len(e.Tokens) != e.BlockSize*len(e.EngineHashes)) {
				t.Fatalf("%d engine hashes, %d locals, %d tokens", len(e.EngineHashes), len(e.Locals), len(e.Tokens))
			}
			if (e.Kind == kvevent.Stored || e.Kind == kvevent.Removed) && len(e.EngineHashes) == 0 {
				t.Fatalf("%s without blocks", e.Kind)
			}
			for _, m := range e.Media {
				if m.Block < 0 || m.Block >= len(e.EngineHashes) {
					t.Fatalf("mention of block %d of %d", m.Block, len(e.EngineHashes))
				}
			}
		}
	})
}

// Blocks is the number of blocks that a batch stores.
func Blocks(b kvevent.Batch) (n int) {
	for _, e := range b.Events {
		n += len(e.Locals)
	}
	return n
}
