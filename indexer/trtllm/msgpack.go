package trtllm

import (
	"errors"
	"fmt"
	"math"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/event"
	"github.com/sightline-router/sightline/indexer/wire"
	"github.com/sightline-router/sightline/mmhash/block"
)

// The ZeroMQ form (1.3.0rc27, V2 manager): [time, [event, …], rank] as vLLM sends it, events as maps with a "type".
// Blocks are always full; a token id may be a digest; mm_keys holds one list a block. It has no event numbers: the
// transport's count.

// maxGroups bounds the KV-cache groups that are told apart.
const maxGroups = 64

func (d *Decoder) msgpack(payload []byte) error {
	batch, err := wire.Batch(payload, func(b []byte) ([]byte, error) {
		handles, locals, tokens, media, events := len(d.handles), len(d.locals), len(d.tokens), len(d.media), len(d.events)
		rest, err := msgp.Skip(b)
		if err != nil {
			return b, err
		}
		if d.packed(b) != nil {
			d.handles, d.locals, d.tokens = d.handles[:handles], d.locals[:locals], d.tokens[:tokens]
			d.media, d.events = d.media[:media], d.events[:events]
			d.stats.Bad++
		}
		return rest, nil
	})
	d.out.Time, d.out.Rank = batch.Time, batch.Rank
	return err
}

// packed reads one event.
func (d *Decoder) packed(b []byte) error {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	if err != nil {
		return err
	}
	d.begin()
	var kind, medium, locality, spec []byte
	var hashes, ids, keys []byte
	var parent uint64
	var hasParent, hasLoRA bool
	var loraID int
	size := 0
	for range n {
		var key []byte
		if key, b, err = msgp.ReadMapKeyZC(b); err != nil {
			return err
		}
		rest, err := msgp.Skip(b)
		if err != nil {
			return err
		}
		value := b[:len(b)-len(rest)]
		b = rest
		if msgp.IsNil(value) {
			continue
		}
		switch string(key) {
		case "type":
			kind, _, err = msgp.ReadStringZC(value)
		case "block_hashes":
			hashes = value
		case "parent_block_hash":
			parent, _, err = packedHash(value)
			hasParent = true
		case "token_ids":
			ids = value
		case "block_size":
			size, _, err = msgp.ReadIntBytes(value)
		case "medium":
			medium, _, err = msgp.ReadStringZC(value)
		case "locality":
			locality, _, err = msgp.ReadStringZC(value)
		case "kv_cache_spec_kind":
			spec, _, err = msgp.ReadStringZC(value)
		case "group_idx":
			d.s.group, _, err = msgp.ReadIntBytes(value)
		case "lora_name":
			var name []byte
			name, _, err = msgp.ReadStringZC(value)
			d.s.lora = string(name)
		case "lora_id":
			loraID, _, err = msgp.ReadIntBytes(value)
			hasLoRA = err == nil
		case "mm_keys":
			keys = value
		}
		if err != nil {
			return fmt.Errorf("%.40q: %w", key, err)
		}
	}
	switch {
	case d.s.lora != "":
		d.s.seed = block.SeedFor(d.s.lora)
	case hasLoRA: // a seed of its own: never taken for the base model's
		d.s.lora = fmt.Sprintf("lora_id %d", loraID)
		d.s.seed = block.SeedFor(d.s.lora)
	}
	tier := event.TierOf(view(medium))
	if len(locality) > 0 && string(locality) != "LOCAL" {
		tier = event.Remote
	}
	switch string(kind) {
	case "AllBlocksCleared":
		d.stats.Events++
		d.clear()
		return nil
	case "BlockRemoved":
		return d.packedRemoved(hashes, tier)
	case "BlockStored":
		full := len(spec) == 0 && d.s.group <= 0 || string(spec) == "full_attention" || string(spec) == "mla_attention"
		if g := max(d.s.group, 0); g < maxGroups {
			d.groups[g] = !full
		}
		if !full || d.s.group >= maxGroups {
			d.stats.OtherWindow++
			return nil
		}
		d.stats.Events++
		return d.packedStored(hashes, ids, keys, size, parent, hasParent, int(tier))
	}
	d.stats.Unknown++
	return nil
}

func (d *Decoder) packedRemoved(hashes []byte, tier event.Tier) error {
	if g := max(d.s.group, 0); g >= maxGroups || d.groups[g] {
		d.stats.OtherWindow++
		return nil
	}
	n, b, err := wire.ArrayHeader(hashes)
	if err != nil {
		return err
	}
	first := len(d.handles)
	for range n {
		var h uint64
		if h, b, err = packedHash(b); err != nil {
			return err
		}
		h = event.InGroup(h, d.s.group)
		delete(d.marks.open, h)
		d.handles = append(d.handles, h)
	}
	d.stats.Events++
	if n > 0 {
		d.events = append(d.events, event.Event{Kind: event.Removed, Tier: tier, Group: max(d.s.group, 0), Handles: d.handles[first:len(d.handles):len(d.handles)]})
	}
	return nil
}

func (d *Decoder) packedStored(hashes, ids, keys []byte, size int, parent uint64, hasParent bool, level int) error {
	n, b, err := wire.ArrayHeader(hashes)
	if err != nil {
		return err
	}
	count, t, err := wire.ArrayHeader(ids)
	if err != nil {
		return err
	}
	if size < 1 || n < 1 || size > math.MaxInt32 || n*size != count {
		return fmt.Errorf("%d hashes of block size %d do not cover %d tokens", n, size, count)
	}
	d.BlockSize = size
	var k []byte
	if keys != nil {
		var lists int
		if lists, k, err = wire.ArrayHeader(keys); err != nil || lists != n {
			return fmt.Errorf("mm_keys: %d lists for %d blocks", lists, n)
		}
	}
	for range n {
		one := storedBlock{token: len(d.tokens), tokens: size, name: len(d.s.names), level: level, keyed: keys != nil}
		if one.handle, b, err = packedHash(b); err != nil {
			return err
		}
		one.handle = event.InGroup(one.handle, d.s.group)
		for range size {
			if msgp.NextType(t) == msgp.StrType {
				var digest []byte
				if digest, t, err = msgp.ReadStringZC(t); err != nil || len(digest) == 0 {
					return errors.New("token id: an empty text")
				}
				d.slot(digest)
				continue
			}
			var id uint32
			if id, t, err = msgp.ReadUint32Bytes(t); err != nil {
				return fmt.Errorf("token id: %w", err)
			}
			d.tokens = append(d.tokens, id)
		}
		if keys != nil {
			if k, err = d.packedKeys(k); err != nil {
				return fmt.Errorf("mm_keys: %w", err)
			}
		}
		one.names = len(d.s.names) - one.name
		d.s.blocks = append(d.s.blocks, one)
	}
	if hasParent {
		parent = event.InGroup(parent, d.s.group)
	}
	return d.finish(parent, hasParent)
}

func (d *Decoder) packedKeys(b []byte) (rest []byte, err error) {
	n, b, err := wire.ArrayHeader(b)
	if err != nil {
		return b, err
	}
	var last uint64
	lastStart := -1
	for range n {
		fields, after, err := msgp.ReadMapHeaderBytes(b)
		if err != nil {
			return b, err
		}
		b = after
		var name []byte
		start := 0
		for range fields {
			var key []byte
			if key, b, err = msgp.ReadMapKeyZC(b); err != nil {
				return b, err
			}
			switch string(key) {
			case "hash":
				name, b, err = msgp.ReadStringZC(b)
			case "start_offset":
				start, b, err = msgp.ReadIntBytes(b)
			default:
				b, err = msgp.Skip(b)
			}
			if err != nil {
				return b, err
			}
		}
		if len(name) == 0 || start < 0 {
			return b, errors.New("want a hash and a start_offset")
		}
		last, lastStart = d.key(name, start, last, lastStart)
	}
	return b, nil
}

// packedHash reads a block hash: an integer of either sign, a text of hex digits, or bytes.
func packedHash(b []byte) (uint64, []byte, error) {
	if msgp.NextType(b) == msgp.StrType {
		s, rest, err := msgp.ReadStringZC(b)
		return textHash(s), rest, err
	}
	return wire.ReadHash(b)
}
