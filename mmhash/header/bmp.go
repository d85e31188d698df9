package header

import "encoding/binary"

// A BMP's mode follows from its depth, its compression and masks and, up to 8 bits, from the palette: a grey ramp is "L" or "1". A
// DIB is the same without the file header.

type bmpState struct {
	header, padding, colours int
}

func bmpFile(r *Reader, b []byte) { dibHead(r, b[14:]) }

// dibHead reads the size of the header, which identifies its type.
func dibHead(r *Reader, b []byte) {
	r.bmp.header = int(binary.LittleEndian.Uint32(b))
	if !dibType(b) {
		r.fail(Malformed, "unknown header type")
		return
	}
	r.next(r.bmp.header-4, bmpInfo)
}

func dibType(b []byte) bool {
	switch binary.LittleEndian.Uint32(b) {
	case 12, 40, 52, 56, 64, 108, 124:
		return true
	}
	return false
}

func bmpInfo(r *Reader, b []byte) {
	le := binary.LittleEndian
	var bits int
	var compression uint32
	if r.bmp.header == 12 {
		r.info.Width, r.info.Height = int(le.Uint16(b)), int(le.Uint16(b[2:]))
		bits, r.bmp.padding = int(le.Uint16(b[6:])), 3
	} else {
		h := int64(le.Uint32(b[4:]))
		if b[7] == 0xFF { // negative: rows from the top
			h = 1<<32 - h
		}
		r.info.Width, r.info.Height = int(le.Uint32(b)), int(h)
		bits, compression = int(le.Uint16(b[10:])), le.Uint32(b[12:])
		r.bmp.colours, r.bmp.padding = int(le.Uint32(b[28:])), 4
	}
	if r.bmp.colours == 0 && bits <= 8 {
		r.bmp.colours = 1 << bits
	}
	switch bits {
	case 1, 4, 8:
		r.info.Mode = "P"
	case 16, 24, 32:
		r.info.Mode = "RGB"
	default:
		r.fail(Malformed, "unknown depth")
		return
	}
	switch {
	case compression == 3 && bits < 16, compression > 3:
		r.fail(Malformed, "unknown compression")
	case compression == 3 && len(b) >= 48:
		bmpMasks(r, b[36:], bits, len(b) >= 52)
	case compression == 3:
		r.next(12, func(r *Reader, m []byte) { bmpMasks(r, m, bits, false) })
	case bits <= 8:
		if r.bmp.colours > 65536 {
			r.fail(Malformed, "unknown palette size")
			return
		}
		r.next(r.bmp.padding*r.bmp.colours, bmpPalette)
	default:
		r.done = true
	}
}

// bmpMasks accepts the layouts of Pillow's table. A mask for alpha makes RGBA, and so do four empty masks.
func bmpMasks(r *Reader, m []byte, bits int, alpha bool) {
	le := binary.LittleEndian
	mask := [4]uint32{le.Uint32(m), le.Uint32(m[4:]), le.Uint32(m[8:])}
	if alpha {
		mask[3] = le.Uint32(m[12:])
	}
	rgb := [3]uint32(mask[:])
	r.done = true
	switch bits {
	case 32:
		switch mask {
		case [4]uint32{0xFF0000, 0xFF00, 0xFF}, [4]uint32{0xFF000000, 0xFF0000, 0xFF00}, [4]uint32{0xFF000000, 0xFF00, 0xFF}:
			return
		case [4]uint32{0xFF000000, 0xFF0000, 0xFF00, 0xFF}, [4]uint32{0xFF, 0xFF00, 0xFF0000, 0xFF000000},
			[4]uint32{0xFF0000, 0xFF00, 0xFF, 0xFF000000}, [4]uint32{0xFF000000, 0xFF00, 0xFF, 0xFF0000}, [4]uint32{}:
			r.info.Mode = "RGBA"
			return
		}
	case 24:
		if rgb == [3]uint32{0xFF0000, 0xFF00, 0xFF} {
			return
		}
	case 16:
		if rgb == [3]uint32{0xF800, 0x7E0, 0x1F} || rgb == [3]uint32{0x7C00, 0x3E0, 0x1F} {
			return
		}
	}
	r.fail(Malformed, "unknown bit fields")
}

// bmpPalette distinguishes a grey ramp (0, 255 for two colours) from a palette.
func bmpPalette(r *Reader, p []byte) {
	r.done = true
	n, pad := r.bmp.colours, r.bmp.padding
	for i := range n {
		v := byte(i)
		if n == 2 {
			v = byte(i * 255)
		}
		if c := p[i*pad:]; i > 255 || c[0] != v || c[1] != v || c[2] != v {
			return
		}
	}
	r.info.Mode = "L"
	if n <= 2 {
		r.info.Mode = "1"
	}
}
