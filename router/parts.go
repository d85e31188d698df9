package router

import (
	"bytes"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/router/changes"
)

// partsOf finds the parts of a request in the text that a template made of it: each behind the one before it, by its first words. One that
// the template changes or leaves out is not found. It costs one pass over the text, and mostInVain bytes.
func (r *reading) partsOf(text string) []changes.Part {
	f := partFinder{s: &r.body, text: text, left: mostInVain}
	fields, messages := r.req.Fields, r.req.Messages
	switch {
	case text == "" || len(r.req.Batch) > 0:
		return nil
	case len(messages) > 0:
		f.find(changes.System, 0, "", fields["system"])
	case fields["input"].Exists():
		f.find(changes.System, 0, "", fields["instructions"])
		if input := fields["input"]; input.Type == gjson.String {
			f.find(changes.Message, 1, "user", input)
		} else {
			messages, _ = r.body.Messages(input)
		}
	default:
		return []changes.Part{{Kind: changes.Whole, Len: len(text)}}
	}
	for i := range messages {
		m := &messages[i]
		kind, role := changes.Message, changes.Role(m.Role)
		if i == 0 && (role == "system" || role == "developer") {
			kind = changes.System
		}
		f.message(kind, i+1, role, m)
	}
	return f.withTools(fields["tools"])
}

const mostInVain = 8 << 20

// partFinder finds parts in a text.
type partFinder struct {
	s    *body.Skeleton
	text string
	at   int // behind what was found last
	left int // bytes that may be searched in vain: a template may leave out each of thousands of parts
	list []changes.Part
}

func (f *partFinder) message(kind changes.Kind, number int, role string, m *body.Message) {
	n := len(f.list)
	if m.Kind == body.Text {
		f.find(kind, number, role, m.Content)
	}
	for i := range m.Parts {
		f.find(kind, number, role, m.Parts[i].Fields["text"])
	}
	if len(f.list) == n { // an answer that calls tools
		for _, v := range []gjson.Result{m.Fields["reasoning_content"], m.Fields["reasoning"], m.Fields["tool_calls"].Get("0.function.name")} {
			f.find(kind, number, role, v)
		}
	}
	if len(f.list) > n { // all that was found of it is one part
		last := f.list[len(f.list)-1]
		f.list = f.list[:n+1]
		f.list[n].Len = last.At + last.Len - f.list[n].At
	}
}

// find finds a text that the client sent.
func (f *partFinder) find(kind changes.Kind, number int, role string, v gjson.Result) {
	if v.Type != gjson.String || f.left < 0 {
		return
	}
	raw := f.s.Raw(v)
	head, before := firstWords(raw)
	if head == "" {
		return
	}
	at := strings.Index(f.text[f.at:], head)
	if at < 0 {
		f.left -= len(f.text) - f.at
		return
	}
	rest := f.text[f.at+at:]
	length := min(lengthIn(rest, raw, before), len(rest))
	f.list = append(f.list, changes.Part{Kind: kind, Number: number, Role: role, At: f.at + at, Len: length})
	f.at += at + length
}

// withTools returns the parts with that of the tools, which stands between two others, or before them.
func (f *partFinder) withTools(tools gjson.Result) []changes.Part {
	name := tools.Get("0.function.name")
	if !name.Exists() {
		name = tools.Get("0.name")
	}
	if name.Str == "" {
		return f.list
	}
	end := 0
	for i := 0; i <= len(f.list); i++ {
		next := len(f.text)
		if i < len(f.list) {
			next = f.list[i].At
		}
		if at := strings.Index(f.text[end:next], name.Str); at >= 0 {
			line := strings.LastIndexByte(f.text[end:end+at], '\n') + 1
			length := max(at+len(name.Str), strings.LastIndexByte(f.text[end:next], '}')+1) - line
			f.list = append(f.list, changes.Part{})
			copy(f.list[i+1:], f.list[i:])
			f.list[i] = changes.Part{Kind: changes.Tools, At: end + line, Len: length}
			break
		}
		if i < len(f.list) {
			end = min(f.list[i].At+f.list[i].Len, len(f.text))
		}
	}
	return f.list
}

const mostWords = 48 // bytes by which a part is found

// lengthIn returns how long a JSON string's text is without so many bytes before it. If it ends in rest where it does if each escape is
// of two bytes, that is right; else all escapes are looked at.
func lengthIn(rest string, raw [][]byte, before int) (length int) {
	for _, piece := range raw {
		length += len(piece) - bytes.Count(piece, []byte{'\\'})
	}
	end, at := raw[len(raw)-1], length-before
	some := len(raw) > 1 && len(end) < mostWords/2 // bytes of a piece's end: they may stand anywhere
	end = end[max(0, len(end)-mostWords/2):]
	if !some && at >= len(end) && at <= len(rest) && bytes.IndexByte(end, '\\') < 0 && rest[at-len(end):at] == string(end) {
		return at
	}
	length = -before
	for _, piece := range raw {
		length += len(piece) - escaped(piece)
	}
	return length
}

// firstWords returns the first bytes of a JSON string's text, without the white space before them, and how many bytes that has.
func firstWords(raw [][]byte) (head string, before int) {
	if len(raw) > 0 && len(raw[0]) > mostWords {
		text := unsafe.String(unsafe.SliceData(raw[0]), mostWords)
		if text[0] > ' ' && text[mostWords-1] > ' ' && text[mostWords-1] < utf8.RuneSelf && strings.IndexByte(text, '\\') < 0 {
			return text, 0
		}
	}
	var first [6 * mostWords]byte
	n := 0
	for _, piece := range raw {
		n += copy(first[n:], piece)
	}
	text := string(first[:n])
	if n == len(first) { // not in the middle of an escape or a character
		if at := strings.LastIndexByte(text[n-6:], '\\'); at >= 0 {
			text = text[:n-6+at]
			if trailing := len(text) - len(strings.TrimRight(text, `\`)); trailing%2 == 1 {
				text = text[:len(text)-1]
			}
		}
		for len(text) > 0 && !utf8.ValidString(text[len(text)-min(len(text), 4):]) && !utf8.RuneStart(text[len(text)-1]) {
			text = text[:len(text)-1]
		}
	}
	if strings.IndexByte(text, '\\') >= 0 {
		text = gjson.Parse(`"` + text + `"`).Str
	}
	head = strings.TrimLeft(text, " \t\r\n")
	before = len(text) - len(head)
	if len(head) > mostWords {
		head = head[:mostWords]
		for len(head) > 0 && !utf8.ValidString(head) {
			head = head[:len(head)-1]
		}
	}
	return strings.TrimRight(head, " \t\r\n"), before
}

// escaped returns how many more bytes a JSON string has than its text.
func escaped(raw []byte) (more int) {
	text := unsafe.String(unsafe.SliceData(raw), len(raw))
	for {
		at := strings.IndexByte(text, '\\')
		if at < 0 || at+1 >= len(text) {
			return more
		}
		if text[at+1] != 'u' || at+6 > len(text) {
			more, text = more+1, text[at+2:]
			continue
		}
		switch digits := text[at+2 : at+6]; {
		case digits[:2] == "00" && digits[2] < '8':
			more += 5
		case digits[0] == '0' && digits[1] < '8', digits[0]|0x20 == 'd' && digits[1] > '7':
			more += 4
		default:
			more += 3
		}
		text = text[at+6:]
	}
}
