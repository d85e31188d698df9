package clip

import (
	"encoding/binary"
	"math"

	"github.com/sightline-router/sightline/mmhash/isobox"
)

// MP4 and MOV (ISO 14496-12). FFmpeg counts the samples of the table, and derives the rate from it if all samples except the last
// have the same duration.

// knownFirst are boxes with which files begin.
var knownFirst = []string{"ftyp", "moov", "mdat", "free", "skip", "wide", "pnot", "uuid"}

// boxes calls f for each box of a parent's content, until it returns an error.
func boxes(b []byte, f func(kind string, body []byte) error) error {
	err := isobox.Each(b, true, f)
	if err == isobox.ErrBroken {
		return ErrBroken
	}
	return err
}

// track holds the facts of one trak box.
type track struct {
	video          bool
	width, height  int // of the coded picture
	quarter        bool
	timescale      uint64
	samples        uint64
	delta          uint64 // of a sample, in timescale; 0: samples differ
	length         uint64 // of all samples
	first          int64  // composition offset of the first picture shown
	edits          int
	editLen        uint64 // in the movie's timescale
	editAt         int64
	other, unknown bool // an edit that is not supported; an incomplete sample table
}

func movie(b []byte) (info Info, err error) {
	_, _, head := isobox.Head(b)
	if uint64(len(b)) < head {
		return info, ErrBroken
	}
	var found track
	var scale uint64
	tracks := 0
	err = boxes(b[head:], func(kind string, body []byte) error {
		switch kind {
		case "mvhd":
			_, scale = header(body)
		case "mvex":
			return ErrFragments
		case "cmov":
			return ErrFormat
		case "trak":
			t, err := trak(body)
			if err != nil || !t.video {
				return err
			}
			tracks++
			found = t
		}
		return nil
	})
	switch t := &found; {
	case err != nil:
		return info, err
	case tracks != 1:
		return info, ErrNoVideo
	case t.width == 0 || t.height == 0 || t.samples == 0 || t.samples > math.MaxInt32 || t.timescale == 0 || t.unknown:
		return info, ErrBroken
	case t.delta == 0:
		return info, ErrRate
	case t.other || t.edits == 1 && t.hides(scale):
		return info, ErrEdited
	}
	info = Info{Format: "mp4", Width: found.width, Height: found.height, Frames: int(found.samples)}
	info.FPS = float64(found.timescale) / float64(found.delta)
	if found.quarter {
		info.Width, info.Height = info.Height, info.Width
	}
	return info, nil
}

// hides reports whether the edit begins after the first picture or ends before the last but one: vLLM tolerates one hidden picture.
func (t *track) hides(scale uint64) bool {
	if scale == 0 || t.editAt != t.first {
		return true
	}
	return float64(t.editLen)/float64(scale) < float64(t.length-t.delta)/float64(t.timescale)
}

// header reads a full box that begins with version, flags, two times and a timescale.
func header(b []byte) (length, timescale uint64) {
	switch {
	case len(b) >= 20 && b[0] == 0:
		return uint64(binary.BigEndian.Uint32(b[16:])), uint64(binary.BigEndian.Uint32(b[12:]))
	case len(b) >= 32 && b[0] == 1:
		return binary.BigEndian.Uint64(b[24:]), uint64(binary.BigEndian.Uint32(b[20:]))
	}
	return 0, 0
}

func trak(b []byte) (t track, err error) {
	err = boxes(b, func(kind string, body []byte) error {
		switch kind {
		case "tkhd":
			t.turn(body)
		case "edts":
			return boxes(body, func(kind string, body []byte) error {
				if kind == "elst" {
					t.edit(body)
				}
				return nil
			})
		case "mdia":
			return boxes(body, t.media)
		}
		return nil
	})
	return t, err
}

// turn reads the matrix: a quarter turn swaps the sides. OpenCV ignores anything but quarter turns.
func (t *track) turn(b []byte) {
	at := 40
	if len(b) > 0 && b[0] == 1 {
		at = 52
	}
	if len(b) < at+36 {
		return
	}
	m := func(i int) int32 { return int32(binary.BigEndian.Uint32(b[at+4*i:])) }
	t.quarter = m(0) == 0 && m(4) == 0 && m(1) != 0 && m(3) != 0
}

// edit reads the edit list: at most one edit that shows something, after any initial gap.
func (t *track) edit(b []byte) {
	if len(b) < 8 || b[0] > 1 {
		t.other = true
		return
	}
	size := 12 + 8*int(b[0])
	n := int(binary.BigEndian.Uint32(b[4:]))
	if rest := b[8:]; n > 2 || len(rest) < n*size {
		t.other = true
		return
	}
	for i := range n {
		e := b[8+i*size:]
		length, at, rate := uint64(binary.BigEndian.Uint32(e)), int64(int32(binary.BigEndian.Uint32(e[4:]))), binary.BigEndian.Uint32(e[8:])
		if b[0] == 1 {
			length, at, rate = binary.BigEndian.Uint64(e), int64(binary.BigEndian.Uint64(e[8:])), binary.BigEndian.Uint32(e[16:])
		}
		switch {
		case rate != 1<<16:
			t.other = true
		case at < 0: // an initial gap
			t.other = t.other || t.edits > 0
		default:
			t.edits++
			t.editLen, t.editAt = length, at
		}
	}
	t.other = t.other || t.edits > 1
}

// media reads the boxes of mdia, minf and stbl alike.
func (t *track) media(kind string, b []byte) error {
	count := uint64(0)
	if len(b) >= 8 {
		count = uint64(binary.BigEndian.Uint32(b[4:]))
	}
	switch kind {
	case "minf", "stbl":
		return boxes(b, t.media)
	case "mdhd":
		_, t.timescale = header(b)
	case "hdlr":
		t.video = t.video || len(b) >= 12 && string(b[8:12]) == "vide"
	case "stsd": // the first entry: size, kind, 6 bytes, index, 16 bytes, width, height
		if len(b) < 8+36 {
			return nil // not a visual entry
		}
		t.width, t.height = int(binary.BigEndian.Uint16(b[8+32:])), int(binary.BigEndian.Uint16(b[8+34:]))
		t.unknown = t.unknown || t.video && count != 1
	case "stts":
		return t.times(b, count)
	case "stsz":
		if len(b) < 12 || t.samples != 0 && uint64(binary.BigEndian.Uint32(b[8:])) != t.samples {
			t.unknown = t.video
		}
	case "ctts":
		t.shifts(b, count)
	}
	return nil
}

// times reads the samples' durations. FFmpeg derives the rate from a table of one entry, or of two if the second is the last
// sample.
func (t *track) times(b []byte, count uint64) error {
	if len(b) < 8 || uint64(len(b)-8)/8 < count {
		return ErrBroken
	}
	for i := range count {
		e := b[8+8*i:]
		n, delta := uint64(binary.BigEndian.Uint32(e)), uint64(binary.BigEndian.Uint32(e[4:]))
		t.samples += n
		t.length += n * delta
		switch {
		case i == 0:
			t.delta = delta
		case i > 1 || n != 1:
			t.delta = 0
		}
	}
	return nil
}

// shifts finds the time of the first picture shown: the least sum of decoding time and shift. Reordering spans at most 16 pictures
// (H.264, H.265), so only a few are read.
func (t *track) shifts(b []byte, count uint64) {
	if len(b) < 8 || uint64(len(b)-8)/8 < count {
		t.unknown = true
		return
	}
	least, at := int64(math.MaxInt64), int64(0)
	for i := uint64(0); i < count && at <= 64; i++ {
		e := b[8+8*i:]
		n, shift := int64(binary.BigEndian.Uint32(e)), int64(int32(binary.BigEndian.Uint32(e[4:])))
		if n > 0 {
			least = min(least, at*int64(min(t.delta, math.MaxInt32))+shift)
		}
		at += n
	}
	if least != math.MaxInt64 {
		t.first = max(least, 0)
	}
}
