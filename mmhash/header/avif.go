package header

import "encoding/binary"

// An AVIF is a HEIF file whose primary item is an AV1 picture, or a grid of them. Everything is in the meta box: the size (ispe),
// whether it is grey (av1C) or has alpha (an auxiliary item), and its orientation (irot, imir), which Pillow writes over EXIF's.
// Only if neither rotates it and EXIF is silent, XMP is used.
//
// Pillow reads it with libavif (checked against 1.4.2). Files that cannot be decided for certain, such as sequences, are
// Unsupported. A grey AVIF has no mode: it is "L" since Pillow 12.3 and was "RGB".

const avifSide = 32768 // pixels: libavif's limit

func avifBrand(b []byte) bool {
	switch string(b[:4]) {
	case "avif", "avis", "mif1", "msf1":
		return true
	}
	return false
}

// avifBox reads a box header of the file.
func avifBox(r *Reader, b []byte) { r.boxHead(b, (*Reader).avifOver) }

func (r *Reader) avifOver(kind string, n, head uint64) {
	wanted := kind == "ftyp" || kind == "meta"
	switch {
	case n == 0 && !wanted:
		r.fail(Truncated, "no meta box")
	case n < head || n > maxOffset:
		r.fail(Malformed, "bad length of a box")
	case wanted && n > maxMeta:
		r.fail(Unsupported, "a box of more than 1 MiB")
	case kind == "ftyp":
		r.next(int(n-head), avifBrands)
	case kind == "meta":
		r.next(int(n-head), avifMeta)
	default:
		r.skipTo(int64(n-head), 8, avifBox)
	}
}

func avifBrands(r *Reader, b []byte) {
	still, sequence := false, false
	for i := 0; i+4 <= len(b); i += 4 {
		if i != 4 { // the minor version
			still, sequence = still || string(b[i:i+4]) == "avif", sequence || string(b[i:i+4]) == "avis"
		}
	}
	switch {
	case len(b) < 8 || len(b)%4 != 0 || !still && !sequence:
		r.fail(Malformed, "HEIF without the brand avif")
	case sequence && string(b[:4]) != "avif":
		r.fail(Unsupported, "a sequence of pictures")
	default:
		r.next(8, avifBox)
	}
}

func avifMeta(r *Reader, b []byte) {
	m, ok := readHEIF(b)
	if !ok {
		r.fail(Unsupported, "a meta box that is not read")
		return
	}
	first := m.items[m.primary]
	if first == nil || first.kind != "av01" && first.kind != "grid" || first.pieces == 0 {
		r.fail(Unsupported, "the primary item is not an AV1 picture")
		return
	}
	coded := first
	if first.kind == "grid" && len(first.tiles) > 0 && m.items[first.tiles[0]] != nil {
		coded = m.items[first.tiles[0]] // all tiles are alike
	}
	size, config := first.size, coded.config
	if len(size) < 12 || len(config) < 4 || config[0] != 0x81 {
		r.fail(Unsupported, "a picture without size or configuration")
		return
	}
	be := binary.BigEndian
	r.info.Width, r.info.Height = int(be.Uint32(size[4:])), int(be.Uint32(size[8:]))
	if r.info.Width > avifSide || r.info.Height > avifSide {
		r.fail(TooManyPixels, "a side of more than 32768 pixels")
		return
	}
	switch {
	case m.transparent(m.primary):
		r.info.Mode = "RGBA"
	case config[2]&0x10 != 0:
		r.untold = true
	default:
		r.info.Mode = "RGB"
	}
	r.avifTurn(m, first)
}

// avifTurn determines the orientation, and requests XMP and EXIF if they decide it.
func (r *Reader) avifTurn(m *heifMeta, first *heifItem) {
	angle, axis := 0, -1
	if len(first.rotate) > 0 {
		angle = int(first.rotate[0] & 3)
	}
	if len(first.mirror) > 0 {
		axis = int(first.mirror[0] & 1)
	}
	// The EXIF value by angle, in steps of 90° counter-clockwise, for no mirror, axis 0 (top and bottom) and axis 1.
	r.info.Orientation = [4][3]uint8{{1, 4, 2}, {8, 5, 7}, {3, 2, 4}, {6, 7, 5}}[angle][axis+1]
	r.done = true
	if r.info.Orientation != 1 {
		return
	}
	exif, xmp := m.about(m.primary, "Exif", ""), m.about(m.primary, "mime", "application/rdf+xml")
	if xmp == nil {
		return
	}
	r.places.all = func(r *Reader) { r.done = true }
	r.avifData(m, xmp, func(r *Reader, b []byte) { r.xmp = append(r.xmp[:0], b...) })
	r.info.Orientation = 0
	if exif != nil {
		r.avifData(m, exif, func(r *Reader, b []byte) {
			if _, found := exifOrientation(b[min(4, len(b)):]); found { // after the offset of the TIFF header
				r.info.Orientation = 1
			}
		})
	}
	if len(r.places.want) > 0 {
		r.done = false
		r.goOn()
	}
}

// avifData requests an item's data and runs do on it.
func (r *Reader) avifData(m *heifMeta, it *heifItem, do step) {
	switch {
	case it.pieces > 1 || it.length > maxMeta:
		r.fail(Unsupported, "metadata in pieces, or of more than 1 MiB")
	case !it.inside:
		r.wantAt(it.off, int(it.length), do)
	case it.off > uint64(len(m.idat)) || it.length > uint64(len(m.idat))-it.off:
		r.fail(Unsupported, "metadata beyond its box")
	default:
		do(r, m.idat[it.off:][:it.length])
	}
}
