package pixels

import (
	"bytes"
	"encoding/binary"
)

// Huffman-coded data. Before decoding, the data between two markers is freed of its stuffed zero bytes and padded, so that the bit
// reader can load eight bytes at a time unchecked. One table look-up decodes a code of up to lookBits, which nearly every code is.

const (
	lookBits = 10
	padding  = 512 // zero bytes after the data: more than one block can consume
)

// huffTable decodes one code.
type huffTable struct {
	code   [1 << lookBits]uint16 // length << 8 and symbol; 0 = longer than lookBits
	max    [17]int32             // largest code of each length, or -1
	offset [17]int32             // of the symbol index from the code
	syms   [256]uint8
}

// build fills the table from a DHT's counts and symbols. dc tables hold plain sizes, 0 to 15.
func (t *huffTable) build(counts, symbols []byte, dc bool) bool {
	*t = huffTable{}
	copy(t.syms[:], symbols)
	code, k := int32(0), int32(0)
	for n := 1; n <= 16; n++ {
		t.offset[n], t.max[n] = k-code, -1
		for range counts[n-1] {
			if code >= 1<<n {
				return false
			}
			sym := symbols[k]
			if dc && sym > 15 {
				return false
			}
			if n <= lookBits {
				for i := code << (lookBits - n); i < (code+1)<<(lookBits-n); i++ {
					t.code[i] = uint16(n)<<8 | uint16(sym)
				}
			}
			code++
			k++
		}
		if counts[n-1] > 0 {
			t.max[n] = code - 1
		}
		code <<= 1
	}
	return true
}

// extend returns the signed value of a code of size bits.
func extend(v int32, size int) int32 {
	if v>>(size-1) == 0 {
		v -= 1<<size - 1
	}
	return v
}

// bitReader reads the data between two markers. The next bit is the highest of acc, of which n bits are valid.
type bitReader struct {
	acc  uint64
	n    uint
	pos  int
	data []byte // padded
	end  int    // start of the padding
}

// reset loads the bytes of src up to the next marker, and returns that marker and the position after it; 0 at the end of the file.
// The buffer belongs to the reader and never grows beyond the file's size.
func (r *bitReader) reset(src []byte) (marker byte, used int) {
	r.data = r.data[:0]
	for {
		i := bytes.IndexByte(src[used:], 0xFF)
		if i < 0 {
			r.data, used = append(r.data, src[used:]...), len(src)
			break
		}
		r.data = append(r.data, src[used:used+i]...)
		used += i + 1
		for used < len(src) && src[used] == 0xFF {
			used++
		}
		if used == len(src) {
			break
		}
		used++
		marker = src[used-1]
		if marker != 0 {
			break
		}
		r.data = append(r.data, 0xFF)
	}
	r.end = len(r.data)
	r.data = append(r.data, make([]byte, padding)...)
	r.acc, r.n, r.pos = 0, 0, 0
	return marker, used
}

// over reports whether more was read than there was.
func (r *bitReader) over() bool { return r.pos*8-int(r.n) > r.end*8 }

// refill makes at least 56 bits valid. Beyond the padding it adds zeros; over is true by then.
func (r *bitReader) refill() {
	if r.pos+8 > len(r.data) {
		r.n = 64 // zeros from here on
		r.pos = len(r.data)
		return
	}
	r.acc |= binary.BigEndian.Uint64(r.data[r.pos:]) >> r.n
	r.pos += int(63-r.n) >> 3
	r.n |= 56
}

// bits reads n bits, 1 to 16.
func (r *bitReader) bits(n int) int32 {
	if r.n < 16 {
		r.refill()
	}
	v := int32(r.acc >> (64 - uint(n)))
	r.acc <<= uint(n)
	r.n -= uint(n)
	return v
}

// symbol reads one code; ok is false if these bits are not a code.
func (r *bitReader) symbol(t *huffTable) (sym uint8, ok bool) {
	if r.n < 16 {
		r.refill()
	}
	if e := t.code[r.acc>>(64-lookBits)]; e != 0 {
		r.acc <<= e >> 8
		r.n -= uint(e >> 8)
		return uint8(e), true
	}
	for n := lookBits + 1; n <= 16; n++ {
		code := int32(r.acc >> (64 - uint(n)))
		if code <= t.max[n] {
			r.acc <<= uint(n)
			r.n -= uint(n)
			return t.syms[uint8(code+t.offset[n])], true
		}
	}
	return 0, false
}

// dc reads the difference of a DC coefficient.
func (r *bitReader) dc(t *huffTable) (diff int32, ok bool) {
	size, ok := r.symbol(t)
	if size == 0 || !ok {
		return 0, ok
	}
	return extend(r.bits(int(size)), int(size)), true
}

// natural maps the zigzag order to row·8 + column.
var natural = [64]uint8{
	0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5,
	12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
	35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
	58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
}

// quantTable is a quantization table in zigzag order.
type quantTable [64]int32

// sequential reads one block of a sequential scan, dequantized, into b (all zero before). It returns the last coefficient's zigzag
// index, or -1 for invalid Huffman data.
func (r *bitReader) sequential(b *block, dct, act *huffTable, q *quantTable, pred *int32) (last int) {
	diff, ok := r.dc(dct)
	if !ok {
		return -1
	}
	*pred += diff
	b[0] = *pred * q[0]
	if *pred != int32(int16(*pred)) {
		return -1
	}
	for k := 1; k < 64; k++ {
		sym, ok := r.symbol(act)
		size := int(sym & 15)
		k += int(sym >> 4)
		switch {
		case !ok || k > 63 && (size > 0 || sym == 0xF0):
			return -1
		case sym == 0:
			return last
		case size > 0:
			b[natural[k&63]&63] = extend(r.bits(size), size) * q[k&63]
			last = k
		case sym != 0xF0: // an end of band, which in a sequential file ends the block
			return last
		}
	}
	return last
}

// spread loads a block from plain coefficients in zigzag order and returns the index of the last that is not zero.
func (b *block) spread(c *[64]int16, q *quantTable) (last int) {
	*b = block{}
	for k, v := range c {
		if v != 0 {
			b[natural[k]&63] = int32(v) * q[k]
			last = k
		}
	}
	return last
}
