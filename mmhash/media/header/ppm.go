package header

import (
	"bytes"
	"encoding/binary"
	"math"
	"strconv"
	"strings"
)

// PBM, PGM, PPM and PFM (and Pillow's own P0CMYK, PyP, …) are a magic number and tokens in text: width, height, and but for
// a bitmap the largest value, which makes a grey picture "I" above 255. QOI, a header of 14 bytes, stands here too.

type ppmState struct {
	token   [11]byte // of a file: its magic number, then a token
	n       int
	fields  int // tokens that were read
	magic   bool
	comment bool
	kind    string
}

var ppmModes = map[string]string{
	"P1": "1", "P2": "L", "P3": "RGB", "P4": "1", "P5": "L", "P6": "RGB",
	"P0CMYK": "CMYK", "Pf": "F", "PyP": "P", "PyRGBA": "RGBA", "PyCMYK": "CMYK",
}

const ppmSpace = " \t\n\v\f\r"

// ppmMagic reports whether a file begins with a magic number of the family.
func ppmMagic(b []byte) bool {
	b = b[:6]
	if i := bytes.IndexAny(b, ppmSpace); i >= 0 {
		b = b[:i]
	}
	_, ok := ppmModes[string(b)]
	return ok
}

// ppmByte reads one character of the head.
func ppmByte(r *Reader, b []byte) {
	p, c := &r.ppm, b[0]
	r.next(1, ppmByte)
	space := strings.IndexByte(ppmSpace, c) >= 0
	switch {
	case p.comment: // which does not end a token
		p.comment = c != '\r' && c != '\n'
		return
	case c == '#' && p.magic:
		p.comment = true
		return
	case !space:
		p.token[p.n] = c
		p.n++
	}
	switch text := string(p.token[:p.n]); {
	case !p.magic && (space || p.n == 6):
		r.info.Mode, p.kind, p.magic, p.n = ppmModes[text], text, true, 0
	case p.magic && p.n == len(p.token):
		r.fail(Malformed, "a number of more than 10 characters")
	case p.magic && space && p.n > 0:
		p.n = 0
		r.ppmToken(text)
	}
}

func (r *Reader) ppmToken(text string) {
	p := &r.ppm
	p.fields++
	v, ok := pythonInt(text)
	switch {
	case p.fields == 3 && r.info.Mode == "F":
		if ok = pythonFloat(text); ok {
			r.done = true
		}
	case !ok:
	case p.fields == 1:
		r.info.Width = int(v)
	case p.fields == 2:
		r.info.Height = int(v)
		r.done = r.info.Mode == "1"
	default:
		if ok = v > 0 && v < 1<<16; ok && v > 255 && r.info.Mode == "L" {
			r.info.Mode = "I"
		}
		r.done = true
	}
	if !ok {
		r.fail(Malformed, "a bad number in the head")
	}
	if r.done {
		r.info.Frames, r.info.Orientation = 1, 1
	}
}

// pythonInt reads what Python's int() does: a sign, digits, single underscores between them.
func pythonInt(s string) (int64, bool) {
	digits := strings.TrimLeft(s, "+-")
	if len(s)-len(digits) > 1 || !betweenDigits(digits) {
		return 0, false
	}
	v, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
	return v, err == nil
}

// pythonFloat reports whether float() reads a finite number that is not 0.
func pythonFloat(s string) bool {
	if !betweenDigits(s) || strings.ContainsAny(s, "xX") {
		return false
	}
	v, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	return err == nil && v != 0 && !math.IsNaN(v) && !math.IsInf(v, 0)
}

// betweenDigits reports that each underscore stands between two digits.
func betweenDigits(s string) bool {
	digit := func(i int) bool { return i >= 0 && i < len(s) && s[i] >= '0' && s[i] <= '9' }
	for i := range s {
		if s[i] == '_' && !(digit(i-1) && digit(i+1)) {
			return false
		}
	}
	return true
}

func qoiHead(r *Reader, b []byte) {
	r.info.Width, r.info.Height = int(binary.BigEndian.Uint32(b[4:])), int(binary.BigEndian.Uint32(b[8:]))
	if r.info.Mode = "RGBA"; b[12] == 3 {
		r.info.Mode = "RGB"
	}
	r.info.Frames, r.info.Orientation, r.done = 1, 1, true
}
