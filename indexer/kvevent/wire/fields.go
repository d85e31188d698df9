package wire

// One event of vLLM, or of an engine that copies its form: an array, tag first (vLLM up to 0.23, SGLang up to 0.5.19), or
// a map with a "type". The array's fields stand in the order in which releases added them, so one order serves all:
//
//	BlockStored   block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx
//	              kv_cache_spec_kind kv_cache_spec_sliding_window
//	BlockRemoved  block_hashes medium group_idx
//	AllBlocksCleared
//
// Unknown keys and fields are passed over.

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Fields are the raw values of one event. Text and ExtraKeys point into the payload.
type Fields struct {
	Known        bool         // of a type that is known; of others nothing is read
	Kind         kvevent.Kind // Stored, Removed or Cleared
	Elements     int          // of an array, its tag included; 0 of a map
	EngineHashes []uint64     // the last of the arena's
	Parent       uint64
	HasParent    bool
	BlockSize    int
	LoRAID       int
	HasLoRAID    bool
	Group        int    // of a hybrid model; -1: not told
	ExtraKeys    []byte // vLLM's extra_keys, TensorRT-LLM's mm_keys or block_mm_infos, the whole value; nil if the event has none

	LoRA, Medium, Locality, SpecKind, Salt, Session []byte
}

// Read reads the event at b and gives what is behind it. Hashes go to the arena; tokens reads the array of token ids,
// once or, where a map has the key twice, again.
func (f *Fields) Read(b []byte, a *kvevent.Arena, tokens func(b []byte) ([]byte, error)) (rest []byte, err error) {
	first := len(a.EngineHashes)
	*f = Fields{Group: -1}
	switch msgp.NextType(b) {
	case msgp.MapType:
		rest, err = f.readMap(b, a, first, tokens)
	case msgp.ArrayType:
		rest, err = f.readArray(b, a, first, tokens)
	default:
		return b, fmt.Errorf("want a map or an array, got %s", msgp.NextType(b))
	}
	f.EngineHashes = a.EngineHashes[first:len(a.EngineHashes):len(a.EngineHashes)]
	return rest, err
}

// readMap takes keys in any order.
func (f *Fields) readMap(whole []byte, a *kvevent.Arena, first int, tokens func([]byte) ([]byte, error)) ([]byte, error) {
	rest, err := Map(whole, func(key, b []byte) ([]byte, error) {
		if string(key) != "type" {
			return f.read(fieldOf(key), b, a, first, tokens)
		}
		b, err := f.readType(b)
		if err == nil && !f.Known {
			err = errOther
		}
		return b, err
	})
	if errors.Is(err, errOther) || err != nil && !f.Known && otherType(whole) {
		return msgp.Skip(whole)
	}
	if err == nil && !f.Known {
		err = errors.New("map without a type")
	}
	return rest, err
}

// otherType reports whether an event is of a type that is not known, where a field before the type could not be read: in an
// event of ours it would be a fault, in another one it may have any form.
func otherType(whole []byte) bool {
	var f Fields
	found := false
	_, err := Map(whole, func(key, b []byte) ([]byte, error) {
		if string(key) != "type" {
			return msgp.Skip(b)
		}
		found = true
		return f.readType(b)
	})
	return err == nil && found && !f.Known
}

// errOther ends the reading of an event of a type that is not known.
var errOther = errors.New("another type")

func (f *Fields) readArray(whole []byte, a *kvevent.Arena, first int, tokens func([]byte) ([]byte, error)) ([]byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(whole)
	if err != nil {
		return b, err
	}
	if n == 0 {
		return b, errors.New("empty array")
	}
	if b, err = f.readType(b); err != nil {
		return b, fmt.Errorf("tag: %w", err)
	}
	if !f.Known {
		return msgp.Skip(whole)
	}
	f.Elements = int(n)
	var order []field
	switch f.Kind {
	case kvevent.Stored:
		order = storedOrder
	case kvevent.Removed:
		order = removedOrder
	}
	for i := range f.Elements - 1 {
		at := ignored
		if i < len(order) {
			at = order[i]
		}
		if b, err = f.read(at, b, a, first, tokens); err != nil {
			return b, fmt.Errorf("field %d: %w", i+1, err)
		}
	}
	return b, nil
}

func (f *Fields) readType(b []byte) ([]byte, error) {
	name, rest, err := ReadText(b)
	f.Known = true
	switch string(name) {
	case "BlockStored":
		f.Kind = kvevent.Stored
	case "BlockRemoved":
		f.Kind = kvevent.Removed
	case "AllBlocksCleared":
		f.Kind = kvevent.Cleared
	default:
		f.Known = false
	}
	return rest, err
}

type field uint8

const (
	ignored field = iota
	blockHashes
	parentHash
	tokenIDs
	blockSize
	loraID
	medium
	loraName
	extraKeys
	groupIdx
	specKind
	locality
	cacheSalt
	sessionID
)

var (
	storedOrder  = []field{blockHashes, parentHash, tokenIDs, blockSize, loraID, medium, loraName, extraKeys, groupIdx, specKind}
	removedOrder = []field{blockHashes, medium, groupIdx}
)

func fieldOf(key []byte) field {
	switch string(key) {
	case "block_hashes":
		return blockHashes
	case "parent_block_hash":
		return parentHash
	case "token_ids":
		return tokenIDs
	case "block_size":
		return blockSize
	case "lora_id":
		return loraID
	case "medium":
		return medium
	case "lora_name":
		return loraName
	case "extra_keys", "mm_keys", "block_mm_infos":
		return extraKeys
	case "group_idx":
		return groupIdx
	case "kv_cache_spec_kind":
		return specKind
	case "locality":
		return locality
	case "cache_salt":
		return cacheSalt
	case "session_id":
		return sessionID
	}
	return ignored
}

func (f *Fields) read(at field, b []byte, a *kvevent.Arena, first int, tokens func([]byte) ([]byte, error)) (rest []byte, err error) {
	switch at {
	case blockHashes:
		a.EngineHashes, rest, err = AppendHashes(a.EngineHashes[:first], b)
	case parentHash:
		if len(b) > 0 && b[0] == Nil {
			return b[1:], nil
		}
		f.Parent, rest, err = ReadHash(b)
		f.HasParent = err == nil
	case tokenIDs:
		rest, err = tokens(b)
	case blockSize:
		f.BlockSize, _, rest, err = ReadInt(b)
	case loraID:
		f.LoRAID, f.HasLoRAID, rest, err = ReadInt(b)
	case medium:
		f.Medium, rest, err = ReadText(b)
	case loraName:
		f.LoRA, rest, err = ReadText(b)
	case extraKeys:
		if len(b) > 0 && b[0] == Nil {
			return b[1:], nil
		}
		f.ExtraKeys, rest, err = Raw(b)
	case groupIdx:
		var told bool
		if f.Group, told, rest, err = ReadInt(b); !told {
			f.Group = -1
		}
	case specKind:
		f.SpecKind, rest, err = ReadText(b)
	case locality:
		f.Locality, rest, err = ReadTextOrSkip(b)
	case cacheSalt:
		f.Salt, rest, err = ReadText(b)
	case sessionID:
		f.Session, rest, err = ReadTextOrSkip(b)
	default:
		rest, err = msgp.Skip(b)
	}
	return rest, err
}

// Tier is where the blocks lie: what is not the worker's own is remote, whatever its medium.
func (f *Fields) Tier() kvevent.Tier {
	if len(f.Locality) > 0 && !strings.EqualFold(View(f.Locality), "LOCAL") {
		return kvevent.Remote
	}
	return kvevent.TierOf(View(f.Medium))
}

// FullPrefix tells whether a stored event's blocks prove a full prefix: those of a group whose layers see all tokens, by its
// kind, at any number (Gemma 3 has it last), and without a kind (vLLM before 0.22) those of group 0. Sliding-window, chunked and
// state groups drop blocks in the middle, and their events do not say which; encoder and cross attention are not cached;
// what vLLM itself calls unknown, or a release to come brings, proves nothing. Kinds: KVCacheSpecKind of vLLM 0.33.0
// (v1/kv_cache_interface.py), where the three below are FullAttentionSpec and its subclasses.
func (f *Fields) FullPrefix() bool {
	switch string(f.SpecKind) {
	case "":
		return f.Group <= 0
	case "full_attention", "mla_attention", "sink_full_attention":
		return true
	}
	return false
}

// Adapter is the name of the event's adapter, "" for the base model, and the seed of its blocks. An adapter that is told
// by its number alone gets a name of its own, so that its blocks are never taken for the base model's.
// It does not allocate where the name is the last one again.
func (f *Fields) Adapter(last string) (name string, seed uint64) {
	switch {
	case len(f.LoRA) > 0:
		if name = last; string(f.LoRA) != last {
			name = string(f.LoRA)
		}
	case f.HasLoRAID:
		name = "lora_id " + strconv.Itoa(f.LoRAID)
	}
	return name, block.SeedFor(name)
}
