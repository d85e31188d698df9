package header

import "encoding/binary"

// JPEG 2000: a bare codestream, whose first segment (SIZ) says all, or JP2 boxes, of which jp2h does.

// jpeg2000Mode is Pillow's mode by the number of components; deep: more than 8 bits.
func jpeg2000Mode(components int, deep bool) string {
	switch {
	case components == 1 && deep:
		return "I;16"
	case components >= 1 && components <= 4:
		return [...]string{"L", "LA", "RGB", "RGBA"}[components-1]
	}
	return ""
}

// j2kSize reads SIZ, whose own length Pillow checks and does not keep to.
func j2kSize(r *Reader, b []byte) {
	be := binary.BigEndian
	n := int(be.Uint16(b[36:]))
	w, h := int(be.Uint32(b[4:]))-int(be.Uint32(b[12:])), int(be.Uint32(b[8:]))-int(be.Uint32(b[16:]))
	switch length := be.Uint16(b); {
	case length < 38, n == 1 && length == 38:
		r.fail(Malformed, "short SIZ")
	case n == 1:
		r.next(1, func(r *Reader, b []byte) { r.jpeg2000(w, h, jpeg2000Mode(1, b[0]&0x7F > 7)) })
	default:
		r.jpeg2000(w, h, jpeg2000Mode(n, false))
	}
}

func (r *Reader) jpeg2000(w, h int, mode string) {
	r.info = Info{Format: "JPEG2000", Mode: mode, Width: w, Height: h, Orientation: 1, Frames: 1}
	r.done = true
}

// jp2Box reads the head of a box of the file.
func jp2Box(r *Reader, b []byte) { r.boxHead(b, (*Reader).jp2Over) }

func (r *Reader) jp2Over(kind string, n, head uint64) {
	switch {
	case n < head || n > maxOffset:
		r.fail(Malformed, "bad length of a box")
	case kind != "jp2h":
		r.skipTo(int64(n-head), 8, jp2Box)
	case n > maxMeta:
		r.fail(Unsupported, "a header of more than 1 MiB")
	default:
		r.next(int(n-head), jp2Header)
	}
}

// jp2Header reads image header, colour space and palette.
func jp2Header(r *Reader, b []byte) {
	var w, h int
	var mode, colour string
	components := -1
	broken := func() { r.fail(Malformed, "broken JP2 header") }
	for len(b) > 0 {
		kind, body, rest, ok := box(b)
		if !ok {
			broken()
			return
		}
		b = rest
		switch kind {
		case "ihdr":
			if len(body) < 11 {
				broken()
				return
			}
			be := binary.BigEndian
			h, w, components = int(be.Uint32(body)), int(be.Uint32(body[4:])), int(be.Uint16(body[8:]))
			if m := jpeg2000Mode(components, body[10]&0x7F > 8); m != "" {
				mode = m
			}
		case "colr":
			if len(body) < 7 {
				broken()
				return
			}
			if body[0] != 1 {
				break
			}
			switch binary.BigEndian.Uint32(body[3:]) {
			case 0, 15:
				colour = "1"
			case 12:
				if colour = "CMYK"; components == 4 {
					mode = "CMYK"
				}
			case 17:
				colour = "L"
			}
		case "pclr":
			if mode != "L" && mode != "LA" || colour == "1" || colour == "L" {
				break
			}
			if len(body) < 3 || len(body) < 3+int(body[2]) {
				broken()
				return
			}
			deep := false
			for _, depth := range body[3:][:body[2]] {
				deep = deep || depth > 8
			}
			if !deep {
				mode = map[string]string{"L": "P", "LA": "PA"}[mode]
			}
		}
	}
	r.jpeg2000(w, h, mode)
}
