package tokenizer

// Chinese, Japanese, Korean and Thai text has no spaces, so a pre-tokenizer leaves whole paragraphs as one word. But few pairs of
// its characters, three bytes each, occur within one token: a merge crosses a border only if its left part ends and its right part
// begins with the bytes at that border. At every other border a word of a byte-level model is split. Most pieces are one character,
// whose tokens are tabulated; the others are merged and cached.

// wideTable is what a byte-level model knows of three-byte characters. It is built when the first one occurs (some 10 ms).
type wideTable struct {
	chars [1 << 16]wideChar // by the character's 16 bits
	pairs pairSet           // the left and right characters of merges; for a left part that is only the end of a character, its last byte
	open  [64]uint16        // merges whose right part is one byte: by the last byte of the left part, a bit for each first byte
}

// wideChar holds up to three tokens of 20 bits and, above them, their number (0: not tabulated) and the flags.
type wideChar uint64

const (
	wideCount           = 60      // position of the number of tokens
	wideRight  wideChar = 1 << 62 // some merge's right part begins with this character, after a complete one
	wideBehind wideChar = 1 << 63 // some merge's right part begins with it after a single byte, or is only its first byte
	wideID              = 1<<20 - 1
)

// isWide reports whether b begins with three bytes in the form of a UTF-8 character.
func isWide(b []byte) bool {
	return len(b) >= 3 && b[0]&0xF0 == 0xE0 && b[1]&0xC0 == 0x80 && b[2]&0xC0 == 0x80
}

func charBits(b []byte) uint16 { return uint16(b[0])<<12 | uint16(b[1]&0x3F)<<6 | uint16(b[2]&0x3F) }

func charBytes(c uint16) [3]byte {
	return [3]byte{0xE0 | byte(c>>12), 0x80 | byte(c>>6)&0x3F, 0x80 | byte(c)&0x3F}
}

// wholeChar marks a left part in wideTable.pairs that is a character rather than a byte.
const wholeChar = 1 << 16

// wideChars returns the table of a regular byte-level model.
func (m *bpe) wideChars() *wideTable {
	m.wideOnce.Do(func() {
		t := &wideTable{}
		var left, right []byte
		for _, p := range m.pairs.slots {
			if p.a == noID {
				continue
			}
			// A token that no text produces never merges.
			var ok bool
			right, ok = m.textOf(right[:0], p.b)
			if !ok || len(right) == 0 || right[0]&0xF0 != 0xE0 {
				continue
			}
			left, ok = m.textOf(left[:0], p.a)
			if ok && len(left) > 0 && left[len(left)-1]&0xC0 == 0x80 {
				t.addMerge(left, right)
			}
		}
		leads := uint16(0)
		for _, bits := range t.open {
			leads |= bits
		}
		s := new(scratch)
		for c := range t.chars {
			char := charBytes(uint16(c))
			t.chars[c] |= m.wideTokens(s, char[:])
			if leads>>(c>>12)&1 != 0 {
				t.chars[c] |= wideBehind
			}
		}
		m.wide = t
	})
	return m.wide
}

// addMerge records the characters between which this merge occurs. left ends within or after a character.
func (t *wideTable) addMerge(left, right []byte) {
	last, flag := uint32(left[len(left)-1]), wideBehind
	if n := len(left); n >= 3 && isWide(left[n-3:]) {
		last, flag = wholeChar|uint32(charBits(left[n-3:])), wideRight
	}
	switch {
	case len(right) == 1:
		t.open[last&63] |= 1 << (right[0] & 15)
	case len(right) == 2:
		for c := range uint16(64) {
			c |= charBits([]byte{right[0], right[1], 0})
			t.pairs.put(last, uint32(c))
			t.chars[c] |= flag
		}
	default:
		t.pairs.put(last, uint32(charBits(right)))
		t.chars[charBits(right)] |= flag
	}
}

// wideTokens returns the tokens of one character.
func (m *bpe) wideTokens(s *scratch, char []byte) (c wideChar) {
	s.syms = m.symbols(s.syms[:0], char)
	n := m.merge(s, s.syms)
	for i, id := range s.syms[:n] {
		if id >= 1<<20 {
			return 0
		}
		c |= wideChar(id) << (20 * i)
	}
	return c | wideChar(n)<<wideCount
}

// joined reports whether a merge may cross from character a to the following b. False positives are harmless: the word is then not
// split there, which only costs time.
func (t *wideTable) joined(a, b uint16) bool {
	switch flags := t.chars[b]; {
	case flags&(wideRight|wideBehind) == 0:
		return false
	case flags&wideRight != 0 && t.pairs.has(wholeChar|uint32(a), uint32(b)):
		return true
	default:
		return flags&wideBehind != 0 && (t.open[a&63]>>(b>>12)&1 != 0 || t.pairs.has(uint32(0x80|a&0x3F), uint32(b)))
	}
}

// piece returns the end of the piece that begins at b[i]: the next border of two wide characters that no merge reaches
// across, or end.
func (t *wideTable) piece(b []byte, i, end int) int {
	for i < end {
		if !isWide(b[i:end]) {
			i++
			continue
		}
		c := charBits(b[i:])
		i += 3
		if isWide(b[i:end]) && !t.joined(c, charBits(b[i:])) {
			return i
		}
	}
	return end
}

// encodeWide appends the ids of word b[i:end] of a regular byte-level model, cut at borders that no merge reaches across.
func (m *bpe) encodeWide(dst []uint32, s *scratch, b []byte, i, end int) []uint32 {
	t := m.wideChars()
	var stop int
	for ; i < end && !s.full(dst); i = stop {
		stop = t.piece(b, i, end)
		if stop-i == 3 && isWide(b[i:]) {
			c := t.chars[charBits(b[i:])]
			switch c >> wideCount & 3 {
			case 1:
				dst = append(dst, uint32(c&wideID))
				continue
			case 2:
				dst = append(dst, uint32(c&wideID), uint32(c>>20&wideID))
				continue
			case 3:
				dst = append(dst, uint32(c&wideID), uint32(c>>20&wideID), uint32(c>>40&wideID))
				continue
			}
		}
		dst = m.encodePiece(dst, s, b, i, stop)
	}
	return dst
}
