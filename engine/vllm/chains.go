package vllm

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// chains are the prompts of a worker without a KV cache group that sees all tokens: all its layers have sliding windows, chunks or
// states. The index places the blocks of groups by those of one that holds whole prompts. So the decoder reports one that the engine does
// not have: it holds every prompt from its beginning to the last block that a real group keeps there.
//
// An event has the tokens of all its blocks and the hashes of those that are kept. It does not say which these are. With vLLM's default
// retention (prefix_cache_retention_interval 0) they are a run that ends with the event's last block, or one block before it if the
// prompt ended there, because the last token is always computed. So a place is
//
//	certain  if all blocks of the event are kept, or one of them is known from an earlier event
//	assumed  otherwise, at the event's end. If a later event that continues there repeats the tokens of the last block, the run was
//	         placed one block too far and is moved
//
// Once a place was assumed, the worker's blocks are an upper bound.
//
// A prompt that is computed in several steps may continue after a block whose hash was never reported. Then it is taken for the
// continuation of the last prompt whose end was not kept.
type chains struct {
	unit   int                   // tokens of a block; 0: the worker has a group that sees all tokens, or that is not known yet
	blocks map[uint64]chainBlock // by id: the engine hash under which the reported group holds it
	kept   map[uint64]keptBlock  // by the engine's own hash
	open   uint64                // id of the last block of that prompt; 0: none
}

type chainBlock struct {
	before, local uint64 // before: id of the block before it, 0 at a prompt's beginning
	assumed       uint64 // engine hash of the block that is assumed to be here; 0: none
	uses          int32  // blocks after it, kept blocks here, and open
}

type keptBlock struct {
	at     uint64 // id
	copies int32
}

// maxChained bounds the blocks of a rank's chains, and those that are kept.
const maxChained = 1 << 18

// Approximate memory of a block of a chain, and of one that is kept.
const (
	chainBytes = 70
	keptBytes  = 50
)

// chainSeed makes ids differ from engines' own hashes, which are computed otherwise.
const chainSeed = 0x436861696e

func chainID(before, local uint64) uint64 {
	var key [16]byte
	binary.LittleEndian.PutUint64(key[:], before)
	binary.LittleEndian.PutUint64(key[8:], local)
	return xxh3.HashSeed(key[:], chainSeed)
}

// showsAll reports whether an event with these tokens is beside one of the group that sees all tokens, if the worker has such a group:
// its blocks are not larger than a state's, nor than eight of a window's or chunk's (else the index does not follow the worker).
func showsAll(spec kvevent.Spec, tokens int) bool {
	if spec.Need == kvevent.NeedLast {
		return spec.BlockSize > 0 && tokens >= spec.BlockSize
	}
	return spec.BlockSize > 0 && tokens >= 8*spec.BlockSize
}

// mostKept returns how many blocks of a prompt's end a group keeps at most. A drafting engine keeps one more of a window.
func mostKept(spec kvevent.Spec) int {
	switch spec.Need {
	case kvevent.NeedWindow:
		return (spec.Window-1+spec.BlockSize-1)/spec.BlockSize + 1
	case kvevent.NeedChunk:
		return spec.Window / spec.BlockSize
	}
	return 1
}

// chain records a stored event, and appends to the batch what the reported group stores and removes by it.
func (d *Decoder) chain(tokens []uint32, spec kvevent.Spec) error {
	c, f := &d.chains, &d.f
	hashes, blocks := f.EngineHashes, len(tokens)/c.unit
	n := len(hashes)
	before, ok := c.find(f.Parent, f.HasParent, blocks)
	if !ok || f.Lookahead != nil || f.BlockSize != c.unit || len(tokens)%c.unit != 0 || n > blocks {
		d.unplaced += uint64(n)
		return nil
	}
	first := len(d.a.Locals)
	if err := d.hash(tokens, blocks, 0); err != nil {
		return err
	}
	locals := kvevent.Tail(d.a.Locals, first)
	if b := c.blocks[before]; b.assumed != 0 && chainID(b.before, locals[0]) == before {
		d.moveBack(before)
		before = b.before
	}
	firstID := len(d.a.EngineHashes)
	for id := before; len(d.a.EngineHashes) < firstID+blocks; {
		id = chainID(id, locals[len(d.a.EngineHashes)-firstID])
		d.a.EngineHashes = append(d.a.EngineHashes, id)
	}
	ids := kvevent.Tail(d.a.EngineHashes, firstID)

	at, certain := c.positionOf(hashes, ids)
	if most := mostKept(spec); !certain && n > most { // several runs; the last one ends where the prompt does
		d.unplaced += uint64(n - most)
		at, hashes = at+n-most, hashes[n-most:]
	}
	d.groups.doubt(!certain && n > 0, assumedPlaces)
	end := at + len(hashes)
	open := blocks > 1 && (end < blocks || n == 0)
	switch {
	case open:
		end = blocks
	case n == 0:
		return nil
	}
	kept := 0 // of these hashes, new ones
	for _, h := range hashes {
		if _, ok := c.kept[h]; !ok {
			kept++
		}
	}
	if len(c.kept)+kept > maxChained || !d.room.Take(kept*keptBytes) {
		d.unplaced += uint64(len(hashes))
		return nil
	}
	if !d.extend(before, ids[:end], locals, tokens) {
		d.room.Give(kept * keptBytes)
		d.unplaced += uint64(len(hashes))
		return nil
	}
	was := c.open
	if open {
		c.open = ids[end-1]
		c.use(c.open)
	}
	had := len(c.kept)
	d.keep(before, ids, locals, hashes, at, certain)
	d.room.Give((kept - len(c.kept) + had) * keptBytes)
	switch {
	case open:
		d.release(was)
	case f.HasParent && was == before:
		c.open = 0
		d.release(was)
	}
	d.addGone()
	return nil
}

// find returns the id of the block that an event's blocks follow, 0 at a prompt's beginning.
func (c *chains) find(parent uint64, hasParent bool, blocks int) (id uint64, ok bool) {
	if !hasParent {
		return 0, true
	}
	if k, ok := c.kept[parent]; ok {
		return k.at, true
	}
	return c.open, c.open != 0 && blocks > 1 // one block alone is an answer's
}

// positionOf returns the index of the first kept block of an event among its blocks.
func (c *chains) positionOf(hashes, ids []uint64) (at int, certain bool) {
	n, blocks := len(hashes), len(ids)
	for i, h := range hashes {
		if k, ok := c.kept[h]; ok {
			if j := slices.Index(ids, k.at); j >= i && j-i+n <= blocks {
				return j - i, true
			}
			break
		}
	}
	return blocks - n, n == blocks
}

// extend adds blocks to a prompt, those that are not there yet. It returns false if there is no room.
func (d *Decoder) extend(before uint64, ids, locals []uint64, tokens []uint32) bool {
	c, from := &d.chains, 0
	for from < len(ids) {
		if _, ok := c.blocks[ids[from]]; !ok {
			break
		}
		before = ids[from]
		from++
	}
	switch {
	case from == len(ids):
		return true
	case len(c.blocks)+len(ids)-from > maxChained || !d.room.Take((len(ids)-from)*chainBytes):
		return false
	case c.blocks == nil:
		c.blocks, c.kept = map[uint64]chainBlock{}, map[uint64]keptBlock{}
	}
	e := d.addStored(before, ids[from:], locals[from:len(ids)])
	e.Session = unsafe.String(unsafe.SliceData(d.f.Session), len(d.f.Session))
	if d.Keep {
		e.Tokens = tokens[from*c.unit : len(ids)*c.unit]
	}
	for i := from; i < len(ids); i++ {
		c.use(before)
		c.blocks[ids[i]] = chainBlock{before: before, local: locals[i]}
		before = ids[i]
	}
	return true
}

// addStored appends an event of the reported group.
func (d *Decoder) addStored(before uint64, engineHashes, locals []uint64) *kvevent.Event {
	d.a.Events = append(d.a.Events, kvevent.Event{Kind: kvevent.Stored, BlockSize: d.chains.unit, LoRA: d.h.loraName,
		Parent: before, HasParent: before != 0, EngineHashes: engineHashes, Locals: locals})
	return &d.a.Events[len(d.a.Events)-1]
}

// keep records one more copy of kept blocks, the first of which is the event's block at.
func (d *Decoder) keep(before uint64, ids, locals, hashes []uint64, at int, certain bool) {
	c, from := &d.chains, 0
	var left []uint64       // places of those that were elsewhere; others may come there, so they are released at the end
	store := func(to int) { // those since the last one that was there already
		if from < to {
			if at+from > 0 {
				before = ids[at+from-1]
			}
			d.addStored(before, hashes[from:to], locals[at+from:at+to])
		}
		from = to + 1
	}
	for i, h := range hashes {
		id := ids[at+i]
		k := c.kept[h]
		was := k.at
		k.copies, k.at = k.copies+1, id
		c.kept[h] = k
		b := c.blocks[id]
		if was == id {
			store(i)
		} else {
			b.uses++
			if !certain {
				b.assumed = h
			}
		}
		if certain {
			b.assumed = 0
		}
		c.blocks[id] = b
		if was != id && was != 0 {
			c.settle(was, h)
			left = append(left, was)
		}
	}
	store(len(hashes))
	for _, id := range left {
		d.release(id)
	}
}

// moveBack moves an assumed run, the last block of which is given, one block towards the prompt's beginning.
func (d *Decoder) moveBack(id uint64) {
	c := &d.chains
	var hashes, locals, left []uint64
	for b := c.blocks[id]; b.assumed != 0 && b.before != 0; b = c.blocks[id] {
		k := c.kept[b.assumed]
		k.at = b.before
		c.kept[b.assumed] = k
		c.use(b.before)
		hashes, locals, left = append(hashes, b.assumed), append(locals, c.blocks[b.before].local), append(left, id)
		b.assumed = 0
		c.blocks[id] = b
		id = b.before
	}
	slices.Reverse(hashes)
	slices.Reverse(locals)
	d.addStored(c.blocks[id].before, hashes, locals)
	for _, id := range left {
		d.release(id)
	}
	d.addGone()
}

// unkeep records that one copy of each kept block was removed.
func (d *Decoder) unkeep(hashes []uint64) {
	c := &d.chains
	for _, h := range hashes {
		k, ok := c.kept[h]
		if !ok {
			continue
		}
		k.copies--
		if k.copies > 0 {
			c.kept[h] = k
			continue
		}
		delete(c.kept, h)
		d.room.Give(keptBytes)
		c.settle(k.at, h)
		d.gone = append(d.gone, h)
		d.release(k.at)
	}
	d.addGone()
}

// unchain removes all: the worker has a group that sees all tokens.
func (d *Decoder) unchain() {
	for h := range d.chains.kept {
		d.gone = append(d.gone, h)
	}
	for id := range d.chains.blocks {
		d.gone = append(d.gone, id)
	}
	d.Forget()
	d.chains = chains{}
	d.addGone()
}

// settle records that a kept block is not assumed to be at a place any more.
func (c *chains) settle(id, hash uint64) {
	if b, ok := c.blocks[id]; ok && b.assumed == hash {
		b.assumed = 0
		c.blocks[id] = b
	}
}

func (c *chains) use(id uint64) {
	if id != 0 {
		b := c.blocks[id]
		b.uses++
		c.blocks[id] = b
	}
}

// release ends one use of a block, and removes it and those before it that have no use left.
func (d *Decoder) release(id uint64) {
	for id != 0 {
		b := d.chains.blocks[id]
		b.uses--
		if b.uses > 0 {
			d.chains.blocks[id] = b
			return
		}
		delete(d.chains.blocks, id)
		d.room.Give(chainBytes)
		d.gone = append(d.gone, id)
		id = b.before
	}
}

// addGone appends the removal of what is gone.
func (d *Decoder) addGone() {
	if len(d.gone) == 0 {
		return
	}
	first := len(d.a.EngineHashes)
	d.a.EngineHashes = append(d.a.EngineHashes, d.gone...)
	d.gone = d.gone[:0]
	d.a.Events = append(d.a.Events, kvevent.Event{Kind: kvevent.Removed, EngineHashes: kvevent.Tail(d.a.EngineHashes, first)})
}
