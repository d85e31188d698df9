// Package body handles a request's bytes before any model is involved: it scans and parses an OpenAI-style JSON body without
// copying its images, and removes what a client must not say.
//
//	body pieces ─ Scan ─▶ skeleton (a few KB, long string literals cut out) + literals (references into the body)
//	skeleton ─ Parse ─▶ Request: model, messages, parts, the fields that change a prompt
//	skeleton ─ Clean ─▶ Edits, in the body's bytes
//
// A body of 30 MB is mostly base64 inside string literals. Scan jumps from quote to quote, so it reads each byte about once at
// memory speed, copies what is short, and keeps long literals as slices of the body. gjson then reads the skeleton. A long literal
// that turns out to be text is copied once, when it is decoded.
package body

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/body/jsonread"
	"github.com/sightline-router/sightline/internal/poison"
)

// Bounds of a body. A body beyond them is not parsed, and Clean judges it by its bytes.
const (
	minLiteral  = 1 << 10 // longer string literals are cut out
	maxDepth    = 200     // nesting of arrays and objects (vLLM's JSON reader stops at about the same)
	maxSkeleton = 8 << 20 // bytes outside long literals
	firstText   = 8 << 10 // initial capacity of the skeleton in bytes
	largeText   = 1 << 18 // see add
)

// Errors of a body that cannot be read. They never quote the body.
var (
	ErrJSON  = errors.New("body is not valid JSON")
	ErrDepth = fmt.Errorf("body is nested deeper than %d levels", maxDepth)
	ErrLarge = fmt.Errorf("body has more than %d MiB outside of long strings", maxSkeleton>>20)
)

// Literal is a long string literal: the raw JSON text between its quotes, in pieces of the body.
type Literal struct {
	at     int // offset of its opening quote in the skeleton
	lo, hi int // range of its pieces
	Len    int // raw bytes
	before int // raw bytes of the long literals before it
}

// Skeleton is a scanned body. Its long literals are in the body's memory and must not outlive it. Its text is its own, newly
// allocated by each Scan, so a short string read from it stays valid for as long as it is kept. Keeping such a string beyond
// the request keeps the whole text alive, so clone it instead. Between Scan and Release a Skeleton is read-only and may be read by
// any number of goroutines.
type Skeleton struct {
	text   []byte
	size   int    // of the body; the text is never longer
	json   string // views text
	lits   []Literal
	pieces [][]byte
}

// Scan cuts the long literals out of a body. Reuse s to save allocations. Errors: ErrJSON, ErrDepth, ErrLarge.
func (s *Skeleton) Scan(body [][]byte) error {
	size := 0
	for _, p := range body {
		size += len(p)
	}
	s.text, s.size, s.lits, s.pieces, s.json = make([]byte, 0, min(size, firstText)), size, s.lits[:0], s.pieces[:0], ""
	var (
		inString bool
		odd      bool // an odd run of backslashes ends at the previous piece's end
		depth    int
		lit      Literal
	)
	for _, p := range body {
		for len(p) > 0 {
			if !inString {
				q := bytes.IndexByte(p, '"')
				seg := p
				if q >= 0 {
					seg = p[:q]
				}
				for _, c := range seg {
					switch c {
					case '{', '[':
						depth++
						if depth > maxDepth {
							return ErrDepth
						}
					case '}', ']':
						depth--
					}
				}
				s.add(seg)
				if len(s.text) > maxSkeleton {
					s.text = nil
					return ErrLarge
				}
				if q < 0 {
					break
				}
				p = p[q+1:]
				inString, odd = true, false
				lit = Literal{at: len(s.text), lo: len(s.pieces)}
				continue
			}
			end, closed, o := literalEnd(p, odd)
			odd = o
			if end > 0 {
				s.pieces = append(s.pieces, p[:end])
				lit.Len += end
			}
			p = p[end:]
			if closed {
				p = p[1:]
				inString = false
				lit.hi = len(s.pieces)
				s.close(lit)
			}
		}
	}
	if inString {
		return ErrJSON
	}
	text := unsafe.String(unsafe.SliceData(s.text), len(s.text))
	if !utf8.Valid(s.text) || !gjson.Valid(text) {
		return ErrJSON
	}
	s.json = text
	return nil
}

// literalEnd finds the closing quote of a literal in p. odd means that the bytes before p end in an odd run of backslashes;
// oddAfter says the same about p. Without a closing quote all of p belongs to the literal.
func literalEnd(p []byte, odd bool) (end int, closed, oddAfter bool) {
	from := 0
	if odd {
		from = 1 // the first byte is escaped
	}
	for i := from; ; {
		q := bytes.IndexByte(p[min(i, len(p)):], '"')
		if q < 0 {
			return len(p), false, oddRun(p[min(from, len(p)):])
		}
		q += i
		if !oddRun(p[from:q]) {
			return q, true, false
		}
		i = q + 1
	}
}

// oddRun reports whether p ends in an odd number of backslashes.
func oddRun(p []byte) bool {
	n := 0
	for n < len(p) && p[len(p)-1-n] == '\\' {
		n++
	}
	return n&1 == 1
}

// add appends bytes to the skeleton. It doubles the capacity up to largeText, and then takes as much as the rest of the body may
// need, so that a large skeleton is copied once.
func (s *Skeleton) add(p []byte) {
	if size := len(s.text) + len(p); size > cap(s.text) {
		if size > largeText {
			size = maxSkeleton
		}
		s.text = slices.Grow(s.text, min(size, s.size-len(s.text)))
	}
	s.text = append(s.text, p...)
}

// close ends a literal: a short one is copied into the skeleton, a long one is replaced by "".
func (s *Skeleton) close(lit Literal) {
	s.text = append(s.text, '"')
	if lit.Len <= minLiteral {
		for _, p := range s.pieces[lit.lo:lit.hi] {
			s.add(p)
		}
		s.pieces = s.pieces[:lit.lo]
	} else {
		if n := len(s.lits); n > 0 {
			lit.before = s.lits[n-1].before + s.lits[n-1].Len
		}
		s.lits = append(s.lits, lit)
	}
	s.text = append(s.text, '"')
}

// JSON returns the skeleton's text; "" before Scan, after Release, and if Scan failed.
func (s *Skeleton) JSON() string { return s.json }

// offset returns where a value read from the skeleton begins in it.
func (s *Skeleton) offset(raw string) int {
	if raw == "" || s.json == "" {
		return -1
	}
	at := int(uintptr(unsafe.Pointer(unsafe.StringData(raw))) - uintptr(unsafe.Pointer(unsafe.StringData(s.json))))
	if at < 0 || at > len(s.json) {
		return -1 // not a part of the skeleton
	}
	return at
}

// Literal returns the long literal that v stands for, if it stands for one.
func (s *Skeleton) Literal(v gjson.Result) (Literal, bool) {
	if v.Type != gjson.String || len(v.Raw) != 2 {
		return Literal{}, false
	}
	at := s.offset(v.Raw)
	if at < 0 {
		return Literal{}, false
	}
	i := s.firstAt(at)
	if i < len(s.lits) && s.lits[i].at == at {
		return s.lits[i], true
	}
	return Literal{}, false
}

// firstAt returns the index of the first literal at or after a skeleton offset.
func (s *Skeleton) firstAt(at int) int {
	return sort.Search(len(s.lits), func(i int) bool { return s.lits[i].at >= at })
}

// Long returns the raw bytes of all long literals.
func (s *Skeleton) Long() int {
	if len(s.lits) == 0 {
		return 0
	}
	last := &s.lits[len(s.lits)-1]
	return last.before + last.Len
}

// Pieces returns a literal's raw JSON bytes, slices of the body.
func (s *Skeleton) Pieces(l Literal) [][]byte { return s.pieces[l.lo:l.hi] }

// Raw returns a string value's raw JSON text without its quotes, in pieces.
func (s *Skeleton) Raw(v gjson.Result) [][]byte {
	if l, ok := s.Literal(v); ok {
		return s.Pieces(l)
	}
	if len(v.Raw) < 2 {
		return nil
	}
	at := s.offset(v.Raw)
	if at < 0 {
		return [][]byte{[]byte(v.Raw[1 : len(v.Raw)-1])}
	}
	return [][]byte{s.text[at+1 : at+len(v.Raw)-1]}
}

// String decodes a string value; a long literal is copied once. ok is false if v is not a string or not valid JSON text (control
// characters, bad escapes, bytes that are not UTF-8), or has an unpaired surrogate: no engine accepts that, so the request will be
// refused.
func (s *Skeleton) String(v gjson.Result) (text string, ok bool) {
	if v.Type != gjson.String {
		return "", false
	}
	l, long := s.Literal(v)
	if !long {
		if !strings.Contains(v.Raw, `\u`) {
			return v.String(), true
		}
		return decode(v.Raw)
	}
	buf := append(make([]byte, 0, l.Len+2), '"')
	for _, p := range s.Pieces(l) {
		buf = append(buf, p...)
	}
	if hasControl(buf) || !utf8.Valid(buf) {
		return "", false
	}
	if bytes.IndexByte(buf, '\\') < 0 {
		return unsafe.String(unsafe.SliceData(buf[1:]), l.Len), true
	}
	buf = append(buf, '"')
	r := jsonread.New(unsafe.String(unsafe.SliceData(buf), len(buf)))
	text = r.TextIn(buf[:0])
	r.End()
	return text, r.Err() == nil
}

// decode decodes a string literal.
func decode(raw string) (text string, ok bool) {
	r := jsonread.New(raw)
	text = r.Text()
	r.End()
	return text, r.Err() == nil
}

// hasControl reports whether there is a byte below 0x20, checking eight bytes at a time.
func hasControl(b []byte) bool {
	const ones = 0x0101010101010101
	for ; len(b) >= 8; b = b[8:] {
		x := binary.LittleEndian.Uint64(b)
		if (x-' '*ones)&^x&(0x80*ones) != 0 {
			return true
		}
	}
	for _, c := range b {
		if c < ' ' {
			return true
		}
	}
	return false
}

// Full returns a value's JSON text with its long literals back in place; it shares the skeleton's memory if there are none.
func (s *Skeleton) Full(v gjson.Result) string {
	at := s.offset(v.Raw)
	if at < 0 {
		return v.Raw
	}
	i, end := s.firstAt(at), at+len(v.Raw)
	if i == len(s.lits) || s.lits[i].at >= end {
		return v.Raw
	}
	out := bytes.Join(s.AppendPieces(nil, v), nil)
	return unsafe.String(unsafe.SliceData(out), len(out))
}

// AppendPieces appends a value's JSON text to dst, with its long literals back in place, in slices of the skeleton and of the body.
func (s *Skeleton) AppendPieces(dst [][]byte, v gjson.Result) [][]byte {
	at := s.offset(v.Raw)
	if at < 0 {
		return append(dst, []byte(v.Raw))
	}
	end := at + len(v.Raw)
	for i := s.firstAt(at); i < len(s.lits) && s.lits[i].at < end; i++ {
		dst = append(dst, s.text[at:s.lits[i].at+1])
		dst = append(dst, s.Pieces(s.lits[i])...)
		at = s.lits[i].at + 1
	}
	return append(dst, s.text[at:end])
}

// Outline writes a value's JSON text to out, with each long literal reduced to its length and at most its first 4 KiB: enough to
// distinguish most values. Writing to out must not fail.
func (s *Skeleton) Outline(out io.Writer, v gjson.Result) {
	at := s.offset(v.Raw)
	if at < 0 {
		return
	}
	_, _ = out.Write(s.text[at : at+len(v.Raw)])
	for i := s.firstAt(at); i < len(s.lits) && s.lits[i].at < at+len(v.Raw); i++ {
		_, _ = fmt.Fprint(out, s.lits[i].Len)
		left := 4 << 10
		for _, p := range s.Pieces(s.lits[i]) {
			p = p[:min(left, len(p))]
			left -= len(p)
			_, _ = out.Write(p)
		}
	}
}

// BodyRange returns where a value's raw text, including quotes, is in the body; -1, -1 for a value that is not from the body.
func (s *Skeleton) BodyRange(v gjson.Result) (from, to int) {
	at := s.offset(v.Raw)
	if at < 0 {
		return -1, -1
	}
	return s.BodyOffset(at), s.BodyOffset(at + len(v.Raw))
}

// BodyOffset maps an offset in JSON to one in the body: every literal cut out before it adds its length.
func (s *Skeleton) BodyOffset(at int) int {
	i := s.firstAt(at)
	if i == 0 {
		return at
	}
	last := &s.lits[i-1]
	return at + last.before + last.Len
}

// Release drops the skeleton's references to the body; it can then be pooled.
func (s *Skeleton) Release() {
	poison.Fill(s.text)
	clear(s.pieces[:cap(s.pieces)])
	s.pieces, s.lits, s.json, s.text = s.pieces[:0], s.lits[:0], "", nil
}
