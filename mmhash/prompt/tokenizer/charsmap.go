package tokenizer

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"
)

// charsMap is SentencePiece's compiled normalization table: a double array of byte sequences and, behind it, the texts that
// replace them, each closed by a zero byte.
type charsMap struct {
	array []uint32
	texts []byte
}

func parseCharsMap(b []byte) (*charsMap, error) {
	if len(b) < 4 {
		return nil, errors.New("precompiled_charsmap: too short")
	}
	size := int(binary.LittleEndian.Uint32(b))
	if size%4 != 0 || size == 0 || size > len(b)-4 {
		return nil, errors.New("precompiled_charsmap: its table is longer than the file")
	}
	m := &charsMap{array: make([]uint32, size/4), texts: b[4+size:]}
	for i := range m.array {
		m.array[i] = binary.LittleEndian.Uint32(b[4+4*i:])
	}
	if !utf8.Valid(m.texts) {
		return nil, errors.New("precompiled_charsmap: its texts are not UTF-8")
	}
	return m, nil
}

func unitOffset(u uint32) uint32 { return u >> 10 << (u & (1 << 9) >> 6) }

// match looks b up from its start: the replacement of the shortest key, or the longest, and the key's length; 0 if none.
func (m *charsMap) match(b []byte, longest bool) (with []byte, n int) {
	pos := unitOffset(m.array[0])
	for i, c := range b {
		if c == 0 {
			break
		}
		pos ^= uint32(c)
		if pos >= uint32(len(m.array)) {
			break
		}
		unit := m.array[pos]
		if unit&(1<<31|0xFF) != uint32(c) {
			break
		}
		pos ^= unitOffset(unit)
		if unit>>8&1 == 1 && pos < uint32(len(m.array)) {
			at := m.array[pos] & (1<<31 - 1)
			if at <= uint32(len(m.texts)) {
				with, n = m.texts[at:], i+1
				if !longest {
					break
				}
			}
		}
	}
	for i, c := range with {
		if c == 0 {
			with = with[:i]
			break
		}
	}
	return with, n
}

// precompiled is the normalizer Precompiled of Hugging Face's tokenizers. It asks for each grapheme of less than six bytes, and
// where the table knows a beginning of it, that replaces the whole grapheme; else it asks for each character.
type precompiled struct{ *charsMap }

func newCharsMap(b []byte) (normalizer, error) {
	if len(b) == 0 {
		return nil, nil
	}
	m, err := parseCharsMap(b)
	if err != nil {
		return nil, err
	}
	return precompiled{m}, nil
}

func (m precompiled) apply(s *scratch, in []byte) []byte {
	out := s.buffer(len(in))
	for i := 0; i < len(in); {
		n := graphemeLen(in[i:])
		s.work(n)
		if n < 6 {
			if with, found := m.match(in[i:i+n], false); found > 0 {
				out = append(out, with...)
				i += n
				continue
			}
		}
		for end := i + n; i < end; {
			_, size := utf8.DecodeRune(in[i:])
			if with, found := m.match(in[i:i+size], false); found > 0 {
				out = append(out, with...)
			} else {
				out = append(out, in[i:i+size]...)
			}
			i += size
		}
	}
	return s.keep(out)
}

// graphemeLen gives the length of the grapheme at the start of b, exact for those of less than six bytes, which is all that
// precompiled asks: longer sequences (flags, families, syllables of three-byte letters) are at least six bytes whole.
func graphemeLen(b []byte) int {
	cl := classes()
	r, n := utf8.DecodeRune(b)
	if r == '\r' && len(b) > 1 && b[1] == '\n' {
		return 2
	}
	control := func(r rune) bool {
		switch cl.at(r) & clCategory {
		case gcCc, gcZl, gcZp:
			return true
		case gcCf:
			return r != 0x200C && r != 0x200D && !prependRune(r) && !(0xE0020 <= r && r <= 0xE007F)
		}
		return false
	}
	if control(r) {
		return n
	}
	for prepend := prependRune(r); n < len(b); {
		next, size := utf8.DecodeRune(b[n:])
		joins := false
		switch c := cl.at(next) & clCategory; {
		case c == gcMn, c == gcMe, c == gcMc && !ownMark(next), next == 0x200C, next == 0x200D, next == 0xE33, next == 0xEB3,
			next == 0xFF9E, next == 0xFF9F, 0x1F3FB <= next && next <= 0x1F3FF, 0xE0020 <= next && next <= 0xE007F:
			joins = true
		default:
			joins = prepend && !control(next)
		}
		if !joins {
			break
		}
		prepend = prependRune(next)
		n += size
	}
	return n
}

// prependRune tells the signs that belong to the character behind them.
func prependRune(r rune) bool {
	switch {
	case 0x600 <= r && r <= 0x605, r == 0x6DD, r == 0x70F, 0x890 <= r && r <= 0x891, r == 0x8E2, r == 0x110BD, r == 0x110CD:
		return true
	}
	return false
}

// ownMark tells the spacing marks that do not join what stands before them (Myanmar, Tai Tham, Ahom).
func ownMark(r rune) bool {
	switch {
	case r == 0x102B, r == 0x102C, r == 0x1038, 0x1062 <= r && r <= 0x1064, 0x1067 <= r && r <= 0x106D, r == 0x1083, 0x1087 <= r && r <= 0x108C,
		r == 0x108F, 0x109A <= r && r <= 0x109C, r == 0x1A61, r == 0x1A63, r == 0x1A64, r == 0xAA7B, r == 0xAA7D, r == 0x11720, r == 0x11721:
		return true
	}
	return false
}
