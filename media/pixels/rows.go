package pixels

// From decoded samples to rows of RGB: libjpeg's "fancy" (triangle) upsampling and its fixed-point colour conversion, and
// Pillow's conversion from CMYK.

// painter holds the intermediate rows.
type painter struct {
	upsampled [4][]byte // planes
	column    []uint16  // and one vertically weighted row
}

func (p *painter) open(d *jpeg) {
	for i := range d.comps {
		p.upsampled[i] = make([]byte, d.width+4)
	}
	p.column = make([]uint16, d.width+1)
}

// row writes row y of the image.
func (p *painter) row(d *jpeg, y int, dst []byte) {
	n := d.width
	for i := range d.comps {
		p.upsample(d, &d.comps[i], y, p.upsampled[i])
	}
	a, b, c, k := p.upsampled[0], p.upsampled[1], p.upsampled[2], p.upsampled[3]
	switch d.colours {
	case grey:
		for x, v := range a[:n] {
			dst[3*x], dst[3*x+1], dst[3*x+2] = v, v, v
		}
	case rgb:
		for x := range n {
			dst[3*x], dst[3*x+1], dst[3*x+2] = a[x], b[x], c[x]
		}
	case ycc, ycck:
		yccRow(dst, a[:n], b, c)
		if d.colours == ycck { // YCC is the complement of CMY
			for x := range n {
				cmykToRGB(dst[3*x:], 255-dst[3*x], 255-dst[3*x+1], 255-dst[3*x+2], k[x])
			}
		}
	case cmyk:
		for x := range n {
			cmykToRGB(dst[3*x:], a[x], b[x], c[x], k[x])
		}
	}
}

// cmykToRGB is Pillow's CMYK → RGB conversion of libjpeg's values, which Pillow treats as inverted.
func cmykToRGB(dst []byte, c, m, y, k byte) {
	_ = dst[2]
	dst[0], dst[1], dst[2] = k-div255(uint32(255-c)*uint32(k)), k-div255(uint32(255-m)*uint32(k)), k-div255(uint32(255-y)*uint32(k))
}

// div255 is v/255 rounded, v up to 255².
func div255(v uint32) byte {
	v += 128
	return byte((v>>8 + v) >> 8)
}

// upsample writes one row of one plane at full width.
func (p *painter) upsample(d *jpeg, c *component, y int, out []byte) {
	hx, vx := d.hMax/c.h, d.vMax/c.v
	fancy := hx == 1 || hx == 2 && c.width > 2
	near := c.row(y / vx)[:c.width]
	switch {
	case hx == 1 && vx == 1:
		copy(out, near)
	case hx == 2 && vx == 1 && fancy:
		column := p.column[:c.width]
		for i, v := range near {
			column[i] = uint16(v)
		}
		triangle(out, column, 1, 2, 2)
	case vx == 2 && fancy:
		far := c.row(y/2 - 1 + y&1*2)[:c.width]
		if hx == 1 {
			for i, v := range near {
				out[i] = byte((3*uint16(v) + uint16(far[i]) + 1 + uint16(y&1)) >> 2)
			}
			return
		}
		column := p.column[:c.width]
		for i, v := range near {
			column[i] = 3*uint16(v) + uint16(far[i])
		}
		triangle(out, column, 8, 7, 4)
	default:
		for x := range d.width {
			out[x] = near[x/hx]
		}
	}
}

// triangle doubles a row: three parts of the sample and one of its neighbour.
func triangle(out []byte, in []uint16, even, odd uint16, shift uint) {
	for i, v := range in {
		prev, next := in[max(i-1, 0)], in[min(i+1, len(in)-1)]
		out[2*i] = byte((3*v + prev + even) >> shift)
		out[2*i+1] = byte((3*v + next + odd) >> shift)
	}
}

// yccTables hold what Cb and Cr add to red, green (with 16 fractional bits) and blue.
type yccTables struct{ red, greenCb, greenCr, blue [256]int32 }

var colour = makeYCC()

func makeYCC() (t yccTables) {
	const one = 1 << 16
	fix := func(v float64) int32 { return int32(v*one + 0.5) }
	for i := range t.red {
		x := int32(i) - 128
		t.red[i] = (fix(1.40200)*x + one/2) >> 16
		t.blue[i] = (fix(1.77200)*x + one/2) >> 16
		t.greenCb[i] = one/2 - fix(0.34414)*x
		t.greenCr[i] = -fix(0.71414) * x
	}
	return t
}

// yccRow converts pixels that each have their own Cb and Cr.
func yccRow(dst, luma, cb, cr []byte) {
	t, cb, cr := &colour, cb[:len(luma)], cr[:len(luma)]
	for i, y := range luma {
		if len(dst) < 3 {
			return
		}
		y, b, r := int32(y), cb[i], cr[i]
		dst[0], dst[1], dst[2] = clamp(y+t.red[r]), clamp(y+(t.greenCb[b]+t.greenCr[r])>>16), clamp(y+t.blue[b])
		dst = dst[3:]
	}
}
