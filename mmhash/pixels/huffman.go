package pixels

import (
	"bytes"
	"encoding/binary"
)

// Huffman-coded data. Before it is read, a stretch between two markers is freed of its stuffed zero bytes and padded,
// so that the bit reader loads eight bytes at a time without looking at any of them. One table look-up gives a whole
// coefficient where code and value fit into lookBits together, which is nearly always.

const (
	lookBits = 10
	padding  = 512 // zero bytes behind a stretch: more than one block can eat
)

// huffTable decodes one code. Entries of look: bits 0-4 how many bits are used up, 5-8 how many bits of the value are
// still to come, 9-15 how many coefficients are skipped, 16-31 the value. 0 = the code is longer than lookBits.
type huffTable struct {
	look   [1 << lookBits]uint32
	code   [1 << lookBits]uint16 // length and symbol alone; 0 = longer than lookBits
	max    [17]int32             // largest code of each length, -1 if none
	offset [17]int32             // of the symbol index from the code
	syms   [256]uint8
}

const endOfBlock = 127 // a skip out of the block

// build makes the table from a DHT's counts and symbols. dc tables give plain sizes, 0 to 15.
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
				t.fill(uint32(code), n, sym, dc)
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

// entry gives a symbol's parts without a value.
func entry(sym uint8, dc bool) uint32 {
	size, skip := uint32(sym&15), uint32(sym>>4)
	if !dc && size == 0 && skip != 15 {
		skip = endOfBlock
	}
	return size<<5 | skip<<9
}

func (t *huffTable) fill(code uint32, n int, sym uint8, dc bool) {
	size := int(sym & 15)
	rest := lookBits - n
	for i := range uint32(1) << rest {
		t.code[code<<rest|i] = uint16(n)<<8 | uint16(sym)
		e := entry(sym, dc) | uint32(n)
		if size > 0 && size <= rest {
			v := extend(int32(i>>(rest-size)), size)
			e = e&^(31|15<<5) | uint32(n+size) | uint32(v)<<16
		}
		t.look[code<<rest|i] = e
	}
}

// extend gives the signed value of size bits.
func extend(v int32, size int) int32 {
	if v>>(size-1) == 0 {
		v -= 1<<size - 1
	}
	return v
}

// bitReader reads one stretch. The next bit is the highest of acc, n bits of it are good.
type bitReader struct {
	acc  uint64
	n    uint
	pos  int
	data []byte // padded
	end  int    // where the padding begins
}

// reset takes the bytes of src up to the next marker, and gives that marker and the place behind it; 0 at the end of
// the file. The buffer is the reader's own and never grows beyond the file.
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
		if marker = src[used-1]; marker != 0 {
			break
		}
		r.data = append(r.data, 0xFF)
	}
	r.end = len(r.data)
	r.data = append(r.data, make([]byte, padding)...)
	r.acc, r.n, r.pos = 0, 0, 0
	return marker, used
}

// over reports that more was read than there was.
func (r *bitReader) over() bool { return r.pos*8-int(r.n) > r.end*8 }

// refill makes at least 56 bits good. Beyond the padding it stands still; over is true by then.
func (r *bitReader) refill() {
	if r.pos+8 > len(r.data) {
		r.n = 64 // zeros for ever
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

// symbol reads one code; ok is false where no code has these bits.
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
	if r.n < 32 {
		r.refill()
	}
	e := t.look[r.acc>>(64-lookBits)]
	if e == 0 {
		sym, ok := r.symbol(t)
		if !ok {
			return 0, false
		}
		e = entry(sym, true)
	}
	r.acc <<= e & 31
	r.n -= uint(e & 31)
	if size := int(e >> 5 & 15); size > 0 {
		return extend(r.bits(size), size), true
	}
	return int32(e) >> 16, true
}

// natural maps the zigzag order to row·8 + column.
var natural = [64]uint8{
	0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5,
	12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
	35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
	58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
}

// quantTable is a quantization table in zigzag order, each factor already in the lane of its coefficient.
type quantTable [64]int64

// sequential reads one block of a sequential scan, dequantized, into b (all zero before). It gives the last
// coefficient's zigzag index, or -1 for data that is no Huffman code.
func (r *bitReader) sequential(b *block, dct, act *huffTable, q *quantTable, pred *int32) int {
	diff, ok := r.dc(dct)
	if !ok {
		return -1
	}
	*pred += diff
	b[0] = int64(*pred) * q[0]

	acc, n, pos, data := r.acc, r.n, r.pos, r.data
	last := 0
	for k := 1; k < 64; k++ {
		if n < 32 {
			if pos+8 > len(data) {
				return -1
			}
			acc |= binary.BigEndian.Uint64(data[pos:]) >> (n & 63)
			pos += int(63-n) >> 3
			n |= 56
		}
		e := act.look[acc>>(64-lookBits)]
		if e == 0 {
			r.acc, r.n, r.pos = acc, n, pos
			sym, ok := r.symbol(act)
			if !ok {
				return -1
			}
			acc, n, pos = r.acc, r.n, r.pos
			e = entry(sym, false)
		}
		acc <<= e & 31
		n -= uint(e & 31)
		if k += int(e >> 9 & 127); k > 63 {
			if k < endOfBlock {
				return -1
			}
			break
		}
		v := int64(int32(e) >> 16)
		if size := uint(e >> 5 & 15); size != 0 {
			bits := int64(acc >> (64 - size))
			sign := int64(acc>>63) - 1 // -1 for a negative value
			acc <<= size
			n -= size
			v = bits + sign&(1-1<<size)
		}
		b[natural[k]>>1&31] += v * q[k]
		last = k
	}
	r.acc, r.n, r.pos = acc, n, pos
	return last
}

// spread loads a block from plain coefficients in zigzag order and gives the last that is not zero.
func (b *block) spread(c *[64]int16, q *quantTable) (last int) {
	*b = block{}
	for k, v := range c {
		if v != 0 {
			b[natural[k]>>1&31] += int64(v) * q[k]
			last = k
		}
	}
	return last
}
