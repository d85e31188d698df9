// Package event is the normal form of what engines say about their KV caches.
//
//	frame ─ transport ─▶ payload ─ decoder ─▶ Batch of Events ─ feed ─▶ index
//
// Every engine and release has its own wire form; a decoder (package vllm and its siblings) turns one payload into one
// Batch. An event speaks of blocks by two numbers: the engine hash, which is the engine's own block hash and good only for
// "parent of" and "removed", and the local hash of package block, which is computed from the event's tokens and media at
// once and is what requests are looked up by. So no engine's hash algorithm, seed or adapter path has to be known.
package kvevent

import (
	"encoding/binary"
	"strings"
)

// Kind says what happened.
type Kind uint8

const (
	// Stored: the blocks Handles with the hashes Locals, each the child of the one before, the first the child of
	// Parent, lie in Tier.
	Stored Kind = iota
	// Copied: the blocks Handles, known from an earlier event, lie in Tier too. Nothing but the engine hash is told
	// (vLLM's placeholder events of KV connectors). Without engine hashes it says that blocks will be told so.
	Copied
	// Removed: one copy of each block in Handles left Tier.
	Removed
	// Cleared: nothing is left, in any tier.
	Cleared
	// Snapshot: what is held is exactly what Event.Snapshot lists (package indexer's form), sent by the bus to who asks.
	Snapshot
)

// String names the kind for counters and messages.
func (k Kind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Copied:
		return "copied"
	case Removed:
		return "removed"
	case Cleared:
		return "cleared"
	case Snapshot:
		return "snapshot"
	}
	return "unknown"
}

// Tier is where a block's bytes lie, fastest first.
type Tier uint8

const (
	GPU    Tier = iota // device memory
	CPU                // host memory of the worker
	Disk               // a disk of the worker
	Remote             // a store shared by workers
	Tiers  = 4         // how many there are
)

// String names the tier.
func (t Tier) String() string {
	if t < Tiers {
		return [...]string{"gpu", "cpu", "disk", "remote"}[t]
	}
	return "unknown"
}

// TierOf reads an engine's name of a storage medium, in any case: "" and anything of a GPU is GPU, and what it does not
// know is Remote, the tier that promises least. Names seen: GPU, CPU, STORAGE (vLLM); cpu (Mooncake); FS, OBJ (vLLM
// before 0.24); LocalCPUBackend, LocalDiskBackend, RemoteBackend (LMCache); CPU_PINNED, DISK, EXTERNAL (SGLang, Dynamo).
// It does not allocate for the short names.
func TierOf(medium string) Tier {
	switch medium {
	case "", "GPU":
		return GPU
	case "CPU":
		return CPU
	}
	m := strings.ToLower(medium)
	has := func(words ...string) bool {
		for _, w := range words {
			if strings.Contains(m, w) {
				return true
			}
		}
		return false
	}
	switch {
	case has("remote", "external", "shared"):
		return Remote
	case has("gpu", "hbm", "cuda", "device"):
		return GPU
	case has("cpu", "host", "dram"):
		return CPU
	case has("disk", "storage", "file", "ssd", "nvme"), m == "fs":
		return Disk
	}
	return Remote
}

// Event is one change of one worker-rank's cache. Its slices belong to the decoder and are good until its next Decode.
type Event struct {
	Kind Kind
	Tier Tier
	// HasParent is false for the first block of a sequence.
	HasParent bool
	// MediaUnknown (Stored): the engine sent no extra keys, so blocks with different media, salts or prompt embeddings
	// look alike (vLLM before 0.17; self-describing offload events). The caller must give no credit for them.
	MediaUnknown bool
	// Group is the KV-cache group of a hybrid model, 0 where there is one. Handles and Parent have it folded in.
	Group        int
	BlockSize    int // tokens a block (Stored)
	Parent       uint64
	EngineHashes []uint64
	Locals       []uint64 // Stored only: one a engine hash
	LoRA         string   // the adapter's name, "" for the base model (Stored)
	Snapshot     []byte   // Snapshot only

	// For audit and learning, only where the decoder was told to keep them.
	Tokens  []uint32  // BlockSize a engine hash
	Media   []Mention // which media touch which block, in prompt order
	Session string    // the client's session id, as the engine tells it
}

// Mention says that a medium touches a block.
type Mention struct {
	Block  int    // index in Handles
	Offset int    // the medium's first token, relative to the block's; negative if it began in an earlier block
	Paired bool   // Offset is known (vLLM 0.19 and later)
	Name   []byte // the engine's name of the medium, as on the wire
}

// Batch is what one message holds: the events of one scheduler step, in order.
type Batch struct {
	Time float64 // the publisher's clock, seconds since 1970; 0 if not told
	Rank int     // data-parallel rank, -1 if not told
	// Partial: the publisher itself does not know all that the worker holds (the bus, behind a gap).
	Partial bool
	// Recurrent: the model has layers that keep a state instead of blocks (mamba, linear attention), and a hit needs both:
	// the blocks told are an upper bound.
	Recurrent bool
	// Away: the publisher has no connection to the engine now (an agent whose worker is down).
	Away   bool
	Events []Event
	// What the decoder passed over: events of unknown type, events that could not be read, and holes in the engine's own
	// numbering of events (TensorRT-LLM), behind which a Cleared event and Partial stand.
	Unknown, Bad, Gaps uint64
}

// FoldDigest folds a block hash sent as bytes to a engine hash: its last 8 bytes, big endian, as vLLM itself does it for the
// integer form (maybe_convert_block_hash, v0.10.2). Shorter digests are read whole.
func FoldDigest(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b[len(b)-8:])
	}
	var h uint64
	for _, c := range b {
		h = h<<8 | uint64(c)
	}
	return h
}

// InGroup folds a hybrid model's group into a engine hash: vLLM sends one hash for one position in every group. Group 0 and
// "no group" (negative) leave it as it is.
func InGroup(engineHash uint64, group int) uint64 {
	if group <= 0 {
		return engineHash
	}
	return engineHash ^ uint64(group)*0x9E3779B97F4A7C15
}
