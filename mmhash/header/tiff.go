package header

import (
	"encoding/binary"
	"slices"
)

// A TIFF's directory may be anywhere in the file, and its longer values anywhere else, even before it (places.go). Mode follows
// from Pillow's table of (byte order, photometric, sample format, fill order, bits, extra samples), written here as rules.

type tiffState struct {
	order  binary.ByteOrder
	big    bool
	inside bool               // the directory is needed next
	tags   map[uint16][]int64 // the relevant tags, by their first entry; -1: of a type that Pillow does not read as a number

	// Set once all tags are read:
	fill, photo int64
	extra       []int64
}

// The relevant tags.
const (
	tagWidth, tagHeight, tagBits, tagCompression, tagPhotometric, tagFill = 256, 257, 258, 259, 262, 266
	tagStrips, tagSamples, tagPlanar, tagColours, tagTiles                = 273, 277, 284, 320, 324
	tagExtra, tagFormat, tagUnknown                                       = 338, 339, 0xBC01
)

var tiffTags = []uint16{tagWidth, tagHeight, tagBits, tagCompression, tagPhotometric, tagFill, tagStrips, tagOrientation, tagSamples,
	tagPlanar, tagColours, tagTiles, tagExtra, tagFormat, tagUnknown}

// first returns a tag's first value, or none if the file lacks the tag.
func (t *tiffState) first(tag uint16, none int64) int64 {
	if v := t.tags[tag]; len(v) > 0 {
		return v[0]
	}
	return none
}

// has reports whether the file has a tag.
func (t *tiffState) has(tag uint16) bool { _, ok := t.tags[tag]; return ok }

func tiffHead(r *Reader, b []byte) {
	t := &r.tiff
	t.order, t.big = tiffOrder(b), b[2] == 43
	t.tags = map[uint16][]int64{}
	r.places.all = tiffMode
	if t.big {
		r.next(8, func(r *Reader, b []byte) { r.wantAt(r.tiff.order.Uint64(b), 8, tiffCount); r.goOn() })
		return
	}
	r.wantAt(uint64(t.order.Uint32(b[4:])), 2, tiffCount)
	r.goOn()
}

// tiffCut reads the complete entries of a directory that the end of the file truncates.
func (r *Reader) tiffCut() {
	if t := &r.tiff; !r.done && t.inside && len(r.buf) >= 12 {
		r.places.want = nil
		tiffDirectory(r, append(r.buf, make([]byte, 8)...))
		if r.err == nil && len(r.places.want) == 0 {
			tiffMode(r)
		}
	}
}

func tiffCount(r *Reader, b []byte) {
	t := &r.tiff
	n, entry, tail := uint64(0), 12, 4
	if t.big {
		n, entry, tail = t.order.Uint64(b), 20, 8
	} else {
		n = uint64(t.order.Uint16(b))
	}
	if n > maxMeta/20 {
		r.fail(Malformed, "too many tags")
		return
	}
	t.inside = true
	r.wantAt(uint64(r.off), int(n)*entry+tail, tiffDirectory)
}

// tiffDirectory reads the entries, and requests the longer values of the relevant ones.
func tiffDirectory(r *Reader, b []byte) {
	t := &r.tiff
	t.inside = false
	entry, tail := 12, 4
	if t.big {
		entry, tail = 20, 8
	}
	for ; len(b) >= entry+tail; b = b[entry:] {
		tag, typ := t.order.Uint16(b), t.order.Uint16(b[2:])
		if t.has(tag) || !slices.Contains(tiffTags, tag) || int(typ) >= len(unitSize) || unitSize[typ] == 0 {
			continue
		}
		count, value := uint64(t.order.Uint32(b[4:])), b[8:12]
		if t.big {
			count, value = t.order.Uint64(b[4:]), b[12:20]
		}
		if count == 0 {
			continue
		}
		t.tags[tag] = nil
		size := count * uint64(unitSize[typ])
		if size <= uint64(len(value)) && count <= 8 {
			t.tags[tag] = t.values(typ, value[:size])
			continue
		}
		if tag == tagStrips || tag == tagTiles || tag == tagUnknown { // only their existence matters
			continue
		}
		off := uint64(t.order.Uint32(value))
		if t.big {
			off = t.order.Uint64(value)
		}
		n := int(min(count, 64)) * unitSize[typ]
		if tag == tagColours { // its last byte: the map must exist
			off, n = off+size-1, 1
		}
		r.wantAt(off, n, func(r *Reader, b []byte) { r.tiff.tags[tag] = r.tiff.values(typ, b) })
		if r.err != nil {
			return
		}
	}
}

// values reads a tag's numbers.
func (t *tiffState) values(typ uint16, d []byte) (all []int64) {
	for u := unitSize[typ]; len(d) >= u; d = d[u:] {
		v, ok := number(typ, d, t.order)
		if !ok {
			break
		}
		all = append(all, v)
	}
	if len(all) == 0 {
		return []int64{-1} // matches nothing
	}
	return all
}

// tiffMode determines the result once every needed value is read.
func tiffMode(r *Reader) {
	t := &r.tiff
	r.done = true
	known := []int64{1, 2, 3, 4, 5, 6, 7, 8, 32771, 32773, 32809, 32946, 34676, 34677, 34925, 50000, 50001}
	compression := t.first(tagCompression, 1)
	if !slices.Contains(known, compression) || t.has(tagUnknown) {
		r.fail(Malformed, "unknown compression")
		return
	}
	bits, format, samples := t.tags[tagBits], t.tags[tagFormat], t.first(tagSamples, 1)
	t.fill, t.photo, t.extra = t.first(tagFill, 1), t.first(tagPhotometric, 0), t.tags[tagExtra]
	if compression == 6 { // old-style JPEG
		t.photo, samples = 6, t.first(tagSamples, 3)
	}
	if bits == nil {
		bits = []int64{1}
	}
	if format == nil {
		format = []int64{1}
	}
	if len(format) > 1 && slices.Max(format) == slices.Min(format) {
		format = format[:1]
	}
	if n := len(t.extra); t.first(tagPlanar, 1) == 2 && n > 0 && slices.Max(t.extra) == 0 && len(bits) >= n {
		bits, t.extra, samples = bits[:len(bits)-n], nil, samples-int64(n)
	}
	if samples < 1 || samples > 6 {
		r.fail(Malformed, "samples per pixel")
		return
	}
	switch n := int64(len(bits)); {
	case samples < n:
		bits = bits[:samples]
	case samples > n && n == 1:
		bits = slices.Repeat(bits, int(samples))
	}
	if int64(len(bits)) != samples || len(format) != 1 || slices.Max(bits) != slices.Min(bits) {
		r.fail(Malformed, "unknown data organization")
		return
	}
	m := t.mode(bits[0], len(bits), format[0])
	switch {
	case m == "", m[0] == 'P' && !t.has(tagColours), compression == 1 && !t.has(tagStrips) && !t.has(tagTiles):
		r.fail(Malformed, "unknown pixel mode")
		return
	case t.photo == 6 && compression != 1: // libtiff converts it to RGB
		m = "RGB"
	case m == "YCbCr": // RGB before Pillow 13
		m, r.untold = "", true
	}
	r.info.Mode, r.info.Orientation = m, 1
	r.info.Width, r.info.Height = clampInt(t.first(tagWidth, 0)), clampInt(t.first(tagHeight, 0))
	if turned := t.first(tagOrientation, 0); turned >= 5 && turned <= 8 {
		r.info.Width, r.info.Height = r.info.Height, r.info.Width
	}
}

func clampInt(v int64) int { return int(max(0, min(v, 1<<40))) }

// mode is Pillow's OPEN_INFO table for n samples of d bits each; "" if it has no entry.
func (t *tiffState) mode(d int64, n int, format int64) string {
	plain := t.fill == 1
	switch {
	case t.fill != 1 && t.fill != 2:
		return ""
	case format != 1:
		return t.signed(d, n, format)
	}
	switch t.photo {
	case 0, 1:
		return t.grey(d, n)
	case 2:
		return t.colour(d, n)
	case 3:
		switch {
		case n == 1 && t.extras() && (d == 1 || d == 2 || d == 4 || d == 8), n == 2 && d == 8 && plain && t.extras(0):
			return "P"
		case n == 2 && d == 8 && plain && t.extras(2):
			return "PA"
		}
	case 5:
		if plain && (n == 4 && (d == 8 || d == 16) && t.extras() || d == 8 && (n == 5 && t.extras(0) || n == 6 && t.extras(0, 0))) {
			return "CMYK"
		}
	case 6:
		switch {
		case !plain || d != 8 || !t.extras():
		case n == 1:
			return "L"
		case n == 3:
			return "YCbCr"
		}
	case 8:
		if plain && d == 8 && n == 3 && t.extras() {
			return "LAB"
		}
	}
	return ""
}

// extras reports whether the extra samples are exactly these.
func (t *tiffState) extras(v ...int64) bool { return slices.Equal(t.extra, v) }

// signed is mode for signed integers and for floats.
func (t *tiffState) signed(d int64, n int, format int64) string {
	switch {
	case n != 1 || !t.extras() || t.fill != 1 || t.photo > 1:
	case format == 2 && t.photo == 1 && d == 8:
		return "L"
	case format == 2 && t.photo == 1 && (d == 16 || d == 32):
		return "I"
	case format == 3 && d == 32:
		return "F"
	}
	return ""
}

// grey is mode for one value per pixel, black first (1) or white first (0), perhaps with alpha.
func (t *tiffState) grey(d int64, n int) string {
	le, plain, one, black := t.order == binary.LittleEndian, t.fill == 1, n == 1 && t.extras(), t.photo == 1
	switch {
	case one && d == 1:
		return "1"
	case one && (d == 2 || d == 4 || d == 8):
		return "L"
	case one && d == 16 && le && (plain || black), one && d == 12 && le && plain && black:
		return "I;16"
	case one && d == 16 && plain && black:
		return "I;16B"
	case one && d == 32 && le && plain && black:
		return "I"
	case n == 2 && d == 8 && plain && black && len(t.extra) == 1 && t.extra[0] >= 0 && t.extra[0] <= 2:
		return [...]string{"L", "La", "LA"}[t.extra[0]]
	}
	return ""
}

// colour is mode for red, green and blue, perhaps with alpha.
func (t *tiffState) colour(d int64, n int) string {
	plain := t.fill == 1
	switch {
	case n == 3 && t.extras() && (d == 8 || d == 16 && plain):
		return "RGB"
	case !plain:
	case n == 4 && (d == 8 || d == 16) && t.extras(), n == 4 && d == 8 && t.extras(999):
		return "RGBA"
	case n >= 4 && n <= 6 && (d == 8 || d == 16 && n == 4) && len(t.extra) == n-3 && slices.Max(append([]int64{0}, t.extra[1:]...)) == 0:
		switch t.extra[0] {
		case 0:
			return "RGB"
		case 1, 2:
			return "RGBA"
		}
	}
	return ""
}
