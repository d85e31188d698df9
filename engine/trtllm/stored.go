package trtllm

import (
	"errors"
	"fmt"
	"math"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// Blocks → local hashes. Token ids are hashed as the worker has them, followed by the names of the items that touch the block, one
// per item in prompt order, which equals what a request's spans yield (block.Key.Locals). Newer engines write one mm_key for each *run*
// of an item, so keys that continue an item already named in the block are skipped.

// stored is the event being read. Its slices hold all blocks one after the other.
type stored struct {
	blocks []storedBlock
	names  []uint64 // of all blocks
	media  int      // in Decoder.media: the event's first
	lora   string
}

type storedBlock struct {
	engineHash    uint64
	token, tokens int // first index into Decoder.tokens, and count
	name, names   int // first index into stored.names, and count
	level         int
	salt          string
	keyed         bool // the media that touch the block are known
}

// stored reads the blocks of one JSON event.
func (d *Decoder) stored(blocks gjson.Result, parent uint64, hasParent bool) (err error) {
	if !blocks.IsArray() {
		return errors.New("stored: no blocks")
	}
	d.begin()
	blocks.ForEach(func(_, v gjson.Result) bool {
		err = d.storedBlock(v)
		if err != nil {
			err = fmt.Errorf("stored: block %d: %w", len(d.s.blocks), err)
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	return d.finish(parent, hasParent)
}

// begin resets the state left by the previous event.
func (d *Decoder) begin() {
	d.s = stored{blocks: d.s.blocks[:0], names: d.s.names[:0], media: len(d.a.Media)}
	d.items.digests = d.items.digests[:0]
}

func (d *Decoder) storedBlock(v gjson.Result) (err error) {
	b := storedBlock{token: len(d.a.Tokens), name: len(d.s.names)}
	var hashed, numbered bool
	var extra uint64
	v.ForEach(func(key, v gjson.Result) bool {
		switch key.Str {
		case "block_hash":
			b.engineHash, hashed = blockHash(v)
		case "tokens":
			numbered = true
			extra, err = d.readTokens(v)
		case "cache_level":
			b.level, _ = whole(v)
		case "mm_keys":
			b.keyed = v.IsArray()
			if b.keyed {
				err = d.readKeys(v)
			}
		case "cache_salt":
			if v.Type == gjson.String {
				b.salt = v.Str
			}
		case "type", "priority":
		default:
			d.strange.found(key.Str)
		}
		return err == nil
	})
	if err == nil && !(hashed && numbered) {
		err = errors.New("no block_hash or no tokens")
	}
	if err != nil {
		return err
	}
	if extra != 0 { // prompt tuning: no request here uses it, so the block matches none
		d.s.names = append(d.s.names, extra)
	}
	b.tokens, b.names = len(d.a.Tokens)-b.token, len(d.s.names)-b.name
	d.s.blocks = append(d.s.blocks, b)
	return nil
}

// readTokens appends a block's token ids. extra is not zero if any has a token_extra_id.
func (d *Decoder) readTokens(tokens gjson.Result) (extra uint64, err error) {
	if !tokens.IsArray() {
		return 0, errors.New("tokens: want an array")
	}
	tokens.ForEach(func(_, token gjson.Result) bool {
		var id gjson.Result
		token.ForEach(func(key, v gjson.Result) bool {
			switch key.Str {
			case "token_id":
				id = v
			case "token_extra_id":
				if n, ok := number(v); ok && n != 0 {
					extra = extra*31 + n
				}
			case "type":
			default:
				d.strange.found(key.Str)
			}
			return true
		})
		if n, ok := number(id); ok && n <= math.MaxUint32 {
			d.a.Tokens = append(d.a.Tokens, uint32(n))
		} else if id.Type == gjson.String && id.Str != "" {
			d.digestToken(id.Str)
		} else {
			err = errors.New("token_id: want a number of 32 bits or a digest")
		}
		return err == nil
	})
	return extra, err
}

// readKeys appends the names of one block's mm_keys.
func (d *Decoder) readKeys(keys gjson.Result) (err error) {
	run := keyRun{}
	keys.ForEach(func(_, k gjson.Result) bool {
		name := k.Get("hash").Str
		if name == "" {
			err = errors.New("mm_key without a hash")
			return false
		}
		d.strange.check(k, mediaKeys)
		start, _ := whole(k.Get("start_offset"))
		d.key(name, start, &run)
		return true
	})
	return err
}

// keyRun is the previous mm_key of the same block.
type keyRun struct {
	known bool
	name  uint64
	start int
}

// key appends the name of one mm_key unless the key is another run of the item before it.
func (d *Decoder) key(name string, start int, last *keyRun) {
	h := d.hash.Name(inEvents(name))
	if !last.known || h != last.name || start <= last.start {
		d.s.names = append(d.s.names, h)
		if d.Keep {
			m := kvevent.MediaRef{Block: len(d.s.blocks), Offset: -start, Paired: start > 0, Name: []byte(name)}
			d.a.Media = append(d.a.Media, m)
		}
	}
	*last = keyRun{true, h, start}
}

// wholeBlock returns the size of an event's whole blocks; 0: it does not show it. Of several blocks only the last may be a part of one.
func wholeBlock(blocks []storedBlock) (size int) {
	last := len(blocks) - 1
	if last < 1 || blocks[last].tokens > blocks[0].tokens {
		return 0
	}
	for i := range blocks[:last] {
		if blocks[i].tokens != blocks[0].tokens {
			return 0
		}
	}
	return blocks[0].tokens
}

// finish turns the blocks read into events: full blocks, up to the first that is not full.
func (d *Decoder) finish(parent uint64, hasParent bool) error {
	blocks := d.s.blocks
	if len(blocks) == 0 {
		return errors.New("stored: no blocks")
	}
	if size := wholeBlock(blocks); size > 0 {
		d.BlockSize = size
	} else if d.BlockSize == 0 {
		return nil
	}
	for i := range blocks {
		if blocks[i].tokens != d.BlockSize {
			blocks = blocks[:i]
			break
		}
	}
	n := d.restoreIDs(blocks, parent, hasParent)
	for from := 0; from < n; {
		to := from + 1
		for to < n && blocks[to].level == blocks[from].level && blocks[to].keyed == blocks[from].keyed {
			to++
		}
		d.emit(from, to, parent, hasParent)
		parent, hasParent = blocks[to-1].engineHash, true
		from = to
	}
	return nil
}

// emit appends one event for blocks [from, to), which lie in one tier.
func (d *Decoder) emit(from, to int, parent uint64, hasParent bool) {
	blocks, size := d.s.blocks[from:to], d.BlockSize
	e := kvevent.Event{Kind: kvevent.Stored, Tier: tierOf(blocks[0].level), HasParent: hasParent, Parent: parent, BlockSize: size,
		MediaUnknown: !blocks[0].keyed, LoRA: d.s.lora}
	root := d.hash.Root(d.s.lora, blocks[0].salt)
	at := root.Rest
	if !hasParent {
		at = root.First
	}
	hs, ls := len(d.a.EngineHashes), len(d.a.Locals)
	for i := range blocks {
		b := &blocks[i]
		names := d.s.names[b.name : b.name+b.names]
		d.a.EngineHashes = append(d.a.EngineHashes, b.engineHash)
		d.a.Locals = append(d.a.Locals, d.hash.Local(d.a.Tokens[b.token:b.token+size], names, at))
		at = root.Rest
		if e.Tier == kvevent.GPU {
			drop(d, d.offGPU, b.engineHash)
		} else {
			d.offGPU.set(b.engineHash, e.Tier, d.room)
		}
	}
	e.EngineHashes, e.Locals = kvevent.Tail(d.a.EngineHashes, hs), kvevent.Tail(d.a.Locals, ls)
	if d.Keep {
		first := blocks[0].token
		e.Tokens = d.a.Tokens[first : first+len(blocks)*size : first+len(blocks)*size]
		base := len(d.a.Media)
		for _, m := range d.a.Media[d.s.media:base:base] {
			if m.Block >= from && m.Block < to {
				m.Block -= from
				d.a.Media = append(d.a.Media, m)
			}
		}
		e.Media = kvevent.Tail(d.a.Media, base)
	}
	d.anyStored = true
	d.a.Events = append(d.a.Events, e)
}
