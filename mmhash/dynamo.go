package mmhash

import (
	"bytes"
	"fmt"

	"github.com/zeebo/xxh3"
)

// DynamoName is name.Dynamo of a data URL where it lies: a JSON string literal's raw content in pieces. Escapes of
// characters beyond ASCII, which no data URL needs, are not followed.
func DynamoName(pieces [][]byte) string {
	h := xxh3.New()
	var esc escape
	for _, p := range pieces {
		for len(p) > 0 {
			if esc.in == 0 {
				run := bytes.IndexByte(p, '\\')
				if run < 0 {
					run = len(p)
				}
				h.Write(p[:run])
				if p = p[run:]; len(p) == 0 {
					break
				}
			}
			if c, ok, _ := esc.next(p[0]); ok {
				h.Write([]byte{c})
			}
			p = p[1:]
		}
	}
	return fmt.Sprintf("%016x", h.Sum64())
}
