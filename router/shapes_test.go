package router

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

// Bodies made to be slow: what TestLinear measures.

// shape is a kind of hostile body. build gives one of about n bytes; nonce makes it differ from all others, so that no
// cache knows it.
type shape struct {
	name  string
	path  string // "": chat completions
	text  bool   // the text alone makes it hostile
	build func(n int, nonce string) string
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

func numbered(format string) func(i int) string {
	return func(i int) string { return fmt.Sprintf(format, i) }
}

func saying(text string) string {
	return `{"model":"m","messages":[{"role":"user","content":"` + text + `"}]}`
}

func holding(parts string) string {
	return `{"model":"m","messages":[{"role":"user","content":[` + parts + `]}]}`
}

// repeating is a chat of one text: a unit again and again.
func repeating(unit string) func(n int, nonce string) string {
	return func(n int, nonce string) string { return saying(nonce + strings.Repeat(unit, n/len(unit))) }
}

const words = "The picture shows a harbour at dusk, with 3 boats and (perhaps) 12 people on the quay. "

// plainProse is what the others are measured by.
var plainProse = shape{name: "prose", build: repeating(words)}

// hostileShapes are bodies made to be slow: each stage of the way, with what it would take longest for.
func hostileShapes() []shape {
	nested := func(open, end string) func(n int, nonce string) string {
		return func(n int, nonce string) string {
			one := strings.Repeat(open, 150) + `"` + nonce + `"` + strings.Repeat(end, 150)
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"metadata":[` + times(n, len(one), func(int) string { return one }) + `]}`
		}
	}
	anthropic := func(role, parts string) string {
		return `{"model":"m","max_tokens":9,"messages":[{"role":"` + role + `","content":[` + parts + `]}]}`
	}
	return []shape{
		// The scan.
		{name: "quotes", build: repeating(`\"`)},
		{name: "backslashes", build: repeating(`\\`)},
		{name: "escaped letters", build: repeating(`\u00e9`)},
		{name: "one number", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"seed":` + strings.Repeat("7", n) + `}`
		}},
		{name: "deep lists", build: nested("[", "]")},
		{name: "deep objects", build: nested(`{"a":`, "}")},
		{name: "equal keys", build: func(n int, nonce string) string {
			return `{` + times(n, 20, numbered(`"a":%d`)) + `,"model":"m","messages":[{"role":"user","content":"` + nonce + `"}]}`
		}},
		{name: "many keys", build: func(n int, nonce string) string {
			return `{` + times(n, 20, numbered(`"a%d":0`)) + `,"model":"m","messages":[{"role":"user","content":"` + nonce + `"}]}`
		}},
		{name: "fields to remove", build: func(n int, nonce string) string {
			return `{` + times(min(n, 90_000), 20, numbered(`"bootstrap_%d":0`)) + `,"model":"m","messages":[{"role":"user","content":"` + nonce + strings.Repeat("a", max(0, n-90_000)) + `"}]}`
		}},
		// Messages and parts.
		{name: "messages", build: func(n int, nonce string) string {
			long := strings.Repeat("a", n/4000)
			return `{"model":"m","messages":[` + times(n-50, 50, numbered(`{"role":"user","content":"`+nonce+long+`%d"}`)) + `]}`
		}},
		{name: "text parts", build: func(n int, nonce string) string {
			long := strings.Repeat("a", n/4000)
			return holding(times(n-40, 50, numbered(`{"type":"text","text":"`+nonce+long+`%d"}`)))
		}},
		{name: "unknown keys of a part", build: func(n int, nonce string) string {
			return holding(`{"type":"text","text":"` + nonce + `",` + times(n, 20, numbered(`"k%d":0`)) + `}`)
		}},
		{name: "unknown keys of a picture", build: func(n int, nonce string) string {
			return holding(`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + tinyPNG(1) + `"},` + times(n, 20, numbered(`"`+nonce+`%d":0`)) + `}`)
		}},
		{name: "keys of tool arguments", build: func(n int, nonce string) string {
			args := "{" + times(n, 20, numbered(`\"k%d\":0`)) + "}"
			return `{"model":"m","messages":[{"role":"assistant","content":"` + nonce + `","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"` + args + `"}}]},{"role":"user","content":"x"}]}`
		}},
		{name: "tool calls", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"assistant","content":"` + nonce + `","tool_calls":[` +
				times(n, 90, numbered(`{"id":"%d","type":"function","function":{"name":"f","arguments":"{}"}}`)) + `]},{"role":"user","content":"x"}]}`
		}},
		{name: "tools", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"tools":[` +
				times(n, 90, numbered(`{"type":"function","function":{"name":"f%d","parameters":{"type":"object"}}}`)) + `]}`
		}},
		{name: "template variables", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"chat_template_kwargs":{` + times(n, 20, numbered(`"k%d":0`)) + `}}`
		}},
		{name: "documents", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"documents":[` + times(n, 20, numbered(`{"text":"%d"}`)) + `]}`
		}},
		{name: "pictures", build: func(n int, nonce string) string {
			return holding(`{"type":"text","text":"` + nonce + `"},` + times(n, 200, func(i int) string { return picturePart(i) }))
		}},
		{name: "pictures, one a message", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[` + times(n, 250, func(i int) string {
				return `{"role":"user","content":[{"type":"text","text":"` + nonce + `"},` + picturePart(i) + `]}`
			}) + `]}`
		}},
		{name: "pictures and a long text", build: func(n int, nonce string) string {
			return holding(times(n/2, 200, picturePart) + `,{"type":"text","text":"` + nonce + strings.Repeat("a ", n/4) + `"}`)
		}},
		{name: "typed placeholders", build: repeating("<|image_pad|>")},
		// Other APIs.
		{name: "thinking blocks", path: "/v1/messages", build: func(n int, nonce string) string {
			long := nonce + strings.Repeat("a", n/4000)
			return anthropic("assistant", times(n, 60, numbered(`{"type":"thinking","thinking":"`+long+`%d"}`)))
		}},
		{name: "base64 pictures", path: "/v1/messages", build: func(n int, nonce string) string {
			return anthropic("user", times(n, 300, base64Part))
		}},
		{name: "base64 pictures in tool results", path: "/v1/messages", build: func(n int, nonce string) string {
			return anthropic("user", times(n, 1000, func(i int) string {
				return `{"type":"tool_result","tool_use_id":"` + nonce + `","content":[` + times(900, 0, base64Part) + `]}`
			}))
		}},
		{name: "tool results", path: "/v1/messages", build: func(n int, nonce string) string {
			return anthropic("user", times(n, 60, numbered(`{"type":"tool_result","tool_use_id":"%d","content":"`+nonce+strings.Repeat("a", 200)+`"}`)))
		}},
		{name: "input items", path: "/v1/responses", build: func(n int, nonce string) string {
			return `{"model":"m","input":[` + times(n, 90, numbered(`{"type":"function_call","call_id":"`+nonce+strings.Repeat("a", 200)+`%d","name":"f","arguments":"{}"}`)) + `]}`
		}},
		{name: "token ids", path: "/v1/completions", build: func(n int, nonce string) string {
			return `{"model":"m","prompt":[` + times(n, 5, numbered("%d")) + `]}`
		}},
		{name: "prompts", path: "/v1/completions", build: func(n int, nonce string) string {
			long := strings.Repeat("a ", n/2000)
			return `{"model":"m","prompt":[` + times(n, 20, numbered(`"`+nonce+long+`%d"`)) + `]}`
		}},
		// Values of templates.
		{name: "numbers", build: inKwargs("-1.5e-300,")},
		{name: "long numbers", build: inKwargs(strings.Repeat("7", 4300) + ",")},
		{name: "endless numbers", build: inKwargs(strings.Repeat("7", 10_000) + ",")},
		{name: "exponents", build: inKwargs("1e999999999,")},
		{name: "empty lists", build: inKwargs("[],")},
		{name: "empty objects", build: inKwargs("{},")},
		{name: "lists in lists", build: inKwargs(strings.Repeat("[", 150) + strings.Repeat("]", 150) + ",")},
		{name: "equal keys of an object", build: inKwargs(`{` + strings.Repeat(`"a":0,`, 1000) + `"a":0},`)},
		{name: "escapes in values", build: inKwargs(`"\u00e9\ud83d\udc69\n",`)},
		{name: "escaped keys", build: inKwargs(`{"\u0061\u0062":0},`)},
		{name: "schemas of tools", build: func(n int, nonce string) string {
			deep := strings.Repeat(`{"type":"object","properties":{"é<>&'":`, 60) + `{}` + strings.Repeat("}}", 60)
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"tools":[` +
				times(n, len(deep)+70, numbered(`{"type":"function","function":{"name":"f%d","parameters":`+deep+`}}`)) + `]}`
		}},
		{name: "texts of tools to escape", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"tools":[{"type":"function","function":{"name":"f","description":"` +
				strings.Repeat(`\u0001<é\"`, n/12) + `"}}]}`
		}},
		// Again and again.
		{name: "equal lists of messages", build: func(n int, nonce string) string {
			one := `"messages":[` + times(1000, 60, numbered(`{"role":"user","content":"`+nonce+`%d"}`)) + `]`
			return `{"model":"m",` + times(n, len(one), func(int) string { return one }) + `}`
		}},
		{name: "equal contents of a message", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{` + times(n, 60, numbered(`"content":[{"type":"text","text":"`+nonce+`%d"}]`)) + `,"role":"user"}]}`
		}},
		{name: "equal texts of a part", build: func(n int, nonce string) string {
			return holding(`{"type":"text",` + times(n, 30, numbered(`"text":"`+nonce+`%d"`)) + `}`)
		}},
		{name: "conversations", path: "/v1/chat/completions/batch", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[` + times(n, 300, numbered(`[{"role":"user","content":"`+nonce+strings.Repeat("a ", 100)+`%d"}]`)) + `]}`
		}},
		{name: "system blocks", path: "/v1/messages", build: func(n int, nonce string) string {
			return `{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"x"}],"system":[` +
				times(n, 300, numbered(`{"type":"text","text":"`+nonce+strings.Repeat("a ", 100)+`%d"}`)) + `]}`
		}},
		{name: "stops", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"stop":[` + times(n, 20, numbered(`"s%d"`)) + `]}`
		}},
		{name: "a name of a model", build: func(n int, nonce string) string {
			return `{"model":"` + nonce + strings.Repeat("m", n) + `","messages":[{"role":"user","content":"x"}]}`
		}},
		{name: "a role", build: func(n int, nonce string) string {
			return `{"model":"m","messages":[{"role":"` + nonce + strings.Repeat("r", n) + `","content":"x"}]}`
		}},
		// Media.
		{name: "pictures' uuids", build: func(n int, nonce string) string {
			return holding(times(n, 300, numbered(`{"type":"image_url","image_url":null,"uuid":"`+nonce+strings.Repeat("u", 200)+`%d"}`)))
		}},
		{name: "URLs that no rule allows", build: func(n int, nonce string) string {
			return holding(times(n, 300, numbered(`{"type":"image_url","image_url":{"url":"http://127.0.0.1/`+nonce+strings.Repeat("u", 200)+`%d"}}`)))
		}},
		{name: "data URLs of nothing", build: func(n int, nonce string) string {
			return holding(`{"type":"text","text":"` + nonce + `"},` + times(min(n, 200_000), 70, numbered(`{"type":"image_url","image_url":{"url":"data:image/%d;base64,"}}`)))
		}},
		{name: "percents of a data URL", build: func(n int, nonce string) string {
			return holding(`{"type":"image_url","image_url":{"url":"data:image/png;base64,` + nonce + strings.Repeat("%2B", n/3) + `"}}`)
		}},
		{name: "parameters of a data URL", build: func(n int, nonce string) string {
			return holding(`{"type":"image_url","image_url":{"url":"data:image/png;` + nonce + strings.Repeat("a=b;", n/4) + `base64,` + tinyPNG(1) + `"}}`)
		}},
		{name: "GIF of bytes that say nothing", build: file("image/gif", "GIF89a\x02\x00\x02\x00\x00\x00\x00", "\x01")},
		{name: "GIF of comments", build: file("image/gif", "GIF89a\x02\x00\x02\x00\x00\x00\x00", "!\xfe\x01a\x00")},
		{name: "GIF of frames", build: file("image/gif", "GIF89a\x02\x00\x02\x00\x00\x00\x00", ",\x00\x00\x00\x00\x02\x00\x02\x00\x00\x02\x02\x84\x51\x00")},
		{name: "PNG of empty chunks", build: file("image/png", pngHead(), pngChunk("teSt", ""))},
		{name: "PNG of packed texts", build: file("image/png", pngHead(), pngChunk("zTXt", "Raw profile type exif\x00\x00"+packed("a")))},
		{name: "PNG of packed XMP", build: file("image/png", pngHead(), pngChunk("iTXt", "XML:com.adobe.xmp\x00\x01\x00\x00\x00"+packed("a")))},
		{name: "PNG of packed megabytes", build: file("image/png", pngHead(), pngChunk("zTXt", "Raw profile type exif\x00\x00"+packed(strings.Repeat("a", 1<<20))))},
		{name: "PNG of colour profiles", build: file("image/png", pngHead(), pngChunk("iCCP", "x\x00\x00"+packed(strings.Repeat("a", 1<<20))))},
		{name: "JPEG of fill bytes", build: file("image/jpeg", "\xff\xd8", "\xff")},
		{name: "JPEG of segments", build: file("image/jpeg", "\xff\xd8", "\xff\xe2\x00\x02")},
		{name: "JPEG of EXIF", build: file("image/jpeg", "\xff\xd8", "\xff\xe1\x00\x10Exif\x00\x00II*\x00\x08\x00\x00\x00")},
		{name: "JPEG of XMP", build: file("image/jpeg", "\xff\xd8", "\xff\xe1\x00\x30http://ns.adobe.com/xap/1.0/\x00tiff:Orientation")},
		{name: "WebP of empty chunks", build: file("image/webp", "RIFF\xff\xff\xff\x7fWEBPVP8X\x0a\x00\x00\x00\x1e\x00\x00\x00\x01\x00\x00\x01\x00\x00", "test\x00\x00\x00\x00")},
		{name: "WebP of frames", build: file("image/webp", "RIFF\xff\xff\xff\x7fWEBPVP8X\x0a\x00\x00\x00\x1e\x00\x00\x00\x01\x00\x00\x01\x00\x00", "ANMF\x01\x00\x00\x00\x00\x00")},
		{name: "TIFF of entries", build: file("image/tiff", "II*\x00\x08\x00\x00\x00\xff\x28", "\x02\x01\x03\x00\x80\x00\x00\x00\x10\x00\x00\x00")},
		{name: "AVIF of items", build: file("image/avif", "\x00\x00\x00\x14ftypavif\x00\x00\x00\x00avif\x7f\xff\xff\xffmeta\x00\x00\x00\x00\x7f\xff\xff\xffiinf\x00\x00\x00\x00\xff\xff",
			"\x00\x00\x00\x15infe\x02\x00\x00\x00\x00\x01\x00\x00av01\x00")},
		{name: "MP4 of boxes", build: file("video/mp4", "\x00\x00\x00\x14ftypisom\x00\x00\x00\x00isom", "\x00\x00\x00\x08free")},
		{name: "MP4 of tracks", build: file("video/mp4", "\x00\x00\x00\x14ftypisom\x00\x00\x00\x00isom\x00\x0b\x00\x00moov", "\x00\x00\x00\x10trak\x00\x00\x00\x08mdia")},
		{name: "Matroska of elements", build: file("video/webm", "\x1a\x45\xdf\xa3\x80\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff", "\xec\x80")},
		// Texts.
		{name: "letters at random", text: true, build: atRandom('a', 26)},
		{name: "letters and digits at random", text: true, build: atRandom('0', 75)},
		{name: "Chinese at random", text: true, build: atRandom('\u4e00', 20_000)},
		{name: "emoji at random", text: true, build: atRandom(0x1F300, 700)},
		{name: "Hangul at random", text: true, build: atRandom('\uac00', 11_000)},
		{name: "rare letters at random", text: true, build: atRandom(0x10000, 3000)},
		{name: "private letters", text: true, build: repeating("\U0010fffd")},
		{name: "pairs", text: true, build: repeating("ab")},
		{name: "words of a letter", text: true, build: repeating("a ")},
		{name: "ligatures", text: true, build: repeating("\ufdfa")},
		{name: "letters that decompose", text: true, build: repeating("\u1f82\u0344")},
		{name: "breaks of Windows", text: true, build: repeating(`\r\n`)},
		{name: "blanks of many kinds", text: true, build: repeating("\u00a0\u2003\u3000 ")},
		{name: "joiners", text: true, build: repeating("\u200d")},
		{name: "contractions", text: true, build: repeating("'ll're've")},
		{name: "ends of special tokens", text: true, build: repeating("|>")},
		{name: "calls of tools", text: true, build: repeating("<tool_call>{}</tool_call>")},
		{name: "one letter", text: true, build: repeating("a")},
		{name: "one capital", text: true, build: repeating("A")},
		{name: "blanks", text: true, build: repeating(" ")},
		{name: "blanks and letters", text: true, build: repeating("          a")},
		{name: "breaks", text: true, build: repeating(`\n`)},
		{name: "breaks and blanks", text: true, build: repeating(`\n `)},
		{name: "tabs", text: true, build: repeating(`\t`)},
		{name: "digits", text: true, build: repeating("7")},
		{name: "signs", text: true, build: repeating("=")},
		{name: "apostrophes", text: true, build: repeating("'")},
		{name: "combining marks", text: true, build: repeating("\u0301")},
		{name: "marks out of order", text: true, build: repeating("\u0301\u0323")},
		{name: "composing letters", text: true, build: repeating("a\u0323\u0302")},
		{name: "jamo", text: true, build: repeating("\u1100\u1161\u11a8")},
		{name: "Chinese", text: true, build: repeating("港口")},
		{name: "emoji", text: true, build: repeating("👩‍👩‍👧")},
		{name: "beginnings of special tokens", text: true, build: repeating("<|im_")},
		{name: "special tokens", text: true, build: repeating("<|im_start|>")},
		{name: "thoughts", text: true, build: repeating("<think></think>")},
	}
}

// tinyPNG is the i-th of a row of different pictures, as base64.
func tinyPNG(i int) string {
	pixels := string(binary.BigEndian.AppendUint32(nil, uint32(i))) + string(make([]byte, 0x74))
	return base64.StdEncoding.EncodeToString([]byte(pngHead() + pngChunk("IDAT", pixels) + pngChunk("IEND", "")))
}

func picturePart(i int) string {
	return fmt.Sprintf(`{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}`, tinyPNG(i))
}

func base64Part(i int) string {
	return fmt.Sprintf(`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"%s"}}`, tinyPNG(i))
}

// inKwargs is a list of equal values among the variables of a template.
func inKwargs(value string) func(n int, nonce string) string {
	return func(n int, nonce string) string {
		return `{"model":"m","messages":[{"role":"user","content":"` + nonce + `"}],"chat_template_kwargs":{"k":[` + strings.Repeat(value, max(1, n/len(value))) + `0]}}`
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
		return saying(nonce + b.String())
	}
}

// file is one medium: a head, and a unit again and again.
func file(mime, head, unit string) func(n int, nonce string) string {
	kind, _, _ := strings.Cut(mime, "/")
	return func(n int, nonce string) string {
		b := head + strings.Repeat(unit, n*3/4/len(unit)) + nonce
		return holding(`{"type":"` + kind + `_url","` + kind + `_url":{"url":"data:` + mime + `;base64,` + base64.StdEncoding.EncodeToString([]byte(b)) + `"}}`)
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
