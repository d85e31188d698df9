package vllm

// The msgpack pieces that vLLM's events are made of, read from a byte slice without allocating: every integer width,
// hashes as integers of either sign or as bytes, strings that may be null.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/event"
)

const nilByte = 0xc0

var errShort = errors.New("message ends in the middle of a value")

// arrayHeader reads an array's length. A null is an empty array. An array cannot be longer than the bytes behind it,
// so a length that lies costs nothing.
func arrayHeader(b []byte) (n int, rest []byte, err error) {
	if len(b) > 0 && b[0] == nilByte {
		return 0, b[1:], nil
	}
	size, rest, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return 0, b, err
	}
	if uint64(size) > uint64(len(rest)) {
		return 0, b, errShort
	}
	return int(size), rest, nil
}

// appendTokens reads an array of token ids. About 1.5 ns a token.
func appendTokens(dst []uint32, b []byte) ([]uint32, []byte, error) {
	n, b, err := arrayHeader(b)
	if err != nil {
		return dst, b, err
	}
	dst = slices.Grow(dst, n)
	for range n {
		switch {
		case len(b) > 0 && b[0] < 0x80:
			dst = append(dst, uint32(b[0]))
			b = b[1:]
		case len(b) > 2 && b[0] == 0xcd:
			dst = append(dst, uint32(binary.BigEndian.Uint16(b[1:])))
			b = b[3:]
		case len(b) > 4 && b[0] == 0xce:
			dst = append(dst, binary.BigEndian.Uint32(b[1:]))
			b = b[5:]
		default:
			v, rest, err := msgp.ReadUint64Bytes(b)
			if err != nil {
				return dst, b, fmt.Errorf("token id: %w", err)
			}
			if v > math.MaxUint32 {
				return dst, b, fmt.Errorf("token id %d is over 32 bits", v)
			}
			dst = append(dst, uint32(v))
			b = rest
		}
	}
	return dst, b, nil
}

// readHash reads one block hash: an unsigned or a negative integer of any width, or a digest.
func readHash(b []byte) (uint64, []byte, error) {
	if len(b) > 8 && b[0] == 0xcf {
		return binary.BigEndian.Uint64(b[1:]), b[9:], nil
	}
	switch msgp.NextType(b) {
	case msgp.UintType:
		return msgp.ReadUint64Bytes(b)
	case msgp.IntType:
		v, rest, err := msgp.ReadInt64Bytes(b)
		return uint64(v), rest, err
	case msgp.BinType:
		d, rest, err := msgp.ReadBytesZC(b)
		if err == nil && len(d) < 8 {
			err = fmt.Errorf("block hash of %d bytes, want 8 or more", len(d))
		}
		return event.Digest(d), rest, err
	}
	return 0, b, fmt.Errorf("block hash: want an integer or bytes, got %s", msgp.NextType(b))
}

// appendHashes reads an array of block hashes.
func appendHashes(dst []uint64, b []byte) ([]uint64, []byte, error) {
	n, b, err := arrayHeader(b)
	if err != nil {
		return dst, b, err
	}
	dst = slices.Grow(dst, n)
	for range n {
		var h uint64
		if h, b, err = readHash(b); err != nil {
			return dst, b, err
		}
		dst = append(dst, h)
	}
	return dst, b, nil
}

// readInt reads an integer or null; ok is false for null.
func readInt(b []byte) (v int, ok bool, rest []byte, err error) {
	if len(b) > 0 && b[0] == nilByte {
		return 0, false, b[1:], nil
	}
	v, rest, err = msgp.ReadIntBytes(b)
	return v, err == nil, rest, err
}

// readText reads a string or null without copying it.
func readText(b []byte) (v, rest []byte, err error) {
	if len(b) > 0 && b[0] == nilByte {
		return nil, b[1:], nil
	}
	return msgp.ReadStringZC(b)
}

// readTextIfAny reads a string and passes over anything else: for fields that we can do without.
func readTextIfAny(b []byte) (v, rest []byte, err error) {
	if msgp.NextType(b) == msgp.StrType {
		return msgp.ReadStringZC(b)
	}
	rest, err = msgp.Skip(b)
	return nil, rest, err
}

// raw cuts one whole value off b.
func raw(b []byte) (v, rest []byte, err error) {
	rest, err = msgp.Skip(b)
	if err != nil {
		return nil, b, err
	}
	return b[:len(b)-len(rest)], rest, nil
}

// view is b as a string without a copy, for calls that keep nothing of it.
func view(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}
