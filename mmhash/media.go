// Package mmhash gives every picture of a request an identity: what its bytes are, not where they came from. A ContentID is
// BLAKE3 of the encoded file, so one picture behind two URLs, as a data URL, or sent again in a later turn is one identity.
// Beside it stand the facts that prompt layout and engine names need (Facts), read from the file's header.
//
// Identify makes one pass over the body's own pieces: base64, digest and header together, 48 KB at a time, without a decoded
// copy; cores that idle help with the digest. The names that engines use (package name) have the bytes in the middle of a
// longer pre-image, so the first sight of a picture in a class costs a second pass, for all classes at once (Store.Names).
//
// Errors: a *Refusal where an engine refuses the data URL, a *header.Error, clip.Error or tensor.ErrFormat where the bytes came
// and are not what they should be; Status tells what vLLM answers.
package mmhash

import (
	"encoding/hex"
	"errors"
	"sync"

	"github.com/sightline-router/sightline/mmhash/clip"
	"github.com/sightline-router/sightline/mmhash/digest"
	"github.com/sightline-router/sightline/mmhash/header"
)

// ContentID names a file by its bytes: BLAKE3-256.
type ContentID [32]byte

// String gives 64 hex digits.
func (id ContentID) String() string { return hex.EncodeToString(id[:]) }

// Facts is what a decision needs to know about a picture. ID and Bytes are right even where the header could not be read.
type Facts struct {
	ID            ContentID
	Bytes         int64 // of the encoded file
	Width, Height int   // pixels, Pillow's Image.size after open (before EXIF rotation; a TIFF is already turned)
	Mode          string
	Orientation   uint8 // EXIF 1 to 8; 5 to 8 swap width and height in engines that obey it
	Format        string
	Frames        int     // of a video; 0 for all else
	FPS           float64 // of a video file; 0 for all else
	Tokens        int     // of a file of embeddings; 0 for all else
}

// FrameList is the Format of a video that came as JPEG pictures, one behind the other.
const FrameList = "jpeg_sequence"

// IsVideo reports whether the facts are a video's, its frames counted.
func (f Facts) IsVideo() bool { return f.FPS > 0 || f.Format == FrameList }

// Turned gives width and height after EXIF rotation: what vLLM sees. SGLang's Qwen-VL path and TensorRT-LLM do not rotate.
func (f Facts) Turned() (w, h int) {
	return header.Info{Width: f.Width, Height: f.Height, Orientation: f.Orientation}.Turned()
}

func (f *Facts) set(i header.Info) {
	f.Width, f.Height, f.Mode, f.Orientation, f.Format = i.Width, i.Height, i.Mode, i.Orientation, i.Format
}

// Refusal is a data URL that vLLM answers with an error. Status is what it answers (vLLM 0.32.0).
type Refusal struct {
	Status int
	Reason string
}

func (r *Refusal) Error() string { return "data URL: " + r.Reason }

// Status gives the HTTP status with which vLLM refuses a picture for err, 0 if it may well accept it.
func Status(err error) int {
	if r, ok := errors.AsType[*Refusal](err); ok {
		return r.Status
	}
	switch header.KindOf(err) {
	case header.NotAnImage, header.Truncated, header.Malformed, header.TooManyPixels:
		return 400
	}
	return 0
}

// scratch is what one pass over a medium needs. It is used again by later requests.
type scratch struct {
	dec  decoder
	hash *digest.Hasher
	n    int64 // bytes so far
	head *header.Reader
	clip clip.Reader
}

var scratches = sync.Pool{New: func() any { return &scratch{hash: digest.New(), head: header.New()} }}

// begin has the decoder write where the digest wants it.
func (s *scratch) begin() {
	s.hash.Reset()
	s.head.Reset()
	s.clip.Reset()
	s.n, s.dec.out = 0, s.hash.Room()
}

// took counts and digests a piece.
func (s *scratch) took(p []byte) {
	s.n += int64(len(p))
	if &p[0] == &s.dec.out[0] {
		s.hash.Fill(len(p))
		s.dec.out = s.hash.Room()
	} else {
		s.hash.Write(p)
	}
}

// take takes a piece of a picture.
func (s *scratch) take(p []byte) bool {
	s.head.Write(p)
	s.took(p)
	return true
}

// headOnly is a scratch on a pass that only the header reader asked for.
type headOnly scratch

func (s *headOnly) take(p []byte) bool { s.head.Write(p); return !s.head.Done() }

// Identify reads a picture once (a TIFF up to three times) and allocates nothing. A *Refusal means the bytes could not
// be had; a *header.Error that they are no readable picture, and then ID and Bytes are set all the same.
func Identify(src Source) (Facts, error) {
	s := scratches.Get().(*scratch)
	f, err := s.identify(src)
	scratches.Put(s) // not where reading panics
	return f, err
}

func (s *scratch) identify(src Source) (f Facts, err error) {
	s.begin()
	if err := src.stream(&s.dec, s); err != nil {
		return f, err
	}
	f.ID, f.Bytes = s.hash.Sum256(), s.n
	for s.head.Again() {
		if err := src.stream(&s.dec, (*headOnly)(s)); err != nil {
			return f, err
		}
	}
	info, err := s.head.Finish()
	f.set(info)
	return f, err
}
