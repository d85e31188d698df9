package header

import (
	"bytes"
	"encoding/binary"
)

// jpeg reads a JPEG's chain of marker segments. The last SOFn before the first SOS gives size and mode; EXIF and XMP are in APP1.
// Pillow skips junk between segments, and so does this.
func (r *Reader) jpeg() {
	r.skip(3)
	for {
		m := r.byte() // the byte after an FF
		switch {
		case m == 0xFF: // fill byte: still after an FF
			continue
		case m > 0 && m < 0xC0:
			fail(Malformed, "no marker behind FF")
		case m == 0, m == 0xC8, m >= 0xD0 && m <= 0xD9, m >= 0xF0 && m <= 0xFD: // an escaped FF, or a marker without a segment
			r.skipFF()
			continue
		}
		n := max(int(binary.BigEndian.Uint16(r.take(2)))-2, 0)
		switch {
		case m == 0xDA: // start of scan: nothing more is needed
			r.skip(int64(n))
			return
		case m == 0xDB:
			r.jpegTables(n)
		case m == 0xE1:
			r.jpegAPP1(r.take(n))
		case m >= 0xC0 && m <= 0xCF && m != 0xC4 && m != 0xCC, m == 0xDE:
			if n < 6 || n%3 != 0 {
				fail(Malformed, "bad length of a frame header")
			}
			r.jpegFrame(r.take(n))
		default:
			r.skip(int64(n))
		}
		r.skipFF()
	}
}

// skipFF reads up to and including the next FF.
func (r *Reader) skipFF() {
	for r.more() {
		k := bytes.IndexByte(r.piece, 0xFF)
		if k >= 0 {
			r.piece = r.piece[k+1:]
			return
		}
		r.piece = nil
	}
	panic(errEnd)
}

// jpegFrame reads SOFn: precision, height, width, components.
func (r *Reader) jpegFrame(b []byte) {
	if b[0] != 8 {
		fail(Malformed, "sample precision is not 8 bits")
	}
	switch b[5] {
	case 1:
		r.info.Mode = "L"
	case 3:
		r.info.Mode = "RGB"
	case 4: // YCCK too
		r.info.Mode = "CMYK"
	default:
		fail(Malformed, "neither 1, 3 nor 4 components")
	}
	r.size(int(binary.BigEndian.Uint16(b[3:])), int(binary.BigEndian.Uint16(b[1:])))
}

// jpegTables walks the tables of a DQT, whose lengths Pillow checks.
func (r *Reader) jpegTables(n int) {
	for n > 0 {
		size := 64
		if r.byte() >= 16 {
			size = 128
		}
		n -= 1 + size
		if n < 0 {
			fail(Malformed, "bad quantization table")
		}
		r.skip(int64(size))
	}
}

// jpegAPP1 keeps EXIF blocks, joined as Pillow joins them, and the last XMP packet.
func (r *Reader) jpegAPP1(b []byte) {
	if exif, ok := bytes.CutPrefix(b, []byte("Exif\x00\x00")); ok {
		r.exifSeen = true
		if len(r.exif)+len(b) <= maxMeta {
			r.exif = append(r.exif, exif...)
		}
	} else if xmp, ok := bytes.CutPrefix(b, []byte("http://ns.adobe.com/xap/1.0/\x00")); ok {
		r.xmp = append(r.xmp[:0], xmp...)
	}
}
