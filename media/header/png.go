package header

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// pngModes is Pillow's mode by colour type and bit depth.
var pngModes = map[[2]byte]string{
	{0, 1}: "1", {0, 2}: "L", {0, 4}: "L", {0, 8}: "L", {0, 16}: "I;16",
	{2, 8}: "RGB", {2, 16}: "RGB",
	{3, 1}: "P", {3, 2}: "P", {3, 4}: "P", {3, 8}: "P",
	{4, 8}: "LA", {4, 16}: "RGBA",
	{6, 8}: "RGBA", {6, 16}: "RGBA",
}

// png reads a PNG's chain of chunks. IHDR gives size and mode. EXIF may be in eXIf or in a text chunk, before or after the pixels: Pillow
// reads to the end before it answers, so the chain is followed to IEND. EXIF as hex text (older ImageMagick) and compressed XMP are not
// read.
func (r *Reader) png() {
	r.skip(8)
	animation, animated := false, false // an acTL with frames was seen, and no second one
	for {
		b := r.take(8)
		length, id := binary.BigEndian.Uint32(b), [4]byte(b[4:])
		r.sum = crc32.ChecksumIEEE(b[4:])
		if slices.ContainsFunc(id[:], func(c byte) bool { return !(c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z') }) {
			if r.opened { // Pillow reads no further; the image is valid
				return
			}
			fail(Malformed, "broken chunk")
		}
		want := 0 // bytes of the chunk that are needed
		switch string(id[:]) {
		case "IHDR":
			if length < 13 {
				fail(Malformed, "short IHDR")
			}
			want = 13
		case "IDAT", "fdAT":
			r.opened = true
		case "IEND":
			if !r.opened {
				fail(Truncated, "no pixels")
			}
			return
		case "acTL":
			want = 8
		case "fcTL":
			if r.opened && animated { // the second frame: Pillow has loaded the first
				return
			}
		case "tRNS":
			if m := r.info.Mode; length < 2 && (m == "1" || m == "L" || m == "I;16") || length < 6 && m == "RGB" {
				fail(Malformed, "short tRNS")
			}
			r.info.Transparent = r.info.Transparent || r.info.Mode == "RGB"
			if !r.opened {
				want = min(int(length), 256)
			}
		case "eXIf", "iTXt", "tEXt", "zTXt":
			if length <= maxMeta {
				want = int(length)
			}
		}
		if want > int(length) {
			fail(Malformed, "short chunk")
		}
		r.summing = !r.opened // Pillow verifies checksums before the pixels
		if want > 0 {
			b = r.take(want)
			switch string(id[:]) {
			case "acTL":
				n := binary.BigEndian.Uint32(b)
				animated = !animation && n > 0 && n <= 0x80000000 // a second one invalidates both
				animation = animation || animated
			default:
				r.pngBody(id, b)
			}
		}
		r.skip(int64(length) - int64(want))
		check := r.summing
		r.summing = false
		if sum := binary.BigEndian.Uint32(r.take(4)); check && sum != r.sum {
			fail(Malformed, "bad checksum")
		}
	}
}

// pngBody reads a chunk, or its beginning.
func (r *Reader) pngBody(id [4]byte, b []byte) {
	switch string(id[:]) {
	case "IHDR":
		if mode, ok := pngModes[[2]byte{b[9], b[8]}]; ok {
			r.info.Mode = mode
		}
		if b[11] != 0 {
			fail(Malformed, "unknown filter")
		}
		r.size(int(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint32(b[4:])))
	case "tRNS":
		if len(r.alpha) == 0 {
			r.alpha = append(r.alpha, b...)
		}
	case "eXIf":
		r.exifSeen = true
		r.exif = append(r.exif[:0], b...)
	default:
		r.pngText(id, b)
	}
}

// pngText reads a text chunk: key, NUL, and a value.
func (r *Reader) pngText(id [4]byte, b []byte) {
	key, v, _ := bytes.Cut(b, []byte{0})
	kind := string(id[:])
	switch k := string(key); {
	case kind == "tEXt" && k == "exif":
		r.exifSeen = true
		r.exif = append(r.exif[:0], v...)
	case k == "Raw profile type exif" && kind != "iTXt":
		fail(Unsupported, "EXIF as hex text")
	case k == "XML:com.adobe.xmp" && kind == "iTXt":
		if len(v) < 2 {
			return
		}
		if v[0] != 0 {
			fail(Unsupported, "compressed XMP")
		}
		_, v, _ = bytes.Cut(v[2:], []byte{0}) // language
		_, v, ok := bytes.Cut(v, []byte{0})   // translated key
		if ok {
			r.xmp = append(r.xmp[:0], v...)
		}
	case k == "XML:com.adobe.xmp":
		r.xmp = append(r.xmp[:0], v...)
	}
}
