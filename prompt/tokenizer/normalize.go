package tokenizer

import (
	"bytes"
	"fmt"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalizer changes a text before it is cut into words. It returns its input or one of the scratch's buffers, never the buffer
// that holds its input.
type normalizer interface {
	apply(s *scratch, in []byte) []byte
}

// normalizers are applied in sequence. An empty list leaves the text unchanged.
type normalizers []normalizer

func (n normalizers) apply(s *scratch, in []byte) []byte {
	for _, one := range n {
		in = one.apply(s, in)
	}
	return in
}

// patternSpec is how tokenizer.json writes a pattern: {"String": …} or {"Regex": …}.
type patternSpec struct{ String, Regex *string }

func (p patternSpec) compile() (pattern, error) {
	switch {
	case p.String != nil:
		return literalPattern(*p.String), nil
	case p.Regex != nil:
		return newScanner(*p.Regex)
	}
	return nil, fmt.Errorf("pattern: want String or Regex")
}

// normalizerSpec is the normalizer section of a tokenizer.json; nil: there is none.
type normalizerSpec struct {
	Type        string
	Normalizers []*normalizerSpec
	Prepend     string
	Content     string
	Pattern     patternSpec
	StripLeft   bool `json:"strip_left"`
	StripRight  bool `json:"strip_right"`
}

func (c *normalizerSpec) build() (normalizers, error) {
	if c == nil {
		return nil, nil
	}
	switch c.Type {
	case "Sequence":
		var seq normalizers
		for i, one := range c.Normalizers {
			inner, err := one.build()
			if err != nil {
				return nil, fmt.Errorf("normalizers[%d]: %w", i, err)
			}
			seq = append(seq, inner...)
		}
		return seq, nil
	case "NFC", "NFD", "NFKC", "NFKD":
		return normalizers{unicodeForm{unicodeForms[c.Type]}}, nil
	case "ByteLevel":
		return normalizers{byteLevelNormalizer{}}, nil
	case "Prepend":
		return normalizers{prepend(c.Prepend)}, nil
	case "Strip":
		return normalizers{strip{c.StripLeft, c.StripRight}}, nil
	case "Replace":
		p, err := c.Pattern.compile()
		if err != nil {
			return nil, err
		}
		return normalizers{replace{p, []byte(c.Content)}}, nil
	case "Lowercase", "StripAccents", "Nmt", "Precompiled", "BertNormalizer":
		return nil, unsupported(c.Type)
	}
	return nil, fmt.Errorf("type %q: not known", c.Type)
}

var unicodeForms = map[string]norm.Form{"NFC": norm.NFC, "NFD": norm.NFD, "NFKC": norm.NFKC, "NFKD": norm.NFKD}

type byteLevelNormalizer struct{}

func (byteLevelNormalizer) apply(s *scratch, in []byte) []byte {
	out := s.buffer(2 * len(in))
	for _, b := range in {
		out = utf8.AppendRune(out, byteToRune[b])
	}
	return s.keep(out)
}

type prepend string

func (p prepend) apply(s *scratch, in []byte) []byte {
	if len(in) == 0 {
		return in
	}
	return s.keep(append(append(s.buffer(len(p)+len(in)), p...), in...))
}

type strip struct{ left, right bool }

func (t strip) apply(_ *scratch, in []byte) []byte {
	if t.left {
		in = trimLeft(in)
	}
	if t.right {
		in = trimRight(in)
	}
	return in
}

type replace struct {
	pattern pattern
	with    []byte
}

func (r replace) apply(s *scratch, in []byte) []byte {
	if p, ok := r.pattern.(literalPattern); ok && !bytes.Contains(in, []byte(p)) {
		return in
	}
	out, done := s.buffer(len(in)), 0
	r.pattern.each(s, in, func(start, end int) {
		s.work(end - done)
		out = append(append(out, in[done:start]...), r.with...)
		done = end
	})
	return s.keep(append(out, in[done:]...))
}
