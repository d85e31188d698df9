package header

import "encoding/binary"

// webpState is what the chunks of a WebP have said so far.
type webpState struct {
	extended  bool // VP8X came first: its canvas is the size
	animated  bool
	alpha     bool
	exif, xmp bool // VP8X announces the chunk; unannounced ones are ignored
	image     bool // a bitstream header was read
	frame     bool // of an animation
}

// webp reads a WebP: a RIFF whose first chunk is VP8 (lossy), VP8L (lossless) or VP8X (extended). Pillow's mode is RGBA if libwebp's
// features report alpha, else RGB.
func (r *Reader) webp() {
	var w webpState
	left := int64(binary.LittleEndian.Uint32(r.take(12)[4:])) - 4 // bytes of the RIFF still to come
	for more := true; more; {
		b := r.take(8)
		id, length := [4]byte(b), int64(binary.LittleEndian.Uint32(b[4:]))
		odd := length & 1 // a byte of padding
		left -= 8 + length + odd
		if left < -1 {
			fail(Truncated, "a chunk is longer than the file says")
		}
		want := int64(0) // bytes of the chunk that are needed
		switch string(id[:]) {
		case "VP8X", "VP8 ":
			want = 10
		case "VP8L":
			want = 5
		case "ANMF":
			want = 1
		case "ALPH":
			w.alpha = w.alpha || !w.image
		case "EXIF", "XMP ":
			if length <= maxMeta && (w.exif && id[0] == 'E' || w.xmp && id[0] == 'X') {
				want = length
			}
		}
		if want > length {
			want = 0
		}
		if want > 0 {
			r.webpBody(&w, id, r.take(int(want)), int(length))
		}
		rest := length + odd - want
		more = left >= 8
		if !more {
			if left > 0 && w.extended {
				fail(Truncated, "a part of a chunk at its end")
			}
			rest = max(rest-odd, 0)
		}
		r.skip(rest)
	}
	if !w.image && !w.frame {
		fail(Malformed, "no image")
	}
	r.info.Mode = "RGB"
	if w.alpha {
		r.info.Mode = "RGBA"
	}
}

// webpBody reads the beginning of a chunk of the given length.
func (r *Reader) webpBody(w *webpState, id [4]byte, b []byte, length int) {
	le := binary.LittleEndian
	switch string(id[:]) {
	case "VP8X":
		if !w.extended && !w.image {
			w.extended = true
			w.alpha, w.exif, w.xmp, w.animated = b[0]&0x10 != 0, b[0]&8 != 0, b[0]&4 != 0, b[0]&2 != 0
			r.size(uint24(b[4:])+1, uint24(b[7:])+1)
		}
	case "ANMF":
		w.frame = w.frame || w.animated
	case "VP8 ":
		tag := uint24(b) // key frame, profile 0 to 3, shown, first partition inside the chunk
		if b[3] != 0x9d || b[4] != 0x01 || b[5] != 0x2a || tag&1 != 0 || tag>>1&7 > 3 || tag>>4&1 == 0 || tag>>5 >= length {
			fail(Malformed, "no VP8 key frame")
		}
		r.webpImage(w, int(le.Uint16(b[6:])&0x3fff), int(le.Uint16(b[8:])&0x3fff), w.alpha)
	case "VP8L":
		bits := le.Uint32(b[1:])
		if b[0] != 0x2f || bits>>29 != 0 {
			fail(Malformed, "no VP8L of version 0")
		}
		r.webpImage(w, int(bits&0x3fff)+1, int(bits>>14&0x3fff)+1, bits>>28&1 != 0)
	case "EXIF":
		if !r.exifSeen {
			r.exifSeen = true
			r.exif = append(r.exif[:0], b...)
		}
	case "XMP ":
		r.xmp = append(r.xmp[:0], b...)
	}
}

// webpImage records the size and alpha of the current image; only the first counts.
func (r *Reader) webpImage(w *webpState, width, height int, alpha bool) {
	if w.image || w.animated {
		return
	}
	w.image, w.alpha = true, alpha
	if w.extended && (width != r.info.Width || height != r.info.Height) {
		fail(Malformed, "canvas and image differ in size")
	}
	r.size(width, height)
}

func uint24(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }
