// Package mmhash names media: a ContentID is one file's identity here, and packages below it compute the names that engines use
// (enginehash) and the hashes of a prompt's blocks (block). Store keeps names that were computed. Bytes are read in package media. What
// vLLM hashes for its mm_hash is told by engine/vllm/names.go.
package mmhash

import (
	"encoding/hex"

	"github.com/zeebo/blake3"
)

// ContentID identifies a file by its bytes: BLAKE3-256.
type ContentID [32]byte

// String returns 64 hex digits.
func (id ContentID) String() string { return hex.EncodeToString(id[:]) }

// TextID identifies a medium that is not read by the text that a request has for it, in pieces: its data or its URL.
func TextID(pieces [][]byte) (id ContentID) {
	h := blake3.New()
	for _, p := range pieces {
		h.Write(p)
	}
	h.Sum(id[:0])
	return id
}
