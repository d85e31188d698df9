package header

import "encoding/binary"

// A JPEG is a chain of marker segments. The last SOFn before the first SOS gives size and mode; EXIF and XMP are in APP1. Pillow
// skips junk between segments, and so does this.

type jpegState struct {
	marker byte
	left   int // bytes left of the current DQT
}

// jpegMarker reads the byte after an FF.
func jpegMarker(r *Reader, b []byte) {
	switch m := b[0]; {
	case m == 0xFF: // fill byte: still after an FF
		r.next(1, jpegMarker)
	case m == 0: // an escaped FF: junk
		r.jpegSeek()
	case m < 0xC0 || m == 0xFF:
		r.fail(Malformed, "no marker behind FF")
	case m == 0xC8, m >= 0xD0 && m <= 0xD9, m >= 0xF0 && m <= 0xFD: // markers without a segment
		r.jpegSeek()
	default:
		r.jpeg.marker = m
		r.next(2, jpegSegment)
	}
}

func (r *Reader) jpegSeek() { r.seek = true; r.next(1, jpegMarker) }

// jpegOver skips the rest of a segment.
func (r *Reader) jpegOver(n int) { r.jpegSeek(); r.skip = int64(n) }

// jpegSegment reads a segment's length and decides how much of it is needed.
func jpegSegment(r *Reader, b []byte) {
	n := max(int(binary.BigEndian.Uint16(b))-2, 0)
	switch m := r.jpeg.marker; {
	case m == 0xDA: // start of scan: nothing more is needed
		r.skipTo(int64(n), 0, func(r *Reader, _ []byte) { r.done = true })
	case m == 0xDB:
		r.jpeg.left = n
		jpegTable(r, nil)
	case m == 0xE1:
		r.next(n, jpegAPP1)
	case m >= 0xC0 && m <= 0xCF && m != 0xC4 && m != 0xCC, m == 0xDE:
		if n < 6 || n%3 != 0 {
			r.fail(Malformed, "bad length of a frame header")
			return
		}
		r.next(n, jpegFrame)
	default:
		r.jpegOver(n)
	}
}

// jpegFrame reads SOFn: precision, height, width, components.
func jpegFrame(r *Reader, b []byte) {
	if b[0] != 8 {
		r.fail(Malformed, "sample precision is not 8 bits")
		return
	}
	r.info.Height, r.info.Width = int(binary.BigEndian.Uint16(b[1:])), int(binary.BigEndian.Uint16(b[3:]))
	switch b[5] {
	case 1:
		r.info.Mode = "L"
	case 3:
		r.info.Mode = "RGB"
	case 4: // YCCK too
		r.info.Mode = "CMYK"
	default:
		r.fail(Malformed, "neither 1, 3 nor 4 components")
		return
	}
	r.jpegSeek()
}

// jpegTable walks the tables of a DQT, whose lengths Pillow checks.
func jpegTable(r *Reader, b []byte) {
	if len(b) == 1 {
		size := 64
		if b[0] >= 16 {
			size = 128
		}
		r.jpeg.left -= 1 + size
		if r.jpeg.left < 0 {
			r.fail(Malformed, "bad quantization table")
			return
		}
		r.skip = int64(size)
	}
	if r.jpeg.left == 0 {
		r.jpegOver(int(r.skip))
		return
	}
	r.next(1, jpegTable)
}

// jpegAPP1 keeps EXIF blocks, joined as Pillow joins them, and the last XMP packet.
func jpegAPP1(r *Reader, b []byte) {
	const exif, xmp = "Exif\x00\x00", "http://ns.adobe.com/xap/1.0/\x00"
	switch {
	case len(b) >= len(exif) && string(b[:len(exif)]) == exif:
		r.exifSeen = true
		if len(r.exif)+len(b) <= maxMeta {
			r.exif = append(r.exif, b[len(exif):]...)
		}
	case len(b) >= len(xmp) && string(b[:len(xmp)]) == xmp:
		r.xmp = append(r.xmp[:0], b[len(xmp):]...)
	}
	r.jpegSeek()
}
