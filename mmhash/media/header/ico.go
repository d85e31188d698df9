package header

import (
	"encoding/binary"
	"math/bits"
)

// An icon is a directory of pictures. Pillow takes the largest by the directory's word (of those the one of fewest
// colours) and then believes the picture itself: a PNG as it is, or a DIB, whose lower half is a mask: RGBA. What the PNG
// says of its orientation is not kept.

func icoHead(r *Reader, b []byte) {
	n := int(binary.LittleEndian.Uint16(b[4:]))
	if n == 0 {
		r.notIcon("an icon without pictures")
		return
	}
	r.next(16*n, icoDirectory)
}

// notIcon: Pillow then asks its other readers, of which TGA's knows no magic number.
func (r *Reader) notIcon(why string) {
	if otherFormat(r.magic[:]) != "" {
		r.fail(Unsupported, why)
		return
	}
	r.fail(Malformed, why)
}

func icoDirectory(r *Reader, b []byte) {
	le := binary.LittleEndian
	area, depth, at := 0, 0, uint32(0)
	for ; len(b) >= 16; b = b[16:] {
		w, h := int(b[0]), int(b[1])
		if w == 0 {
			w = 256
		}
		if h == 0 {
			h = 256
		}
		d := int(le.Uint16(b[6:]))
		if d == 0 && b[2] > 0 {
			d = bits.Len8(b[2] - 1) // of so many colours
		}
		if d == 0 {
			d = 256
		}
		if w*h > area || w*h == area && d < depth {
			area, depth, at = w*h, d, le.Uint32(b[12:])
		}
	}
	r.icon = true
	r.wantAt(uint64(at), 4, icoPicture)
	r.goOn()
}

func icoPicture(r *Reader, b []byte) {
	if string(b) != "\x89PNG" {
		r.info.Format = "DIB"
		dibHead(r, b)
		return
	}
	r.info.Format = "PNG"
	r.next(4, func(r *Reader, b []byte) {
		if string(b) != "\r\n\x1a\n" {
			r.fail(Malformed, "neither PNG nor DIB")
			return
		}
		r.next(8, pngChunk)
	})
}

// iconInfo is Finish for the picture of an icon.
func (r *Reader) iconInfo() (Info, error) {
	i := &r.info
	if i.Format == "DIB" {
		if i.Mode, i.Height = "RGBA", i.Height/2; i.Height == 0 {
			return Info{}, &Error{Malformed, "ICO", "a picture of one row: half of it is the mask"}
		}
	}
	i.Format, i.Frames, i.Orientation = "ICO", 1, 1
	return *i, nil
}
