package body

import (
	"strings"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/internal/denied"
)

// AskUsage returns the edit that asks for the token usage at the end of a streamed answer (stream_options.include_usage of OpenAI's
// completions and chats); none for other APIs, if the answer is no stream, or if the request says itself whether it wants it.
func AskUsage(path string, req *Request) (e Edit, ok bool) {
	s, options := req.Body, req.Fields["stream_options"]
	if path != denied.Chat && path != denied.Completions || req.Fields["stream"].Type != gjson.True {
		return e, false
	}
	const ask = `"include_usage":true`
	at, text := s.offset(options.Raw), ask
	switch {
	case options.Raw == "":
		at, text = strings.IndexByte(s.JSON(), '{')+1, `"stream_options":{`+ask+`},`
	case options.Type == gjson.Null:
		from := s.BodyOffset(at)
		return Edit{From: from, To: from + len("null"), Text: []byte("{" + ask + "}")}, at >= 0
	case !options.IsObject() || options.Get("include_usage").Exists() || at < 0:
		return e, false
	default:
		at++
		options.ForEach(func(_, _ gjson.Result) bool { text = ask + ","; return false })
	}
	from := s.BodyOffset(at)
	return Edit{From: from, To: from, Text: []byte(text)}, true
}
