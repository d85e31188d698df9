package trtllm

import (
	"errors"
	"fmt"
	"math"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/kvevent/wire"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Blocks → local hashes. Token ids are hashed as the worker has them; then come the names of the items that touch the
// block, one for each item in prompt order, which is what a request's spans give (block.Locals). Newer engines write one
// mm_key for each *run* of an item, so keys that go on in an item that the block has named already are passed over.

// stored is the event being read, its blocks side by side.
type stored struct {
	blocks []storedBlock
	names  []uint64 // of all blocks
	media  int      // in Decoder.media: the event's first
	seed   uint64
	lora   string
}

type storedBlock struct {
	engineHash    uint64
	token, tokens int // in Decoder.tokens: first and how many
	name, names   int // in stored.names: first and how many
	level         int
	salt          uint64
	keyed         bool // the engine tells media keys
}

// stored reads the blocks of one JSON event.
func (d *Decoder) stored(raw []byte, parent uint64, hasParent bool) error {
	c := cursor{b: raw}
	if len(raw) == 0 || !c.enter('[') {
		return errors.New("stored: no blocks")
	}
	d.begin()
	for c.more() {
		if err := d.storedBlock(cursor{b: c.raw()}); err != nil {
			return fmt.Errorf("stored: block %d: %w", len(d.s.blocks), err)
		}
	}
	return d.finish(parent, hasParent)
}

// begin empties what the last event left.
func (d *Decoder) begin() {
	d.s = stored{blocks: d.s.blocks[:0], names: d.s.names[:0], media: len(d.a.Media), seed: block.Seed}
	d.items.digests = d.items.digests[:0]
}

func (d *Decoder) storedBlock(c cursor) error {
	b := storedBlock{token: len(d.a.Tokens), name: len(d.s.names)}
	if !c.enter('{') {
		return errors.New("want an object")
	}
	var hashed, numbered bool
	var extra, salt uint64
	for c.more() {
		switch string(c.key()) {
		case "block_hash":
			b.engineHash, hashed = c.hash()
		case "tokens":
			var err error
			if extra, err = d.readTokens(&c); err != nil {
				return err
			}
			numbered = true
		case "cache_level":
			b.level, _ = c.whole()
		case "mm_keys":
			if c.peek() != '[' {
				c.skip()
				continue
			}
			b.keyed = true
			if err := d.readKeys(&c); err != nil {
				return err
			}
		case "cache_salt":
			if s, ok := c.text(); ok {
				salt = block.SaltHash(string(s))
			}
		default:
			c.skip()
		}
	}
	if !hashed || !numbered {
		return errors.New("no block_hash or no tokens")
	}
	if extra != 0 { // prompt tuning: no request of ours has it, so the block matches none
		d.s.names = append(d.s.names, extra)
	}
	b.salt = salt
	b.tokens, b.names = len(d.a.Tokens)-b.token, len(d.s.names)-b.name
	d.s.blocks = append(d.s.blocks, b)
	return nil
}

// readTokens appends a block's token ids; extra is not zero if any has a token_extra_id.
func (d *Decoder) readTokens(c *cursor) (extra uint64, err error) {
	if !c.enter('[') {
		return 0, errors.New("tokens: want an array")
	}
	for c.more() {
		if !c.enter('{') {
			return 0, errors.New("token: want an object")
		}
		found := false
		for c.more() {
			switch string(c.key()) {
			case "token_id":
				found = true
				if c.peek() == '"' {
					s, ok := c.text()
					if !ok || len(s) == 0 {
						return 0, errors.New("token_id: an empty text")
					}
					d.digestToken(s)
					continue
				}
				id, ok := c.number()
				if !ok || id > math.MaxUint32 {
					return 0, errors.New("token_id: want a number of 32 bits or a digest")
				}
				d.a.Tokens = append(d.a.Tokens, uint32(id))
			case "token_extra_id":
				if n, ok := c.number(); ok && n != 0 {
					extra = extra*31 + n
				}
			default:
				c.skip()
			}
		}
		if !found {
			return 0, errors.New("token without a token_id")
		}
	}
	return extra, nil
}

// readKeys appends the names of one block's mm_keys.
func (d *Decoder) readKeys(c *cursor) error {
	if !c.enter('[') {
		return errors.New("mm_keys: want an array")
	}
	var last uint64
	lastStart := -1
	for c.more() {
		if !c.enter('{') {
			return errors.New("mm_key: want an object")
		}
		var name []byte
		start := 0
		for c.more() {
			switch string(c.key()) {
			case "hash":
				name, _ = c.text()
			case "start_offset":
				start, _ = c.whole()
			default:
				c.skip()
			}
		}
		if len(name) == 0 {
			return errors.New("mm_key without a hash")
		}
		last, lastStart = d.key(name, start, last, lastStart)
	}
	return nil
}

// key takes one mm_key unless it is another run of the item before it.
func (d *Decoder) key(name []byte, start int, last uint64, lastStart int) (uint64, int) {
	h := block.NameHash(wire.View(name))
	if lastStart < 0 || h != last || start <= lastStart {
		d.s.names = append(d.s.names, h)
		if d.Keep {
			d.a.Media = append(d.a.Media, kvevent.Mention{Block: len(d.s.blocks), Offset: -start, Paired: start > 0, Name: name})
		}
	}
	return h, start
}

// finish turns the blocks that were read into events: full blocks, up to the first that is not.
func (d *Decoder) finish(parent uint64, hasParent bool) error {
	blocks := d.s.blocks
	if len(blocks) == 0 {
		return errors.New("stored: no blocks")
	}
	if d.BlockSize == 0 {
		if len(blocks) < 2 {
			return nil
		}
		d.BlockSize = blocks[0].tokens
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

// emit makes one event of blocks [from, to), which lie in one tier.
func (d *Decoder) emit(from, to int, parent uint64, hasParent bool) {
	blocks, size := d.s.blocks[from:to], d.BlockSize
	e := kvevent.Event{Kind: kvevent.Stored, Tier: tierOf(blocks[0].level), HasParent: hasParent, Parent: parent, BlockSize: size,
		MediaUnknown: !blocks[0].keyed, LoRA: d.s.lora}
	hs, ls := len(d.a.EngineHashes), len(d.a.Locals)
	for i := range blocks {
		b := &blocks[i]
		names := d.s.names[b.name : b.name+b.names : b.name+b.names]
		if b.salt != 0 && i == 0 && !hasParent {
			names = append(names, b.salt)
		}
		d.a.EngineHashes = append(d.a.EngineHashes, b.engineHash)
		d.a.Locals = append(d.a.Locals, block.Local(d.scratch[:0], d.a.Tokens[b.token:b.token+size], names, d.s.seed))
		if e.Tier == kvevent.GPU {
			delete(d.offGPU, b.engineHash)
		} else {
			d.setOffGPU(b.engineHash, e.Tier)
		}
	}
	e.EngineHashes, e.Locals = d.a.EngineHashes[hs:len(d.a.EngineHashes):len(d.a.EngineHashes)], d.a.Locals[ls:len(d.a.Locals):len(d.a.Locals)]
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
		e.Media = d.a.Media[base:len(d.a.Media):len(d.a.Media)]
	}
	d.anyStored = true
	d.a.Events = append(d.a.Events, e)
}
