package engine

import (
	"strconv"
	"strings"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/media"
)

// deliver changes how a worker gets an image, if the configuration asks for it: its URL becomes the relay's, or its content id
// becomes the part's uuid. An image that cannot be changed (the relay is full, or the request uses another API's form) stays as it
// is. Afterwards m holds what the engine will see.
func (q *mediaReader) deliver(md *Medium, m *rules.Naming) {
	if m.Scheme != "data" && m.Scheme != "http" {
		return
	}
	ours := m.Scheme == "data" // true: the worker reads the very bytes that we have read
	if from, to := q.body.BodyRange(m.In.Source); from >= 0 && m.In.Prefix == "" && q.Media.Relay != nil {
		if link, ok := q.relay(md, ours, m.Source); ok {
			md.edits, ours = append(md.edits, body.Edit{From: from, To: to, Text: []byte(`"` + link + `"`)}), true
		}
	}
	// Only these endpoints read a uuid, and only as a member of the part.
	if !ours || q.Server.MediaNames != "injected" || m.HasUUID || !strings.HasPrefix(q.endpoint, "/v1/chat/completions") ||
		!m.In.Part.IsObject() {
		return
	}
	// Appended at the end of the part, so that it overrides a member of the same name before it.
	if _, to := q.body.BodyRange(m.In.Part); to > 0 {
		m.UUID, m.HasUUID = md.Facts.ID.String(), true
		if q.keys.UUID != nil {
			m.UUID = q.keys.UUID(md.Facts.ID)
		}
		md.edits = append(md.edits, body.Edit{From: to - 1, To: to - 1, Text: []byte(`,"uuid":` + strconv.Quote(m.UUID))})
	}
}

// relay returns the URL under which the relay serves an image. ok is false if the relay cannot serve it.
func (m *Model) relay(md *Medium, inBody bool, src media.Source) (link string, ok bool) {
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
