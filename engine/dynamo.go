package engine

import (
	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/dynamo"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/mmhash/name"
	"github.com/sightline-router/sightline/prompt"
)

// What a worker behind NVIDIA Dynamo (1.6) calls a picture. Its frontend names pictures by their URLs, XXH3-64 of the exact
// text, or of the whole data URL, and marks the name for its own events by 48 zeros; only names with that mark enter block
// hashes. So one picture behind two URLs has two names, unless it travels under a uuid of that form, which the frontend
// hands on to vLLM: with media_names: injected that is the content id's first 16 digits.

// dynamoName gives md the name that Dynamo's events know it by, if they know it. The content id becomes the alias, so that
// what was seen behind another URL still counts for affinity.
//
// A video has none: a publisher that knows the video's token puts pads in its place by rules of its own (a run for each
// object, and back to names where they do not fit), one that does not know it puts names behind the block, and nothing
// here tells which it is. So a prompt ends before its first video.
func (m *Model) dynamoName(md *Medium, body *body.Skeleton, in *prompt.Medium, item name.Item) {
	switch {
	case md.Modality != "image":
		return
	case item.HasUUID:
		if key, ok := dynamo.UUIDKey(item.UUID); ok { // another uuid leaves no mark in the hashes
			md.Name, md.Named, md.Key = item.UUID, true, key
		}
		return
	case len(md.edits) > 0:
		return // the relay's URL: new with each request
	}
	key, ok := urlKey(body, in)
	if !ok {
		return
	}
	md.Alias = md.Key // of the content
	md.Name, md.Named, md.Key = dynamo.Name(key), true, key
}

// urlKey reads a data URL where it lies.
func urlKey(body *body.Skeleton, in *prompt.Medium) (key uint64, ok bool) {
	if pieces := in.Raw(body); schemeOf(pieces) == "data" {
		key, err := dynamo.DataURLKey(pieces)
		return key, err == nil
	}
	text, ok := body.String(in.Source)
	return dynamo.URLKey(text), ok
}

// dynamoSalt is the cache salt that Dynamo's front end hands on (1.6.1): that of its own extensions before the body's.
func dynamoSalt(salt string, req *body.Request) string {
	if own, ok := req.Body.String(req.Fields["nvext"].Get("cache_salt")); ok && own != "" {
		return own
	}
	return salt
}

// dynamoRule is how a model's blocks are hashed by Dynamo's rule; nil where they go by ours.
func dynamoRule(s Server, p *prompt.Model) *block.Dynamo {
	if !s.Dynamo() {
		return nil
	}
	d := &block.Dynamo{Eagle: s.EnableEagle}
	if s.BlockHash == "dynamo" {
		d.ImageToken, d.Pads = p.ImageToken()
	}
	return d
}
