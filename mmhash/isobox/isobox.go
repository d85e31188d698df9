// Package isobox splits the bytes of a parent into the boxes of ISO base media files (ISO 14496-12: MP4 and MOV; HEIF and AVIF). It
// copies nothing; ErrBroken means that a box's length does not fit.
package isobox

import (
	"encoding/binary"
	"errors"
)

// ErrBroken means that a list of boxes is inconsistent, or has more than MaxBoxes.
var ErrBroken = errors.New("broken list of boxes")

// MaxBoxes bounds the boxes of one list.
const MaxBoxes = 1 << 12

// Head reads a box's type, its size and the size of its header: 8 bytes, or 16 with an extended size (0 if b does not contain it
// all). b must have at least 8 bytes. Size 0 means that the box extends to the end.
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

// Each calls do for each box of a list until it returns an error, and returns that error. With lenient the last box may have size
// 0, and up to 7 bytes may follow it, as FFmpeg accepts them.
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
