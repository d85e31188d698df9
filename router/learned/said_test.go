package learned

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/body"
)

// TestSaid: which answers are known by their texts, in whatever pieces they come, and which requests give them back.
func TestSaid(t *testing.T) {
	const text = "It's \"here\":\n naïve 😀"
	quoted := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	stream := func(lines ...string) string { return "data: " + strings.Join(lines, "\n\ndata: ") + "\n\n" }
	const stop = `{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`
	delta := func(of string) string { return `{"choices":[{"index":0,"delta":{` + of + `},"finish_reason":null}]}` }
	whole := func(of string) string {
		return `{"choices":[{"index":0,"message":{"role":"assistant",` + of + `},"finish_reason":"length"}],"usage":{}}`
	}
	back := `{"role":"assistant","content":` + quoted(text) + `}`
	h := NewHasher([]byte("secret"))
	for name, c := range map[string]struct {
		response, given string
		want            bool
	}{
		"an object": {whole(`"refusal":null,"tool_calls":[],"content":` + quoted(text)), back, true},
		"pretty":    {strings.ReplaceAll(whole(`"content":`+quoted(text)), `,"`, ",\n\""), back, false},
		"a stream": {stream(delta(`"role":"assistant","content":""`), delta(`"content":`+quoted(text[:9])),
			delta(`"content":`+quoted(text[9:])), stop, "[DONE]"), back, true},
		"given in part": {whole(`"content":` + quoted(text)), `{"role":"assistant","content":[{"type":"text","text":` + quoted(text) +
			`,"cache_control":{"type":"ephemeral"}}],"refusal":null}`, true},
		"other escapes": {whole(`"content":` + quoted(text)),
			`{"role":"assistant","content":"It\u0027s \"here\":\u000a na\u00efve \ud83d\ude00"}`, true},
		"edited":      {whole(`"content":` + quoted(text+"!")), back, false},
		"no end":      {stream(delta(`"content":` + quoted(text))), back, false},
		"reasoning":   {stream(delta(`"reasoning_content":"hm"`), delta(`"content":`+quoted(text)), stop), back, false},
		"tools":       {whole(`"tool_calls":[{"id":"1"}],"content":` + quoted(text)), back, false},
		"two choices": {stream(delta(`"content":`+quoted(text)), `{"choices":[{"index":1,"delta":{"content":"x"}}]}`, stop), back, false},
		"tools given": {whole(`"content":` + quoted(text)),
			`{"role":"assistant","tool_calls":[{"id":"1"}],"content":` + quoted(text) + `}`, false},
		"a long line": {whole(`"content":` + quoted(text) + `,"x":"` + strings.Repeat("x", maxSaid) + `"`), back, false},
		"Messages":    {`{"type":"message","role":"assistant","content":[{"type":"text","text":` + quoted(text) + `}]}`, back, true},
		"Messages' stream": {"event: content_block_start\n" +
			stream(`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
				`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":`+quoted(text)+`}}`,
				`{"type":"message_stop"}`), back, true},
		"Messages' thinking": {stream(`{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":""}}`,
			`{"type":"content_block_delta","index":1,"delta":{"type":"text_delta","text":`+quoted(text)+`}}`,
			`{"type":"message_stop"}`), back, false},
		"compressed": {"\x1f\x8b\x08\x00\x00", back, false},
		"empty":      {whole(`"content":""`), `{"role":"assistant","content":""}`, false},
	} {
		var s body.Skeleton
		var req body.Request
		raw := `{"model":"m","messages":[{"role":"user","content":"?"},` + c.given + `,{"role":"user","content":"!"}]}`
		if err := body.Read([][]byte{[]byte(raw)}, &s, &req); err != nil {
			t.Fatalf("%q: got %v, want no error", name, err)
		}
		var p Path
		h.Read(&p, Head{}, &s, &req)
		for _, size := range []int{1, 7, len(c.response)} {
			said := h.NewSaid()
			for at := 0; at < len(c.response); at += size {
				to := min(at+size, len(c.response))
				said.Write([]byte(c.response[at:to]), to == len(c.response))
			}
			if got := said.Sum() != 0 && said.Sum() == p.Said; got != c.want {
				t.Errorf("%s, in pieces of %d: given back is %t, want %t", name, size, got, c.want)
			}
		}
		if p.Said != 0 && !p.Steps[p.SaidAt].Answer {
			t.Errorf("%s: got an answer's hash at step %d of another message, want it at an answer's first step", name, p.SaidAt)
		}
	}
	var none *Said
	none.Write([]byte("x"), true)
	if got := none.Sum(); got != 0 {
		t.Errorf("an answer that nobody reads: got hash %d, want 0", got)
	}
}
