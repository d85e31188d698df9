package pixels

import (
	"encoding/binary"

	"github.com/sightline-router/sightline/media/header"
)

// The segments of a JPEG that decoding needs: tables, the frame header, scan headers. They refuse what libjpeg refuses, and check
// the cost of an image.

func (d *jpeg) quantization(seg []byte) error {
	for ; len(seg) > 0; d.tables++ {
		precision, id := seg[0]>>4, seg[0]&15
		size := 64
		if precision != 0 {
			size = 128
		}
		if id > 3 || len(seg) < 1+size || d.tables > maxTables {
			return bad(header.Malformed, "quantization table")
		}
		t := new(quantTable)
		for k := range t {
			t[k] = int32(seg[1+k*size/64])
			if size == 128 {
				t[k] = t[k]<<8 | int32(seg[2+2*k])
			}
		}
		d.quant[id] = t // never modified: components keep the table of their first scan
		seg = seg[1+size:]
	}
	return nil
}

func (d *jpeg) huffman(seg []byte) error {
	for ; len(seg) > 0; d.tables++ {
		if len(seg) < 17 || seg[0]&^0x13 != 0 || d.tables > maxTables {
			return bad(header.Malformed, "Huffman table")
		}
		n := 0
		for _, c := range seg[1:17] {
			n += int(c)
		}
		if n > 256 || len(seg) < 17+n {
			return bad(header.Malformed, "Huffman table of %d codes", n)
		}
		t, isDC := new(huffTable), seg[0] < 16
		if !t.build(seg[1:17], seg[17:17+n], isDC) {
			return bad(header.Malformed, "Huffman table does not add up")
		}
		if isDC {
			d.dct[seg[0]&3] = t
		} else {
			d.act[seg[0]&3] = t
		}
		seg = seg[17+n:]
	}
	return nil
}

// frame reads SOFn and checks the cost of the image before anything is allocated.
func (d *jpeg) frame(seg []byte, progressive bool, lim limits) error {
	if d.comps != nil {
		return bad(header.Malformed, "second frame header")
	}
	if len(seg) < 6 || len(seg) != 6+3*int(seg[5]) {
		return bad(header.Malformed, "frame header of %d bytes", len(seg))
	}
	if seg[0] != 8 {
		return bad(header.Unsupported, "%d bits a sample", seg[0])
	}
	d.height, d.width = int(binary.BigEndian.Uint16(seg[1:])), int(binary.BigEndian.Uint16(seg[3:]))
	n := int(seg[5])
	if d.width == 0 || d.height == 0 || n != 1 && n != 3 && n != 4 {
		return bad(header.Malformed, "%d×%d, %d components", d.width, d.height, n)
	}
	d.progressive, d.comps = progressive, make([]component, n)
	for i := range d.comps {
		p := seg[6+3*i:]
		c := &d.comps[i]
		c.id, c.h, c.v, c.tq = p[0], int(p[1]>>4), int(p[1]&15), p[2]
		if c.h < 1 || c.h > 4 || c.v < 1 || c.v > 4 || c.tq > 3 {
			return bad(header.Malformed, "sampling %d×%d, quantization table %d", c.h, c.v, c.tq)
		}
		for k := range d.comps[:i] {
			if d.comps[k].id == c.id {
				return bad(header.Unsupported, "two components of one name")
			}
		}
		if n == 1 {
			c.h, c.v = 1, 1
		}
		d.hMax, d.vMax = max(d.hMax, c.h), max(d.vMax, c.v)
		for k := range c.known {
			c.known[k] = -1
		}
	}
	d.mcuW, d.mcuH = ceil(d.width, 8*d.hMax), ceil(d.height, 8*d.vMax)
	blocks := 0
	for i := range d.comps {
		c := &d.comps[i]
		if d.hMax%c.h != 0 || d.vMax%c.v != 0 {
			return bad(header.Malformed, "sampling factors %d×%d of %d×%d do not divide", c.h, c.v, d.hMax, d.vMax)
		}
		c.width, c.height = ceil(d.width*c.h, d.hMax), ceil(d.height*c.v, d.vMax)
		c.stride = d.mcuW * c.h * 8
		blocks += ceil(c.width, 8) * ceil(c.height, 8)
	}
	if blocks > 8*len(d.file) { // each block takes at least one bit
		return bad(header.Truncated, "%d×%d pixels in %d bytes", d.width, d.height, len(d.file))
	}
	if need := d.outBytes(); need > lim.memory {
		return tooMuch("JPEG", need, lim)
	}
	return nil
}

func (d *jpeg) outBytes() int64 { return 3 * int64(d.width) * int64(d.height) }

func ceil(a, b int) int { return (a + b - 1) / b }

// colourSpace is libjpeg's heuristic (default_decompress_parms).
func (d *jpeg) colourSpace() colours {
	switch len(d.comps) {
	case 0, 1: // 0: no frame header, so the scan is refused
		return grey
	case 4:
		if !d.adobe || d.adobeTransform == 0 {
			return cmyk
		}
		return ycck
	}
	switch {
	case d.jfif:
		return ycc
	case d.adobe:
		if d.adobeTransform == 0 {
			return rgb
		}
		return ycc
	case d.comps[0].id == 'R' && d.comps[1].id == 'G' && d.comps[2].id == 'B':
		return rgb
	}
	return ycc
}

// scan reads SOS and collects the tables that it needs.
func (d *jpeg) scan(seg []byte) (*scan, error) {
	if d.comps == nil {
		return nil, bad(header.Malformed, "scan before the frame header")
	}
	if len(seg) < 1 || seg[0] < 1 || seg[0] > 4 || len(seg) != 4+2*int(seg[0]) {
		return nil, bad(header.Malformed, "scan header of %d bytes", len(seg))
	}
	n := int(seg[0])
	p := seg[1+2*n:]
	s := &scan{start: int(p[0]), end: int(p[1]), high: uint(p[2] >> 4), low: uint(p[2] & 15), restart: d.restart}
	units := 0
	for i := range n {
		var c *component
		for k := range d.comps {
			if d.comps[k].id == seg[1+2*i] {
				c = &d.comps[k]
			}
		}
		for _, o := range s.comps {
			if o == c {
				c = nil
			}
		}
		if c == nil {
			return nil, bad(header.Malformed, "scan of unknown component %d", seg[1+2*i])
		}
		units += c.h * c.v
		s.comps = append(s.comps, c)
		td, ta := seg[2+2*i]>>4, seg[2+2*i]&15
		if td > 3 || ta > 3 {
			return nil, bad(header.Malformed, "scan with Huffman table %d, %d", td, ta)
		}
		s.dct[i], s.act[i] = d.dct[td], d.act[ta]
		needDC, needAC := !d.progressive || s.start == 0 && s.high == 0, !d.progressive || s.start > 0
		if needDC && s.dct[i] == nil || needAC && s.act[i] == nil {
			return nil, bad(header.Unsupported, "no Huffman table: the standard's own are meant")
		}
		if c.q == nil {
			c.q = d.quant[c.tq]
			if c.q == nil {
				return nil, bad(header.Malformed, "no quantization table %d", c.tq)
			}
		}
	}
	if n > 1 && units > 10 {
		return nil, bad(header.Malformed, "%d blocks in an MCU", units)
	}
	if !d.progressive {
		return s, nil
	}
	if s.start > s.end || s.end > 63 || s.start == 0 && s.end > 0 || s.start > 0 && n > 1 ||
		s.low > 13 || s.high > 0 && s.high != s.low+1 {
		return nil, bad(header.Malformed, "progressive scan %d to %d, bits %d to %d", s.start, s.end, s.high, s.low)
	}
	for _, c := range s.comps {
		for k := s.start; k <= s.end; k++ {
			c.known[k] = int8(s.low)
		}
	}
	return s, nil
}
