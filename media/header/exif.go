package header

import (
	"bytes"
	"encoding/binary"
)

// Orientation as ImageOps.exif_transpose reads it: tag 274 of the first directory, else the first tiff:Orientation of an XMP
// packet. Values other than 2 to 8 have no effect.

const tagOrientation = 274

// unitSize is the size of one value of each TIFF field type; 0 = unknown type, whose field is skipped.
var unitSize = [...]int{0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8}

const typeShort = 3

// tiffOrder returns the byte order of a TIFF header, nil if it is not one. Pillow also accepts a byte-swapped 42.
func tiffOrder(b []byte) binary.ByteOrder {
	switch string(b[:4]) {
	case "II\x2a\x00", "II\x00\x2a":
		return binary.LittleEndian
	case "MM\x00\x2a", "MM\x2a\x00", "MM\x00\x2b":
		return binary.BigEndian
	}
	return nil
}

// exifOrientation finds the tag in an EXIF block. found says that the tag exists, even if its value
// is invalid. Pillow reads values of all numeric types; one that is not a SHORT, as the standard wants, gives 0.
func exifOrientation(b []byte) (v uint8, found bool) {
	for range 2 {
		b = bytes.TrimPrefix(b, []byte("Exif\x00\x00"))
	}
	if len(b) == 0 {
		return 1, false
	}
	if len(b) < 8 {
		return 1, true
	}
	o := tiffOrder(b)
	if o == nil {
		return 1, true // Pillow raises here and reads no further
	}
	at := uint64(o.Uint32(b[4:]))
	if at+2 > uint64(len(b)) {
		return 1, false
	}
	entries := b[at+2:]
	total := uint64(0)
	for range o.Uint16(b[at:]) {
		if len(entries) < 12 {
			break
		}
		e := entries[:12]
		entries = entries[12:]
		tag, typ, count := o.Uint16(e), o.Uint16(e[2:]), uint64(o.Uint32(e[4:]))
		if int(typ) >= len(unitSize) || unitSize[typ] == 0 {
			continue
		}
		d := e[8:12]
		if size := count * uint64(unitSize[typ]); size > 4 {
			total += size
			if total > uint64(len(b)) {
				continue
			}
			p := uint64(o.Uint32(d))
			if p+size > uint64(len(b)) {
				break // Pillow stops reading at a value beyond the end
			}
			d = b[p : p+size]
		} else {
			d = d[:size]
			if size == 0 {
				continue
			}
		}
		switch {
		case tag == tagOrientation && typ == typeShort:
			return turn(o.Uint16(d)), true
		case tag == tagOrientation:
			return 0, true
		}
	}
	return 1, false
}

// turn returns n if it is a valid orientation other than 1, else 1.
func turn(n uint16) uint8 {
	if n >= 2 && n <= 8 {
		return uint8(n)
	}
	return 1
}

// orientation derives the orientation from the metadata blocks that the format's parser kept.
func (r *Reader) orientation() uint8 {
	if r.exifSeen {
		if v, found := exifOrientation(r.exif); found {
			return v
		}
	}
	const key = "tiff:Orientation"
	for x := r.xmp; ; {
		i := bytes.Index(x, []byte(key))
		if i < 0 {
			return 1
		}
		x = x[i+len(key):]
		rest := bytes.TrimPrefix(x, []byte(`="`))
		if len(rest) == len(x) {
			rest = bytes.TrimPrefix(x, []byte(">"))
		}
		if len(rest) < len(x) && len(rest) > 0 && rest[0] >= '0' && rest[0] <= '9' {
			return turn(uint16(rest[0] - '0'))
		}
	}
}
