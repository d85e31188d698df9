package tokenizer

import (
	"bytes"
	"unicode/utf8"
)

// pattern finds its matches in a text, from left to right, without overlap.
type pattern interface {
	each(s *scratch, b []byte, fn func(start, end int))
}

// compilePattern gives the fastest form of a regular expression. Errors: one that neither a scanner nor compileRegex knows.
func compilePattern(expr string) (pattern, error) {
	if scan := newScanner(expr); scan != nil {
		return scan, nil
	}
	return compileRegex(expr)
}

func (sc *scanner) each(_ *scratch, b []byte, fn func(start, end int)) {
	for i := 0; i < len(b); {
		end := sc.next(b, i)
		fn(i, end)
		i = end
	}
}

type literalPattern string

func (p literalPattern) each(_ *scratch, b []byte, fn func(start, end int)) {
	if p == "" {
		return
	}
	for i := 0; ; {
		n := bytes.Index(b[i:], []byte(p))
		if n < 0 {
			return
		}
		i += n
		fn(i, i+len(p))
		i += len(p)
	}
}

// runePattern matches single characters.
type runePattern func(r rune) bool

func (p runePattern) each(_ *scratch, b []byte, fn func(start, end int)) {
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if p(r) {
			fn(i, i+n)
		}
		i += n
	}
}

// rustWords is \w+|[^\w\s]+ of the crate regex, whose \w has the joiners and not the superscript digits.
type rustWords struct{ classes *runeTable[uint32] }

func (p rustWords) each(_ *scratch, b []byte, fn func(start, end int)) {
	kind := func(r rune) uint32 {
		switch c := p.classes.at(r); {
		case c&clRustWord != 0:
			return 2
		case c&clRustSpace != 0:
			return 0
		}
		return 1
	}
	start, last := 0, uint32(0)
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if k := kind(r); k != last {
			if last != 0 {
				fn(start, i)
			}
			start, last = i, k
		}
		i += n
	}
	if last != 0 {
		fn(start, len(b))
	}
}
