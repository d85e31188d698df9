package tokenizer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// normalizer changes a text before it is cut into words. It returns either its input or one of the scratch's buffers, never
// the one that its input lies in.
type normalizer interface {
	apply(s *scratch, in []byte) []byte
}

// normalizers is a Sequence.
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
		return compilePattern(*p.Regex)
	}
	return nil, fmt.Errorf("pattern: want String or Regex")
}

// newNormalizer builds the normalizer section of a tokenizer.json; nil if there is none.
func newNormalizer(raw []byte) (normalizer, error) {
	var c struct {
		Type               string
		Normalizers        []json.RawMessage
		Prepend            string
		Content            string
		Pattern            patternSpec
		StripLeft          *bool  `json:"strip_left"`
		StripRight         *bool  `json:"strip_right"`
		CharsMap           []byte `json:"precompiled_charsmap"`
		CleanText          bool   `json:"clean_text"`
		HandleChineseChars bool   `json:"handle_chinese_chars"`
		StripAccents       *bool  `json:"strip_accents"`
		Lowercase          bool
	}
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return nil, err
	}
	switch c.Type {
	case "Sequence":
		var seq normalizers
		for i, r := range c.Normalizers {
			n, err := newNormalizer(r)
			if err != nil {
				return nil, fmt.Errorf("normalizers[%d]: %w", i, err)
			}
			if n != nil {
				seq = append(seq, n)
			}
		}
		if len(seq) == 1 {
			return seq[0], nil
		}
		return seq, nil
	case "NFC":
		return unicodeForm{norm.NFC}, nil
	case "NFD":
		return unicodeForm{norm.NFD}, nil
	case "NFKC":
		return unicodeForm{norm.NFKC}, nil
	case "NFKD":
		return unicodeForm{norm.NFKD}, nil
	case "Lowercase":
		return mapRunes(lower), nil
	case "StripAccents":
		return mapRunes(func(dst []byte, r rune) []byte {
			if isClass(r, clOldMark) {
				return dst
			}
			return utf8.AppendRune(dst, r)
		}), nil
	case "Nmt":
		return mapRunes(nmt), nil
	case "ByteLevel":
		return byteLevelNormalizer{}, nil
	case "Prepend":
		return prepend(c.Prepend), nil
	case "Strip":
		return strip{c.StripLeft != nil && *c.StripLeft, c.StripRight != nil && *c.StripRight}, nil
	case "Replace":
		p, err := c.Pattern.compile()
		if err != nil {
			return nil, err
		}
		return replace{p, []byte(c.Content)}, nil
	case "Precompiled":
		return newCharsMap(c.CharsMap)
	case "BertNormalizer":
		var seq normalizers
		if c.CleanText {
			seq = append(seq, mapRunes(bertClean))
		}
		if c.HandleChineseChars {
			seq = append(seq, mapRunes(bertChinese))
		}
		if c.StripAccents == nil && c.Lowercase || c.StripAccents != nil && *c.StripAccents {
			seq = append(seq, unicodeForm{norm.NFD}, mapRunes(func(dst []byte, r rune) []byte {
				if isClass(r, clOldMn) {
					return dst
				}
				return utf8.AppendRune(dst, r)
			}))
		}
		if c.Lowercase {
			seq = append(seq, mapRunes(lower))
		}
		return seq, nil
	}
	return nil, fmt.Errorf("type %q: not known", c.Type)
}

// mapRunes appends something for each character.
type mapRunes func(dst []byte, r rune) []byte

func (f mapRunes) apply(s *scratch, in []byte) []byte {
	out := s.buffer(len(in))
	for i := 0; i < len(in); {
		r, n := utf8.DecodeRune(in[i:])
		s.work(1)
		out = f(out, r)
		i += n
	}
	return s.keep(out)
}

// lower is Rust's char::to_lowercase: one character each, but for İ.
func lower(dst []byte, r rune) []byte {
	if r == 0x130 {
		return append(dst, "i\u0307"...)
	}
	return utf8.AppendRune(dst, newerLower(r))
}

func nmt(dst []byte, r rune) []byte {
	switch {
	case 1 <= r && r <= 8, r == 0xB, 0xE <= r && r <= 0x1F, r == 0x7F, r == 0x8F, r == 0x9F:
		return dst
	case r == '\t', r == '\n', r == '\f', r == '\r', r == 0x1680, 0x200B <= r && r <= 0x200F, r == 0x2028, r == 0x2029,
		r == 0x2581, r == 0xFEFF, r == 0xFFFD:
		return append(dst, ' ')
	}
	return utf8.AppendRune(dst, r)
}

func bertClean(dst []byte, r rune) []byte {
	space := r == '\t' || r == '\n' || r == '\r'
	switch {
	case r == 0, r == 0xFFFD, !space && isClass(r, clOldOther):
		return dst
	case space, isClass(r, clRustSpace):
		return append(dst, ' ')
	}
	return utf8.AppendRune(dst, r)
}

// bertChinese puts spaces around the ideographs that BERT names; the fifth range is BERT's own (2B920).
func bertChinese(dst []byte, r rune) []byte {
	switch {
	case 0x4E00 <= r && r <= 0x9FFF, 0x3400 <= r && r <= 0x4DBF, 0x20000 <= r && r <= 0x2A6DF, 0x2A700 <= r && r <= 0x2B73F,
		0x2B740 <= r && r <= 0x2B81F, 0x2B920 <= r && r <= 0x2CEAF, 0xF900 <= r && r <= 0xFAFF, 0x2F800 <= r && r <= 0x2FA1F:
		dst = utf8.AppendRune(append(dst, ' '), r)
		return append(dst, ' ')
	}
	return utf8.AppendRune(dst, r)
}

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
		in = in[leadingSpace(in):]
	}
	if t.right {
		in = in[:trimSpaceRight(in)]
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

// newerLower is unicode.ToLower with the letters of Unicode 16 and 17, which Rust knows and Go 1.26 does not.
func newerLower(r rune) rune {
	switch {
	case r < 0x1C89:
	case r == 0x1C89, r == 0xA7CC, r == 0xA7CE, r == 0xA7D2, r == 0xA7D4, r == 0xA7DA:
		return r + 1
	case r == 0xA7CB:
		return 0x264
	case r == 0xA7DC:
		return 0x19B
	case 0x10D50 <= r && r <= 0x10D65:
		return r + 0x20
	case 0x16EA0 <= r && r <= 0x16EB8:
		return r + 0x1B
	}
	return unicode.ToLower(r)
}
