package prompt_test

import (
	"slices"
	"strings"
	"testing"

	. "github.com/sightline-router/sightline/prompt"
)

// TestServedThoughOdd: odd requests that vLLM serves are not counted as refused: pydantic accepts bools as ids, Python's JSON
// accepts unpaired surrogates. If their effect is not known, the result says so.
func TestServedThoughOdd(t *testing.T) {
	hf, mistral := load(t, shipped, Options{AutoToolChoice: true}), load(t, mistralDir(t, nil), Options{})
	trtllm := load(t, shipped, Options{Dialect: of("trtllm")})
	const tool = `"tools":[{"type":"function","function":{"name":"f","description":"\ud800","parameters":{}}}]`
	many := func(before, after string) string { // more values than are read of one text
		return `{"messages":[{"role":"user","content":"a"}],` + before + strings.Repeat("1,", 1<<19) + "1" + after + `}`
	}
	for _, c := range []struct {
		m              *Renderer
		endpoint, body string
		want           error // nil: read
	}{
		{hf, ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],` + tool + `}`, ErrPython},
		{hf, ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"documents":[{"text":"\udc00"}]}`, ErrPython},
		{hf, ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"a":"\ud800"}}`, ErrPython},
		{hf, MessagesEndpoint,
			`{"max_tokens":3,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f","input":{"a":"\ud800"}}]},{"role":"user","content":"b"}]}`, ErrPython},
		{hf, ChatEndpoint, toolCall(`"{\"a\":NaN}"`), ErrPython},
		{trtllm, ChatEndpoint, toolCall(`"{\"a\":NaN}"`), ErrPython},
		{trtllm, ChatEndpoint, toolCall(`"{\"a\":[-Infinity]}"`), ErrPython},
		{mistral, ChatEndpoint, `{"messages":[{"role":"user","content":"a"}],` + tool + `}`, ErrPython},
		{mistral, ChatEndpoint, `{"messages":[{"role":"user","content":"\ud800"}]}`, ErrPython},
		{mistral, ChatEndpoint, `{"messages":[{"role":"user","content":[{"type":"text","text":"a\udc00"}]}]}`, ErrPython},
		{mistral, CompletionsEndpoint, `{"prompt":"a\ud800"}`, ErrPython},
		{hf, ChatEndpoint, many(`"chat_template_kwargs":{"a":[`, `]}`), ErrTemplateLimit},
		{hf, ChatEndpoint, many(`"tools":[{"type":"function","function":{"name":"f","parameters":{"a":[`, `]}}}]`), ErrTemplateLimit},
		{hf, CompletionsEndpoint, `{"prompt":[1,"5"]}`, ErrPart},
		{hf, CompletionsEndpoint, `{"prompt":["5",1]}`, ErrPart},
		{hf, CompletionsEndpoint, `{"prompt":[true,false,7]}`, nil},
		{hf, CompletionsEndpoint, `{"prompt":[[true,false,7]]}`, nil},
	} {
		d, err := c.m.Read(t.Context(), c.endpoint, request(t, c.body))
		if err != c.want {
			t.Errorf("%s: %v, want %v", c.body, err, c.want)
		} else if err == nil && !slices.Equal(d.Prompts[0].IDs, []uint32{1, 0, 7}) {
			t.Errorf("%s: %v", c.body, d.Prompts[0].IDs)
		}
	}
	sglang := load(t, shipped, Options{Dialect: of("sglang")})
	if _, err := sglang.Read(t.Context(), ChatEndpoint, request(t, toolCall(`"{\"a\":NaN}"`))); statusOf(err) != 400 {
		t.Errorf("SGLang reads arguments with orjson, which refuses NaN: %v", err)
	}
	for _, body := range []string{`{"prompt":[true,"a"]}`, `{"prompt":["a",1]}`, `{"prompt":[1.5]}`, `{"prompt":true}`,
		`{"prompt":[null]}`, `{"prompt":[]}`} {
		if _, err := hf.Read(t.Context(), CompletionsEndpoint, request(t, body)); statusOf(err) != 400 {
			t.Errorf("%s: %v, want 400", body, err)
		}
	}
}

// TestOwnTemplateIsShort: a request's own template of more than 64 KiB is not compiled.
func TestOwnTemplateIsShort(t *testing.T) {
	m := load(t, shipped, Options{TrustChatTemplate: true})
	for n, want := range map[int]error{64 << 10: nil, 64<<10 + 1: ErrTemplateLimit} {
		body := `{"messages":[{"role":"user","content":"a"}],"chat_template":"` + strings.Repeat("x", n) + `"}`
		if _, err := m.Read(t.Context(), ChatEndpoint, request(t, body)); err != want {
			t.Errorf("%d bytes: %v, want %v", n, err, want)
		}
	}
}

// TestMistralIsStricter: mistral-common accepts no scheme in upper case, though vLLM does.
func TestMistralIsStricter(t *testing.T) {
	mistral := load(t, mistralDir(t, nil), Options{})
	for body, status := range map[string]int{
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"` + png + `"}}]}]}`:                     0,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"\u0064ata:image/png;base64,aaaa"}}]}]}`: 0,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http:\/\/a\/b"}}]}]}`:                   0,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"DATA:image/png;base64,aaaa"}}]}]}`:      400,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"Data:image/png;base64,aaaa"}}]}]}`:      400,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"HTTP://a/b"}}]}]}`:                      400,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":"\u0044ata:image/png;base64,aaaa"}]}]}`:         400,
		`{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"DATA:IMAGE/PNG;BASE64,aaaa"}}]}]}`:      501,
		toolCall(`"{\"a\":1}"`): 0,
	} {
		if d, err := mistral.Read(t.Context(), ChatEndpoint, request(t, body)); statusOf(err) != status || err == nil && d == nil {
			t.Errorf("mistral mode: %s: %v, want %d", body, err, status)
		}
	}
}

func toolCall(arguments string) string {
	return `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"123456789","type":"function","function":{"name":"f","arguments":` + arguments +
		`}}]},{"role":"tool","tool_call_id":"123456789","content":"x"}]}`
}
