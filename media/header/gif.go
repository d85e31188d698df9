package header

import "encoding/binary"

// greyRamp reports whether each palette entry is the grey of its index.
func greyRamp(p []byte) bool {
	for i := 0; i+2 < len(p); i += 3 {
		if k := byte(i / 3); p[i] != k || p[i+1] != k || p[i+2] != k {
			return false
		}
	}
	return true
}

// gif reads a GIF up to the data of its first image. The mode is "P", or "L" if the palette of that image is the grey ramp 0, 1, 2, …
// (or there is none).
func (r *Reader) gif() {
	b := r.take(13)
	width, height := int(binary.LittleEndian.Uint16(b[6:])), int(binary.LittleEndian.Uint16(b[8:]))
	if b[10]&0x80 != 0 {
		r.palette = append(r.palette, r.take(3<<(b[10]&7+1))...)
	}
	for block := r.byte(); block != ','; block = r.byte() { // unknown bytes are skipped
		switch block {
		case ';':
			fail(Truncated, "no image")
		case '!':
			r.gifExtension()
		}
	}
	b = r.take(9)
	le := binary.LittleEndian.Uint16
	// The canvas grows to hold the first frame.
	width, height = max(width, int(le(b))+int(le(b[4:]))), max(height, int(le(b[2:]))+int(le(b[6:])))
	own := b[8]
	r.size(width, height)
	if own&0x80 != 0 {
		r.palette = append(r.palette[:0], r.take(3<<(own&7+1))...)
	}
	r.byte() // the code size
	r.info.Mode = "P"
	if greyRamp(r.palette) {
		r.info.Mode = "L"
	}
}

// gifExtension reads an extension: a label and blocks, each a length byte and that many bytes, up to a length of 0. A graphic control
// has the transparent index.
func (r *Reader) gifExtension() {
	control := r.byte() == 0xF9
	for n := int64(r.byte()); n > 0; n = int64(r.byte()) {
		if control && n >= 4 {
			if b := r.take(4); b[0]&1 != 0 {
				r.alpha = append(r.alpha[:0], b[3])
			}
			n -= 4
		}
		control = false
		r.skip(n)
	}
}
