package engine

import (
	"strconv"
	"strings"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/dynamo"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/name"
	"github.com/sightline-router/sightline/prompt"
)

// handOver changes how a worker gets a picture, where the configuration asks for it: its URL becomes the relay's, and its
// content id becomes the part's uuid. What cannot be changed (no room in the relay, a picture that came in another API's
// form) stays as it is. src are the picture's bytes; item then holds the name that the engine will see.
func (m *Model) handOver(md *Medium, endpoint string, skeleton *body.Skeleton, in *prompt.Medium, src mmhash.Source, item *name.Item) {
	scheme := schemeOf(in.Raw(skeleton))
	if md.Modality != "image" || scheme != "data" && scheme != "http" {
		return
	}
	ours := scheme == "data" // the worker reads the bytes that we have read
	if from, to := skeleton.BodyRange(in.Source); from >= 0 && in.Prefix == "" && m.Media.Relay != nil {
		if link, ok := m.relay(md, ours, src); ok {
			md.edits, ours = append(md.edits, body.Edit{From: from, To: to, Text: []byte(`"` + link + `"`)}), true
		}
	}
	// Only these endpoints take a uuid, and only as a member of the part.
	if !ours || m.Server.MediaNames != "injected" || item.HasUUID || !strings.HasPrefix(endpoint, "/v1/chat/completions") || !in.Part.IsObject() {
		return
	}
	// At the end of the part, where it counts whatever stands before.
	if _, to := skeleton.BodyRange(in.Part); to > 0 {
		item.UUID, item.HasUUID = md.Facts.ID.String(), true
		if m.Server.Dynamo() {
			item.UUID = dynamo.UUID(md.Facts.ID)
		}
		md.edits = append(md.edits, body.Edit{From: to - 1, To: to - 1, Text: []byte(`,"uuid":` + strconv.Quote(item.UUID))})
	}
}

// relay gives the relay's URL of a picture, if it is to be had by one.
func (m *Model) relay(md *Medium, inBody bool, src mmhash.Source) (link string, ok bool) {
	if inBody && !m.Media.RelayDataURLs {
		return "", false
	}
	return m.Media.Relay.Offer(md.Facts.ID, func() ([]byte, bool) {
		if !inBody {
			return m.Media.fetch.Bytes(md.Facts.ID)
		}
		file, err := src.Decode(md.Facts.Bytes)
		return file, err == nil
	})
}
