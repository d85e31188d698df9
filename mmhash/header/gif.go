package header

import "encoding/binary"

// A GIF's mode is "P", or "L" if the palette of the first image is the grey ramp 0, 1, 2, … (or there is none). Nothing after the
// header of the first image is read.

type gifState struct {
	size int // bytes to come: of the palette, or of a graphic control
}

// greyRamp reports whether each palette entry is the grey of its index.
func greyRamp(p []byte) bool {
	for i := 0; i+2 < len(p); i += 3 {
		if k := byte(i / 3); p[i] != k || p[i+1] != k || p[i+2] != k {
			return false
		}
	}
	return true
}

func gifScreen(r *Reader, b []byte) {
	r.info.Width, r.info.Height = int(binary.LittleEndian.Uint16(b[6:])), int(binary.LittleEndian.Uint16(b[8:]))
	if b[10]&0x80 == 0 {
		r.next(1, gifBlock)
		return
	}
	r.next(3<<(b[10]&7+1), func(r *Reader, b []byte) {
		r.palette = append(r.palette, b...)
		r.next(1, gifBlock)
	})
}

// gifBlock reads a block's first byte. Unknown bytes are skipped.
func gifBlock(r *Reader, b []byte) {
	switch b[0] {
	case ';':
		r.fail(Truncated, "no image")
	case '!':
		r.next(1, gifLabel)
	case ',':
		r.next(9, gifImage)
	default:
		r.next(1, gifBlock)
	}
}

// gifLabel reads an extension's label.
func gifLabel(r *Reader, b []byte) {
	if b[0] == 0xF9 {
		r.next(1, gifControl)
		return
	}
	r.next(1, gifData)
}

// gifControl reads the length of a graphic control, and requests the transparent index.
func gifControl(r *Reader, b []byte) {
	r.gif.size = int(b[0])
	if r.gif.size < 4 {
		gifData(r, b)
		return
	}
	r.next(4, func(r *Reader, b []byte) {
		if b[0]&1 != 0 {
			r.alpha = append(r.alpha[:0], b[3])
		}
		r.skipTo(int64(r.gif.size-4), 1, gifData)
	})
}

// gifData skips sub-blocks: each is a length byte and that many bytes, up to a length of 0.
func gifData(r *Reader, b []byte) {
	if b[0] == 0 {
		r.next(1, gifBlock)
		return
	}
	r.skipTo(int64(b[0]), 1, gifData)
}

func gifImage(r *Reader, b []byte) {
	le := binary.LittleEndian.Uint16
	r.info.Width = max(r.info.Width, int(le(b))+int(le(b[4:]))) // the canvas grows to hold the first frame
	r.info.Height = max(r.info.Height, int(le(b[2:]))+int(le(b[6:])))
	r.gif.size = 0
	if b[8]&0x80 != 0 {
		r.gif.size = 3 << (b[8]&7 + 1)
	}
	r.next(r.gif.size+1, gifFirst)
}

// gifFirst reads the first frame's own palette, if any, and the code size.
func gifFirst(r *Reader, b []byte) {
	if r.gif.size > 0 {
		r.palette = append(r.palette[:0], b[:r.gif.size]...)
	}
	r.info.Mode = "P"
	if greyRamp(r.palette) {
		r.info.Mode = "L"
	}
	r.done = true
}
