// Package clip reads from a video file what an engine decides on before it decodes a frame: size, number of frames, frame rate.
//
// The bytes come as a stream (Reader is an io.Writer) and nothing is decoded. It keeps the movie box of MP4 and MOV, and of
// Matroska and WebM what precedes the first cluster; audio and pictures are skipped. vLLM opens videos with OpenCV on FFmpeg, so
// their reading of a container is the reference (OpenCV 5.0 in testdata). Their guesses are not reproduced: if FFmpeg would have to
// look at the frames (a variable rate, a fragmented file, an edit list that hides frames), the result is an *Error and the frames
// of the video count as unknown.
package clip

import (
	"math"
	"slices"

	"github.com/sightline-router/sightline/mmhash/isobox"
)

// Info holds the facts in the header of a video file.
type Info struct {
	Format        string  // mp4 (MOV too) or matroska (WebM too)
	Width, Height int     // pixels, after the container's rotation
	Frames        int     // pictures that a player shows
	FPS           float64 // pictures per second
}

// Error is why a file's facts are not known, one of a few fixed texts.
type Error string

func (e Error) Error() string { return "video: " + string(e) }

// Reasons why a file's facts are not known.
const (
	ErrFormat    Error = "no container that is read here (want MP4, MOV, Matroska or WebM)"
	ErrTruncated Error = "the file ends before its description"
	ErrBroken    Error = "the description contradicts itself"
	ErrTooLong   Error = "the description is longer than 16 MiB"
	ErrNoVideo   Error = "no video track, or several"
	ErrRate      Error = "the frame rate varies or is not written down"
	ErrFragments Error = "the file comes in fragments"
	ErrEdited    Error = "an edit list hides frames"
)

const (
	maxKept = 16 << 20 // bytes of a file's description
	keep    = 64 << 10 // larger buffers are not kept for the next file
)

// Reader gets a file's bytes through Write in pieces of any size, and then reports with Finish. The zero value is ready, and so is
// a Reader after Reset. Not safe for concurrent use.
type Reader struct {
	buf   []byte // an incomplete header, or the part that is kept
	skip  uint64 // bytes to skip
	want  int    // size that buf must have before step reads it
	state state
	err   error
}

type state uint8

const (
	atMagic state = iota
	atBox         // MP4: at the header of a box
	inMovie       // MP4: inside moov
	inHead        // Matroska: before the first cluster
	done
)

// Reset prepares the Reader for another file.
func (r *Reader) Reset() {
	buf := r.buf[:0]
	if cap(buf) > keep {
		buf = nil
	}
	*r = Reader{buf: buf, want: 12}
}

// Write reads the next bytes of the file. It never fails.
func (r *Reader) Write(p []byte) (int, error) {
	n := len(p)
	if r.want == 0 {
		r.want = 12
	}
	for len(p) > 0 && r.state != done {
		if r.skip > 0 {
			k := min(uint64(len(p)), r.skip)
			r.skip -= k
			p = p[k:]
			continue
		}
		k := min(r.want-len(r.buf), len(p))
		r.buf = append(r.buf, p[:k]...)
		p = p[k:]
		if len(r.buf) == r.want {
			r.step()
		}
	}
	return n, nil
}

func (r *Reader) stop(err error) { r.state, r.err = done, err }

// step reads the buffer, which has the wanted size.
func (r *Reader) step() {
	b := r.buf
	switch r.state {
	case atMagic:
		switch {
		case string(b[:4]) == "\x1a\x45\xdf\xa3":
			r.state, r.want = inHead, 1<<16
		case slices.Contains(knownFirst, string(b[4:8])):
			r.state = atBox
			r.step()
		default:
			r.stop(ErrFormat)
		}
	case atBox: // 12 bytes: size, kind, and the first half of an extended size
		kind, size, head := isobox.Head(b)
		switch {
		case head > uint64(len(b)):
			r.want = int(head)
			return
		case size == 0 && head == 8: // extends to the end of the file
			size = math.MaxInt64
		case size < head:
			r.stop(ErrBroken)
			return
		}
		if kind != "moov" {
			over := uint64(len(b)) // already read of the box, perhaps beyond a box of 8 bytes
			if size < over {
				r.buf = append(r.buf[:0], b[size:]...)
				r.want = 12
				return
			}
			r.buf, r.skip, r.want = r.buf[:0], size-over, 12
			return
		}
		if size > maxKept {
			r.stop(ErrTooLong)
			return
		}
		r.state, r.want = inMovie, int(size)
		if len(b) >= r.want {
			r.stop(nil)
		}
	case inMovie:
		r.stop(nil)
	case inHead: // enough if the first cluster has begun, else read twice as much
		if full, _ := matroskaEnds(b); full {
			r.stop(nil)
		} else {
			r.want *= 2
			if r.want > maxKept {
				r.stop(ErrTooLong)
			}
		}
	}
}

// Finish returns the facts. The error is an Error.
func (r *Reader) Finish() (Info, error) {
	switch {
	case r.err != nil:
		return Info{}, r.err
	case len(r.buf) >= 4 && string(r.buf[:4]) == "\x1a\x45\xdf\xa3":
		return matroska(r.buf)
	case r.state == done:
		return movie(r.buf)
	case r.state == atMagic:
		return Info{}, ErrFormat
	}
	return Info{}, ErrTruncated
}
