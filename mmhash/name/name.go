// Package name holds what the name of a medium is made of: the medium and its request's options (Item, Fields), and the way
// from a file's bytes to the name (Recipe). Which recipe an engine has stands in the engine's folder.
// A name costs one pass over the file, at the speed of its digest; ErrNotComputable says that bytes do not lead to it.
package name

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"

	"github.com/zeebo/blake3"
)

// ErrNotComputable marks names that do not follow from the file's bytes: the engine hashes pixels, or Python's pickle of a
// value. They can only be learned from the engine's events.
var ErrNotComputable = errors.New("name is not computable from the file's bytes")

// Item is one picture, or video, of one request.
type Item struct {
	Modality string // "image" if empty
	Mode     string // Pillow's mode, such as RGB; "" if it is not known
	Bytes    int64  // size of the file

	Video *Video // of a video whose frames are known

	UUID    string // Python's str() of the part's uuid
	HasUUID bool

	ProcessorKwargs Fields // the request's mm_processor_kwargs
	MediaIO         Fields // the request's media_io_kwargs
}

// Video is which frames of a video a loader takes.
type Video struct {
	Frames        int // of the file
	FPS, Duration float64
	Loader        string // as the engine calls it, such as opencv
	Indices       []int  // of the frames taken
	All           bool   // they are all, and the model's own processor may sample again
	Pixels        int64  // of one frame
}

// Algorithm is the digest of a Recipe.
type Algorithm uint8

// The digests that engines know.
const (
	BLAKE3 Algorithm = iota
	SHA256
	SHA512
)

// New begins a digest.
func (a Algorithm) New() hash.Hash {
	switch a {
	case SHA256:
		return sha256.New()
	case SHA512:
		return sha512.New()
	}
	return blake3.New()
}

// Recipe is how to get one medium's name in one class of workers: a digest, in hex, of the file's bytes between two texts.
type Recipe struct {
	Ready bool   // Known is the name, and no bytes are needed
	Known string // may be empty, as a client's uuid may

	Algorithm     Algorithm
	Before, After []byte // of the file's bytes
}

// Key names the recipe: equal for equal names of equal bytes. 32 bytes, safe against request fields chosen to collide.
func (r Recipe) Key() (key [32]byte) {
	h := blake3.New()
	var n [8]byte
	for _, p := range [...][]byte{{byte(r.Algorithm)}, r.Before, r.After, []byte(r.Known)} {
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	h.Sum(key[:0])
	return key
}

// Digest computes one name: write the file's bytes, then ask Name.
type Digest struct {
	r Recipe
	h hash.Hash
}

// Start begins the computation.
func (r Recipe) Start() *Digest {
	d := &Digest{r: r, h: r.Algorithm.New()}
	d.h.Write(r.Before)
	return d
}

// Write takes the next bytes of the file; it never fails.
func (d *Digest) Write(p []byte) (int, error) { return d.h.Write(p) }

// Name gives the name after the last byte.
func (d *Digest) Name() string {
	if d.r.Ready {
		return d.r.Known
	}
	d.h.Write(d.r.After)
	return hex.EncodeToString(d.h.Sum(nil))
}

// Of computes the name of a file in memory.
func (r Recipe) Of(file []byte) string {
	d := r.Start()
	d.Write(file)
	return d.Name()
}
