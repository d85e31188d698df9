// Package jsonread steps through a JSON text in place: objects and lists call back for each member, and strings point into the
// text. It reads requests (package template) and vocabularies of a hundred thousand entries (package tokenizer), for which
// encoding/json would need many times the time and many times the file's size in memory. Strings are as strict as in Python's
// json.loads and Rust's serde_json: no control characters. Unpaired surrogates, which no tokenizer accepts, are refused too.
package jsonread

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
	"unsafe"
)

// Reader walks over one text, which must be valid UTF-8. After its first error everything it reads is empty.
type Reader struct {
	src string
	pos int
	err error
}

// New returns a Reader at the start of src.
func New(src string) Reader { return Reader{src: src} }

// Err returns the first error.
func (r *Reader) Err() error { return r.err }

// Offset returns the number of bytes read.
func (r *Reader) Offset() int { return r.pos }

// Fail stops the reading with an error, unless there was one before.
func (r *Reader) Fail(err error) {
	if r.err == nil && err != nil {
		r.err = fmt.Errorf("offset %d: %w", r.pos, err)
	}
}

// Want fails with an error that says what was expected at this position.
func (r *Reader) Want(what string) {
	got := "the end"
	if r.pos < len(r.src) {
		got = strconv.QuoteToASCII(r.src[r.pos : r.pos+1])
	}
	r.Fail(fmt.Errorf("want %s, got %s", what, got))
}

// Peek skips white space and returns the next byte, 0 at the end and after an error.
func (r *Reader) Peek() byte {
	for r.err == nil && r.pos < len(r.src) {
		switch c := r.src[r.pos]; c {
		case ' ', '\t', '\n', '\r':
			r.pos++
		default:
			return c
		}
	}
	return 0
}

func (r *Reader) take(c byte) bool {
	if r.pos < len(r.src) && r.src[r.pos] == c {
		r.pos++
		return true
	}
	return false
}

// End fails unless the text ends here.
func (r *Reader) End() {
	if r.Peek() != 0 || r.pos < len(r.src) {
		r.Want("the end")
	}
}

// Object calls member for every key of an object. member must read or skip the value.
func (r *Reader) Object(member func(key string)) {
	r.members('{', '}', func() {
		key := r.Text()
		if r.Peek() != ':' {
			r.Want("':'")
			return
		}
		r.pos++
		member(key)
	})
}

// Pairs is Object for callers that need a pair's position: key is the raw key without its quotes, and from the offset of its first
// quote.
func (r *Reader) Pairs(member func(key string, from int)) {
	r.members('{', '}', func() {
		if r.Peek() != '"' {
			r.Want("a string")
			return
		}
		from := r.pos
		r.skipString()
		key := r.src[from:r.pos]
		if r.Peek() != ':' {
			r.Want("':'")
			return
		}
		r.pos++
		member(key[1:len(key)-1], from)
	})
}

// List calls element for every element of a list. element must read or skip it.
func (r *Reader) List(element func()) { r.members('[', ']', element) }

func (r *Reader) members(open, end byte, member func()) {
	if r.Peek() != open {
		r.Want("'" + string(open) + "'")
		return
	}
	r.pos++
	if r.Peek() == end {
		r.pos++
		return
	}
	for r.err == nil {
		member()
		switch c := r.Peek(); {
		case r.err != nil:
		case c == ',':
			r.pos++
		case c == end:
			r.pos++
			return
		default:
			r.Want("',' or '" + string(end) + "'")
		}
	}
}

// Text reads a string. Without escapes it points into the text.
func (r *Reader) Text() string {
	if r.Peek() != '"' {
		r.Want("a string")
		return ""
	}
	r.pos++
	plain := r.plain()
	if r.take('"') {
		return plain
	}
	// full capacity at once: growing would copy texts of megabytes several times
	return r.escaped(append(make([]byte, 0, len(plain)+r.ahead()), plain...))
}

// TextIn reads a string into buf. buf may begin where the text does, and then overwrites it: a string is never longer than its JSON.
func (r *Reader) TextIn(buf []byte) string {
	if r.Peek() != '"' {
		r.Want("a string")
		return ""
	}
	r.pos++
	return r.escaped(append(buf, r.plain()...))
}

// escaped appends the rest of a string to b.
func (r *Reader) escaped(b []byte) string {
	for r.take('\\') {
		b = r.escape(b)
		b = append(b, r.plain()...)
	}
	if !r.take('"') {
		r.Want(`'"', and no control characters in a string`)
	}
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// ahead returns the number of bytes up to the string's end.
func (r *Reader) ahead() int {
	for at := r.pos; ; at++ {
		next := strings.IndexByte(r.src[at:], '"')
		if next < 0 {
			return len(r.src) - r.pos
		}
		at += next
		escapes := at
		for escapes > r.pos && r.src[escapes-1] == '\\' {
			escapes--
		}
		if (at-escapes)%2 == 0 {
			return at - r.pos
		}
	}
}

// plain reads a string's bytes up to its end, an escape or an invalid byte.
func (r *Reader) plain() string {
	start := r.pos
	for ; r.pos < len(r.src); r.pos++ {
		if c := r.src[r.pos]; c == '"' || c == '\\' || c < ' ' {
			break
		}
	}
	return r.src[start:r.pos]
}

// escape reads what follows a backslash.
func (r *Reader) escape(dst []byte) []byte {
	if r.pos < len(r.src) {
		if i := strings.IndexByte(`"\/bfnrt`, r.src[r.pos]); i >= 0 {
			r.pos++
			return append(dst, "\"\\/\b\f\n\r\t"[i])
		}
	}
	if !r.take('u') {
		r.Want("an escape")
		return dst
	}
	u := r.hex4()
	if utf16.IsSurrogate(u) {
		u = utf16.DecodeRune(u, r.low())
		if u == utf8.RuneError {
			u = -1
		}
	}
	if u < 0 {
		r.Want("four hexadecimal digits and no lone surrogate")
		return dst
	}
	return utf8.AppendRune(dst, u)
}

// hex4 reads four hexadecimal digits; -1 if there are none.
func (r *Reader) hex4() rune {
	if r.pos+4 > len(r.src) {
		return -1
	}
	n, err := strconv.ParseUint(r.src[r.pos:r.pos+4], 16, 16)
	if err != nil {
		return -1
	}
	r.pos += 4
	return rune(n)
}

// low reads the second half of a surrogate pair.
func (r *Reader) low() rune {
	if !strings.HasPrefix(r.src[r.pos:], `\u`) {
		return -1
	}
	r.pos += 2
	return r.hex4()
}

// Number returns a number's text, and whether it is written as an integer.
func (r *Reader) Number() (literal string, whole bool) {
	r.Peek()
	start := r.pos
	r.take('-')
	if !r.take('0') && !r.digits() {
		r.Want("a number")
		return "0", true
	}
	whole = true
	if r.pos+1 < len(r.src) && r.src[r.pos] == '.' && isDigit(r.src[r.pos+1]) {
		r.pos++
		whole = !r.digits()
	}
	if r.take('e') || r.take('E') {
		if !r.take('+') {
			r.take('-')
		}
		whole = false
		if !r.digits() {
			r.Want("a digit")
		}
	}
	return r.src[start:r.pos], whole
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func (r *Reader) digits() bool {
	start := r.pos
	for r.pos < len(r.src) && isDigit(r.src[r.pos]) {
		r.pos++
	}
	return r.pos > start
}

// Word returns the letters at this position: null, true or false, or something that is not JSON.
func (r *Reader) Word() string {
	r.Peek()
	start := r.pos
	for r.pos < len(r.src) && r.src[r.pos] >= 'a' && r.src[r.pos] <= 'z' {
		r.pos++
	}
	return r.src[start:r.pos]
}

// Skip skips one value and returns its text. The contents of objects and lists are not checked.
func (r *Reader) Skip() string {
	c := r.Peek()
	start := r.pos
	switch c {
	case '{', '[':
		r.skipNested()
	case '"':
		r.skipString()
	case 't', 'f', 'n':
		r.Word()
	default:
		r.Number()
	}
	return r.src[start:r.pos]
}

// skipNested skips an object or list by counting brackets outside strings.
func (r *Reader) skipNested() {
	depth := 0
	for r.err == nil && r.pos < len(r.src) {
		switch r.src[r.pos] {
		case '"':
			r.skipString()
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		r.pos++
		if depth == 0 {
			return
		}
	}
	r.Want("a closing bracket")
}

func (r *Reader) skipString() {
	for i := r.pos + 1; ; i++ {
		n := strings.IndexByte(r.src[i:], '"')
		if n < 0 {
			r.pos = len(r.src)
			r.Want(`'"'`)
			return
		}
		i += n
		if before := r.src[:i]; (len(before)-len(strings.TrimRight(before, `\`)))%2 == 0 {
			r.pos = i + 1
			return
		}
	}
}

// maxFile bounds a file of a model directory, except vocabularies.
const maxFile = 16 << 20

// File reads a small JSON file of a model directory into v, which stays unchanged if there is no such file. The error names the
// file.
func File(dir fs.FS, name string, v any) error {
	b, err := readFile(dir, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil && len(b) > maxFile:
		err = fmt.Errorf("more than %d bytes", maxFile)
	case err == nil:
		err = json.Unmarshal(b, v)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// readFile reads one byte more than a file may have, at most.
func readFile(dir fs.FS, name string) ([]byte, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile+1))
}
