package pixels

import "encoding/binary"

// The inverse DCT is libjpeg's "islow": constants of 13 fractional bits, columns first with 2 extra bits kept, then
// rows. Up to the two roundings it is linear, so one int64 carries two int32 lanes (low + high·2³²) through the same
// additions and multiplications: two columns in the first pass, two rows in the second.
//
// Values beyond 15 bits, which no encoder makes of 8-bit samples, are refused: there libjpeg-turbo's vector code wraps
// and its C code does not. Within that range no lane can overflow either.

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

	lanes   = 1 + 1<<32             // times a number: the number in both lanes
	half    = 1 << 31               // added before the high lane is cut out: takes back the low lane's borrow
	roundV  = lanes << 10           // first pass: >> 11
	roundH  = lanes * (128<<5 + 16) // second pass, on the DC term: >> 18 after << 13, and the level shift
	bias    = lanes << 14           // brings a lane that is in range to 0 … 2¹⁵-1
	beyond  = -1<<47 | 0xFFFF8000
	colBits = 11
	rowBits = 18
)

// block is one block's dequantized coefficients: row r, columns 2c and 2c+1 in the lanes of [4r+c].
type block [32]int64

// lift is the 1-D transform of two lanes.
func lift(x0, x1, x2, x3, x4, x5, x6, x7 int64) (y0, y1, y2, y3, y4, y5, y6, y7 int64) {
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

// idct writes 8×8 samples at dst. last is the zigzag index of the last coefficient that may differ from zero. It
// reports whether all values were in range.
func idct(b *block, last int, dst []byte, stride int) bool {
	if last == 0 {
		if (b[0]+bias)&beyond != 0 {
			return false
		}
		v := (int32(b[0]) + 4) >> 3 // = ((dc << 2) + 16) >> 5
		fill := uint64(clamp(v+128)) * 0x0101010101010101
		for y := 0; y < 8; y++ {
			binary.LittleEndian.PutUint64(dst[y*stride:], fill)
		}
		return true
	}
	seen := int64(0)
	var w block // rows 2p and 2p+1 of column c in the lanes of [8p+c]
	for _, v := range b {
		seen |= v + bias
	}
	for c := 0; c < 4; c++ {
		y0, y1, y2, y3, y4, y5, y6, y7 := lift(b[c], b[4+c], b[8+c], b[12+c], b[16+c], b[20+c], b[24+c], b[28+c])
		cross(&w, 2*c, y0, y1)
		cross(&w, 8+2*c, y2, y3)
		cross(&w, 16+2*c, y4, y5)
		cross(&w, 24+2*c, y6, y7)
	}
	for p := 0; p < 32; p += 8 {
		seen |= (w[p] + bias) | (w[p+1] + bias) | (w[p+2] + bias) | (w[p+3] + bias)
		seen |= (w[p+4] + bias) | (w[p+5] + bias) | (w[p+6] + bias) | (w[p+7] + bias)
		y0, y1, y2, y3, y4, y5, y6, y7 := lift(w[p]+roundH, w[p+1], w[p+2], w[p+3], w[p+4], w[p+5], w[p+6], w[p+7])
		twoRows(dst[p/4*stride:], stride, y0, y1, y2, y3, y4, y5, y6, y7)
	}
	return seen&beyond == 0
}

// cross rounds rows r and r+1 of two columns and turns the lanes: from two columns of a row to two rows of a column.
func cross(w *block, i int, a, b int64) {
	a, b = a+roundV, b+roundV
	w[i&31] = int64(int32(a))>>colBits + int64(int32(b))>>colBits<<32
	w[(i+1)&31] = (a+half)>>(32+colBits) + (b+half)>>(32+colBits)<<32
}

// twoRows cuts the lanes apart into one row of samples each.
func twoRows(dst []byte, stride int, y0, y1, y2, y3, y4, y5, y6, y7 int64) {
	binary.LittleEndian.PutUint64(dst, row8(
		int32(y0)>>rowBits, int32(y1)>>rowBits, int32(y2)>>rowBits, int32(y3)>>rowBits,
		int32(y4)>>rowBits, int32(y5)>>rowBits, int32(y6)>>rowBits, int32(y7)>>rowBits))
	const s = 32 + rowBits
	binary.LittleEndian.PutUint64(dst[stride:], row8(
		int32((y0+half)>>s), int32((y1+half)>>s), int32((y2+half)>>s), int32((y3+half)>>s),
		int32((y4+half)>>s), int32((y5+half)>>s), int32((y6+half)>>s), int32((y7+half)>>s)))
}

// row8 saturates eight samples and packs them, the first in the lowest byte.
func row8(a, b, c, d, e, f, g, h int32) uint64 {
	if (a|b|c|d|e|f|g|h)&^255 != 0 {
		a, b, c, d = int32(clamp(a)), int32(clamp(b)), int32(clamp(c)), int32(clamp(d))
		e, f, g, h = int32(clamp(e)), int32(clamp(f)), int32(clamp(g)), int32(clamp(h))
	}
	lo := uint32(a) | uint32(b)<<8 | uint32(c)<<16 | uint32(d)<<24
	hi := uint32(e) | uint32(f)<<8 | uint32(g)<<16 | uint32(h)<<24
	return uint64(lo) | uint64(hi)<<32
}

func clamp(v int32) uint8 {
	if uint32(v) > 255 {
		return uint8(^v >> 31) // below: 0, above: 255
	}
	return uint8(v)
}
