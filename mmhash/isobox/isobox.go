// Package isobox cuts the boxes of ISO base media files (ISO 14496-12: MP4 and MOV; HEIF and AVIF) out of their parent's bytes.
// It copies nothing; ErrBroken says that a box's length does not fit its place.
package isobox

import (
	"encoding/binary"
	"errors"
)

// ErrBroken is a list of boxes that does not add up, or is of more than MaxBoxes.
var ErrBroken = errors.New("broken list of boxes")

// MaxBoxes bounds the boxes beside each other.
const MaxBoxes = 1 << 12

// Head reads a box's type, its length and that of its head: 8 bytes, or 16 where the length is a long one (0 if b does not have
// all of it). b has 8 bytes at least. Length 0 means up to the end.
func Head(b []byte) (kind string, size, head uint64) {
	kind, size = string(b[4:8]), uint64(binary.BigEndian.Uint32(b))
	switch {
	case size != 1:
		return kind, size, 8
	case len(b) < 16:
		return kind, 0, 16
	}
	return kind, binary.BigEndian.Uint64(b[8:]), 16
}

// Each calls do for each box of a list, until its error, which is returned. With lenient the last box may have length 0, and
// up to 7 bytes may follow it, as FFmpeg takes them.
func Each(b []byte, lenient bool, do func(kind string, body []byte) error) error {
	for n := 0; len(b) >= 8; n++ {
		kind, size, head := Head(b)
		if lenient && size == 0 && head == 8 {
			size = uint64(len(b))
		}
		if size < head || size > uint64(len(b)) || n == MaxBoxes {
			return ErrBroken
		}
		if err := do(kind, b[head:size]); err != nil {
			return err
		}
		b = b[size:]
	}
	if len(b) > 0 && !lenient {
		return ErrBroken
	}
	return nil
}
