// Package wire reads the msgpack of engines' KV events, straight from a byte slice and without allocating.
//
// vLLM, SGLang and TensorRT-LLM publish the same frame, an array [time, [event, …], rank]. Batch reads it with each of its events
// (Fields, fields.go); the other functions read values: integers of every width, block hashes as integers of either sign, bytes
// or text, strings that may be null. The decoder interprets the events. Errors name the field that could not be read; none quotes
// a payload.
package wire

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Nil is msgpack's null.
const Nil = 0xc0

// errShort means that the message is truncated.
var errShort = errors.New("message ends in the middle of a value")

// maxItems limits one list: a million blocks, or their tokens, are more than an engine reports at once.
const maxItems = 1 << 20

// Limits of one message, since an event of 16 bytes takes ten times that here. SGLang reports each page separately: with pages of
// one token, a quarter million evicted at once is that many events.
const (
	maxEvents = 1 << 18
	maxHashes = maxItems
	maxTokens = 4 * maxItems
)

// leastEvent is the length of the shortest event.
const leastEvent = 15

var (
	errLong  = fmt.Errorf("list of more than %d items", maxItems)
	errLarge = fmt.Errorf("message of more than %d events, %d block hashes or %d token ids", maxEvents, maxHashes, maxTokens)
)

// Batch reads a frame [time, [event, …], rank]. For each event of a known type it fills f, whose slices are in a and in the
// payload, and calls emit, which appends what the event says to a; tokens reads its array of token ids (see Fields.read). An
// event that cannot be read, or that emit refuses, is counted and leaves nothing in a. Time and rank are skipped.
//
// An error means that the payload is truncated, too large or not a frame: then nothing of it may be used, because a removal may
// be missing.
func Batch(payload []byte, a *kvevent.Arena, f *Fields, tokens func(b []byte) ([]byte, error), emit func() error) (
	batch kvevent.Batch, err error) {
	n, b, err := msgp.ReadArrayHeaderBytes(payload)
	if err != nil {
		return batch, fmt.Errorf("batch: want a msgpack array [time, events, rank], got %s", formOf(payload))
	}
	if n < 2 {
		return batch, fmt.Errorf("batch: want an array of 2 or 3, got %d", n)
	}
	first := b
	b, err = msgp.Skip(b)
	if err != nil {
		return batch, fmt.Errorf("batch time: %w", err)
	}
	events := b
	count, b, err := ArrayHeader(b)
	if got := msgp.NextType(events); err != nil && got != msgp.ArrayType {
		return batch, fmt.Errorf("batch: want an array [time, events, rank], got one whose first elements are %s and %s",
			msgp.NextType(first), got)
	}
	if err != nil {
		return batch, fmt.Errorf("events: %w", err)
	}
	if count > maxEvents {
		return batch, errLarge
	}
	a.Events = slices.Grow(a.Events, min(count, len(b)/leastEvent))
	var bad error // of the first that could not be read
	for i := range count {
		before := *a
		rest, err := f.read(b, a, tokens)
		if err == nil && f.known {
			err = emit()
		}
		switch {
		case err != nil:
			a.Rollback(before)
			batch.Bad++
			bad = cmp.Or(bad, err)
			var cut error
			rest, cut = msgp.Skip(b)
			if cut != nil {
				return kvevent.Batch{}, fmt.Errorf("event %d of %d: %w", i+1, count, err)
			}
		case !f.known:
			batch.Unknown++
		}
		batch.CountKey(f.unknownKey)
		if len(a.EngineHashes) > maxHashes || len(a.Tokens) > maxTokens {
			return kvevent.Batch{}, errLarge
		}
		b = rest
	}
	if n > 2 {
		_, err = msgp.Skip(b)
		if err != nil {
			return kvevent.Batch{}, fmt.Errorf("batch rank: %w", err)
		}
	}
	if n > 3 {
		batch.CountKey("batch[3]")
	}
	batch.Events = a.Events
	if count > 0 && batch.Bad+batch.Unknown == uint64(count) {
		batch.Unread = cmp.Or(bad, errUnknownTypes)
	}
	return batch, nil
}

var errUnknownTypes = errors.New("all events are of unknown types (want BlockStored, BlockRemoved, AllBlocksCleared)")

// formOf names what a payload that is not an array begins with, for errors: it quotes nothing of it.
func formOf(payload []byte) string {
	switch {
	case len(payload) == 0:
		return "an empty payload"
	case payload[0] == '{' || payload[0] == '[' || payload[0] == '<':
		return "text, such as JSON"
	case bytes.HasPrefix(payload, []byte{0x1f, 0x8b}) || bytes.HasPrefix(payload, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		return "compressed data"
	}
	return fmt.Sprintf("%s of msgpack, or another format", msgp.NextType(payload))
}

// ArrayHeader reads an array's length; null is an empty array. A length greater than the number of bytes left is an error, so a
// false length allocates no memory. So is one of more than maxItems: an item of a byte takes eight here, and more in what is
// derived from it.
func ArrayHeader(b []byte) (n int, rest []byte, err error) {
	if len(b) > 0 && b[0] == Nil {
		return 0, b[1:], nil
	}
	size, rest, err := msgp.ReadArrayHeaderBytes(b)
	if err != nil {
		return 0, b, err
	}
	if uint64(size) > uint64(len(rest)) {
		return 0, b, errShort
	}
	if size > maxItems {
		return 0, b, errLong
	}
	return int(size), rest, nil
}

// AppendTokens appends an array of token ids of 32 bits. About 1.5 ns a token.
func AppendTokens(dst []uint32, b []byte) ([]uint32, []byte, error) {
	n, b, err := ArrayHeader(b)
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

// ReadToken64 reads one token id of up to 64 bits (SGLang's pads). About 1.5 ns.
func ReadToken64(b []byte) (uint64, []byte, error) {
	switch {
	case len(b) > 0 && b[0] < 0x80:
		return uint64(b[0]), b[1:], nil
	case len(b) > 2 && b[0] == 0xcd:
		return uint64(binary.BigEndian.Uint16(b[1:])), b[3:], nil
	case len(b) > 4 && b[0] == 0xce:
		return uint64(binary.BigEndian.Uint32(b[1:])), b[5:], nil
	case len(b) > 8 && b[0] == 0xcf:
		return binary.BigEndian.Uint64(b[1:]), b[9:], nil
	}
	v, rest, err := msgp.ReadUint64Bytes(b)
	if err != nil {
		return 0, b, fmt.Errorf("token id: %w", err)
	}
	return v, rest, nil
}

// readHash reads one block hash: an unsigned or a negative integer of any width, a digest in bytes, or hex digits (TensorRT-LLM),
// of which the first 16 of 64 count.
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
		return kvevent.FoldDigest(d), rest, err
	case msgp.StrType:
		s, rest, err := msgp.ReadStringZC(b)
		return block.Name64(View(s)), rest, err
	}
	return 0, b, fmt.Errorf("block hash: want an integer or bytes, got %s", msgp.NextType(b))
}

// appendHashes appends an array of block hashes.
func appendHashes(dst []uint64, b []byte) ([]uint64, []byte, error) {
	if n, _, err := ArrayHeader(b); err == nil {
		dst = slices.Grow(dst, n)
	}
	rest, err := Array(b, func(b []byte) ([]byte, error) {
		h, b, err := readHash(b)
		dst = append(dst, h)
		return b, err
	})
	return dst, rest, err
}

// ReadInt reads an integer or null; ok is false for null.
func ReadInt(b []byte) (v int, ok bool, rest []byte, err error) {
	if len(b) > 0 && b[0] == Nil {
		return 0, false, b[1:], nil
	}
	v, rest, err = msgp.ReadIntBytes(b)
	return v, err == nil, rest, err
}

// ReadText reads a string or null (nil) without copying it.
func ReadText(b []byte) (v, rest []byte, err error) {
	if len(b) > 0 && b[0] == Nil {
		return nil, b[1:], nil
	}
	return msgp.ReadStringZC(b)
}

// readTextOrSkip reads a string and skips any other value, for optional fields.
func readTextOrSkip(b []byte) (v, rest []byte, err error) {
	if msgp.NextType(b) == msgp.StrType {
		return msgp.ReadStringZC(b)
	}
	rest, err = msgp.Skip(b)
	return nil, rest, err
}

// Map reads a map: it calls each with every key and the bytes after it; each returns what follows the value.
func Map(b []byte, each func(key, b []byte) (rest []byte, err error)) ([]byte, error) {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return b, err
	}
	for range n {
		var key []byte
		key, b, err = msgp.ReadMapKeyZC(b)
		if err != nil {
			return b, err
		}
		b, err = each(key, b)
		if err != nil {
			return b, fmt.Errorf("%.40q: %w", key, err)
		}
	}
	return b, nil
}

// Array reads an array: it calls each with the bytes from every element on; each returns what follows the element.
func Array(b []byte, each func(b []byte) (rest []byte, err error)) ([]byte, error) {
	n, b, err := ArrayHeader(b)
	for i := 0; i < n && err == nil; i++ {
		b, err = each(b)
	}
	return b, err
}

// Raw splits one whole value off b.
func Raw(b []byte) (v, rest []byte, err error) {
	rest, err = msgp.Skip(b)
	if err != nil {
		return nil, b, err
	}
	return b[:len(b)-len(rest)], rest, nil
}

// View returns b as a string without a copy, for callees that keep no reference to it.
func View(b []byte) string {
	return unsafe.String(unsafe.SliceData(b), len(b))
}
