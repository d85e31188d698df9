// Package enginehash holds the inputs of a medium's name: the medium and its request's options (Item, Fields), and how the name is
// computed from a file's bytes (Recipe). Which recipe an engine uses is defined in the engine's package. A name costs one pass over
// the file, at the speed of its digest. ErrNotComputable means that the bytes do not determine it.
package enginehash

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"hash"

	"github.com/zeebo/blake3"
)

// ErrNotComputable means that a name does not follow from the file's bytes: the engine hashes pixels, or Python's pickle of a
// value. It can only be learned from the engine's events.
var ErrNotComputable = errors.New("name is not computable from the file's bytes")

// Item is one image of one request.
type Item struct {
	Mode  string // Pillow's mode, such as RGB; "" if unknown
	Bytes int64  // size of the file

	Transparent bool // one colour of the RGB image is transparent (a PNG's tRNS)
	Rotated     bool // its EXIF orientation is not 1
	Images      int  // of the request

	UUID    string // Python's str() of the part's uuid
	HasUUID bool

	ProcessorKwargs Fields // the request's mm_processor_kwargs
	MediaIO         Fields // the request's media_io_kwargs
}

// Algorithm is the hash function of a Recipe.
type Algorithm uint8

// The hash functions that engines use.
const (
	BLAKE3 Algorithm = iota
	SHA256
	SHA512
)

// New returns a new hash.
func (a Algorithm) New() hash.Hash {
	switch a {
	case SHA256:
		return sha256.New()
	case SHA512:
		return sha512.New()
	}
	return blake3.New()
}

// Recipe is how to compute one medium's name in one class of workers: the hash, in hex, of the file's bytes between two texts.
type Recipe struct {
	Ready bool   // Known is the name; no bytes are needed
	Known string // may be empty, as a client's uuid may

	Algorithm     Algorithm
	Before, After []byte // around the file's bytes

	// Again, if not nil, holds the texts around the hash of a second pass, in hex, whose hash is the name.
	Again *[2][]byte
}

// Key identifies the recipe: equal keys give equal names for equal bytes. It resists collisions by crafted request fields.
func (r Recipe) Key() (key [32]byte) {
	h := blake3.New()
	var n [8]byte
	parts := append(make([][]byte, 0, 6), []byte{byte(r.Algorithm)}, r.Before, r.After, []byte(r.Known))
	if r.Again != nil {
		parts = append(parts, r.Again[:]...)
	}
	for _, p := range parts {
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write(p)
	}
	h.Sum(key[:0])
	return key
}

// Digest computes one name: write the file's bytes, then call Name.
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

// Write adds the next bytes of the file; it never fails.
func (d *Digest) Write(p []byte) (int, error) { return d.h.Write(p) }

// Name returns the name. Call it after the last byte.
func (d *Digest) Name() string {
	if d.r.Ready {
		return d.r.Known
	}
	d.h.Write(d.r.After)
	n := hex.EncodeToString(d.h.Sum(nil))
	if d.r.Again == nil {
		return n
	}
	h := d.r.Algorithm.New()
	for _, p := range [...][]byte{d.r.Again[0], []byte(n), d.r.Again[1]} {
		h.Write(p)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Of computes the name of a file in memory.
func (r Recipe) Of(file []byte) string {
	d := r.Start()
	d.Write(file)
	return d.Name()
}
