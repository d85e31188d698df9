package tokenizer

// Chinese, Japanese and Korean text comes without spaces, so that a pre-tokenizer leaves whole paragraphs as one word. Few pairs
// of its characters ever stand in one token, though: a merge reaches across a border only where its left part ends and its
// right part begins with the bytes that stand there. At every other border a long word is cut, and its pieces, most of them of
// one or two characters, are encoded one by one.

// borders says where some merge of a byte-level model could reach across the border of two three-byte characters. It may say
// so where none does: then the word is not cut there, which costs time and changes nothing.
type borders struct {
	pairs []uint64   // a bit for each pair of characters, by hash; of a left part that is only the rest of one, its last byte
	open  [64]uint16 // merges whose right part is one byte: by the last byte of the left part, a bit for each first byte
}

const borderBits = 21

// pieceCacheBits is the size of the cache of pieces of up to 16 bytes, 400 KB in each scratch that met a long word.
const pieceCacheBits = 13

func borderBit(a, b uint32) uint64 {
	return (uint64(a)<<24 | uint64(b)) * 0x9E3779B97F4A7C15 >> (64 - borderBits)
}

func (t *borders) put(a, b uint32) {
	bit := borderBit(a, b)
	t.pairs[bit/64] |= 1 << (bit % 64)
}

func (t *borders) has(a, b uint32) bool {
	bit := borderBit(a, b)
	return t.pairs[bit/64]>>(bit%64)&1 != 0
}

// wideLead tells whether a byte begins a character of 0x3000 to 0xFFFF.
func wideLead(c byte) bool { return c >= 0xE3 && c <= 0xEF }

// continues tells whether a byte is the second or a later one of a character.
func continues(c byte) bool { return c&0xC0 == 0x80 }

func threeBytes(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

// newBorders reads the borders off the merges of a regular byte-level model.
func (m *bpe) newBorders() *borders {
	t := &borders{pairs: make([]uint64, 1<<borderBits/64)}
	var left, right []byte
	for _, p := range m.pairs.slots {
		if p.a == noID {
			continue
		}
		// A token that no text could give never merges.
		var ok bool
		if right, ok = m.textOf(right[:0], p.b); !ok || len(right) == 0 || !wideLead(right[0]) {
			continue
		}
		if left, ok = m.textOf(left[:0], p.a); !ok || len(left) == 0 || !continues(left[len(left)-1]) {
			continue
		}
		last := left[len(left)-1]
		a := uint32(last)
		if len(left) >= 3 {
			a = threeBytes(left[len(left)-3:])
		}
		switch len(right) {
		case 1:
			t.open[last&63] |= 1 << (right[0] & 15)
		case 2:
			for c := range byte(64) {
				t.put(a, threeBytes([]byte{right[0], right[1], 0x80 | c}))
			}
		default:
			t.put(a, threeBytes(right))
		}
	}
	return t
}

// piece gives the end of the piece that begins at word[i]: the next border of two three-byte characters that no merge
// reaches across, or the word's end.
func (t *borders) piece(word []byte, i int) int {
	for i+3 < len(word) {
		if !wideLead(word[i]) || !continues(word[i+1]) || !continues(word[i+2]) {
			i++
			continue
		}
		a := threeBytes(word[i:])
		i += 3
		if len(word)-i < 3 || !wideLead(word[i]) || !continues(word[i+1]) || !continues(word[i+2]) {
			continue
		}
		if b := threeBytes(word[i:]); !t.has(a, b) && !t.has(a&0xFF, b) && t.open[a&63]>>(b>>16&15)&1 == 0 {
			return i
		}
	}
	return len(word)
}
