package engine

import (
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/prompt"
)

// Facts are what decides, besides a prompt's tokens and media, whether the blocks that a worker holds of it are a hit. Predictions by
// rules and by what was learned both need them.
type Facts struct {
	Reuse     prompt.Reuse // whether the engine looks the prompts up in its prefix cache
	Several   bool         // the request has more than one prompt
	Truncated bool         // where its prompt begins, or ends, depends on its length: one that goes on may begin elsewhere

	keyed string // why events do not tell the request's blocks from those of other keys with equal tokens; "": they do
	media string // likewise if there are media
}

// Ambiguous returns why the engine's events do not tell the request's blocks from others of equal tokens; "": they do. media: the blocks
// have media.
func (f *Facts) Ambiguous(media bool) string {
	if f.keyed == "" && media {
		return f.media
	}
	return f.keyed
}

// Facts returns a request's facts; lora is the adapter that it names, or "".
func (m *Model) Facts(endpoint, lora string, req *body.Request) Facts {
	f := Facts{Several: len(req.Batch) > 1, Truncated: m.rules.Dialect.Truncates(endpoint, req), keyed: m.keyedAlike(lora, req)}
	if ask := m.rules.Dialect.Reuse; ask != nil {
		f.Reuse = ask(endpoint, req)
	}
	if m.Server.Dynamo() && f.Reuse == prompt.Recomputed {
		f.Reuse = prompt.Perhaps // how Dynamo's front ends read the fields is not known
	}
	if !m.rules.EventsIncludeMedia {
		f.media = noMediaInEvents
	}
	for _, key := range []string{"prompt", m.rules.Dialect.IDsField} {
		list := req.Fields[key]
		first := list.Get("0")
		f.Several = f.Several || (first.Type == gjson.String || first.IsArray()) && list.Get("1").Exists()
	}
	return f
}

const noMediaInEvents = "this release's events do not tell media and salts apart"

// keyedAlike returns why blocks of equal token ids, but of another salt, adapter or extra key, look the same in the events of this release.
func (m *Model) keyedAlike(lora string, req *body.Request) string {
	r, extra := &m.rules, req.Fields["extra_key"]
	salt := req.Fields["cache_salt"].String()
	if m.keys.Salt != nil {
		salt = m.keys.Salt(salt, req)
	}
	switch {
	case !r.EventsIncludeMedia && salt != "":
		return noMediaInEvents
	case m.Server.Dynamo():
	case r.TakesExtraKey && extra.Exists() && extra.Type != gjson.Null && extra.Raw != `""`:
		return "SGLang's events do not tell an extra_key"
	case !r.EventsIncludeAdapter && lora != "":
		return "this release's events do not tell adapters apart"
	}
	return ""
}
