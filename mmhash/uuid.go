package mmhash

import (
	"sync"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/mmhash/chat"
	"github.com/sightline-router/sightline/mmhash/media"
)

// stripUUIDs takes the client's uuids out of a body: vLLM serves the features of the first picture that it saw under a
// uuid, so a guessed or repeated one would show a client another's picture. A part with data loses its uuid (the value
// becomes null, which the engine reads as none); a part that has nothing but a uuid is refused.
func stripUUIDs(req *chat.Request) (edits []Edit, err error) {
	for i := range req.Messages {
		for j := range req.Messages[i].Parts {
			p := &req.Messages[i].Parts[j]
			if v, ok := p.Fields["uuid"]; !ok || v.Type == gjson.Null {
				continue
			}
			data := false
			for _, key := range []string{"image_url", "image_pil", "image_embeds", "audio_embeds", "prompt_embeds", "audio_url", "input_audio", "video_url"} {
				if v, ok := p.Fields[key]; ok {
					data = v.Type != gjson.Null
					break // the first media key is the one that counts
				}
			}
			if !data && p.Type != "text" {
				return nil, &Refused{Status: 400, Reason: "a content part has a uuid and no data: media are named by their content here", ByUs: true}
			}
			p.Raw.ForEach(func(k, v gjson.Result) bool { // every pair of that name, whichever counts
				if k.String() == "uuid" && v.Type != gjson.Null {
					from, to := req.Body.BodyRange(v)
					edits = append(edits, Edit{From: from, To: to, Text: []byte("null")})
				}
				return true
			})
		}
	}
	return edits, nil
}

// firstSeen remembers which picture a name stood for first, where clients' uuids are trusted: the engine keeps that one's
// features, and its token count, whatever comes later under the name (vLLM 0.32, processor cache).
type firstSeen struct {
	mu    sync.Mutex
	facts map[string]media.Facts
	order []string
}

const maxFirst = 1 << 14

func (t *firstSeen) get(name string) (media.Facts, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, ok := t.facts[name]
	return f, ok
}

// put notes a picture unless the name has one, and gives the one that counts.
func (t *firstSeen) put(name string, f media.Facts) media.Facts {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old, ok := t.facts[name]; ok {
		return old
	}
	if t.facts == nil {
		t.facts = make(map[string]media.Facts)
	}
	if len(t.order) >= maxFirst {
		delete(t.facts, t.order[0])
		t.order = t.order[1:]
	}
	t.facts[name] = f
	t.order = append(t.order, name)
	return f
}
