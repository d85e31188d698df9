package tokenizer

import (
	"bytes"
	"unicode/utf8"
)

// pattern finds its matches in a text, from left to right, without overlap.
type pattern interface {
	each(s *scratch, b []byte, fn func(start, end int))
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
