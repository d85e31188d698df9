package dynamo

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/mmhash"
)

// What Dynamo's frontend (1.6) calls a picture: XXH3-64 of the exact URL or whole data URL, as 16 hex digits. Its vLLM
// workers get it as a uuid of 64 digits, the rest zeros, and publish that; only names with that mark enter block hashes.

const mark = "000000000000000000000000000000000000000000000000"

// UUID is a content id in the form that counts: its first 16 digits, marked. The frontend hands it on.
func UUID(id mmhash.ContentID) string { return id.String()[:16] + mark }

// UUIDKey is what of a client's uuid enters block hashes; false where nothing does.
func UUIDKey(uuid string) (key uint64, ok bool) {
	digits, ok := strings.CutSuffix(uuid, mark)
	if !ok || len(digits) != 16 {
		return 0, false
	}
	key, err := strconv.ParseUint(digits, 16, 64)
	return key, err == nil
}

// URLKey is what enters block hashes of a picture by its URL.
func URLKey(url string) uint64 { return xxh3.HashString(url) }

// DataURLKey is URLKey of a data URL where it lies: a JSON string literal's raw content in pieces, without a copy.
func DataURLKey(pieces [][]byte) (key uint64, err error) {
	h := xxh3.New()
	err = mmhash.Unescape(pieces, h.Write)
	return h.Sum64(), err
}

// Name is a key as the frontend writes it.
func Name(key uint64) string { return fmt.Sprintf("%016x", key) }
