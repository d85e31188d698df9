// Package name gives the name by which an engine knows a picture: vLLM's mm_hash in every form since 0.13, SGLang's item
// hash and pads for Qwen3-VL, Dynamo's 16 digits.
//
// A name is a digest of a text with the file's bytes in its middle, sometimes digested once more. A Recipe says which;
// it is made from what is known of the worker (VLLM, SGLang) and of the picture (Item), and needs the bytes once
// (media.Store). Names that need no bytes, such as a verbatim uuid, come ready in the Recipe.
package name

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"

	"github.com/zeebo/blake3"
)

// ErrNotComputable marks names that this package cannot compute: the engine hashes pixels, or Python's pickle of a value.
// They can only be learned from the engine's events.
var ErrNotComputable = errors.New("name is not computable from the file's bytes")

// Algorithm is the digest of a Recipe.
type Algorithm uint8

const (
	BLAKE3 Algorithm = iota // vLLM's default
	SHA256                  // vLLM --mm-hasher-algorithm sha256; SGLang
	SHA512
)

// ParseAlgorithm reads vLLM's --mm-hasher-algorithm (0.27 and later) or VLLM_MM_HASHER_ALGORITHM (0.15 and later).
func ParseAlgorithm(s string) (Algorithm, error) {
	switch s {
	case "", "blake3":
		return BLAKE3, nil
	case "sha256":
		return SHA256, nil
	case "sha512":
		return SHA512, nil
	}
	return 0, fmt.Errorf("mm hasher algorithm %q: want blake3, sha256 or sha512", s)
}

func (a Algorithm) new() hash.Hash {
	switch a {
	case SHA256:
		return sha256.New()
	case SHA512:
		return sha512.New()
	}
	return blake3.New()
}

// Recipe is how to get one picture's name in one class of workers. The zero value is not a recipe.
type Recipe struct {
	Known string // the name, where no bytes are needed; see Ready

	ready         bool
	alg           Algorithm
	before, after []byte // of the file's bytes
	artifact      []byte // SGLang: canonical JSON behind the content digest; nil for vLLM
	prefix        string // tower LoRA
}

// Ready reports that Known is the name. (A known name may be empty: vLLM takes "" as a uuid.)
func (r Recipe) Ready() bool { return r.ready }

// Key names the recipe: equal for equal names of equal bytes. 32 bytes, safe against request fields chosen to collide.
func (r Recipe) Key() (key [32]byte) {
	h := blake3.New()
	var n [8]byte
	for _, p := range [...][]byte{{byte(r.alg)}, r.before, r.after, r.artifact, []byte(r.prefix), []byte(r.Known)} {
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
	d := &Digest{r: r, h: r.alg.new()}
	d.h.Write(r.before)
	return d
}

// Write takes the next bytes of the file; it never fails.
func (d *Digest) Write(p []byte) (int, error) { return d.h.Write(p) }

// Name gives the name after the last byte.
func (d *Digest) Name() string {
	if d.r.ready {
		return d.r.Known
	}
	d.h.Write(d.r.after)
	sum := d.h.Sum(nil)
	if d.r.artifact != nil {
		return sglangItem(sum, d.r.artifact)
	}
	return d.r.prefix + hex.EncodeToString(sum)
}

// Of computes the name of a file in memory.
func (r Recipe) Of(file []byte) string {
	d := r.Start()
	d.Write(file)
	return d.Name()
}
