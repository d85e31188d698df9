package dynamo

import (
	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/mmhash/block"
)

// What workers behind NVIDIA Dynamo (1.6) are keyed by. Its frontend names pictures by their URLs, XXH3-64 of the exact
// text, or of the whole data URL, and marks the name for its own events by 48 zeros; only names with that mark enter block
// hashes. So one picture behind two URLs has two names, unless it travels under a uuid of that form, which the frontend
// hands on to vLLM: with media_names: injected that is the content id's first 16 digits.

// Keys are those of an engine's workers behind Dynamo, of which it knows their own keys. rule says how blocks are hashed but
// for size and seed.
func Keys(own rules.Keys, rule block.Dynamo) rules.Keys {
	return rules.Keys{VideoOptions: own.VideoOptions, Name: nameMedium, Salt: salt, UUID: UUID,
		Locals: func(dst []uint64, p *rules.Prompt) []uint64 {
			spans := make([]block.Span, 0, len(p.Media))
			for _, md := range p.Media {
				spans = append(spans, block.Span{Offset: md.Offset, Length: md.Length, Name: md.Key})
			}
			d := rule
			d.Size, d.Seed = p.BlockSize, block.DynamoSeed(p.Adapter, p.Salt) // a cache salt is its cache namespace
			return d.Locals(dst, p.IDs, spans)
		}}
}

// nameMedium gives a picture the name that Dynamo's events know it by, if they know it.
//
// A video has none: a publisher that knows the video's token puts pads in its place by rules of its own (a run for each
// object, and back to names where they do not fit), one that does not know it puts names behind the block, and nothing
// here tells which it is. So a prompt ends before its first video.
func nameMedium(m *rules.Medium) {
	switch {
	case m.Modality != "image":
	case m.HasUUID:
		if m.Key, m.Named = UUIDKey(m.UUID); m.Named { // another uuid leaves no mark in the hashes
			m.Name = m.UUID
		}
	case !m.Edited: // else its URL is the relay's: new with each request
		if m.Key, m.Named = urlKey(m); m.Named {
			m.Name = Name(m.Key)
		}
	}
}

// urlKey reads a data URL where it lies.
func urlKey(m *rules.Medium) (key uint64, ok bool) {
	if m.Scheme == "data" {
		key, err := DataURLKey(m.In.Raw(m.Body))
		return key, err == nil
	}
	text, ok := m.Body.String(m.In.Source)
	return URLKey(text), ok
}

// salt is the cache salt that Dynamo's front end hands on (1.6.1): that of its own extensions before the body's.
func salt(ours string, req *body.Request) string {
	if own, ok := req.Body.String(req.Fields["nvext"].Get("cache_salt")); ok && own != "" {
		return own
	}
	return ours
}
