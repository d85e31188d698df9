package stream

// Blocks that an engine tells by engine hash alone. vLLM's KV connectors announce offloaded blocks without tokens, or with
// tokens but without media and salt; what such a block is was said before, when it was stored on the GPU. Package
// indexer does not give that back, so it is kept here, from the first offload event on: workers without a connector pay
// nothing, and what they stored before that event is not resolved (counted as Unresolved).

import "github.com/sightline-router/sightline/indexer/kvevent"

// maxLineage bounds what is remembered, about 60 bytes a block.
const maxLineage = 1 << 20

// offload knows the blocks stored on the GPU of a rank that offloads. The zero value is off.
type offload struct {
	blocks  map[uint64]lineage
	scratch [2]uint64
}

type lineage struct {
	parent, local uint64
	hasParent     bool
	copies        uint8 // in all tiers
	blockSize     int32
}

func (o *offload) clear() {
	if o.blocks != nil {
		clear(o.blocks)
	}
}

// stored remembers what blocks are.
func (o *offload) stored(e *kvevent.Event) {
	if o.blocks == nil {
		return
	}
	parent, has := e.Parent, e.HasParent
	for i, h := range e.EngineHashes {
		if old, ok := o.blocks[h]; ok || len(o.blocks) < maxLineage {
			o.blocks[h] = lineage{parent, e.Locals[i], has, min(old.copies, 254) + 1, int32(e.BlockSize)}
		}
		parent, has = h, true
	}
}

func (o *offload) removed(e *kvevent.Event) {
	if o.blocks == nil {
		return
	}
	for _, h := range e.EngineHashes {
		if l, ok := o.blocks[h]; ok {
			if l.copies--; l.copies == 0 {
				delete(o.blocks, h)
			} else {
				o.blocks[h] = l
			}
		}
	}
}

// storeCopies stores, in e's tier, the blocks of e that are known; it gives how many are not.
func (f *Feed) storeCopies(e *kvevent.Event) (unresolved int) {
	o := &f.offload
	if o.blocks == nil {
		o.blocks = map[uint64]lineage{}
	}
	for _, h := range e.EngineHashes {
		l, ok := o.blocks[h]
		if !ok {
			unresolved++
			continue
		}
		o.scratch = [2]uint64{h, l.local}
		err := f.o.Sink.Store(&kvevent.Event{Kind: kvevent.Stored, Tier: e.Tier, Group: e.Group, HasParent: l.hasParent, Parent: l.parent,
			BlockSize: int(l.blockSize), EngineHashes: o.scratch[:1], Locals: o.scratch[1:]})
		if err != nil {
			unresolved++
			continue
		}
		l.copies = min(l.copies, 254) + 1
		o.blocks[h] = l
	}
	return unresolved
}
