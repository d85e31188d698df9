package bus

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/mmhash/block"
)

// FuzzState reads an agent's state file with arbitrary content and a correct checksum: an error, or a tag and a message that the
// decoder of messages reads or refuses.
func FuzzState(f *testing.F) {
	label := `{"Epoch":1,"Seq":2,"Number":3,"Made":4,"Parts":1,"Half":0,"Sum":5}`
	b := append(binary.LittleEndian.AppendUint32(nil, uint32(len(label))), label...)
	f.Add((&head{key: block.Fixed().ID, epoch: 1, seq: 2}).append(slices.Clone(b)))
	f.Add(b)
	f.Add([]byte("\xff\xff\xff\xff{}"))
	f.Add([]byte("\x02\x00\x00\x00{}"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tag, message, err := parseSnapshotFile(binary.LittleEndian.AppendUint64(slices.Clone(b), xxh3.Hash(b)))
		if err != nil {
			return
		}
		if len(message) > len(b) {
			t.Fatalf("%+v with %d bytes of %d", tag, len(message), len(b))
		}
		var d Decoder
		_, _ = d.Decode(message)
		_, _ = readHead(message)
		_, _, _ = ReadHeld(message, nil)
	})
}
