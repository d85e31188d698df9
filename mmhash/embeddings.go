package mmhash

import (
	"github.com/zeebo/blake3"

	"github.com/sightline-router/sightline/mmhash/tensor"
)

// IdentifyEmbeddings reads a file of embeddings. Its table of contents is at its end, so text is decoded into a copy. A *Refusal
// means that the bytes were not available; with a tensor.ErrFormat, ID and Bytes are set nevertheless.
func IdentifyEmbeddings(src Source) (f Facts, err error) {
	src = src.loaded()
	size := 0
	for _, p := range src.pieces {
		size += len(p)
	}
	file, err := src.Decode(int64(size))
	if err != nil {
		return f, err
	}
	f.ID, f.Bytes = blake3.Sum256(file), int64(len(file))
	f.Tokens, err = tensor.Tokens(file)
	if err == nil {
		f.Format = "embeddings"
	}
	return f, err
}
