package vllm

// extra_keys hold what distinguishes a block besides its tokens. There is one entry per block: null, or an array of, in this order,
//
//	"adapter"              the LoRA name, equal to the event's lora_name; in every block
//	["identifier", offset] a medium that touches the block; offset relative to the block's first token
//	"salt"                 the request's cache_salt, only in the first block of a sequence
//	32 bytes               a digest of the block's prompt embeddings
//
// With lookahead (0.33 with EAGLE or MTP and no KV connector) the engine's hash covers the next tokens too, and so does ours: the
// entry then also has the media that begin there, at offsets from the block's size on. They are not the block's own.
//
// The position of a bare string decides which of them it is.

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/kvevent/wire"
	"github.com/sightline-router/sightline/mmhash/block"
)

// hasher is the state kept between the blocks of one event.
type hasher struct {
	loraName string
	root     block.Root // of blocks without a salt
	key      *block.Key
	names    []uint64
	lastName []byte // the last name hashed: consecutive blocks mostly repeat it
	lastHash uint64
}

func (h *hasher) nameHash(name []byte) uint64 {
	if len(name) > 0 && string(name) == string(h.lastName) {
		return h.lastHash
	}
	h.lastName = append(h.lastName[:0], name...)
	h.lastHash = h.key.Name(wire.View(name))
	return h.lastHash
}

// hash appends the local hashes of the event's blocks to d.a.Locals. The rule is that of block.Key.Locals, with the event's names in
// place of a request's spans. Of these blocks, the last ones have engine hashes and extra keys in the event; the others are hashed
// without extra keys. tokens end with the lookahead of the last block.
func (d *Decoder) hash(tokens []uint32, blocks, lookahead int) error {
	f, h := &d.f, &d.h
	if key := d.Secret.Key(); key != h.key {
		h.key, h.lastName = key, h.lastName[:0]
	}
	h.loraName = f.Adapter(h.loraName)
	h.root = h.key.Root(h.loraName, "")
	size := f.BlockSize
	keys, bare := f.ExtraKeys, blocks-len(f.EngineHashes)
	if keys != nil {
		n, rest, err := wire.ArrayHeader(keys)
		if err != nil {
			return fmt.Errorf("extra_keys: %w", err)
		}
		if n != blocks-bare {
			return fmt.Errorf("extra_keys: %d entries for %d blocks", n, blocks-bare)
		}
		keys = rest
	}
	for i := range blocks {
		names, root := h.names[:0], h.root.Rest
		if i >= bare && len(keys) > 0 {
			if keys[0] == wire.Nil {
				keys = keys[1:]
			} else {
				var err error
				root, keys, err = d.blockKeys(i, keys)
				if err != nil {
					return fmt.Errorf("extra_keys of block %d: %w", i, err)
				}
				names = h.names
			}
		}
		d.a.Locals = append(d.a.Locals, h.key.Local(tokens[i*size:(i+1)*size+lookahead], names, root))
	}
	return nil
}

// blockKeys reads one block's extra keys: media into h.names, in prompt order, and the salt into the block's root.
func (d *Decoder) blockKeys(index int, b []byte) (root uint64, rest []byte, err error) {
	f, h := &d.f, &d.h
	h.names, root = h.names[:0], h.root.Rest
	n, b, err := wire.ArrayHeader(b)
	if err != nil {
		return root, b, err
	}
	sequenceStart := index == 0 && !f.HasParent
	for i := range n {
		switch msgp.NextType(b) {
		case msgp.StrType:
			text, after, err := msgp.ReadStringZC(b)
			if err != nil {
				return root, b, err
			}
			switch {
			case i == 0 && len(f.LoRA) > 0 && string(text) == string(f.LoRA): // the adapter is already in the root
				b = after
			case sequenceStart:
				root, b = h.key.Root(h.loraName, wire.View(text)).First, after
			default:
				b, err = d.unknownKey(b)
				if err != nil {
					return root, b, err
				}
			}
		case msgp.BinType:
			digest, after, err := msgp.ReadBytesZC(b)
			if err != nil {
				return root, b, err
			}
			b = after
			h.names = append(h.names, h.key.Digest(digest))
		case msgp.ArrayType:
			b, err = d.pair(index, b)
			if err != nil {
				return root, b, err
			}
		default:
			b, err = d.unknownKey(b)
			if err != nil {
				return root, b, err
			}
		}
	}
	return root, b, nil
}

// pair reads ["identifier", offset].
func (d *Decoder) pair(index int, b []byte) ([]byte, error) {
	start := b
	n, b, err := wire.ArrayHeader(b)
	if err != nil {
		return b, err
	}
	if n != 2 || msgp.NextType(b) != msgp.StrType {
		return d.unknownKey(start)
	}
	name, b, err := msgp.ReadStringZC(b)
	if err != nil {
		return b, err
	}
	offset, ok, b, err := wire.ReadInt(b)
	if err != nil {
		return d.unknownKey(start)
	}
	d.h.names = append(d.h.names, d.h.nameHash(name))
	if ok && offset >= d.f.BlockSize && d.f.Lookahead != nil {
		return b, nil
	}
	d.mention(kvevent.MediaRef{Block: index, Offset: offset, Paired: ok, Name: name})
	return b, nil
}

// unknownKey reads a key of a form that no release up to 0.33 sends. Its bytes enter the hash, so that the block never equals one
// without the key.
func (d *Decoder) unknownKey(b []byte) ([]byte, error) {
	key, rest, err := wire.Raw(b)
	if err != nil {
		return b, err
	}
	d.h.names = append(d.h.names, d.h.key.Digest(key))
	d.f.NoteUnknownKey("extra_keys of another form")
	return rest, nil
}

func (d *Decoder) mention(m kvevent.MediaRef) {
	if d.Keep {
		d.a.Media = append(d.a.Media, m)
	}
}
