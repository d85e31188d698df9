package trtllm

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/kvevent/wire"
)

// The ZeroMQ form (1.3.0rc27, V2 manager): [time, [event, …], rank] as vLLM sends it, events as maps with a "type". Blocks are
// always full; a token id may be a digest; mm_keys holds one list per block. It has no event numbers: the transport's sequence
// numbers serve instead.
//
// The standalone router example of NVIDIA Dynamo sends the same maps, one event per message, with block_mm_infos in place of
// mm_keys: null or {"mm_objects": [{"mm_hash": first 64 bits of the key's hash, "offsets": [[start, end], …]}]} for each block, and
// no such member if there are no images.

func (d *Decoder) msgpack(payload []byte) (err error) {
	d.out, err = wire.Batch(payload, &d.a, &d.f, d.packedTokens, d.packed)
	return err
}

// packedTokens saves the undecoded token ids; they are decoded together with the blocks.
func (d *Decoder) packedTokens(b []byte) (rest []byte, err error) {
	d.ids, rest, err = wire.Raw(b)
	return rest, err
}

// packed handles the event in d.f.
func (d *Decoder) packed() error {
	f := &d.f
	if f.Salt != nil { // no release sends a salt in this form
		f.NoteUnknownKey("cache_salt")
	}
	full := d.groups.Prove(f)
	switch f.Kind {
	case kvevent.Cleared:
		d.clear()
		return nil
	case kvevent.Stored:
		full = d.groups.Learn(f)
	}
	if !full {
		d.severalWindows = true
		d.a.EngineHashes = d.a.EngineHashes[:len(d.a.EngineHashes)-len(f.EngineHashes)]
		return nil
	}
	f.MixGroup()
	if f.Kind == kvevent.Stored {
		return d.packedStored()
	}
	for _, h := range f.EngineHashes {
		drop(d, d.items.lastItem, h)
	}
	if len(f.EngineHashes) > 0 {
		d.a.Events = append(d.a.Events, kvevent.Event{Kind: kvevent.Removed, Tier: f.Tier(), EngineHashes: f.EngineHashes})
	}
	return nil
}

func (d *Decoder) packedStored() error {
	f, size, n := &d.f, d.f.BlockSize, len(d.f.EngineHashes)
	if !f.HasTokens {
		return errors.New("no token ids")
	}
	count, t, err := wire.ArrayHeader(d.ids)
	if err != nil {
		return err
	}
	if err := f.Cover(count); err != nil {
		return err
	}
	d.BlockSize = size
	d.begin()
	d.s.lora = f.Adapter(d.s.lora)
	k := f.ExtraKeys
	if k != nil {
		var lists int
		lists, k, err = wire.ArrayHeader(k)
		if err != nil || lists != n {
			return fmt.Errorf("mm_keys: %d lists for %d blocks", lists, n)
		}
	}
	for _, engineHash := range f.EngineHashes {
		one := storedBlock{engineHash: engineHash, token: len(d.a.Tokens), tokens: size, name: len(d.s.names),
			level: int(f.Tier()), keyed: k != nil || d.Standalone}
		for range size {
			if msgp.NextType(t) == msgp.StrType {
				var digest []byte
				digest, t, err = msgp.ReadStringZC(t)
				if err != nil || len(digest) == 0 {
					return errors.New("token id: an empty text")
				}
				d.digestToken(wire.View(digest))
				continue
			}
			var id uint32
			id, t, err = msgp.ReadUint32Bytes(t)
			if err != nil {
				return fmt.Errorf("token id: %w", err)
			}
			d.a.Tokens = append(d.a.Tokens, id)
		}
		if k != nil {
			k, err = d.packedKeys(k)
			if err != nil {
				return fmt.Errorf("mm_keys: %w", err)
			}
		}
		one.names = len(d.s.names) - one.name
		d.s.blocks = append(d.s.blocks, one)
	}
	d.a.EngineHashes = d.a.EngineHashes[:len(d.a.EngineHashes)-n] // the event's blocks supply them again, split by tier
	return d.finish(f.Parent, f.HasParent)
}

// packedKeys reads one block's list of mm_keys, or its entry of block_mm_infos.
func (d *Decoder) packedKeys(b []byte) (rest []byte, err error) {
	if msgp.NextType(b) == msgp.MapType {
		return d.packedInfo(b)
	}
	run := keyRun{}
	return wire.Array(b, func(b []byte) ([]byte, error) {
		var name []byte
		start := 0
		b, err := wire.Map(b, func(key, b []byte) (_ []byte, err error) {
			switch string(key) {
			case "hash":
				name, b, err = msgp.ReadStringZC(b)
			case "start_offset":
				start, b, err = msgp.ReadIntBytes(b)
			case "type", "uuid":
				return msgp.Skip(b)
			default:
				d.f.NoteUnknownKey(wire.View(key))
				return msgp.Skip(b)
			}
			return b, err
		})
		if err == nil && (len(name) == 0 || start < 0) {
			err = errors.New("want a hash and a start_offset")
		}
		if err == nil {
			d.key(wire.View(name), start, &run)
		}
		return b, err
	})
}

// packedInfo reads one block's entry of block_mm_infos.
func (d *Decoder) packedInfo(b []byte) ([]byte, error) {
	return wire.Map(b, func(key, b []byte) ([]byte, error) {
		if string(key) != "mm_objects" {
			d.f.NoteUnknownKey(wire.View(key))
			return msgp.Skip(b)
		}
		return wire.Array(b, func(b []byte) ([]byte, error) {
			named := false
			b, err := wire.Map(b, func(key, b []byte) ([]byte, error) {
				if string(key) != "mm_hash" {
					if string(key) != "offsets" {
						d.f.NoteUnknownKey(wire.View(key))
					}
					return msgp.Skip(b)
				}
				digest, rest, err := msgp.ReadUint64Bytes(b)
				var bits [8]byte
				var digits [16]byte
				binary.BigEndian.PutUint64(bits[:], digest)
				hex.Encode(digits[:], bits[:])
				d.s.names, named = append(d.s.names, d.hash.Name(wire.View(digits[:]))), true
				return rest, err
			})
			if err == nil && !named {
				err = errors.New("want an mm_hash")
			}
			return b, err
		})
	})
}
