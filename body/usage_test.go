package body

import (
	"strings"
	"testing"

	"github.com/sightline-router/sightline/internal/denied"
)

// TestAskUsage: the usage is asked for at the end of a stream, unless the request speaks of it, and the body stays what it was.
func TestAskUsage(t *testing.T) {
	const asked = `"include_usage":true`
	image := `,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
		strings.Repeat("AAAA", 4096) + `"}}]}]`
	for given, want := range map[string]string{
		`{"stream":true,"model":"m"}`:                                          `{"stream_options":{` + asked + `},"stream":true,"model":"m"}`,
		` { "stream":true}`:                                                    ` {"stream_options":{` + asked + `}, "stream":true}`,
		`{"stream":true,"stream_options":null}`:                                `{"stream":true,"stream_options":{` + asked + `}}`,
		`{"stream":true,"stream_options":{}}`:                                  `{"stream":true,"stream_options":{` + asked + `}}`,
		`{"stream":true,"stream_options": {"continuous_usage_stats":true}}`:    `{"stream":true,"stream_options": {` + asked + `,"continuous_usage_stats":true}}`,
		`{"stream":true` + image + `,"stream_options":{"continuous":1},"n":1}`: `{"stream":true` + image + `,"stream_options":{` + asked + `,"continuous":1},"n":1}`,
		`{"model":"m"}`:    "",
		`{"stream":false}`: "",
		`{"stream":1}`:     "",
		`{"stream":true,"stream_options":{"include_usage":false}}`: "",
		`{"stream":true,"stream_options":"x"}`:                     "",
		`[]`:                                                       "",
	} {
		var s Skeleton
		var req Request
		pieces := [][]byte{[]byte(given[:len(given)/2]), []byte(given[len(given)/2:])}
		_ = Read(pieces, &s, &req)
		e, ok := AskUsage(denied.Chat, &req)
		if _, other := AskUsage(denied.Responses, &req); other {
			t.Errorf("%.60s: asked of an API that has no such field", given)
		}
		if got := given[:e.From] + string(e.Text) + given[e.To:]; ok != (want != "") || ok && got != want {
			t.Errorf("%.60s: %v, %s", given, ok, got)
		}
	}
}
