// Package hostilebody makes request bodies that are slow or large to read. Only tests import it.
package hostilebody

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"strings"
)

// Shape is a kind of hostile body. Build gives one of about n bytes; nonce makes it differ from all others, so that no
// cache knows it.
type Shape struct {
	Name  string
	Path  string // "": chat completions
	Text  bool   // the text alone makes it hostile
	Most  int    // bytes at which it has as many items as are allowed; 0: no limit
	Build func(n int, nonce string) string
}

func times(n, size int, f func(i int) string) string {
	var b strings.Builder
	for i := 0; b.Len() < n-size; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(f(i))
	}
	return b.String()
}

// Limits of what a request may hold. Bodies of so many of the smallest items cost the most for a byte.
const (
	messagesAndParts = 4096
	keysOfParts      = 65536
	jsonValues       = 131072
	prompts          = 1024
)

// atLimit is a shape of almost as many small items as are allowed. A number in the item makes each of them unlike the others.
func atLimit(most int, name, path, begin, end, item string) Shape {
	most -= 20
	build := numbered(item)
	if !strings.Contains(item, "%d") {
		build = func(int) string { return item }
	}
	size := 1 + len(build(most))
	return Shape{Name: name, Path: path, Most: most * size, Build: func(n int, nonce string) string {
		items := make([]string, min(n/size, most))
		for i := range items {
			items[i] = build(i)
		}
		return `{"user":"` + nonce + `",` + begin[1:] + strings.Join(items, ",") + end
	}}
}

func numbered(format string) func(i int) string {
	return func(i int) string { return fmt.Sprintf(format, i) }
}

// Saying is a chat of one text, which stands in JSON as it is.
func Saying(text string) string {
	return `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`
}

// Holding is a chat of one message with these parts, separated by commas.
func Holding(parts string) string {
	return `{"model":"m","messages":[{"role":"user","content":[` + parts + `]}]}`
}

// repeating is a chat of one text: a unit again and again.
func repeating(unit string) func(n int, nonce string) string {
	return func(n int, nonce string) string { return Saying(nonce + strings.Repeat(unit, n/len(unit))) }
}

// Words are plain prose.
const Words = "The picture shows a harbour at dusk, with 3 boats and (perhaps) 12 people on the quay. "

// Prose is what the others are measured by.
var Prose = Shape{Name: "prose", Build: repeating(Words)}

// All are bodies made to be slow: each stage of the way, with what it would take longest for.
func All() []Shape {
	nested := func(open, end string) func(n int, nonce string) string {
		return func(n int, nonce string) string {
			one := strings.Repeat(open, 150) + `"` + nonce + `"` + strings.Repeat(end, 150)
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"metadata":[` + times(n, len(one),
				func(int) string { return one }) + `]}`
		}
	}
	anthropic := func(role, parts string) string {
		return `{"model":"m","max_tokens":9,"messages":[{"role":"` + role + `","content":[` + parts + `]}]}`
	}
	return []Shape{
		// The scan.
		{Name: "quotes", Build: repeating(`\"`)},
		{Name: "backslashes", Build: repeating(`\\`)},
		{Name: "escaped letters", Build: repeating(`\u00e9`)},
		{Name: "one number", Build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"seed":` + strings.Repeat("7", n) + `}`
		}},
		{Name: "deep lists", Build: nested("[", "]")},
		{Name: "deep objects", Build: nested(`{"a":`, "}")},
		{Name: "equal keys", Build: func(n int, nonce string) string {
			return `{` + times(n, 20, numbered(`"a":%d`)) + `,"model":"m","messages":[{"role":"user","content":"` + nonce + `"}]}`
		}},
		{Name: "many keys", Build: func(n int, nonce string) string {
			return `{` + times(n, 20, numbered(`"a%d":0`)) + `,"model":"m","messages":[{"role":"user","content":"` + nonce + `"}]}`
		}},
		{Name: "fields to remove", Build: func(n int, nonce string) string {
			return `{` + times(min(n, 90_000), 20, numbered(`"bootstrap_%d":0`)) + `,"model":"m","messages":[{"role":"user","content":"` +
				nonce + strings.Repeat("a", max(0, n-90_000)) + `"}]}`
		}},
		// Messages and parts.
		{Name: "messages", Build: func(n int, nonce string) string {
			long := strings.Repeat("a", n/4000)
			return `{"model":"m","messages":[` + times(n-50, 50, numbered(`{"role":"user","content":"`+nonce+long+`%d"}`)) + `]}`
		}},
		{Name: "text parts", Build: func(n int, nonce string) string {
			long := strings.Repeat("a", n/4000)
			return Holding(times(n-40, 50, numbered(`{"type":"text","text":"`+nonce+long+`%d"}`)))
		}},
		{Name: "unknown keys of an image", Build: func(n int, nonce string) string {
			return Holding(`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + tinyPNG(1) + `"},` +
				times(n, 20, numbered(`"`+nonce+`%d":0`)) + `}`)
		}},
		{Name: "keys of tool arguments", Build: func(n int, nonce string) string {
			args := "{" + times(n, 20, numbered(`\"k%d\":0`)) + "}"
			return `{"model":"m","messages":[{"role":"assistant","content":"` + nonce +
				`","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"` + args + `"}}]},{"role":"user","content":"x"}]}`
		}},
		{Name: "tool calls", Build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"assistant","content":"` + nonce + `","tool_calls":[` +
				times(n, 90, numbered(`{"id":"%d","type":"function","function":{"name":"f","arguments":"{}"}}`)) + `]},{"role":"user","content":"x"}]}`
		}},
		{Name: "tools", Build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"tools":[` +
				times(n, 90, numbered(`{"type":"function","function":{"name":"f%d","parameters":{"type":"object"}}}`)) + `]}`
		}},
		{Name: "template variables", Build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"chat_template_kwargs":{` +
				times(n, 20, numbered(`"k%d":0`)) + `}}`
		}},
		{Name: "documents", Build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"documents":[` +
				times(n, 20, numbered(`{"text":"%d"}`)) + `]}`
		}},
		{Name: "images", Build: func(n int, nonce string) string {
			return Holding(`{"type":"text","text":"` + nonce + `"},` + times(n, 200, func(i int) string { return imagePart(i) }))
		}},
		{Name: "images, one a message", Build: func(n int, nonce string) string {
			return `{"model":"m","messages":[` + times(n, 250, func(i int) string {
				return `{"role":"user","content":[{"type":"text","text":"` + nonce + `"},` + imagePart(i) + `]}`
			}) + `]}`
		}},
		{Name: "images and a long text", Build: func(n int, nonce string) string {
			return Holding(times(n/2, 200, imagePart) + `,{"type":"text","text":"` + nonce + strings.Repeat("a ", n/4) + `"}`)
		}},
		{Name: "typed placeholders", Build: repeating("<|image_pad|>")},
		// Other APIs.
		{Name: "thinking blocks", Path: "/v1/messages", Build: func(n int, nonce string) string {
			long := nonce + strings.Repeat("a", n/4000)
			return anthropic("assistant", times(n, 60, numbered(`{"type":"thinking","thinking":"`+long+`%d"}`)))
		}},
		{Name: "base64 images", Path: "/v1/messages", Build: func(n int, nonce string) string {
			return anthropic("user", times(n, 300, base64Part))
		}},
		{Name: "base64 images in tool results", Path: "/v1/messages", Build: func(n int, nonce string) string {
			return anthropic("user", times(n, 1000, func(i int) string {
				return `{"type":"tool_result","tool_use_id":"` + nonce + `","content":[` + times(900, 0, base64Part) + `]}`
			}))
		}},
		{Name: "tool results", Path: "/v1/messages", Build: func(n int, nonce string) string {
			return anthropic("user", times(n, 60, numbered(`{"type":"tool_result","tool_use_id":"%d","content":"`+nonce+
				strings.Repeat("a", 200)+`"}`)))
		}},
		{Name: "input items", Path: "/v1/responses", Build: func(n int, nonce string) string {
			return `{"model":"m","input":[` + times(n, 90, numbered(`{"type":"function_call","call_id":"`+nonce+
				strings.Repeat("a", 200)+`%d","name":"f","arguments":"{}"}`)) + `]}`
		}},
		{Name: "token ids", Path: "/v1/completions", Build: func(n int, nonce string) string {
			return `{"model":"m","prompt":[` + times(n, 5, numbered("%d")) + `]}`
		}},
		{Name: "prompts", Path: "/v1/completions", Build: func(n int, nonce string) string {
			long := strings.Repeat("a ", n/2000)
			return `{"model":"m","prompt":[` + times(n, 20, numbered(`"`+nonce+long+`%d"`)) + `]}`
		}},
		// Values of templates.
		{Name: "numbers", Build: inKwargs("-1.5e-300,")},
		{Name: "long numbers", Build: inKwargs(strings.Repeat("7", 4300) + ",")},
		{Name: "endless numbers", Build: inKwargs(strings.Repeat("7", 10_000) + ",")},
		{Name: "exponents", Build: inKwargs("1e999999999,")},
		{Name: "empty lists", Build: inKwargs("[],")},
		{Name: "empty objects", Build: inKwargs("{},")},
		{Name: "lists in lists", Build: inKwargs(strings.Repeat("[", 150) + strings.Repeat("]", 150) + ",")},
		{Name: "equal keys of an object", Build: inKwargs(`{` + strings.Repeat(`"a":0,`, 1000) + `"a":0},`)},
		{Name: "escapes in values", Build: inKwargs(`"\u00e9\ud83d\udc69\n",`)},
		{Name: "escaped keys", Build: inKwargs(`{"\u0061\u0062":0},`)},
		{Name: "schemas of tools", Build: func(n int, nonce string) string {
			deep := strings.Repeat(`{"type":"object","properties":{"é<>&'":`, 60) + `{}` + strings.Repeat("}}", 60)
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"tools":[` +
				times(n, len(deep)+70, numbered(`{"type":"function","function":{"name":"f%d","parameters":`+deep+`}}`)) + `]}`
		}},
		{Name: "texts of tools to escape", Build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce +
				`"}],"tools":[{"type":"function","function":{"name":"f","description":"` +
				strings.Repeat(`\u0001<é\"`, n/12) + `"}}]}`
		}},
		// Again and again.
		{Name: "equal lists of messages", Build: func(n int, nonce string) string {
			one := `"messages":[` + times(1000, 60, numbered(`{"role":"user","content":"`+nonce+`%d"}`)) + `]`
			return `{"model":"m",` + times(n, len(one), func(int) string { return one }) + `}`
		}},
		{Name: "equal contents of a message", Build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{` + times(n, 60, numbered(`"content":[{"type":"text","text":"`+nonce+`%d"}]`)) + `,"role":"user"}]}`
		}},
		{Name: "equal texts of a part", Build: func(n int, nonce string) string {
			return Holding(`{"type":"text",` + times(n, 30, numbered(`"text":"`+nonce+`%d"`)) + `}`)
		}},
		atLimit(messagesAndParts, "conversations at the limit", "/v1/chat/completions/batch", `{"model":"m","messages":[`, `]}`,
			`[{"role":"user","content":"%d"}]`),
		atLimit(messagesAndParts, "image URLs at the limit", "", `{"model":"m","messages":[{"role":"user","content":[`, `]}]}`,
			`{"type":"image_url","image_url":{"url":"http://127.0.0.1/%d"}}`),
		atLimit(messagesAndParts, "short image URLs at the limit", "", `{"model":"m","messages":[{"role":"user","content":[`, `]}]}`,
			`{"type":"image_url","image_url":{"url":"%d"}}`),
		atLimit(messagesAndParts, "uuids at the limit", "", `{"model":"m","messages":[{"role":"user","content":[`, `]}]}`,
			`{"type":"image_url","image_url":null,"uuid":"%d"}`),
		atLimit(messagesAndParts, "empty parts at the limit", "", `{"model":"m","messages":[{"role":"user","content":[`, `]}]}`,
			`{"type":"text","text":""}`),
		atLimit(messagesAndParts, "bare strings at the limit", "", `{"model":"m","messages":[{"role":"user","content":[`, `]}]}`, `"%d"`),
		atLimit(messagesAndParts, "messages at the limit", "", `{"model":"m","messages":[`, `]}`, `{"role":"user","content":"%d"}`),
		atLimit(messagesAndParts, "empty messages at the limit", "", `{"model":"m","messages":[`, `]}`, `{"role":"user","content":""}`),
		atLimit(messagesAndParts, "system messages at the limit", "", `{"model":"m","messages":[`, `]}`, `{"role":"system","content":"%d"}`),
		atLimit(messagesAndParts, "developer messages at the limit", "",
			`{"model":"m","messages":[`, `]}`, `{"role":"developer","content":"%d"}`),
		atLimit(messagesAndParts, "tools' messages at the limit", "", `{"model":"m","messages":[`, `]}`,
			`{"role":"tool","tool_call_id":"%d","content":[]}`),
		atLimit(messagesAndParts, "messages of a call at the limit", "", `{"model":"m","messages":[`, `]}`,
			`{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]}`),
		atLimit(messagesAndParts, "images of a message at the limit", "", `{"model":"m","messages":[`, `]}`,
			`{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://127.0.0.1/%d"}}]}`),
		atLimit(messagesAndParts, "input items at the limit", "/v1/responses",
			`{"model":"m","input":[`, `]}`, `{"role":"user","content":"%d"}`),
		atLimit(messagesAndParts, "calls among items at the limit", "/v1/responses", `{"model":"m","input":[`, `]}`,
			`{"type":"function_call","call_id":"%d","name":"f","arguments":"{}"}`),
		atLimit(messagesAndParts, "outputs at the limit", "/v1/responses", `{"model":"m","input":[`, `]}`,
			`{"type":"function_call_output","call_id":"%d","output":""}`),
		atLimit(messagesAndParts, "reasoning items at the limit", "/v1/responses", `{"model":"m","input":[`, `]}`,
			`{"type":"reasoning","summary":[{"text":"%d"}]}`),
		atLimit(messagesAndParts, "images among items at the limit", "/v1/responses", `{"model":"m","input":[`, `]}`,
			`{"role":"user","content":[{"type":"input_image","image_url":"http://127.0.0.1/%d"}]}`),
		atLimit(messagesAndParts, "blocks at the limit", "/v1/messages",
			`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[`, `]}]}`,
			`{"type":"text","text":"%d"}`),
		atLimit(messagesAndParts, "results at the limit", "/v1/messages",
			`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":[`, `]}]}`,
			`{"type":"tool_result","tool_use_id":"%d"}`),
		atLimit(messagesAndParts, "uses at the limit", "/v1/messages",
			`{"model":"m","max_tokens":1,"messages":[{"role":"assistant","content":[`, `]}]}`,
			`{"type":"tool_use","id":"%d","name":"f","input":{}}`),
		atLimit(messagesAndParts, "system texts at the limit", "/v1/messages", `{"model":"m","max_tokens":1,"messages":[`, `]}`,
			`{"role":"system","content":"%d"}`),
		atLimit(messagesAndParts, "system blocks at the limit", "/v1/messages",
			`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"}],"system":[`, `]}`, `{"type":"text","text":"%d"}`),
		atLimit(keysOfParts, "keys of a part at the limit", "", `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"a",`,
			`}]}]}`, `"%d":0`),
		atLimit(keysOfParts, "keys of a message at the limit", "", `{"model":"m","messages":[{"role":"user","content":"a",`, `}]}`, `"%d":0`),
		atLimit(messagesAndParts, "keys of messages at the limit", "", `{"model":"m","messages":[`, `]}`,
			`{"role":"user","content":"","a":0,"b":0,"c":0,"d":0,"e":0,"f":0,"g":0,"h":0}`),
		atLimit(prompts, "prompts at the limit", "/v1/completions", `{"model":"m","prompt":[`, `]}`, `"%d"`),
		atLimit(prompts, "lists of an id at the limit", "/v1/completions", `{"model":"m","prompt":[`, `]}`, `[%d]`),
		atLimit(jsonValues/4, "calls without a name at the limit", "", `{"model":"m","messages":[{"role":"assistant","tool_calls":[`,
			`]},{"role":"user","content":"x"}]}`, `{"function":{"arguments":""}}`),
		atLimit(jsonValues/6, "calls at the limit", "", `{"model":"m","messages":[{"role":"assistant","tool_calls":[`,
			`]},{"role":"user","content":"x"}]}`, `{"id":"%d","type":"function","function":{"name":"f","arguments":"{}"}}`),
		atLimit(jsonValues/4, "tools at the limit", "", `{"model":"m","messages":[{"role":"user","content":"a"}],"tools":[`, `]}`,
			`{"type":"function","function":{"name":"%d"}}`),
		atLimit(jsonValues/4, "tools of Messages at the limit", "/v1/messages",
			`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"}],"tools":[`, `]}`, `{"name":"%d","input_schema":{}}`),
		atLimit(jsonValues/3, "tools of Responses at the limit", "/v1/responses", `{"model":"m","input":"a","tools":[`, `]}`,
			`{"type":"function","name":"%d"}`),
		atLimit(jsonValues, "empty lists at the limit", "",
			`{"model":"m","messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"k":[`,
			`]}}`, `[]`),
		atLimit(jsonValues, "variables at the limit", "", `{"model":"m","messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{`,
			`}}`, `"%d":0`),
		atLimit(jsonValues/2, "documents at the limit", "",
			`{"model":"m","messages":[{"role":"user","content":"a"}],"documents":[`, `]}`, `{"":""}`),
		{Name: "conversations", Path: "/v1/chat/completions/batch", Build: func(n int, nonce string) string {
			return `{"model":"m","messages":[` + times(n, 300, numbered(`[{"role":"user","content":"`+nonce+strings.Repeat("a ", 100)+`%d"}]`)) +
				`]}`
		}},
		{Name: "system blocks", Path: "/v1/messages", Build: func(n int, nonce string) string {
			return `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],"system":[` +
				times(n, 300, numbered(`{"type":"text","text":"`+nonce+strings.Repeat("a ", 100)+`%d"}`)) + `]}`
		}},
		{Name: "stops", Build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"stop":[` + times(n, 20, numbered(`"s%d"`)) + `]}`
		}},
		{Name: "a name of a model", Build: func(n int, nonce string) string {
			return `{"model":"` + nonce + strings.Repeat("m", n) + `","messages":[{"role":"user","content":"x"}]}`
		}},
		{Name: "a role", Build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"` + nonce + strings.Repeat("r", n) + `","content":"x"}]}`
		}},
		// Media.
		{Name: "images' uuids", Build: func(n int, nonce string) string {
			return Holding(times(n, 300, numbered(`{"type":"image_url","image_url":null,"uuid":"`+nonce+strings.Repeat("u", 200)+`%d"}`)))
		}},
		{Name: "URLs that no rule allows", Build: func(n int, nonce string) string {
			return Holding(times(n, 300, numbered(`{"type":"image_url","image_url":{"url":"http://127.0.0.1/`+nonce+
				strings.Repeat("u", 200)+`%d"}}`)))
		}},
		{Name: "data URLs of nothing", Build: func(n int, nonce string) string {
			return Holding(`{"type":"text","text":"` + nonce + `"},` + times(min(n, 200_000), 70,
				numbered(`{"type":"image_url","image_url":{"url":"data:image/%d;base64,"}}`)))
		}},
		{Name: "percents of a data URL", Build: func(n int, nonce string) string {
			return Holding(`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + nonce + strings.Repeat("%2B", n/3) + `"}}`)
		}},
		{Name: "parameters of a data URL", Build: func(n int, nonce string) string {
			return Holding(`{"type":"image_url","image_url":{"url":"data:image/png;` + nonce + strings.Repeat("a=b;", n/4) +
				`base64,` + tinyPNG(1) + `"}}`)
		}},
		{Name: "GIF of bytes that say nothing", Build: file("image/gif", "GIF89a\x02\x00\x02\x00\x00\x00\x00", "\x01")},
		{Name: "GIF of comments", Build: file("image/gif", "GIF89a\x02\x00\x02\x00\x00\x00\x00", "!\xfe\x01a\x00")},
		{Name: "GIF of frames", Build: file("image/gif", "GIF89a\x02\x00\x02\x00\x00\x00\x00",
			",\x00\x00\x00\x00\x02\x00\x02\x00\x00\x02\x02\x84\x51\x00")},
		{Name: "PNG of empty chunks", Build: file("image/png", pngHead(), pngChunk("teSt", ""))},
		{Name: "PNG of packed texts", Build: file("image/png", pngHead(), pngChunk("zTXt", "Raw profile type exif\x00\x00"+packed("a")))},
		{Name: "PNG of packed XMP", Build: file("image/png", pngHead(), pngChunk("iTXt", "XML:com.adobe.xmp\x00\x01\x00\x00\x00"+packed("a")))},
		{Name: "PNG of packed megabytes", Build: file("image/png", pngHead(),
			pngChunk("zTXt", "Raw profile type exif\x00\x00"+packed(strings.Repeat("a", 1<<20))))},
		{Name: "PNG of colour profiles", Build: file("image/png", pngHead(), pngChunk("iCCP", "x\x00\x00"+packed(strings.Repeat("a", 1<<20))))},
		{Name: "JPEG of fill bytes", Build: file("image/jpeg", "\xff\xd8", "\xff")},
		{Name: "JPEG of segments", Build: file("image/jpeg", "\xff\xd8", "\xff\xe2\x00\x02")},
		{Name: "JPEG of EXIF", Build: file("image/jpeg", "\xff\xd8", "\xff\xe1\x00\x10Exif\x00\x00II*\x00\x08\x00\x00\x00")},
		{Name: "JPEG of XMP", Build: file("image/jpeg", "\xff\xd8", "\xff\xe1\x00\x30http://ns.adobe.com/xap/1.0/\x00tiff:Orientation")},
		{Name: "WebP of empty chunks",
			Build: file("image/webp", "RIFF\xff\xff\xff\x7fWEBPVP8X\x0a\x00\x00\x00\x1e\x00\x00\x00\x01\x00\x00\x01\x00\x00",
				"test\x00\x00\x00\x00")},
		{Name: "WebP of frames",
			Build: file("image/webp", "RIFF\xff\xff\xff\x7fWEBPVP8X\x0a\x00\x00\x00\x1e\x00\x00\x00\x01\x00\x00\x01\x00\x00",
				"ANMF\x01\x00\x00\x00\x00\x00")},
		// Texts.
		{Name: "letters at random", Text: true, Build: atRandom('a', 26)},
		{Name: "letters and digits at random", Text: true, Build: atRandom('0', 75)},
		{Name: "Chinese at random", Text: true, Build: atRandom('\u4e00', 20_000)},
		{Name: "emoji at random", Text: true, Build: atRandom(0x1F300, 700)},
		{Name: "Hangul at random", Text: true, Build: atRandom('\uac00', 11_000)},
		{Name: "rare letters at random", Text: true, Build: atRandom(0x10000, 3000)},
		{Name: "private letters", Text: true, Build: repeating("\U0010fffd")},
		{Name: "pairs", Text: true, Build: repeating("ab")},
		{Name: "Words of a letter", Text: true, Build: repeating("a ")},
		{Name: "ligatures", Text: true, Build: repeating("\ufdfa")},
		{Name: "letters that decompose", Text: true, Build: repeating("\u1f82\u0344")},
		{Name: "breaks of Windows", Text: true, Build: repeating(`\r\n`)},
		{Name: "blanks of many kinds", Text: true, Build: repeating("\u00a0\u2003\u3000 ")},
		{Name: "joiners", Text: true, Build: repeating("\u200d")},
		{Name: "contractions", Text: true, Build: repeating("'ll're've")},
		{Name: "ends of special tokens", Text: true, Build: repeating("|>")},
		{Name: "calls of tools", Text: true, Build: repeating("<tool_call>{}</tool_call>")},
		{Name: "one letter", Text: true, Build: repeating("a")},
		{Name: "one capital", Text: true, Build: repeating("A")},
		{Name: "blanks", Text: true, Build: repeating(" ")},
		{Name: "blanks and letters", Text: true, Build: repeating("          a")},
		{Name: "breaks", Text: true, Build: repeating(`\n`)},
		{Name: "breaks and blanks", Text: true, Build: repeating(`\n `)},
		{Name: "tabs", Text: true, Build: repeating(`\t`)},
		{Name: "digits", Text: true, Build: repeating("7")},
		{Name: "signs", Text: true, Build: repeating("=")},
		{Name: "apostrophes", Text: true, Build: repeating("'")},
		{Name: "combining marks", Text: true, Build: repeating("\u0301")},
		{Name: "marks out of order", Text: true, Build: repeating("\u0301\u0323")},
		{Name: "composing letters", Text: true, Build: repeating("a\u0323\u0302")},
		{Name: "jamo", Text: true, Build: repeating("\u1100\u1161\u11a8")},
		{Name: "Chinese", Text: true, Build: repeating("港口")},
		{Name: "emoji", Text: true, Build: repeating("👩‍👩‍👧")},
		{Name: "beginnings of special tokens", Text: true, Build: repeating("<|im_")},
		{Name: "special tokens", Text: true, Build: repeating("<|im_start|>")},
		{Name: "thoughts", Text: true, Build: repeating("<think></think>")},
	}
}

// tinyPNG is the i-th of a row of different images, as base64.
func tinyPNG(i int) string {
	pixels := string(binary.BigEndian.AppendUint32(nil, uint32(i))) + string(make([]byte, 0x74))
	return base64.StdEncoding.EncodeToString([]byte(pngHead() + pngChunk("IDAT", pixels) + pngChunk("IEND", "")))
}

func imagePart(i int) string {
	return fmt.Sprintf(`{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}`, tinyPNG(i))
}

func base64Part(i int) string {
	return fmt.Sprintf(`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"%s"}}`, tinyPNG(i))
}

// inKwargs is a list of equal values among the variables of a template.
func inKwargs(value string) func(n int, nonce string) string {
	return func(n int, nonce string) string {
		return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"chat_template_kwargs":{"k":[` +
			strings.Repeat(value, max(1, n/len(value))) + `0]}}`
	}
}

// atRandom is a text of letters of a range, without a blank.
func atRandom(first rune, of int) func(n int, nonce string) string {
	return func(n int, nonce string) string {
		r := rand.New(rand.NewPCG(1, uint64(n)))
		var b strings.Builder
		for b.Len() < n {
			if c := first + rune(r.IntN(of)); c != '\\' && c != '"' {
				b.WriteRune(c)
			}
		}
		return Saying(nonce + b.String())
	}
}

// file is one medium: a head, and a unit again and again.
func file(mime, head, unit string) func(n int, nonce string) string {
	kind, _, _ := strings.Cut(mime, "/")
	return func(n int, nonce string) string {
		b := head + strings.Repeat(unit, n*3/4/len(unit)) + nonce
		return Holding(`{"type":"` + kind + `_url","` + kind + `_url":{"url":"data:` + mime + `;base64,` +
			base64.StdEncoding.EncodeToString([]byte(b)) + `"}}`)
	}
}

func pngHead() string {
	return "\x89PNG\r\n\x1a\n" + pngChunk("IHDR", "\x00\x00\x00\x1c\x00\x00\x00\x1c\x08\x02\x00\x00\x00")
}

func pngChunk(id, data string) string {
	b := append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), id+data...)
	return string(binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[4:])))
}

func packed(text string) string {
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	_, _ = w.Write([]byte(text))
	_ = w.Close()
	return b.String()
}
