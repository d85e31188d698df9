package wire

// One event of vLLM, or of an engine with the same format: an array, tag first (vLLM 0.23), or a map
// with a "type". An array's fields are in the order in which releases added them, so one order serves all:
//
//	BlockStored   block_hashes parent_block_hash token_ids block_size lora_id medium lora_name extra_keys group_idx
//	              kv_cache_spec_kind kv_cache_spec_sliding_window
//	BlockRemoved  block_hashes medium group_idx
//	AllBlocksCleared
//
// Unknown keys and fields are skipped, and counted (Batch.UnknownKeys).

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// Fields are the raw values of one event of a known type. The byte slices point into the payload.
type Fields struct {
	Kind         kvevent.Kind // Stored, Removed or Cleared
	EngineHashes []uint64     // a tail of the arena's
	Parent       uint64
	HasParent    bool
	BlockSize    int
	LoRAID       int
	HasLoRAID    bool
	Group        int    // of a hybrid model; -1: not sent
	Window       int    // of the group's sliding window; 0: none
	FirstToken   int    // length of the arena's Tokens when the event began
	HasTokens    bool   // it has token ids
	ExtraKeys    []byte // vLLM's extra_keys, TensorRT-LLM's mm_keys or block_mm_infos: the whole value; nil: none
	Lookahead    []byte // vLLM's lookahead_token_ids, a list for each block: the tokens after it that its hash covers too; nil: none

	LoRA, Medium, Locality, SpecKind, Salt, Session []byte

	known      bool   // the type is known; other events are skipped
	unknownKey string // the first unknown key; "": none
	firstHash  int    // length of the arena's EngineHashes when the event began
}

// read reads the event at b and returns what follows it. Block hashes are appended to the arena. tokens reads the array of token
// ids; it is called again if a map has that key twice, and must then start over.
func (f *Fields) read(b []byte, a *kvevent.Arena, tokens func(b []byte) ([]byte, error)) (rest []byte, err error) {
	*f = Fields{Group: -1, FirstToken: len(a.Tokens), firstHash: len(a.EngineHashes)}
	switch msgp.NextType(b) {
	case msgp.MapType:
		rest, err = f.readMap(b, a, tokens)
	case msgp.ArrayType:
		rest, err = f.readArray(b, a, tokens)
	default:
		return b, fmt.Errorf("want a map or an array, got %s", msgp.NextType(b))
	}
	f.EngineHashes = kvevent.Tail(a.EngineHashes, f.firstHash)
	return rest, err
}

// readMap reads an event that is a map; its keys may come in any order.
func (f *Fields) readMap(whole []byte, a *kvevent.Arena, tokens func([]byte) ([]byte, error)) ([]byte, error) {
	if err := f.findType(whole); err != nil {
		return whole, err
	}
	if !f.known {
		return msgp.Skip(whole)
	}
	return Map(whole, func(key, b []byte) ([]byte, error) { return f.readField(View(key), b, a, tokens) })
}

// findType reads a map's type, which engines send first: until it is known, other fields may have any form.
func (f *Fields) findType(whole []byte) error {
	n, b, err := msgp.ReadMapHeaderBytes(whole)
	for i := uint32(0); i < n && err == nil; i++ {
		var key []byte
		key, b, err = msgp.ReadMapKeyZC(b)
		if err != nil {
			break
		}
		if string(key) == "type" {
			_, err = f.readType(b)
			return err
		}
		b, err = msgp.Skip(b)
	}
	return cmp.Or(err, errors.New("map without a type"))
}

func (f *Fields) readArray(whole []byte, a *kvevent.Arena, tokens func([]byte) ([]byte, error)) ([]byte, error) {
	n, b, err := msgp.ReadArrayHeaderBytes(whole)
	if err != nil {
		return b, err
	}
	if n == 0 {
		return b, errors.New("empty array")
	}
	b, err = f.readType(b)
	if err != nil {
		return b, fmt.Errorf("tag: %w", err)
	}
	if !f.known {
		return msgp.Skip(whole)
	}
	order := clearedOrder
	switch f.Kind {
	case kvevent.Stored:
		order = storedOrder
	case kvevent.Removed:
		order = removedOrder
	}
	for i := range int(n) - 1 {
		b, err = f.readField(order[min(i, len(order)-1)], b, a, tokens)
		if err != nil {
			return b, fmt.Errorf("field %d: %w", i+1, err)
		}
	}
	return b, nil
}

func (f *Fields) readType(b []byte) ([]byte, error) {
	name, rest, err := ReadText(b)
	f.known = true
	switch string(name) {
	case "BlockStored":
		f.Kind = kvevent.Stored
	case "BlockRemoved":
		f.Kind = kvevent.Removed
	case "AllBlocksCleared":
		f.Kind = kvevent.Cleared
	default:
		f.known = false
	}
	return rest, err
}

// The fields of an array event after its tag, in the order in which releases added them. The last name stands for all fields that
// no release sends.
var (
	storedOrder = []string{"block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
		"group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window", "BlockStored[12]"}
	removedOrder = []string{"block_hashes", "medium", "group_idx", "BlockRemoved[4]"}
	clearedOrder = []string{"AllBlocksCleared[1]"}
)

// NoteUnknownKey notes that the event has a key that its decoder does not know, or that only other engines send.
func (f *Fields) NoteUnknownKey(key string) {
	f.unknownKey = cmp.Or(f.unknownKey, key, "an empty key")
}

// readField reads one field, or skips it if it is not needed.
func (f *Fields) readField(key string, b []byte, a *kvevent.Arena, tokens func([]byte) ([]byte, error)) (rest []byte, err error) {
	null := len(b) > 0 && b[0] == Nil
	switch key {
	case "block_hashes":
		a.EngineHashes, rest, err = appendHashes(a.EngineHashes[:f.firstHash], b)
	case "parent_block_hash":
		if null {
			return b[1:], nil
		}
		f.Parent, rest, err = readHash(b)
		f.HasParent = err == nil
	case "token_ids":
		f.HasTokens = true
		rest, err = tokens(b)
	case "block_size":
		f.BlockSize, _, rest, err = ReadInt(b)
	case "lora_id":
		f.LoRAID, f.HasLoRAID, rest, err = ReadInt(b)
	case "medium":
		f.Medium, rest, err = ReadText(b)
	case "lora_name":
		f.LoRA, rest, err = ReadText(b)
	case "extra_keys", "mm_keys", "block_mm_infos":
		if null {
			return b[1:], nil
		}
		f.ExtraKeys, rest, err = Raw(b)
	case "group_idx":
		var sent bool
		f.Group, sent, rest, err = ReadInt(b)
		if !sent {
			f.Group = -1
		}
	case "kv_cache_spec_kind":
		f.SpecKind, rest, err = ReadText(b)
	case "locality":
		f.Locality, rest, err = readTextOrSkip(b)
	case "cache_salt":
		f.Salt, rest, err = ReadText(b)
	case "session_id":
		f.Session, rest, err = readTextOrSkip(b)
	case "lookahead_token_ids":
		if null {
			return b[1:], nil
		}
		f.Lookahead, rest, err = Raw(b)
	case "kv_cache_spec_sliding_window":
		f.Window, _, rest, err = ReadInt(b)
	case "type", "ownership": // not covered by a local hash
		rest, err = msgp.Skip(b)
	default:
		f.NoteUnknownKey(key)
		rest, err = msgp.Skip(b)
	}
	return rest, err
}

// Tier returns where the blocks are: Remote, whatever the medium, if they are not in the worker's own memory. An unknown medium
// counts as an unknown key.
func (f *Fields) Tier() kvevent.Tier {
	if len(f.Locality) > 0 && !strings.EqualFold(View(f.Locality), "LOCAL") {
		return kvevent.Remote
	}
	tier, known := kvevent.KnownTier(View(f.Medium))
	if !known && f.unknownKey == "" {
		f.NoteUnknownKey(kvevent.MediumKey + string(f.Medium[:min(len(f.Medium), 40)]))
	}
	return tier
}

// FullPrefix reports whether a stored event's blocks prove that the whole prefix is cached: true for groups whose layers see all
// tokens. The group's kind tells that, whatever its number (Gemma 3 has it last); without a kind (vLLM before 0.22), group 0 has
// it. Groups with sliding windows, chunks or states drop blocks in the middle, and their events do not say which; encoder and
// cross attention are not cached; an unknown kind proves nothing. Kinds: KVCacheSpecKind of vLLM 0.33.0
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

// Groups records which KV-cache groups of a hybrid model do not prove a full prefix. The models of vLLM have fewer than ten
// groups; blocks of groups beyond 64 are ignored.
type Groups [64]bool

// Learn records the group of a stored event, and returns what Prove returns.
func (g *Groups) Learn(f *Fields) bool {
	if n := max(f.Group, 0); n < len(g) {
		g[n] = !f.FullPrefix()
	}
	return g.Prove(f)
}

// Prove reports whether an event is of a group whose blocks prove a full prefix, as far as stored events have shown.
func (g *Groups) Prove(f *Fields) bool {
	n := max(f.Group, 0)
	return n < len(g) && !g[n]
}

// MixGroup mixes the event's group into its engine hashes and its parent.
func (f *Fields) MixGroup() {
	for i := range f.EngineHashes {
		f.EngineHashes[i] = kvevent.InGroup(f.EngineHashes[i], f.Group)
	}
	if f.HasParent {
		f.Parent = kvevent.InGroup(f.Parent, f.Group)
	}
}

// Cover returns an error if the blocks of a stored event do not have exactly this number of tokens.
func (f *Fields) Cover(tokens int) error {
	blocks, size := len(f.EngineHashes), f.BlockSize
	if size <= 0 || blocks == 0 || tokens%size != 0 || tokens/size != blocks {
		return fmt.Errorf("%d hashes of block size %d do not cover %d tokens", blocks, size, max(tokens, 0))
	}
	return nil
}

// Adapter returns the name of the event's adapter, "" for the base model. An adapter that is given only by number gets a name of its
// own, so that its blocks are never taken for the base model's. It does not allocate if the name equals last.
func (f *Fields) Adapter(last string) (name string) {
	switch {
	case len(f.LoRA) > 0:
		name = last
		if string(f.LoRA) != last {
			name = string(f.LoRA)
		}
	case f.HasLoRAID:
		name = "lora_id " + strconv.Itoa(f.LoRAID)
	}
	return name
}
