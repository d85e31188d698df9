// Package kvevent is the normal form of the events that engines publish about their KV caches.
//
//	frame ─ transport ─▶ payload ─ decoder ─▶ Batch of Events ─ package stream ─▶ index
//
// Every engine and release has its own wire format; a decoder (in the engine's package) turns one payload into one Batch. An
// event identifies a block by two numbers: the engine block hash (engine hash for short), which is the engine's own and serves
// only to name parents and removed blocks, and the local hash of package block, computed at once from the event's tokens and
// media, by which requests look blocks up. So no engine's hash algorithm, seed or adapter path has to be known.
package kvevent

import (
	"encoding/binary"
	"slices"
	"strings"
)

// Decoder decodes one payload of events. Each engine's package has one, and package bus for its own format. One that remembers more than a
// few numbers of earlier payloads has a method Bound(Room), and one with an Arena has Free, for a caller that is done with a batch.
type Decoder interface {
	Decode(payload []byte) (Batch, error)
}

// Kind is what happened.
type Kind uint8

const (
	// Stored: Tier now holds the blocks EngineHashes, whose local hashes are Locals. Each is the child of the one before,
	// the first that of Parent.
	Stored Kind = iota
	// Copied: Tier now also holds the blocks EngineHashes, whose content an earlier event gave (vLLM's placeholder events of KV
	// connectors).
	Copied
	// Removed: one copy of each block in EngineHashes left Tier.
	Removed
	// Cleared: nothing is left, in any tier.
	Cleared
	// Lost: events are missing here and cannot be recovered, so what was reported before is in doubt: EngineHashes, or everything
	// if there are none. No engine sends this; an agent does.
	Lost
	// GroupStored: the KV cache group Group of a hybrid model, beside the one whose blocks Stored names, holds one more copy of the
	// blocks EngineHashes. A hash is the chain's at the block's end, the same in all groups. It has no content and no parent.
	GroupStored
	// GroupRemoved: one copy of each block in EngineHashes left the group.
	GroupRemoved
)

// String returns the kind's name.
func (k Kind) String() string {
	if k <= GroupRemoved {
		return [...]string{"stored", "copied", "removed", "cleared", "lost", "group stored", "group removed"}[k]
	}
	return "unknown"
}

// Tier is where a block is stored, fastest first.
type Tier uint8

const (
	GPU    Tier = iota // device memory
	CPU                // host memory of the worker
	Disk               // a disk of the worker
	Remote             // a store shared by workers
	Tiers  = 4         // how many there are
)

// String returns the tier's name.
func (t Tier) String() string {
	if t < Tiers {
		return [...]string{"gpu", "cpu", "disk", "remote"}[t]
	}
	return "unknown"
}

// TierOf parses an engine's name of a storage medium, in any case. "" and any name of a GPU is GPU; an unknown name is Remote,
// the tier that promises least. Names seen: GPU, CPU, STORAGE (vLLM); cpu (Mooncake); FS, OBJ (vLLM before 0.24);
// LocalCPUBackend, LocalDiskBackend, RemoteBackend (LMCache); CPU_PINNED, DISK, EXTERNAL (SGLang, Dynamo). It does not allocate
// for the short names.
func TierOf(medium string) Tier {
	t, _ := KnownTier(medium)
	return t
}

// KnownTier does what TierOf does, and reports whether the name is known.
func KnownTier(medium string) (t Tier, known bool) {
	switch medium {
	case "", "GPU":
		return GPU, true
	case "CPU":
		return CPU, true
	}
	m := strings.ToLower(medium)
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(m, w) })
	}
	switch {
	case has("remote", "external", "shared", "obj"):
		return Remote, true
	case has("gpu", "hbm", "cuda", "device"):
		return GPU, true
	case has("cpu", "host", "dram"):
		return CPU, true
	case has("disk", "storage", "file", "ssd", "nvme"), m == "fs":
		return Disk, true
	}
	return Remote, false
}

// Event is one change of the cache of one worker's rank. Its slices belong to the decoder and are valid until its next Decode or Free.
type Event struct {
	Kind Kind
	Tier Tier
	// HasParent is false for the first block of a sequence.
	HasParent bool
	// MediaUnknown (Stored): the engine sent no extra keys, so blocks with different media, salts or prompt embeddings look alike
	// (vLLM before 0.17; self-describing offload events). They must count only for requests without these.
	MediaUnknown bool
	BlockSize    int // tokens in a block (Stored)
	Lookahead    int // tokens after a block that its local hash covers too (Stored)
	Parent       uint64
	EngineHashes []uint64
	Locals       []uint64 // Stored only: one for each engine hash
	LoRA         string   // the adapter's name, "" for the base model (Stored)

	Group int  // the group's number (GroupStored, GroupRemoved)
	Spec  Spec // what the group needs for a hit (GroupStored)

	Session string // the client's session id, if the engine sends it

	// For the audit; empty unless the decoder keeps them.
	Tokens []uint32   // BlockSize for each engine hash
	Media  []MediaRef // which media touch which block, in prompt order
}

// Spec is what a KV cache group needs of a prefix before the engine continues from it.
type Spec struct {
	Need      Need
	Window    int // tokens, for NeedWindow and NeedChunk
	BlockSize int // tokens in one of the group's blocks
}

// Need says which blocks of a prefix a group needs.
type Need uint8

const (
	NeedAll    Need = iota // all of them: full attention
	NeedWindow             // those that the last Spec.Window-1 tokens are in: a sliding window
	NeedChunk              // those since the last multiple of Spec.Window tokens: chunked local attention
	NeedLast               // the last one: the state of recurrent layers (mamba, linear attention)
)

// Groups is how many KV cache groups of a model are told apart, from 0 on.
const Groups = 16

// MediaRef is a medium that touches a block.
type MediaRef struct {
	Block  int    // index in EngineHashes
	Offset int    // the medium's first token, relative to the block's; negative if it began in an earlier block
	Paired bool   // Offset is known
	Name   []byte // the engine's name of the medium, as on the wire
}

// Batch is the events of one message, in order: those of one scheduler step.
type Batch struct {
	// Partial: the publisher itself may not know all that the worker holds (an agent after a gap). With Stands, this is the state
	// after this batch, whatever earlier ones said; else it holds until a Cleared event.
	Partial, Stands bool
	// UpperBound: a hit needs more than what the events say, so the blocks are an upper bound of it: KV cache groups of an unknown
	// kind.
	UpperBound bool
	// UpperBoundWhy says why; an agent's batches do not.
	UpperBoundWhy string
	// Away: the publisher has no connection to the engine now (an agent whose worker is down).
	Away   bool
	Events []Event
	// More, unless nil, returns the events that follow, some at a time, and none after the last: a snapshot of millions of them is
	// never in memory as a whole. They are valid until the next call.
	More func() []Event
	// What the decoder skipped: events of an unknown type, events that could not be read, and gaps in the engine's own event
	// numbers (TensorRT-LLM), for which it adds a Cleared event and sets Partial.
	Unknown, Bad, Gaps uint64
	// Unplaced counts blocks of further KV cache groups whose place in their prompts the events do not give.
	Unplaced uint64
	// UnknownKeys counts events with a key, or an element at an array's end, that the decoder does not know: its content may
	// change what a block's hash covers. UnknownKey is the first of them; it may point into the payload.
	UnknownKeys uint64
	UnknownKey  string
	// Unread says why, if the payload has events and none of them could be read.
	Unread error
}

// MediumKey begins the unknown key that stands for a storage medium that is not known.
const MediumKey = "medium "

// UnknownMedium returns the medium that an unknown key stands for, as a feed quotes the key; false: it is a key.
func UnknownMedium(quoted string) (medium string, is bool) {
	medium, is = strings.CutPrefix(quoted, `"`+MediumKey)
	return strings.TrimSuffix(medium, `"`), is
}

// CountKey counts an event with a key that the decoder does not know; "" is not a key.
func (b *Batch) CountKey(key string) {
	if key == "" {
		return
	}
	b.UnknownKeys++
	if b.UnknownKeys == 1 {
		b.UnknownKey = key
	}
}

// FoldDigest converts a block hash that is sent as bytes into an engine hash: its last 8 bytes, big endian, as vLLM makes its
// integer form (maybe_convert_block_hash, v0.10.2). Shorter digests are used whole.
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

// InGroup mixes a hybrid model's group into an engine hash, because vLLM sends the same hash for the same position in every
// group. Group 0 and a negative group (none) leave it unchanged.
func InGroup(engineHash uint64, group int) uint64 {
	if group <= 0 {
		return engineHash
	}
	return engineHash ^ uint64(group)*0x9E3779B97F4A7C15
}
