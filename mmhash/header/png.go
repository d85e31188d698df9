package header

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"slices"
)

// A PNG is a chain of chunks. IHDR gives size and mode. EXIF may be in eXIf or in a text chunk, before or after the pixels: Pillow reads
// to the end before it answers, so the chain is followed to IEND. EXIF as hex text (older ImageMagick) and compressed XMP are not read.

type pngState struct {
	length   uint32
	id       [4]byte
	data     bool // IDAT (or fdAT) was seen: Pillow has opened the file
	summing  bool // skipped bytes count for the checksum
	sum      uint32
	actl     bool
	animated bool // acTL with frames, and no second one
}

// pngModes is Pillow's mode by colour type and bit depth.
var pngModes = map[[2]byte]string{
	{0, 1}: "1", {0, 2}: "L", {0, 4}: "L", {0, 8}: "L", {0, 16}: "I;16",
	{2, 8}: "RGB", {2, 16}: "RGB",
	{3, 1}: "P", {3, 2}: "P", {3, 4}: "P", {3, 8}: "P",
	{4, 8}: "LA", {4, 16}: "RGBA",
	{6, 8}: "RGBA", {6, 16}: "RGBA",
}

// pngChunk reads a chunk's length and type.
func pngChunk(r *Reader, b []byte) {
	p := &r.png
	p.length = binary.BigEndian.Uint32(b)
	p.id = [4]byte(b[4:])
	if slices.ContainsFunc(p.id[:], func(c byte) bool { return !(c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z') }) {
		if p.data { // Pillow reads no further; the image is valid
			r.done = true
		} else {
			r.fail(Malformed, "broken chunk")
		}
		return
	}
	want := 0
	switch string(p.id[:]) {
	case "IHDR":
		if p.length < 13 {
			r.fail(Malformed, "short IHDR")
			return
		}
		want = 13
	case "IDAT", "fdAT":
		p.data = true
	case "IEND":
		if !p.data {
			r.fail(Truncated, "no pixels")
			return
		}
		r.done = true
		return
	case "acTL":
		want = 8
	case "fcTL":
		if p.data && p.animated { // the second frame: Pillow has loaded the first
			r.done = true
			return
		}
	case "tRNS":
		if m := r.info.Mode; p.length < 2 && (m == "1" || m == "L" || m == "I;16") || p.length < 6 && m == "RGB" {
			r.fail(Malformed, "short tRNS")
			return
		}
		r.info.Transparent = r.info.Transparent || r.info.Mode == "RGB"
		if !p.data {
			want = min(int(p.length), 256)
		}
	case "eXIf", "iTXt", "tEXt", "zTXt":
		if p.length <= maxMeta {
			want = int(p.length)
		}
	}
	if want > int(p.length) {
		r.fail(Malformed, "short chunk")
		return
	}
	p.sum, p.summing = crc32.ChecksumIEEE(p.id[:]), false
	if want == 0 {
		r.pngOver(int64(p.length))
		return
	}
	r.next(want, pngBody)
}

// pngOver skips the rest of a chunk and its checksum, which Pillow verifies before the pixels.
func (r *Reader) pngOver(n int64) {
	if r.png.data {
		r.skipTo(n+4, 8, pngChunk)
		return
	}
	r.png.summing = true
	r.skipTo(n, 4, func(r *Reader, b []byte) {
		r.png.summing = false
		if r.png.sum != binary.BigEndian.Uint32(b) {
			r.fail(Malformed, "bad checksum")
			return
		}
		r.next(8, pngChunk)
	})
}

func pngHeader(r *Reader, b []byte) {
	r.info.Width, r.info.Height = int(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint32(b[4:]))
	if m, ok := pngModes[[2]byte{b[9], b[8]}]; ok {
		r.info.Mode = m
	}
	if b[11] != 0 {
		r.fail(Malformed, "unknown filter")
	}
}

// pngBody reads a chunk that is needed as a whole.
func pngBody(r *Reader, b []byte) {
	p := &r.png
	p.sum = crc32.Update(p.sum, crc32.IEEETable, b)
	r.pngOver(int64(p.length) - int64(len(b)))
	switch string(p.id[:]) {
	case "IHDR":
		pngHeader(r, b)
	case "acTL":
		n := binary.BigEndian.Uint32(b)
		p.animated = !p.actl && n > 0 && n <= 0x80000000 // a second one invalidates both
		p.actl = p.actl || p.animated
	case "tRNS":
		if len(r.alpha) == 0 {
			r.alpha = append(r.alpha, b...)
		}
	case "eXIf":
		r.exifSeen = true
		r.exif = append(r.exif[:0], b...)
	default:
		pngText(r, b)
	}
}

// pngText reads a text chunk: key, NUL, and a value.
func pngText(r *Reader, b []byte) {
	key, v, _ := bytes.Cut(b, []byte{0})
	kind := string(r.png.id[:])
	switch k := string(key); {
	case kind == "tEXt" && k == "exif":
		r.exifSeen = true
		r.exif = append(r.exif[:0], v...)
	case k == "Raw profile type exif" && kind != "iTXt":
		r.fail(Unsupported, "EXIF as hex text")
	case k == "XML:com.adobe.xmp" && kind == "iTXt":
		if len(v) < 2 {
			return
		}
		if v[0] != 0 {
			r.fail(Unsupported, "compressed XMP")
			return
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
