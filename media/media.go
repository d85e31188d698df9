// Package media gives every image of a request an identity that depends on its bytes, not on where they came from. A content id
// is BLAKE3 of the encoded file, so one image behind two URLs, as a data URL, or sent again in a later turn has one identity.
// With it come the facts that prompt layout and engine names need (Facts), read from the file's header.
//
// Identify makes one pass over the body's own pieces: base64, digest and header together, 48 KB at a time, without a decoded copy.
// The names that engines use (package enginehash) hash the bytes in the middle of a longer input, so the
// first time that a class sees an image costs a second pass, for all classes at once (Names).
//
// Errors: a *Refusal if an engine refuses the data URL, a *header.Error if the bytes are available but are
// no image that is read here; Status returns vLLM's answer.
package media

import (
	"errors"
	"io"
	"sync"

	"github.com/zeebo/blake3"

	"github.com/sightline-router/sightline/media/header"
	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/enginehash"
)

// Facts is what a decision needs to know about an image. ID and Bytes are valid even if the header could not be read.
type Facts struct {
	ID            mmhash.ContentID
	Bytes         int64 // of the encoded file
	Width, Height int   // pixels, Pillow's Image.size after open (before EXIF rotation)
	Mode          string
	Orientation   uint8 // EXIF 1 to 8; 5 to 8 swap width and height in engines that apply it
	Transparent   bool  // one colour of an RGB image is transparent
}

// Pixels returns how many pixels an image has.
func (f Facts) Pixels() int64 { return int64(f.Width) * int64(f.Height) }

// UprightSize returns width and height after EXIF rotation: what vLLM sees. SGLang's Qwen-VL path and TensorRT-LLM do not rotate.
func (f Facts) UprightSize() (w, h int) {
	return header.Info{Width: f.Width, Height: f.Height, Orientation: f.Orientation}.UprightSize()
}

func (f *Facts) set(i header.Info) {
	f.Width, f.Height, f.Mode, f.Orientation, f.Transparent = i.Width, i.Height, i.Mode, i.Orientation, i.Transparent
}

// Refusal reports a data URL that vLLM answers with an error. Status is the HTTP status (vLLM 0.32.0).
type Refusal struct {
	Status int
	Reason string
}

func (r *Refusal) Error() string { return "data URL: " + r.Reason }

// Status returns the HTTP status with which vLLM refuses an image for err, 0 if it may accept it.
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

// scratch is the working memory of one pass over a medium. It is pooled.
type scratch struct {
	dec  decoder
	hash *blake3.Hasher
	n    int64 // bytes so far
	head header.Reader
}

var scratches = sync.Pool{New: func() any { return &scratch{hash: blake3.New()} }}

// giveBack returns the memory to the pool, without references to the medium.
func (s *scratch) giveBack() {
	s.dec.close()
	scratches.Put(s)
}

// Next returns the image's next bytes. They enter its digest.
func (s *scratch) Next() ([]byte, error) {
	p, err := s.dec.Next()
	s.n += int64(len(p))
	_, _ = s.hash.Write(p) // never fails
	return p, err
}

// Identify reads an image once and allocates nothing. A *Refusal means that the bytes were not available; a *header.Error that
// they are not a readable image, in which case ID and Bytes are set nevertheless.
func Identify(src Source) (Facts, error) {
	s := scratches.Get().(*scratch)
	f, err := s.identify(src)
	s.giveBack() // not if reading panics
	return f, err
}

func (s *scratch) identify(src Source) (f Facts, err error) {
	s.hash.Reset()
	s.n = 0
	if err := s.dec.open(src); err != nil {
		return f, err
	}
	info, unread := s.head.Read(s)
	for err == nil { // what the header did not need
		_, err = s.Next()
	}
	if err != io.EOF {
		return f, err
	}
	s.hash.Sum(f.ID[:0])
	f.Bytes = s.n
	f.set(info)
	return f, unread
}

// pixelsWithin limits the bytes in which Pixels looks for an image's size. A JPEG's comes behind its metadata.
const pixelsWithin = 192 << 10

// Pixels returns how many pixels an image in base64 has, with or without a data URL's beginning; 0: they are not known. It reads no more
// than it needs.
func Pixels(pieces [][]byte) int {
	s := scratches.Get().(*scratch)
	defer s.giveBack()
	err := s.dec.open(DataURL(pieces))
	if err == errNoComma || err == errLongType {
		s.dec.begin(0, 0)
	} else if err != nil {
		return 0
	}
	whole := s.dec.out
	defer func() { s.dec.out = whole }()
	s.dec.out = whole[:3<<10] // a header is mostly shorter
	return s.head.Pixels(&s.dec, pixelsWithin)
}

// Names returns the names of one image, in the recipes' order. Names that store lacks are computed together in one pass over
// the source, and put into it. id and size must be the source's (Identify). If the source's bytes were evicted from a cache, that is an
// error.
func Names(store *mmhash.Store, src Source, id mmhash.ContentID, size int64, recipes ...enginehash.Recipe) ([]string, error) {
	names := make([]string, len(recipes))
	var at []int // of those to be computed
	var keys [][32]byte
	var digests []*enginehash.Digest
	for i, r := range recipes {
		names[i] = r.Known
		if r.Ready {
			continue
		}
		key, known := r.Key(), false
		names[i], known = store.Get(id, key)
		if known {
			continue
		}
		at, keys, digests = append(at, i), append(keys, key), append(digests, r.Start())
	}
	if len(at) == 0 {
		return names, nil
	}
	n := int64(0)
	err := src.each(func(p []byte) {
		n += int64(len(p))
		for _, d := range digests {
			d.Write(p)
		}
	})
	if err != nil {
		return nil, err
	}
	if n != size {
		return nil, errGone
	}
	for k, i := range at {
		names[i] = digests[k].Name()
		store.Put(id, keys[k], names[i])
	}
	return names, nil
}

// errGone means that an image's bytes are no longer in memory.
var errGone = errors.New("the image's bytes are not here any more")
