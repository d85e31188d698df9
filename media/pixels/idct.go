package pixels

// The inverse DCT is libjpeg's "islow": constants of 13 fractional bits, columns first with 2 extra bits kept, then rows.
//
// Values beyond 15 bits, which no encoder produces from 8-bit samples, are refused: there libjpeg-turbo's vector code wraps and its
// C code does not. Within that range nothing overflows 32 bits.

const (
	fix0298 = 2446
	fix0390 = 3196
	fix0541 = 4433
	fix0765 = 6270
	fix0899 = 7373
	fix1175 = 9633
	fix1501 = 12299
	fix1847 = 15137
	fix1961 = 16069
	fix2053 = 16819
	fix2562 = 20995
	fix3072 = 25172

	columnBits  = 11
	rowBits     = 18
	roundColumn = 1 << (columnBits - 1)
	roundRow    = 128<<5 + 16 // on the DC term, before << 13: half of the last bit, and the level shift
	bias        = 1 << 14     // shifts a value in range to 0 … 2¹⁵-1
	beyond      = ^(1<<15 - 1)
)

// block holds one block's dequantized coefficients, row by row.
type block [64]int32

// lift is the 1-D transform.
func lift(x0, x1, x2, x3, x4, x5, x6, x7 int32) (y0, y1, y2, y3, y4, y5, y6, y7 int32) {
	z := (x2 + x6) * fix0541
	e2, e3 := z-x6*fix1847, z+x2*fix0765
	e0, e1 := (x0+x4)<<13, (x0-x4)<<13
	a0, a3, a1, a2 := e0+e3, e0-e3, e1+e2, e1-e2

	z5 := (x1 + x3 + x5 + x7) * fix1175
	z1, z2 := (x1+x7)*fix0899, (x3+x5)*fix2562
	z3, z4 := z5-(x3+x7)*fix1961, z5-(x1+x5)*fix0390
	o0 := x7*fix0298 - z1 + z3
	o1 := x5*fix2053 - z2 + z4
	o2 := x3*fix3072 - z2 + z3
	o3 := x1*fix1501 - z1 + z4
	return a0 + o3, a1 + o2, a2 + o1, a3 + o0, a3 - o0, a2 - o1, a1 - o2, a0 - o3
}

// idct writes 8×8 samples to dst. last is the zigzag index of the last coefficient that may be non-zero. It reports whether all
// values were in range.
func idct(b *block, last int, dst []byte, stride int) bool {
	seen := int32(0)
	if last == 0 {
		v := clamp((b[0]+4)>>3 + 128) // = ((dc << 2) + 16) >> 5
		for y := range 8 {
			row := dst[y*stride:][:8]
			for x := range row {
				row[x] = v
			}
		}
		return (b[0]+bias)&beyond == 0
	}
	for _, v := range b {
		seen |= v + bias
	}
	for c := range 8 {
		y0, y1, y2, y3, y4, y5, y6, y7 := lift(b[c], b[8+c], b[16+c], b[24+c], b[32+c], b[40+c], b[48+c], b[56+c])
		b[c], b[8+c] = (y0+roundColumn)>>columnBits, (y1+roundColumn)>>columnBits
		b[16+c], b[24+c] = (y2+roundColumn)>>columnBits, (y3+roundColumn)>>columnBits
		b[32+c], b[40+c] = (y4+roundColumn)>>columnBits, (y5+roundColumn)>>columnBits
		b[48+c], b[56+c] = (y6+roundColumn)>>columnBits, (y7+roundColumn)>>columnBits
	}
	for y := range 8 {
		w, row := b[8*y:][:8], dst[y*stride:][:8]
		for _, v := range w {
			seen |= v + bias
		}
		y0, y1, y2, y3, y4, y5, y6, y7 := lift(w[0]+roundRow, w[1], w[2], w[3], w[4], w[5], w[6], w[7])
		row[0], row[1], row[2], row[3] = clamp(y0>>rowBits), clamp(y1>>rowBits), clamp(y2>>rowBits), clamp(y3>>rowBits)
		row[4], row[5], row[6], row[7] = clamp(y4>>rowBits), clamp(y5>>rowBits), clamp(y6>>rowBits), clamp(y7>>rowBits)
	}
	return seen&beyond == 0
}

func clamp(v int32) uint8 {
	if uint32(v) > 255 {
		return uint8(^v >> 31) // below: 0, above: 255
	}
	return uint8(v)
}
