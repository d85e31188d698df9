package header

import "encoding/binary"

// A WebP is a RIFF whose first chunk is VP8 (lossy), VP8L (lossless) or VP8X (extended). Pillow's mode is RGBA if libwebp's
// features report alpha, else RGB.

type webpState struct {
	left      int64 // bytes of the RIFF still to come
	id        [4]byte
	length    uint32
	extended  bool // VP8X came first: its canvas is the size
	animated  bool
	alpha     bool
	exif, xmp bool // VP8X announces the chunk; unannounced ones are ignored
	image     bool // a bitstream header was read
	frame     bool // of an animation
}

func webpRIFF(r *Reader, b []byte) {
	r.webp.left = int64(binary.LittleEndian.Uint32(b[4:])) - 4
	r.next(8, webpChunk)
}

// webpChunk reads a chunk's type and length.
func webpChunk(r *Reader, b []byte) {
	w := &r.webp
	w.id, w.length = [4]byte(b), binary.LittleEndian.Uint32(b[4:])
	size := int64(w.length) + int64(w.length&1)
	w.left -= 8 + size
	if w.left < -1 {
		r.fail(Truncated, "a chunk is longer than the file says")
		return
	}
	want := 0
	switch string(w.id[:]) {
	case "VP8X", "VP8 ":
		want = 10
	case "VP8L":
		want = 5
	case "ANMF":
		want = 1
	case "ALPH":
		if !w.image {
			w.alpha = true
		}
	case "EXIF", "XMP ":
		if w.length <= maxMeta && (w.exif && w.id[0] == 'E' || w.xmp && w.id[0] == 'X') {
			want = int(w.length)
		}
	}
	if want > 0 && int64(want) <= int64(w.length) {
		r.next(want, webpBody)
		return
	}
	r.webpOver(size)
}

// webpOver skips the rest of a chunk, and ends the pass after the last one.
func (r *Reader) webpOver(n int64) {
	switch left := r.webp.left; {
	case left >= 8:
		r.skipTo(n, 8, webpChunk)
		return
	case left > 0 && r.webp.extended:
		r.fail(Truncated, "a part of a chunk at its end")
		return
	}
	r.skipTo(max(n-int64(r.webp.length&1), 0), 0, webpEnd)
}

func webpBody(r *Reader, b []byte) {
	w := &r.webp
	le := binary.LittleEndian
	switch string(w.id[:]) {
	case "VP8X":
		if !w.extended && !w.image {
			w.extended = true
			w.alpha, w.exif, w.xmp, w.animated = b[0]&0x10 != 0, b[0]&8 != 0, b[0]&4 != 0, b[0]&2 != 0
			r.info.Width, r.info.Height = uint24(b[4:])+1, uint24(b[7:])+1
		}
	case "ANMF":
		w.frame = w.frame || w.animated
	case "VP8 ":
		tag := uint24(b) // key frame, profile 0 to 3, shown, first partition inside the chunk
		if b[3] != 0x9d || b[4] != 0x01 || b[5] != 0x2a || tag&1 != 0 || tag>>1&7 > 3 || tag>>4&1 == 0 || tag>>5 >= int(w.length) {
			r.fail(Malformed, "no VP8 key frame")
			return
		}
		r.webpImage(int(le.Uint16(b[6:])&0x3fff), int(le.Uint16(b[8:])&0x3fff), w.alpha)
	case "VP8L":
		bits := le.Uint32(b[1:])
		if b[0] != 0x2f || bits>>29 != 0 {
			r.fail(Malformed, "no VP8L of version 0")
			return
		}
		r.webpImage(int(bits&0x3fff)+1, int(bits>>14&0x3fff)+1, bits>>28&1 != 0)
	case "EXIF":
		if !r.exifSeen {
			r.exifSeen = true
			r.exif = append(r.exif[:0], b...)
		}
	case "XMP ":
		r.xmp = append(r.xmp[:0], b...)
	}
	if !r.done {
		r.webpOver(int64(w.length) + int64(w.length&1) - int64(len(b)))
	}
}

// webpImage records the size and alpha of the current image; only the first counts.
func (r *Reader) webpImage(width, height int, alpha bool) {
	w := &r.webp
	if w.image || w.animated {
		return
	}
	w.image, w.alpha = true, alpha
	if w.extended && (width != r.info.Width || height != r.info.Height) {
		r.fail(Malformed, "canvas and image differ in size")
		return
	}
	r.info.Width, r.info.Height = width, height
}

func webpEnd(r *Reader, _ []byte) {
	w := &r.webp
	r.done = true
	if !w.image && !w.frame {
		r.fail(Malformed, "no image")
		return
	}
	r.info.Mode = "RGB"
	if w.alpha {
		r.info.Mode = "RGBA"
	}
}

func uint24(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }
