package tokenizer

import (
	"bytes"
	"fmt"
	"sync"
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

// unicodeForm is NFC, NFD, NFKC or NFKD as the reference's crate implements it, with tables of about Unicode 9; x/text's are newer.
// Characters that only the newer tables change are kept, and split a text into parts that x/text normalizes one by one. In a run of
// more than 30 marks x/text inserts a joiner and the crate does not, so there Encode gives up: see Options.Partial.
type unicodeForm struct{ form norm.Form }

func (n unicodeForm) apply(s *scratch, in []byte) []byte {
	if n.normal(in) {
		return in
	}
	newer, from := newerMarks(), 0
	out := s.buffer(len(in))
	put := func(part []byte) {
		s.work(len(part))
		s.form = n.form.Append(s.form[:0], part...)
		if joiner := []byte("\u034F"); bytes.Count(s.form, joiner) > bytes.Count(part, joiner) {
			s.giveUp()
		}
		out = append(out, s.form...)
	}
	for i := 0; i < len(in); {
		r, size := utf8.DecodeRune(in[i:])
		if newer.at(r) {
			put(in[from:i])
			out, from = append(out, in[i:i+size]...), i+size
		} else if i-from > lookEvery {
			boundary := n.form.LastBoundary(in[from:i])
			if boundary <= 0 {
				s.giveUp()
			}
			put(in[from : from+boundary])
			from += boundary
		}
		i += size
	}
	put(in[from:])
	return s.keep(out)
}

// normal reports whether in is already normal. Common scripts are skipped first: their characters below never change in NFC, and
// nothing before one of them affects what follows it.
func (n unicodeForm) normal(in []byte) bool {
	last := 0
	for i := 0; i < len(in) && n.form == norm.NFC; {
		if in[i] < utf8.RuneSelf {
			last = i
			i++
			continue
		}
		r, size := utf8.DecodeRune(in[i:])
		switch {
		case r < 0x300, 0x4E00 <= r && r <= 0x9FFF, 0x3001 <= r && r <= 0x3029, 0x3040 <= r && r <= 0x3098, 0x309B <= r && r <= 0x30FF,
			0xAC00 <= r && r <= 0xD7A3, 0xFF01 <= r && r <= 0xFFEF, 0x2010 <= r && r <= 0x205F, 0x400 <= r && r <= 0x482:
		default:
			return n.form.IsNormal(in[last:])
		}
		last = i
		i += size
	}
	return n.form == norm.NFC || n.form.IsNormal(in)
}

// newerMarks holds the characters that x/text decomposes, reorders or composes and the older tables do not.
var newerMarks = sync.OnceValue(func() *runeTable[bool] {
	cl, newer := classes(), map[rune]bool{}
	for r := rune(0x80); r <= maxRune; r++ {
		if c := cl.at(r); c&clOldNorm != 0 || c&clCategory == gcCn {
			continue
		}
		text := string(r)
		if p := norm.NFKD.PropertiesString(text); p.CCC() != 0 || p.Decomposition() != nil {
			newer[r] = true
			for _, part := range norm.NFD.String(text) {
				newer[part] = newer[part] || cl.at(part)&clOldNorm == 0
			}
		}
	}
	return newRuneTable(func(r rune) bool { return newer[r] })
})
