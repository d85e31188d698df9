package pixels

import (
	"encoding/binary"
	"fmt"

	"github.com/sightline-router/sightline/media/header"
)

// JPEG as libjpeg-turbo 3.2 decodes it with its defaults: 8-bit Huffman-coded files, sequential and progressive, any sampling
// factors that divide. A file whose data ends early, contains invalid codes, or lacks a restart marker is refused. libjpeg would
// continue with a warning, and engines then show an image that differs from build to build. Not supported: arithmetic coding,
// lossless, 12 bits, and progressive files without their low frequencies, which libjpeg smooths.

const (
	maxScans  = 100  // of one file; encoders write about ten
	maxTables = 1000 // of one file; encoders write one per scan
)

// colours is how three or four components form a pixel.
type colours uint8

const (
	grey colours = iota
	ycc
	rgb
	cmyk
	ycck
)

// component is one of a frame's planes.
type component struct {
	id            byte
	h, v          int // sampling factors
	tq            byte
	width, height int // samples of the image, without the padding to whole blocks
	stride        int // samples of a row, with padding
	q             *quantTable
	pred          int32
	coefs         [][64]int16
	known         [64]int8 // progressive: lowest bit read of each coefficient, -1 = none
	ring          []byte   // two rows of MCUs, decoded
}

// row returns one decoded row. Only the last two rows of MCUs are kept. Rows beyond the edge repeat it.
func (c *component) row(y int) []byte {
	y = min(max(y, 0), c.height-1) % (16 * c.v)
	return c.ring[y*c.stride : (y+1)*c.stride]
}

// jpeg is one file being decoded.
type jpeg struct {
	file []byte
	pos  int
	r    bitReader

	width, height  int
	hMax, vMax     int
	mcuW, mcuH     int
	comps          []component
	progressive    bool
	colours        colours
	jfif, adobe    bool
	adobeTransform byte
	restart        int
	tables         int // read so far
	quant          [4]*quantTable
	dct, act       [4]*huffTable

	out     *RGB
	next    int // next row of the image to write
	painter painter
}

func bad(kind header.Kind, format string, detail ...any) error {
	return &header.Error{Kind: kind, Format: "JPEG", Detail: fmt.Sprintf(format, detail...)}
}

func decodeJPEG(file []byte, lim limits) (*RGB, error) {
	d := &jpeg{file: file, pos: 2}
	for scans := 0; ; {
		marker, seg, err := d.segment()
		switch {
		case d.out != nil && (marker == 0xD9 || header.KindOf(err) == header.Truncated):
			return d.out, nil
		case err != nil:
			return nil, err
		case marker == 0xD9:
			if scans == 0 {
				return nil, bad(header.Malformed, "no scan")
			}
			return d.finish()
		case marker == 0xC4:
			err = d.huffman(seg)
		case marker == 0xDB:
			err = d.quantization(seg)
		case marker == 0xDD:
			if len(seg) != 2 {
				return nil, bad(header.Malformed, "restart interval of %d bytes", len(seg))
			}
			d.restart = int(binary.BigEndian.Uint16(seg))
		case marker == 0xE0:
			d.jfif = d.jfif || len(seg) >= 14 && string(seg[:5]) == "JFIF\x00"
		case marker == 0xEE:
			if len(seg) >= 12 && string(seg[:5]) == "Adobe" {
				d.adobe, d.adobeTransform = true, seg[11]
			}
		case marker >= 0xC0 && marker <= 0xC2:
			err = d.frame(seg, marker == 0xC2, lim)
		case marker >= 0xC3 && marker <= 0xCF && marker != 0xCC:
			err = bad(header.Unsupported, "coding process SOF%d", marker-0xC0)
		case marker == 0xDA:
			if d.out != nil {
				return nil, bad(header.Unsupported, "scan behind the whole image")
			}
			scans++
			if scans > maxScans {
				return nil, bad(header.Unsupported, "more than %d scans", maxScans)
			}
			if scans == 1 { // later ones are ignored
				d.colours = d.colourSpace()
			}
			var s *scan
			s, err = d.scan(seg)
			if err != nil {
				return nil, err
			}
			if !d.progressive && len(s.comps) == len(d.comps) {
				err = d.direct(s)
			} else {
				err = d.keep(lim)
				if err == nil {
					err = d.coefficients(s)
				}
			}
		}
		if err != nil {
			return nil, err
		}
	}
}

// segment finds the next marker and the bytes of its segment. Like libjpeg, it skips junk before a marker.
func (d *jpeg) segment() (marker byte, seg []byte, err error) {
	for {
		for d.pos < len(d.file) && d.file[d.pos] != 0xFF {
			d.pos++
		}
		for d.pos < len(d.file) && d.file[d.pos] == 0xFF {
			d.pos++
		}
		if d.pos >= len(d.file) {
			return 0, nil, bad(header.Truncated, "ends before the end marker")
		}
		marker = d.file[d.pos]
		d.pos++
		switch {
		case marker == 0, marker == 1, marker >= 0xD0 && marker <= 0xD7:
			continue
		case marker == 0xD8:
			return 0, nil, bad(header.Malformed, "second start of image")
		case marker < 0xC0, marker == 0xC8, marker == 0xDE, marker == 0xDF, marker >= 0xF0 && marker < 0xFE:
			return 0, nil, bad(header.Malformed, "marker %#x", marker)
		case marker == 0xD9:
			return marker, nil, nil
		}
		if d.pos+2 > len(d.file) {
			return 0, nil, bad(header.Truncated, "ends in a segment")
		}
		n := int(binary.BigEndian.Uint16(d.file[d.pos:]))
		if n < 2 {
			return 0, nil, bad(header.Malformed, "segment of length %d", n)
		}
		if d.pos+n > len(d.file) {
			return 0, nil, bad(header.Truncated, "ends in a segment")
		}
		seg = d.file[d.pos+2 : d.pos+n]
		d.pos += n
		return marker, seg, nil
	}
}

// keep allocates the coefficient arrays before the first of several scans.
func (d *jpeg) keep(lim limits) error {
	if d.comps[0].coefs != nil {
		return nil
	}
	need := d.outBytes()
	for i := range d.comps {
		c := &d.comps[i]
		need += 128 * int64(d.mcuW*c.h) * int64(d.mcuH*c.v)
	}
	if need > lim.memory {
		return tooMuch("JPEG", need, lim)
	}
	for i := range d.comps {
		c := &d.comps[i]
		c.coefs = make([][64]int16, d.mcuW*c.h*d.mcuH*c.v)
	}
	return nil
}

// units iterates over the MCUs of a scan and its restart markers. row, if not nil, is called after each row.
func (d *jpeg) units(s *scan, w, h int, unit func(x, y int) bool, row func(y int)) error {
	fresh := func() (marker byte) {
		marker, used := d.r.reset(d.file[d.pos:])
		d.pos += used
		s.eobRun = 0
		for _, c := range s.comps {
			c.pred = 0
		}
		return marker
	}
	marker := fresh()
	left, number := s.restart, byte(0)
	for y := range h {
		for x := range w {
			if s.restart > 0 {
				if left == 0 {
					if marker != 0xD0+number || d.r.over() {
						return d.broken(marker)
					}
					marker, left, number = fresh(), s.restart, (number+1)&7
				}
				left--
			}
			if !unit(x, y) {
				return d.broken(marker)
			}
		}
		if d.r.over() {
			return d.broken(marker)
		}
		if row != nil {
			row(y)
		}
	}
	if marker == 0 {
		return bad(header.Truncated, "ends before the end marker")
	}
	d.pos -= 2 // the marker after the scan
	return nil
}

func (d *jpeg) broken(marker byte) error {
	if marker == 0 {
		return bad(header.Truncated, "ends in its data")
	}
	return bad(header.Malformed, "damaged data before marker %#x", marker)
}

// direct decodes the only scan of an ordinary sequential file directly into rows.
func (d *jpeg) direct(s *scan) error {
	d.open()
	var b block
	return d.units(s, d.mcuW, d.mcuH, func(x, y int) bool {
		for i, c := range s.comps {
			for v := range c.v {
				at := ((y&1*c.v+v)*c.stride + x*c.h) * 8
				for h := range c.h {
					last := d.r.sequential(&b, s.dct[i], s.act[i], c.q, &c.pred)
					if last < 0 || !idct(&b, last, c.ring[at+8*h:], c.stride) {
						return false
					}
					if last > 0 {
						b = block{}
					}
				}
			}
		}
		return true
	}, d.paint)
}

// finish converts the coefficients of several scans to pixels.
func (d *jpeg) finish() (*RGB, error) {
	for i := range d.comps {
		c := &d.comps[i]
		if c.coefs == nil || c.q == nil {
			return nil, bad(header.Malformed, "no scan of component %d", c.id)
		}
		if d.progressive && c.known[0] < 0 {
			return nil, bad(header.Malformed, "component %d has no DC scan", c.id)
		}
		for k := 1; k < 10 && d.progressive; k++ { // libjpeg-turbo's SAVED_COEFS
			if c.known[k] != 0 {
				return nil, bad(header.Unsupported, "coefficient %d of component %d is not sent in full: libjpeg smooths", k, c.id)
			}
		}
	}
	d.open()
	var b block
	for y := range d.mcuH {
		for i := range d.comps {
			c := &d.comps[i]
			for v := range c.v {
				at := (y&1*c.v + v) * c.stride * 8
				line := c.coefs[(y*c.v+v)*c.stride/8:][:c.stride/8]
				for x := range line {
					if !idct(&b, b.spread(&line[x], c.q), c.ring[at+8*x:], c.stride) {
						return nil, bad(header.Malformed, "coefficients out of range")
					}
				}
			}
		}
		d.paint(y)
	}
	return d.out, nil
}

// open allocates the image and the rings.
func (d *jpeg) open() {
	d.out = newRGB(d.width, d.height)
	for i := range d.comps {
		c := &d.comps[i]
		c.ring = make([]byte, 16*c.v*c.stride)
	}
	d.painter.open(d)
}

// paint writes the rows of the image that are complete after MCU row y: all but the last group of rows, which may need the chroma
// row below.
func (d *jpeg) paint(y int) {
	to := d.height
	if y < d.mcuH-1 {
		to = min(to, (y+1)*8*d.vMax-d.vMax)
	}
	for ; d.next < to; d.next++ {
		d.painter.row(d, d.next, d.out.Pix[d.next*3*d.width:][:3*d.width])
	}
}
