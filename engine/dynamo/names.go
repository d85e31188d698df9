package dynamo

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/media"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/block"
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

// How workers behind NVIDIA Dynamo (1.6) key blocks. Its front end names images by their URLs, XXH3-64 of the exact text or of
// the whole data URL, and marks the name for its own events with 48 zeros; only marked names enter block hashes. So one image
// behind two URLs has two names, unless it carries a uuid of the marked form, which the front end passes on to vLLM: with
// media_names: injected that is the content id's first 16 digits.

// Keys returns how workers behind Dynamo key blocks. rule is the block hash, of which size and seed are still to be set.
func Keys(rule block.Dynamo) rules.Keys {
	return rules.Keys{Name: nameMedium, Salt: salt, UUID: UUID,
		Locals: func(dst []uint64, p *rules.Hashable) []uint64 {
			spans := make([]block.Span, 0, len(p.Media))
			for _, md := range p.Media {
				spans = append(spans, block.Span{Offset: md.Offset, Length: md.Length, Name: md.Key})
			}
			d := rule
			d.Size, d.Seed = p.BlockSize, block.DynamoSeed(p.Adapter, p.Salt) // a cache salt is Dynamo's cache namespace
			return d.Locals(dst, p.IDs, spans)
		}}
}

// nameMedium sets the name by which Dynamo's events call an image, if they do.
func nameMedium(m *rules.Naming) {
	switch {
	case m.HasUUID:
		m.Key, m.Named = UUIDKey(m.UUID)
		if m.Named { // any other uuid leaves no trace in the hashes
			m.Name = m.UUID
		}
	case !m.Edited: // otherwise its URL is the relay's and differs with each request
		m.Key, m.Named = urlKey(m)
		if m.Named {
			m.Name = Name(m.Key)
		}
	}
}

// urlKey hashes a URL; a data URL is hashed in place.
func urlKey(m *rules.Naming) (key uint64, ok bool) {
	if m.Scheme == "data" {
		key, err := DataURLKey(m.In.Raw(m.Body))
		return key, err == nil
	}
	text, ok := m.Body.String(m.In.Source)
	return URLKey(text), ok
}

// Unread reports whether a request has its prompt go past the template (1.6, nvext's use_raw_prompt), which is not read.
func Unread(req *body.Request) bool { return req.Fields["nvext"].Get("use_raw_prompt").Bool() }

// salt returns the cache salt that Dynamo's front end passes on (1.6.1): that of its own extensions if set, else the body's.
func salt(ours string, req *body.Request) string {
	if own, ok := req.Body.String(req.Fields["nvext"].Get("cache_salt")); ok && own != "" {
		return own
	}
	return ours
}
