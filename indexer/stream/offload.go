package stream

// Blocks that events name by engine hash alone. vLLM's KV connectors announce offloaded blocks without tokens, or with tokens but
// without media and salt; their content was in an earlier event, when they were stored on the GPU. Package indexer cannot look
// that up, so it is recorded here, from the first offload event on: ranks without a connector pay nothing, and what a rank stored
// before that event is counted as Unresolved.

import "github.com/sightline-router/sightline/indexer/kvevent"

const (
	maxLineage   = 1 << 20 // recorded blocks of a rank
	lineageBytes = 60      // what one counts for
)

// offload records the blocks of a rank that offloads. The zero value is off.
type offload struct {
	blocks  map[uint64]lineage
	scratch [2]uint64
}

// lineage is the content of an engine hash.
type lineage struct {
	parent, local uint64
	hasParent     bool
	copies        uint8 // number of copies in all tiers, at most 255
	blockSize     int32
}

func (o *offload) clear(room kvevent.Room) {
	room.Give(len(o.blocks) * lineageBytes)
	clear(o.blocks)
}

// stored records the blocks of a stored event.
func (o *offload) stored(e *kvevent.Event, room kvevent.Room) {
	if o.blocks == nil {
		return
	}
	parent, has := e.Parent, e.HasParent
	for i, h := range e.EngineHashes {
		if old, ok := o.blocks[h]; ok || len(o.blocks) < maxLineage && room.Take(lineageBytes) {
			o.blocks[h] = lineage{parent, e.Locals[i], has, min(old.copies, 254) + 1, int32(e.BlockSize)}
		}
		parent, has = h, true
	}
}

// removed forgets the blocks whose last copy an event removed.
func (o *offload) removed(e *kvevent.Event, room kvevent.Room) {
	if o.blocks == nil {
		return
	}
	for _, h := range e.EngineHashes {
		if l, ok := o.blocks[h]; ok {
			l.copies--
			if l.copies == 0 {
				delete(o.blocks, h)
				room.Give(lineageBytes)
			} else {
				o.blocks[h] = l
			}
		}
	}
}

// storeCopies stores the blocks that e names by engine hash in e's tier, as far as they are known, and returns how many are not.
func (f *Feed) storeCopies(e *kvevent.Event) (unresolved uint64) {
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
		resolved := kvevent.Event{Kind: kvevent.Stored, Tier: e.Tier, HasParent: l.hasParent, Parent: l.parent,
			BlockSize: int(l.blockSize), Lookahead: f.form.Lookahead, EngineHashes: o.scratch[:1], Locals: o.scratch[1:]}
		if f.o.Sink.Store(&resolved) != nil {
			unresolved++
			continue
		}
		f.notifyEvent(&resolved)
		l.copies = min(l.copies, 254) + 1
		o.blocks[h] = l
	}
	return unresolved
}
