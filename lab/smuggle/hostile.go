package smuggle

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"unicode/utf16"

	"github.com/sightline-router/sightline/internal/denied"
)

// doors are the keys behind which the table has places.
var doors = []string{"messages", "input", "system", "vllm_xargs", "extra_args", "nvext", "lora_request", "agent_context", "content",
	"output", "reasoning", "reasoning_content", "image_url", "audio_url", "input_audio", "video_url",
	"image_embeds", "audio_embeds", "source", "file"}

// others are keys of requests that steer nothing.
var others = []string{"model", "role", "type", "text", "prompt", "stream", "temperature", "metadata", "user", "url",
	"data", "tools", "tool_calls", "cache_salt", "priority"}

// Hostile makes a request that tries to be read otherwise by an engine than by us.
func Hostile(r *rand.Rand) Request {
	h := hostile{r}
	q := Request{Path: h.path(), Type: h.contentType()}
	if h.one(25) {
		q.Encoding = h.pick("gzip", "identity", "Identity", "br", "identity, gzip", "x", "gzip;q=0")
	}
	var b strings.Builder
	h.object(&b, denied.InBody, 0)
	text := b.String()
	for h.one(5) {
		text = h.spoilt(text)
	}
	q.Body = h.encoded(text)
	if h.one(40) {
		q.Type = "multipart/form-data; boundary=x"
		q.Body = []byte("--x\r\nContent-Disposition: form-data; name=\"a\"\r\nContent-Type: application/json\r\n\r\n" +
			string(q.Body) + "\r\n--x--\r\n")
	}
	return q
}

type hostile struct{ *rand.Rand }

func (h hostile) one(of int) bool             { return h.IntN(of) == 0 }
func (h hostile) pick(words ...string) string { return words[h.IntN(len(words))] }
func (h hostile) space() string {
	if !h.one(12) {
		return ""
	}
	if !h.one(8) {
		return h.pick(" ", "\n", "\t", "\r\n", "  ")
	}
	return h.pick("\v", "\f", "\u00a0", "\u2028", "\ufeff", "\x00", "/**/", "//\n", "\x1f")
}

func (h hostile) path() string {
	p := denied.Endpoints[h.IntN(len(denied.Endpoints))]
	if !h.one(4) {
		return p
	}
	for n := h.IntN(3); n >= 0; n-- {
		at := h.IntN(len(p))
		switch h.IntN(9) {
		case 0:
			p = p[:at] + fmt.Sprintf("%%%02x", p[at]) + p[at+1:]
		case 1:
			p = p[:at] + fmt.Sprintf("%%%02X", p[at]) + p[at+1:]
		case 2:
			p = strings.Replace(p, "/", h.pick("//", "/./", "/x/../", "%2f", "%2F", `\`, "%5c", "/;/", "/%2e/", "/x/%2e%2e/"), 1+h.IntN(2))
		case 3:
			p += h.pick("/", "//", "?", "?x=1", ";x", "%3fx", "#x", "%23", "%00", "%20", "%", "%zz", ".", "%2f", "/.", "/x/..", "%0a")
		case 4:
			p = p[:at] + strings.ToUpper(p[at:])
		case 5:
			p = h.pick("/", "//", "/x/..", "/.", "/v1/..", "http://x", "") + p
		case 6:
			p = strings.Replace(p, "chat", h.pick("ch%61t", "ch%2561t", "ch\u0430t", "chat%00"), 1)
		case 7:
			p = h.pick("/generate", "/v1/embeddings", "/invocations", "/v1/chat", "/v1/completions/x", "/v1/responses/x", "/v1/responses/x/cancel")
		}
	}
	if !strings.HasPrefix(p, "/") && !strings.HasPrefix(p, "http") {
		p = "/" + p
	}
	return strings.ReplaceAll(p, " ", "%20")
}

func (h hostile) contentType() string {
	if !h.one(4) {
		return "application/json"
	}
	return h.pick("", "APPLICATION/JSON", "application/json; charset=utf-16", "application/json;x", "application/json ;",
		"application/vnd.api+json", "text/plain", "text/json", "json",
		"application/json, text/plain", "text/plain, application/json", "text/plain;application/json",
		"application/x-www-form-urlencoded", "application/octet-stream", ";;;", "application/json/", "application/ json",
		"multipart/related; type=application/json", "application/x-ndjson")
}

// key is a name that steers there, or opens a place, or neither.
func (h hostile) key(scope denied.Scope) string {
	switch n := h.IntN(10); {
	case n < 5:
		f := &denied.Fields[h.IntN(len(denied.Fields))]
		for try := 0; f.In&scope == 0 && try < 20; try++ {
			f = &denied.Fields[h.IntN(len(denied.Fields))]
		}
		if f.Prefix {
			return f.Name + h.pick("host", "port", "", "_", "room")
		}
		return f.Name
	case n < 9:
		key := doors[h.IntN(len(doors))]
		for try := 0; scope.Below(key) == denied.Nowhere && try < 20; try++ {
			key = doors[h.IntN(len(doors))]
		}
		return key
	}
	return others[h.IntN(len(others))]
}

// word writes a string, with escapes in it or not.
func (h hostile) word(b *strings.Builder, s string) {
	b.WriteByte('"')
	escapes := h.one(4)
	for _, c := range []byte(s) {
		switch {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case escapes && h.one(3):
			fmt.Fprintf(b, h.pick(`\u%04x`, `\u%04X`, `\u00%02x`), c)
		case c == '/' && h.one(2):
			b.WriteString(`\/`)
		default:
			b.WriteByte(c)
		}
	}
	if h.one(60) {
		b.WriteString(h.pick(`\ud800`, `\udc00`, `\ud83d\ude00`, `\u0000`, "\x00", "\x01", "\n", "\xff", "\xed\xa0\x80",
			"\xc0\xaf", "\u200b", `\x`, `\u12`, `\"`, `\\`, `\\\"`, `\`, "\u2028", "\x7f"))
	}
	b.WriteByte('"')
}

func (h hostile) object(b *strings.Builder, scope denied.Scope, depth int) {
	b.WriteString(h.space() + "{")
	for i, n := 0, h.IntN(5); i < n; i++ {
		if i > 0 {
			b.WriteString(",")
		}
		key := h.key(scope)
		b.WriteString(h.space())
		h.word(b, key)
		b.WriteString(h.space() + ":" + h.space())
		h.value(b, scope.Below(key), depth+1)
	}
	b.WriteString(h.space() + "}" + h.space())
}

func (h hostile) value(b *strings.Builder, scope denied.Scope, depth int) {
	list := scope == denied.InList || scope == denied.InContent
	within := map[denied.Scope]denied.Scope{denied.InList: denied.InMessage, denied.InContent: denied.InPart}
	switch {
	case depth > 6:
		b.WriteString("1")
	case list && !h.one(5):
		b.WriteString("[" + h.space())
		for i, n := 0, h.IntN(3); i <= n; i++ {
			if i > 0 {
				b.WriteString(",")
			}
			if h.one(4) {
				h.value(b, scope, depth+1)
			} else {
				h.object(b, within[scope], depth+1)
			}
		}
		b.WriteString("]")
	case scope != denied.Nowhere && !h.one(6):
		if in := within[scope]; in != 0 {
			scope = in
		}
		h.object(b, scope, depth)
	case h.one(15):
		b.WriteString(h.pick("NaN", "Infinity", "-Infinity", "1e999", "-0", "01", "1.", ".5", "+1", "0x1", "1e",
			strings.Repeat("9", 400), strings.Repeat("9", 5000), "1_0", "nul", "True", "'a'", "-"))
	case h.one(30):
		n := 990 + h.IntN(80) // about as long as what is cut out of a skeleton
		h.word(b, strings.Repeat(h.pick("x", `\`, `"`, "é", "/"), n))
	case h.one(3):
		h.word(b, h.pick("hi", "data:image/png;base64,AAAA", "", `","rid":"x`, `{"rid":1}`, "user"))
	case h.one(3):
		h.object(b, denied.InBody, depth+1)
	default:
		b.WriteString(h.pick("null", "true", "1", "[]", "{}", `""`, "false"))
	}
}

// spoilt changes a text somewhere.
func (h hostile) spoilt(s string) string {
	at := h.IntN(len(s) + 1)
	switch h.IntN(9) {
	case 0:
		return s[:at]
	case 1:
		return s + h.pick(s, "x", "\x00", "}", "]", ",", `{"rid":1}`, "\n\n", "\x1a", "//", `,"rid":1}`)
	case 2:
		return h.pick("\ufeff", "\x00", " ", "\n", "[", "x", "\xff\xfe", "0", ")]}',\n", "data: ") + s
	case 3:
		return strings.Replace(s, `"`, h.pick(`'`, `\"`, `""`, "`", "\u201c"), 1+h.IntN(2))
	case 4:
		return strings.Replace(s, ",", h.pick(",,", ";", "", " "), 1)
	case 5:
		deep := 150 + h.IntN(900)
		return strings.Replace(s, "{", `{"x":`+strings.Repeat("[", deep)+strings.Repeat("]", deep)+",", 1)
	case 6:
		if at < len(s) {
			return s[:at] + string(rune(h.IntN(256))) + s[at+1:]
		}
	case 7:
		if at < len(s) {
			return s[:at] + string([]byte{s[at] ^ 1<<h.IntN(8)}) + s[at+1:]
		}
	case 8:
		to := at + h.IntN(len(s)-at+1)
		return s[:to] + s[at:] // a part twice
	}
	return s
}

// encoded gives the text's bytes, mostly as UTF-8.
func (h hostile) encoded(s string) []byte {
	if !h.one(20) {
		return []byte(s)
	}
	var out []byte
	big, wide, mark := h.one(2), h.one(2), h.one(2)
	put := func(u uint32, n int) {
		for i := range n {
			shift := 8 * i
			if big {
				shift = 8 * (n - 1 - i)
			}
			out = append(out, byte(u>>shift))
		}
	}
	if wide {
		if mark {
			put(0xfeff, 4)
		}
		for _, c := range s {
			put(uint32(c), 4)
		}
		return out
	}
	if mark {
		put(0xfeff, 2)
	}
	for _, u := range utf16.Encode([]rune(s)) {
		put(uint32(u), 2)
	}
	return out
}
