package tokenizer

// GPT-2's byte-level alphabet gives every byte a printable character, so that a vocabulary file can hold any bytes as text.
// Printable Latin-1 characters represent themselves; the other 68 bytes follow in order from U+0100.

var byteToRune = func() (t [256]rune) {
	next := rune(256)
	for b := range t {
		if '!' <= b && b <= '~' || 0xA1 <= b && b <= 0xAC || 0xAE <= b {
			t[b] = rune(b)
		} else {
			t[b] = next
			next++
		}
	}
	return t
}()

// runeToByteTable covers U+0000 … U+0143. Values above 255 mean no byte.
var runeToByteTable = func() (t [324]uint16) {
	for i := range t {
		t[i] = 256
	}
	for b, r := range byteToRune {
		t[r] = uint16(b)
	}
	return t
}()

// runeToByte returns the byte that r represents in the byte-level alphabet.
func runeToByte(r rune) (byte, bool) {
	if r < 0 || int(r) >= len(runeToByteTable) || runeToByteTable[r] > 255 {
		return 0, false
	}
	return byte(runeToByteTable[r]), true
}
