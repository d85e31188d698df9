package header

import (
	"testing"
)

// TestDamaged: cases found by random damage and Pillow 13.0.0 (TestDifferentialVLLMImages finds more).
func TestDamaged(t *testing.T) {
	for _, c := range []struct {
		name string
		b    []byte
		mode string // "": refused
	}{
		{"VP8L of version 0", []byte("RIFF\x12\x00\x00\x00WEBPVP8L\x05\x00\x00\x00\x2f\x00\x00\x00\x00\x00"), "RGB"},
		{"VP8L of version 1", []byte("RIFF\x12\x00\x00\x00WEBPVP8L\x05\x00\x00\x00\x2f\x00\x00\x00\x20\x00"), ""},
		{"TIFF", []byte("II*\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), "unread"},
		{"BMP", []byte("BM\x00\x00\x00\x00\x00\x00\x00\x00\x36\x00\x00\x00\x28\x00"), "unread"},
		{"AVIF", []byte("\x00\x00\x00\x20ftypavif\x00\x00\x00\x00"), "unread"},
		{"HEIC, which Pillow does not open", []byte("\x00\x00\x00\x20ftypheic\x00\x00\x00\x00"), ""},
		{"DIB", append([]byte("\x28\x00\x00\x00\x20\x00\x00\x00\x20\x00\x00\x00\x01\x00\x18\x00"), make([]byte, 24)...), "unread"},
		{"TGA", []byte("\x00\x00\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x00\x20\x00\x20\x00\x18\x20"), "unread"},
		{"text", []byte("a text that is not an image at all"), ""},
	} {
		got, err := read(new(Reader), c.b, 7)
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
