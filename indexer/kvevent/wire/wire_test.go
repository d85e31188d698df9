package wire

import (
	"bytes"
	"errors"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// TestOneMessageIsBounded checks that a message may hold exactly the limits of events, block hashes and token ids, in any
// combination of lists, and not one more.
func TestOneMessageIsBounded(t *testing.T) {
	cleared := msgp.AppendString(msgp.AppendArrayHeader(nil, 1), "AllBlocksCleared")
	zeros := func(n int) []byte { return append(msgp.AppendArrayHeader(nil, uint32(n)), make([]byte, n)...) }
	removed := func(n int) []byte {
		return append(msgp.AppendString(msgp.AppendArrayHeader(nil, 2), "BlockRemoved"), zeros(n)...)
	}
	stored := func(n int) []byte {
		b := append(msgp.AppendString(msgp.AppendArrayHeader(nil, 5), "BlockStored"), zeros(1)...)
		return msgp.AppendInt(append(msgp.AppendNil(b), zeros(n)...), n)
	}
	for name, c := range map[string]struct {
		event []byte
		most  int
		more  []byte
	}{
		"events":       {cleared, maxEvents, cleared},
		"block hashes": {removed(maxHashes / 2), 2, removed(1)},
		"token ids":    {stored(maxItems), maxTokens / maxItems, stored(1)},
	} {
		for _, more := range [][]byte{nil, c.more} {
			n := c.most + min(len(more), 1)
			payload := msgp.AppendArrayHeader(msgp.AppendFloat64(msgp.AppendArrayHeader(nil, 2), 1.5), uint32(n))
			payload = append(append(payload, bytes.Repeat(c.event, c.most)...), more...)
			var a kvevent.Arena
			var f Fields
			emitted := 0
			tokens := func(b []byte) (rest []byte, err error) {
				a.Tokens, rest, err = AppendTokens(a.Tokens, b)
				return rest, err
			}
			batch, err := Batch(payload, &a, &f, tokens, func() error { emitted++; return nil })
			if more == nil && (err != nil || emitted != n || batch.Bad > 0) {
				t.Errorf("%s at the bound: %v, %d of %d events, %+v", name, err, emitted, n, batch)
			}
			if more != nil && !errors.Is(err, errLarge) {
				t.Errorf("%s beyond it: %v, %d events", name, err, emitted)
			}
		}
	}
}
