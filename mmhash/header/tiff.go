package header

import (
	"encoding/binary"
	"slices"
)

// A TIFF's directory may stand anywhere, and its longer values anywhere else, also before it (places.go). Mode follows from
// Pillow's table of (byte order, photometric, sample format, fill order, bits, extra samples), written here as rules.

type tiffState struct {
	order  binary.ByteOrder
	big    bool
	inside bool // the directory is awaited
	seen   map[uint16]bool
	strips bool // strip or tile offsets exist
	colour bool // a colour map exists

	width, height, turned    int64
	compression, photo, fill int64
	samples, planar          int64
	bits, format, extra      []int64
	haveSamples              bool
}

func tiffHead(r *Reader, b []byte) {
	t := &r.tiff
	t.order, t.big = tiffOrder(b), b[2] == 43
	t.seen = map[uint16]bool{}
	t.compression, t.fill, t.planar = 1, 1, 1
	r.places.all = tiffMode
	if t.big {
		r.next(8, func(r *Reader, b []byte) { r.wantAt(r.tiff.order.Uint64(b), 8, tiffCount); r.goOn() })
		return
	}
	r.wantAt(uint64(t.order.Uint32(b[4:])), 2, tiffCount)
	r.goOn()
}

// tiffCut takes the whole entries of a directory in which the file ends.
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

// tiffDirectory reads the entries, and asks for the longer values among those that matter.
func tiffDirectory(r *Reader, b []byte) {
	t := &r.tiff
	t.inside = false
	entry, tail := 12, 4
	if t.big {
		entry, tail = 20, 8
	}
	for ; len(b) >= entry+tail; b = b[entry:] {
		tag, typ := t.order.Uint16(b), t.order.Uint16(b[2:])
		if t.seen[tag] || int(typ) >= len(unitSize) || unitSize[typ] == 0 {
			continue
		}
		count, value := uint64(t.order.Uint32(b[4:])), b[8:12]
		if t.big {
			count, value = t.order.Uint64(b[4:]), b[12:20]
		}
		if count == 0 {
			continue
		}
		t.seen[tag] = true
		size := count * uint64(unitSize[typ])
		if size <= uint64(len(value)) && count <= 8 {
			r.tiffTag(tag, typ, value[:size])
			continue
		}
		switch tag {
		case 273, 324:
			r.tiffTag(tag, typ, nil) // that it is there is enough
		case 256, 320, 257, 258, 259, 262, 266, tagOrientation, 277, 284, 338, 339:
			off := uint64(t.order.Uint32(value))
			if t.big {
				off = t.order.Uint64(value)
			}
			n := int(min(count, 64)) * unitSize[typ]
			if tag == 320 { // its last byte: the map must be there
				off, n = off+size-1, 1
			}
			if r.wantAt(off, n, func(r *Reader, b []byte) { r.tiffTag(tag, typ, b) }); r.err != nil {
				return
			}
		}
	}
	r.info.Frames = 0
	if next := b; len(next) >= tail && !slices.ContainsFunc(next[:tail], func(c byte) bool { return c != 0 }) {
		r.info.Frames = 1
	}
}

// tiffTag keeps one tag's value.
func (r *Reader) tiffTag(tag, typ uint16, d []byte) {
	t := &r.tiff
	var all []int64
	for u := unitSize[typ]; len(d) >= u; d = d[u:] {
		v, ok := number(typ, d, t.order)
		if !ok {
			break
		}
		all = append(all, v)
	}
	if len(all) == 0 {
		all = []int64{-1} // of a type that Pillow does not read as a number: fits nothing
	}
	first := all[0]
	switch tag {
	case 256:
		t.width = first
	case 257:
		t.height = first
	case 258:
		t.bits = all
	case 259:
		t.compression = first
	case 262:
		t.photo = first
	case 266:
		t.fill = first
	case tagOrientation:
		t.turned = first
	case 273, 324:
		t.strips = true
	case 277:
		t.samples, t.haveSamples = first, true
	case 284:
		t.planar = first
	case 320:
		t.colour = true
	case 338:
		t.extra = all
	case 339:
		t.format = all
	}
}

// tiffMode draws the conclusion once every wanted value is there.
func tiffMode(r *Reader) {
	t := &r.tiff
	r.done = true
	known := []int64{1, 2, 3, 4, 5, 6, 7, 8, 32771, 32773, 32809, 32946, 34676, 34677, 34925, 50000, 50001}
	if !slices.Contains(known, t.compression) || t.seen[0xBC01] {
		r.fail(Malformed, "unknown compression")
		return
	}
	if t.compression == 6 { // old-style JPEG
		t.photo = 6
	}
	if t.bits == nil {
		t.bits = []int64{1}
	}
	if t.format == nil {
		t.format = []int64{1}
	}
	if !t.haveSamples {
		t.samples = 1
		if t.compression == 6 {
			t.samples = 3
		}
	}
	if len(t.format) > 1 && slices.Max(t.format) == slices.Min(t.format) {
		t.format = t.format[:1]
	}
	if n := len(t.extra); t.planar == 2 && n > 0 && slices.Max(t.extra) == 0 && len(t.bits) >= n {
		t.bits, t.extra, t.samples = t.bits[:len(t.bits)-n], nil, t.samples-int64(n)
	}
	if t.samples < 1 || t.samples > 6 {
		r.fail(Malformed, "samples per pixel")
		return
	}
	switch n := int64(len(t.bits)); {
	case t.samples < n:
		t.bits = t.bits[:t.samples]
	case t.samples > n && n == 1:
		t.bits = slices.Repeat(t.bits, int(t.samples))
	}
	if int64(len(t.bits)) != t.samples || len(t.format) != 1 || slices.Max(t.bits) != slices.Min(t.bits) {
		r.fail(Malformed, "unknown data organization")
		return
	}
	m := t.mode(t.bits[0], len(t.bits), t.format[0])
	switch {
	case m == "", m[0] == 'P' && !t.colour, t.compression == 1 && !t.strips:
		r.fail(Malformed, "unknown pixel mode")
		return
	case t.photo == 6 && t.compression != 1: // libtiff makes RGB of it
		m = "RGB"
	case m == "YCbCr": // RGB before Pillow 13
		m, r.untold = "", true
	}
	r.info.Mode, r.info.Orientation = m, 1
	r.info.Width, r.info.Height = clampInt(t.width), clampInt(t.height)
	if t.turned >= 5 && t.turned <= 8 {
		r.info.Width, r.info.Height = r.info.Height, r.info.Width
	}
}

func clampInt(v int64) int { return int(max(0, min(v, 1<<40))) }

// mode is Pillow's OPEN_INFO table for n samples of d bits each.
func (t *tiffState) mode(d int64, n int, format int64) string {
	le, plain := t.order == binary.LittleEndian, t.fill == 1
	if t.fill != 1 && t.fill != 2 {
		return ""
	}
	extra := func(v ...int64) bool { return slices.Equal(t.extra, v) }
	small := d == 1 || d == 2 || d == 4 || d == 8
	if format != 1 {
		switch {
		case n != 1 || !extra() || !plain || t.photo > 1:
		case format == 2 && t.photo == 1 && d == 8:
			return "L"
		case format == 2 && t.photo == 1 && (d == 16 || d == 32):
			return "I"
		case format == 3 && d == 32:
			return "F"
		}
		return ""
	}
	switch t.photo {
	case 0, 1:
		switch {
		case n == 1 && extra() && d == 1:
			return "1"
		case n == 1 && extra() && small:
			return "L"
		case n == 1 && extra() && d == 16 && le && (plain || t.photo == 1), n == 1 && extra() && d == 12 && le && plain && t.photo == 1:
			return "I;16"
		case n == 1 && extra() && d == 16 && plain && t.photo == 1:
			return "I;16B"
		case n == 1 && extra() && d == 32 && le && plain && t.photo == 1:
			return "I"
		case n == 2 && d == 8 && plain && t.photo == 1 && len(t.extra) == 1 && t.extra[0] >= 0 && t.extra[0] <= 2:
			return [...]string{"L", "La", "LA"}[t.extra[0]]
		}
	case 2:
		switch {
		case n == 3 && extra() && (d == 8 || d == 16 && plain):
			return "RGB"
		case !plain:
		case n == 4 && (d == 8 || d == 16) && extra(), n == 4 && d == 8 && extra(999):
			return "RGBA"
		case n >= 4 && n <= 6 && (d == 8 || d == 16 && n == 4) && len(t.extra) == n-3 && slices.Max(append([]int64{0}, t.extra[1:]...)) == 0:
			switch t.extra[0] {
			case 0:
				return "RGB"
			case 1, 2:
				return "RGBA"
			}
		}
	case 3:
		switch {
		case n == 1 && extra() && small, n == 2 && d == 8 && plain && extra(0):
			return "P"
		case n == 2 && d == 8 && plain && extra(2):
			return "PA"
		}
	case 5:
		if plain && (n == 4 && (d == 8 || d == 16) && extra() || d == 8 && (n == 5 && extra(0) || n == 6 && extra(0, 0))) {
			return "CMYK"
		}
	case 6:
		switch {
		case !plain || d != 8 || !extra():
		case n == 1:
			return "L"
		case n == 3:
			return "YCbCr"
		}
	case 8:
		if plain && d == 8 && n == 3 && extra() {
			return "LAB"
		}
	}
	return ""
}
