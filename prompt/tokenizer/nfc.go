package tokenizer

import (
	"sync"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// unicodeForm is NFC, NFD, NFKC or NFKD with the tables that the reference's crate carries, of about Unicode 9. Of the
// characters of x/text's newer tables, those without clOldNorm neither decompose nor have a combining class there.
// x/text answers the common question, whether a text is normal already; what it calls normal the older tables leave
// alone too. The rest is done here, also because x/text puts a joiner into runs of more than 30 marks.
type unicodeForm struct{ form norm.Form }

func (n unicodeForm) apply(s *scratch, in []byte) []byte {
	if n.normal(in) {
		return in
	}
	compose := n.form == norm.NFC || n.form == norm.NFKC
	full := norm.NFD
	if n.form == norm.NFKC || n.form == norm.NFKD {
		full = norm.NFKD
	}
	cl, marks := classes(), markClasses()
	out := s.buffer(len(in))
	run, last, ordered := 0, uint8(0), true // where the run of marks at the end of out begins; the class of its last one
	flush := func() {
		if !ordered {
			s.marks = sortMarks(out[run:], s.marks, full)
		}
		run, last, ordered = len(out), 0, true
	}
	put := func(r rune, class uint8) {
		if class == 0 {
			flush()
			out = utf8.AppendRune(out, r)
			run = len(out)
			return
		}
		out, ordered, last = utf8.AppendRune(out, r), ordered && class >= last, class
	}
	for i := 0; i < len(in); {
		r, size := utf8.DecodeRune(in[i:])
		switch {
		case r < 0xC0:
			put(r, 0)
			if r >= 0xA0 && full == norm.NFKD {
				out = out[:len(out)-2]
				out = append(out, full.Bytes(in[i:i+size])...)
				run = len(out)
			}
		case 0xAC00 <= r && r <= 0xD7A3:
			l := (r - 0xAC00) / (hangulV * hangulT)
			v := (r - 0xAC00) / hangulT % hangulV
			put(0x1100+l, 0)
			put(0x1161+v, 0)
			if t := (r - 0xAC00) % hangulT; t > 0 {
				put(0x11A7+t, 0)
			}
		case cl.at(r)&clOldNorm == 0:
			put(r, 0)
		default:
			class := marks.at(r)
			if class != decomposes {
				put(r, class)
				break
			}
			p := full.Properties(in[i : i+size])
			d := p.Decomposition()
			if d == nil {
				put(r, p.CCC())
			}
			for len(d) > 0 {
				c, n := utf8.DecodeRune(d)
				put(c, full.Properties(d[:n]).CCC())
				d = d[n:]
			}
		}
		i += size
	}
	flush()
	out = s.keep(out)
	if compose {
		return composed(out)
	}
	return out
}

// normal tells whether in is normal already. Common scripts are passed over first: their characters below never change
// in NFC, and nothing before one of them matters for what comes behind it.
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

// markClasses are the combining classes in the older tables, or decomposes.
var markClasses = sync.OnceValue(func() *runeTable[uint8] {
	cl := classes()
	return newRuneTable(func(r rune) uint8 {
		if cl.at(r)&clOldNorm == 0 || 0xD800 <= r && r < 0xE000 {
			return 0
		}
		p := norm.NFKD.PropertiesString(string(r))
		if p.Decomposition() != nil {
			return decomposes
		}
		return p.CCC()
	})
})

const decomposes = 255

// sortMarks puts a run of marks in the order of their combining classes, those of one class in the order in which they stand:
// one pass to count and one to copy, however long the run. The result is scratch, grown.
func sortMarks(run, scratch []byte, full norm.Form) []byte {
	table := markClasses()
	class := func(i int) (uint8, int) {
		r, n := utf8.DecodeRune(run[i:])
		c := table.at(r)
		if c == decomposes {
			c = full.Properties(run[i : i+n]).CCC()
		}
		return c, n
	}
	var at [256]int // by class: its bytes, then where the next of it goes
	for i := 0; i < len(run); {
		c, n := class(i)
		at[c] += n
		i += n
	}
	from := 0
	for c, size := range at {
		at[c], from = from, from+size
	}
	scratch = append(scratch[:0], run...)
	for i := 0; i < len(run); {
		c, n := class(i)
		copy(scratch[at[c]:], run[i:i+n])
		at[c] += n
		i += n
	}
	copy(run, scratch)
	return scratch
}

const (
	hangulV = 21
	hangulT = 28
)

// pairs of characters and what they compose to, of the older tables; Hangul is computed.
var compositions = sync.OnceValue(func() map[[2]rune]rune {
	out := map[[2]rune]rune{}
	cl := classes()
	for r := rune(0xC0); r <= maxRune; r++ {
		if cl.at(r)&clOldNorm == 0 || 0xAC00 <= r && r <= 0xD7A3 {
			continue
		}
		text := string(r)
		d := []rune(norm.NFD.String(text))
		if len(d) < 2 || !norm.NFC.IsNormalString(text) {
			continue
		}
		first := []rune(norm.NFC.String(string(d[:len(d)-1])))
		if len(first) == 1 {
			out[[2]rune{first[0], d[len(d)-1]}] = r
		}
	}
	return out
})

// composed puts decomposed, ordered text together in place.
func composed(b []byte) []byte {
	table, marks := compositions(), markClasses()
	out := b[:0]
	starter, last := -1, uint8(0) // where the last starter lies in out; class of the last character kept after it
	for i := 0; i < len(b); {
		r, size := utf8.DecodeRune(b[i:])
		class := marks.at(r)
		if class == decomposes {
			class = norm.NFD.Properties(b[i : i+size]).CCC()
		}
		i += size
		if starter >= 0 {
			s, n := utf8.DecodeRune(out[starter:])
			adjacent := starter+n == len(out)
			if adjacent || class > last && last != 0 {
				if c, ok := composePair(table, s, r); ok {
					rest := append([]byte(nil), out[starter+n:]...)
					out = append(utf8.AppendRune(out[:starter], c), rest...)
					continue
				}
			}
		}
		if class == 0 {
			starter = len(out)
		}
		last = class
		out = utf8.AppendRune(out, r)
	}
	return out
}

func composePair(table map[[2]rune]rune, a, b rune) (rune, bool) {
	if 0x1100 <= a && a < 0x1113 && 0x1161 <= b && b < 0x1161+hangulV {
		return 0xAC00 + ((a-0x1100)*hangulV+(b-0x1161))*hangulT, true
	}
	if 0xAC00 <= a && a <= 0xD7A3 && (a-0xAC00)%hangulT == 0 && 0x11A7 < b && b < 0x11A7+hangulT {
		return a + (b - 0x11A7), true
	}
	c, ok := table[[2]rune{a, b}]
	return c, ok
}
