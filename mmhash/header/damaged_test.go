package header

import (
	"encoding/binary"
	"testing"
)

// TestDamaged: cases found by random damage and Pillow 13.0.0 (TestDifferentialVLLMImages finds more).
func TestDamaged(t *testing.T) {
	entry := func(tag, typ uint16, n, v uint32) []byte {
		b := binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16(nil, tag), typ)
		return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, n), v)
	}
	tiff := func(bits []byte, more ...byte) []byte {
		b := append([]byte("II*\x00\x08\x00\x00\x00\x07\x00"), entry(256, 4, 1, 5)...)
		for _, e := range [][]byte{entry(257, 4, 1, 3), bits, entry(262, 3, 1, 1), entry(273, 4, 1, 8), entry(278, 4, 1, 3),
			entry(279, 4, 1, 15)} {
			b = append(b, e...)
		}
		return append(b, more...)
	}
	for _, c := range []struct {
		name string
		b    []byte
		mode string // "": refused
	}{
		{"sound", tiff(entry(258, 3, 1, 8), 0, 0, 0, 0), "L"},
		{"bits of type BYTE", tiff(entry(258, 1, 1, 8), 0, 0, 0, 0), ""},
		{"bits outside the file", tiff(entry(258, 3, 3, 5000), 0, 0, 0, 0), ""},
		{"the end of the bits outside the file", tiff(entry(258, 3, 16, 90), make([]byte, 24)...), ""},
		{"cut behind the last entry", tiff(entry(258, 3, 1, 8)), "L"},
		{"cut in the last entry", tiff(entry(258, 3, 1, 8))[:8+2+7*12-3], "L"},
		{"cut before the mode", tiff(entry(258, 3, 1, 8))[:8+2+3*12], ""},
		{"VP8L of version 0", []byte("RIFF\x12\x00\x00\x00WEBPVP8L\x05\x00\x00\x00\x2f\x00\x00\x00\x00\x00"), "RGB"},
		{"VP8L of version 1", []byte("RIFF\x12\x00\x00\x00WEBPVP8L\x05\x00\x00\x00\x2f\x00\x00\x00\x20\x00"), ""},
		{"DIB", append([]byte("\x28\x00\x00\x00\x20\x00\x00\x00\x20\x00\x00\x00\x01\x00\x18\x00"), make([]byte, 24)...), "RGB"},
		{"TGA", []byte("\x00\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00\x20\x00\x18\x20"), "unread"},
		{"text", []byte("a text that is not a picture at all"), ""},
	} {
		got, err := read(New(), c.b, 7)
		switch {
		case c.mode == "unread":
			if KindOf(err) != Unsupported {
				t.Errorf("%s: %+v %v, want a format that is not read", c.name, got, err)
			}
		case c.mode == "" && (err == nil || KindOf(err) == Unsupported), got.Mode != c.mode:
			t.Errorf("%s: %+v %v, want mode %q", c.name, got, err, c.mode)
		}
	}
}
