package dynamo

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/mmhash"
)

// Dynamo's front end (1.6) names an image by the XXH3-64 of its exact URL or whole data URL, as 16 hex digits. Its vLLM workers
// get the name as a uuid of 64 digits, the rest zeros, and publish that; only names with this mark enter block hashes.

const uuidMark = "000000000000000000000000000000000000000000000000"

// UUID returns the form of a content id that enters block hashes: its first 16 digits, marked. The front end passes it on.
func UUID(id mmhash.ContentID) string { return id.String()[:16] + uuidMark }

// UUIDKey returns the part of a client's uuid that enters block hashes; ok is false if none does.
func UUIDKey(uuid string) (key uint64, ok bool) {
	digits, ok := strings.CutSuffix(uuid, uuidMark)
	if !ok || len(digits) != 16 {
		return 0, false
	}
	key, err := strconv.ParseUint(digits, 16, 64)
	return key, err == nil
}

// URLKey returns the key of an image's URL in block hashes.
func URLKey(url string) uint64 { return xxh3.HashString(url) }

// DataURLKey is URLKey for a data URL that is the raw content of a JSON string literal in pieces. It does not copy them.
func DataURLKey(pieces [][]byte) (key uint64, err error) {
	h := xxh3.New()
	err = media.Unescape(pieces, h.Write)
	return h.Sum64(), err
}

// Name formats a key as the front end does.
func Name(key uint64) string { return fmt.Sprintf("%016x", key) }
