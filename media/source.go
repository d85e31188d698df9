package media

import (
	"bytes"
	std "encoding/base64"
	"io"

	"github.com/segmentio/asm/base64"
)

// Source refers to an image's bytes in place: pieces of a request body (a JSON string's raw content, base64) or of a file. It
// holds no copy and can be read repeatedly.
type Source struct {
	pieces [][]byte
	form   form
	load   func() []byte // of a file that is not in memory; nil result: it is not available
}

type form uint8

const (
	formFile form = iota
	formDataURL
)

// DataURL returns the source of a JSON string literal's content (between the quotes, with its escapes) that begins with data:.
func DataURL(pieces [][]byte) Source { return Source{pieces: pieces, form: formDataURL} }

// File returns the source of the given bytes.
func File(pieces ...[]byte) Source { return Source{pieces: pieces, form: formFile} }

// FromLoader returns the source of a file that load reads when its bytes are needed. load returns nil if they are no longer available.
func FromLoader(load func() []byte) Source { return Source{form: formFile, load: load} }

// loaded returns the source with its bytes in memory.
func (s Source) loaded() Source {
	if s.load == nil {
		return s
	}
	return File(s.load())
}

var (
	errNoComma  = &Refusal{400, "no comma behind the media type"}
	errLongType = &Refusal{400, "media type of more than 1024 bytes"}
	errNotData  = &Refusal{400, "does not begin with data:"}
	errNot64    = &Refusal{501, "only ;base64 data URLs are served (lower case, directly before the comma)"}
	errDigit    = &Refusal{400, "not strict base64: a character outside the standard alphabet, or padding within"}
	errPadding  = &Refusal{400, "not strict base64: wrong padding at its end"}
	errExcess   = &Refusal{400, "not strict base64: data behind the padding"}
	errEscape   = &Refusal{400, "broken JSON escape"}
)

// Decode returns the file's bytes, a copy unless the Source is one piece of a file. size is the size that Identify returned.
func (s Source) Decode(size int64) ([]byte, error) {
	s = s.loaded()
	if s.form == formFile && len(s.pieces) == 1 {
		return s.pieces[0], nil
	}
	file := make([]byte, 0, size)
	err := s.each(func(p []byte) { file = append(file, p...) })
	return file, err
}

// each calls use with the file's bytes in pieces, which are valid during the call.
func (s Source) each(use func(p []byte)) error {
	w := scratches.Get().(*scratch)
	defer w.giveBack()
	err := w.dec.open(s)
	for err == nil {
		var p []byte
		p, err = w.dec.Next()
		use(p)
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// Unescape passes the text of a JSON string literal's raw content, in pieces, to write, which must not fail. An escaped non-ASCII
// character becomes 0xFF: no data URL contains one.
func Unescape(pieces [][]byte, write func(run []byte) (int, error)) error {
	var esc escape
	for _, p := range pieces {
		for len(p) > 0 {
			var run []byte
			var err error
			run, p, err = esc.cut(p)
			if err != nil {
				return err
			}
			_, _ = write(run)
		}
	}
	return esc.end()
}

// dataPrefix reads up to the first comma as vLLM does: "data:" in any case, and ";base64" in lower case at the end. It returns the
// position after the comma.
func dataPrefix(pieces [][]byte) (piece, offset int, err error) {
	var text [1024]byte
	var esc escape
	n := 0
	for i, p := range pieces {
		for j, c := range p {
			c, ok, bad := esc.next(c)
			switch {
			case bad:
				return 0, 0, errEscape
			case !ok:
				continue
			case c == ',':
				return i, j + 1, checkPrefix(text[:n])
			case n == len(text):
				return 0, 0, errLongType
			}
			text[n] = c
			n++
		}
	}
	return 0, 0, errNoComma
}

func checkPrefix(t []byte) error {
	switch {
	case len(t) < 5 || !bytes.EqualFold(t[:5], []byte("data:")):
		return errNotData
	case !bytes.HasSuffix(t[5:], []byte(";base64")):
		return errNot64
	}
	return nil
}

// escape reads JSON string content byte by byte and decodes escapes. Characters of more than one byte become 0xFF: no caller needs
// them.
type escape struct {
	in  uint8 // 0 outside, 1 after the backslash, 2 to 5 digits of \u to come
	val uint16
	one [1]byte // see cut
}

// next returns a character if c completes one; bad = invalid escape.
func (e *escape) next(c byte) (out byte, ok, bad bool) {
	switch {
	case e.in == 0 && c != '\\':
		return c, true, false
	case e.in == 0:
		e.in = 1
		return 0, false, false
	case e.in == 1:
		e.in = 0
		switch c {
		case '"', '\\', '/':
			return c, true, false
		case 'n', 't', 'r', 'b', 'f':
			return '\n', true, false // any control character: none is expected
		case 'u':
			e.in, e.val = 5, 0
			return 0, false, false
		}
		return 0, false, true
	}
	d := c | 0x20
	switch {
	case c >= '0' && c <= '9':
		d = c - '0'
	case d >= 'a' && d <= 'f':
		d -= 'a' - 10
	default:
		return 0, false, true
	}
	e.val = e.val<<4 | uint16(d)
	e.in--
	if e.in > 1 {
		return 0, false, false
	}
	e.in = 0
	if e.val > 0x7F {
		return 0xFF, true, false
	}
	return byte(e.val), true, false
}

// cut returns the next run of text at the front of a non-empty piece of a literal, without its escapes. The run is valid until the
// next call, and empty within an escape.
func (e *escape) cut(p []byte) (run, rest []byte, err error) {
	if e.in == 0 && p[0] != '\\' {
		i := bytes.IndexByte(p, '\\')
		if i < 0 {
			i = len(p)
		}
		return p[:i], p[i:], nil
	}
	c, ok, bad := e.next(p[0])
	switch {
	case bad:
		return nil, nil, errEscape
	case !ok:
		return nil, p[1:], nil
	}
	e.one[0] = c
	return e.one[:], p[1:], nil
}

// end returns an error if the text ends within an escape.
func (e *escape) end() error {
	if e.in > 0 {
		return errEscape
	}
	return nil
}

// outSize is the size of a decoded piece, which stays within the L2 cache.
const outSize = 48 << 10

// decoder reads a Source in pieces. It decodes base64 text as strictly as vLLM (pybase64, validate): standard alphabet, padding,
// nothing else.
type decoder struct {
	pieces [][]byte // not begun
	piece  []byte   // the rest of the current one
	isFile bool     // they are the file's own bytes

	plain  []byte // text without escapes, to be decoded
	out    []byte // its memory is kept
	n      int    // bytes in out
	quad   [4]byte
	q      int // characters in quad
	ended  bool
	slow   bool // a backslash was seen
	err    error
	esc    escape
	window [8 << 10]byte // text without its escapes
}

// open begins to read a Source. close drops the references to it.
func (d *decoder) open(s Source) (err error) {
	if d.out == nil {
		d.out = make([]byte, outSize)
	}
	d.close()
	d.isFile, d.pieces = s.form == formFile, s.loaded().pieces
	if !d.isFile {
		i, from, err := dataPrefix(d.pieces)
		if err != nil {
			return err
		}
		d.begin(i, from)
	}
	return nil
}

// begin begins to read behind a data URL's prefix.
func (d *decoder) begin(piece, offset int) {
	if piece < len(d.pieces) {
		d.piece, d.pieces = d.pieces[piece][offset:], d.pieces[piece+1:]
	}
}

func (d *decoder) close() {
	d.pieces, d.piece, d.plain = nil, nil, nil
	d.q, d.ended, d.slow, d.esc, d.err = 0, false, false, escape{}, nil
}

// Next returns the file's next bytes, at most outSize, which are valid until the next call; io.EOF at its end. Most text has no
// escapes and is not searched for them: decoding fails at the first backslash, and from then on the text is unescaped first.
func (d *decoder) Next() ([]byte, error) {
	for d.n = 0; d.err == nil && d.n <= len(d.out)-3; {
		switch {
		case len(d.plain) > 0:
			d.plain, d.err = d.decode(d.plain)
			if d.err == errDigit && !d.slow && bytes.IndexByte(d.plain, '\\') >= 0 {
				d.slow, d.piece, d.plain, d.err = true, d.plain, nil, nil
			}
		case len(d.piece) > 0 && d.isFile:
			k := min(len(d.piece), outSize)
			p := d.piece[:k]
			d.piece = d.piece[k:]
			return p, nil
		case len(d.piece) > 0 && d.slow:
			d.err = d.unescape()
		case len(d.piece) > 0:
			d.plain, d.piece = d.piece, nil
		case len(d.pieces) > 0:
			d.piece, d.pieces = d.pieces[0], d.pieces[1:]
		case d.esc.end() != nil:
			d.err = d.esc.end()
		case d.q > 0:
			d.err = errPadding
		default:
			d.err = io.EOF
		}
	}
	if d.n > 0 {
		return d.out[:d.n], nil
	}
	return nil, d.err
}

// unescape copies the runs between backslashes into the window.
func (d *decoder) unescape() error {
	n := 0
	for len(d.piece) > 0 && n < len(d.window) {
		run, rest, err := d.esc.cut(d.piece)
		if err != nil {
			return err
		}
		k := copy(d.window[n:], run)
		if k < len(run) { // it is a part of the piece
			rest = d.piece[k:]
		}
		n += k
		d.piece = rest
	}
	d.plain = d.window[:n]
	return nil
}

// decode decodes text without escapes until out is full, and returns the rest. On an error rest begins at or before the faulty
// character, and nothing of rest has been decoded.
func (d *decoder) decode(p []byte) (rest []byte, err error) {
	for len(p) > 0 && d.n <= len(d.out)-3 {
		if k := min(len(p)&^3, (len(d.out)-d.n)/3*4); k > 0 && d.q == 0 && !d.ended {
			if p[k-1] == '=' { // the last quantum is decoded separately
				k -= 4
			}
			// n is short if the text contains a line break, which the library skips.
			if n, err := base64.StdEncoding.Decode(d.out[d.n:], p[:k]); err != nil || n != k/4*3 {
				return p, errDigit
			}
			d.n += k / 4 * 3
			p = p[k:]
			if k > 0 {
				continue
			}
		}
		if err := d.put(p[0]); err != nil {
			return p, err
		}
		p = p[1:]
	}
	return p, nil
}

// put adds one character. The fourth completes a quantum, for which decode leaves room.
func (d *decoder) put(c byte) error {
	switch {
	case d.ended:
		return errExcess
	case c == '\\' || c == '\n' || c == '\r': // the library skips line breaks
		return errDigit
	}
	d.quad[d.q] = c
	if d.q < 3 {
		d.q++
		return nil
	}
	n, err := std.StdEncoding.Decode(d.out[d.n:], d.quad[:])
	if err != nil {
		return errDigit
	}
	d.q, d.n, d.ended = 0, d.n+n, n < 3
	return nil
}
