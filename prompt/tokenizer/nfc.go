package tokenizer

import (
	"bytes"
	"sync"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

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
