// Package binread reads binary messages of other processes, value by value. It never reads beyond a message, whatever lengths that
// names; after the first value that cannot be read all others are zero.
package binread

import (
	"encoding/binary"
	"errors"
)

// ErrShort says that a message ends in the middle of a value.
var ErrShort = errors.New("message ends in the middle of a value")

// Reader reads what is left of a message.
type Reader struct {
	B   []byte
	Err error // of the first value that could not be read
}

// Fail ends the reading. The first error stays.
func (r *Reader) Fail(err error) {
	if r.Err == nil {
		r.Err = err
	}
	r.B = nil
}

// Bytes reads n bytes; nil if there are fewer.
func (r *Reader) Bytes(n int) []byte {
	if n > len(r.B) {
		r.Fail(ErrShort)
		return nil
	}
	v := r.B[:n]
	r.B = r.B[n:]
	return v
}

// Byte reads a byte.
func (r *Reader) Byte() byte {
	if len(r.B) < 1 {
		r.Fail(ErrShort)
		return 0
	}
	v := r.B[0]
	r.B = r.B[1:]
	return v
}

// Uint16 reads two bytes, little endian.
func (r *Reader) Uint16() uint16 {
	if b := r.Bytes(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

// Uint32 reads four bytes, little endian.
func (r *Reader) Uint32() uint32 {
	if b := r.Bytes(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// Word reads eight bytes, little endian.
func (r *Reader) Word() uint64 {
	if b := r.Bytes(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// Varint reads an unsigned varint.
func (r *Reader) Varint() uint64 {
	v, n := binary.Uvarint(r.B)
	if n <= 0 {
		r.Fail(ErrShort)
		return 0
	}
	r.B = r.B[n:]
	return v
}

// Signed reads a signed varint.
func (r *Reader) Signed() int64 {
	v, n := binary.Varint(r.B)
	if n <= 0 {
		r.Fail(ErrShort)
		return 0
	}
	r.B = r.B[n:]
	return v
}

// Number reads a varint of at most most.
func (r *Reader) Number(most int) int {
	n := r.Varint()
	if n > uint64(max(0, most)) {
		r.Fail(ErrShort)
		return 0
	}
	return int(n)
}

// Count reads a number of items that take at least each bytes: at most most, and as many as what is left of the message can hold.
func (r *Reader) Count(most, each int) int {
	n := r.Number(most)
	if n > len(r.B)/each {
		r.Fail(ErrShort)
		return 0
	}
	return n
}

// Words reads n words.
func (r *Reader) Words(n int) []uint64 {
	list := make([]uint64, n)
	for i := range list {
		list[i] = r.Word()
	}
	return list
}
