package sglang

// What an event becomes in normal form: ids turn into local hashes, the salt enters the first block of a sequence, the
// adapter the seed.

import (
	"fmt"
	"math"
	"strconv"

	"github.com/sightline-router/sightline/indexer/event"
	"github.com/sightline-router/sightline/indexer/wire"
	"github.com/sightline-router/sightline/mmhash/block"
)

// emit appends what d.f says to d.events.
func (d *Decoder) emit() error {
	f := &d.f
	handles := d.handles[f.firstHandle:len(d.handles):len(d.handles)]
	e := event.Event{Tier: event.TierOf(wire.View(f.medium)), Handles: handles}
	switch string(f.tag) {
	case "AllBlocksCleared":
		e = event.Event{Kind: event.Cleared}
	case "BlockRemoved":
		e.Kind = event.Removed
	case "BlockStored":
		if err := d.stored(&e); err != nil {
			return err
		}
	default:
		d.stats.Unknown++
		return nil
	}
	d.stats.Events++
	if e.Kind == event.Cleared || len(handles) > 0 {
		d.events = append(d.events, e)
	}
	return nil
}

// stored hashes the event's blocks.
func (d *Decoder) stored(e *event.Event) error {
	f, ids, size := &d.f, d.ids[d.f.firstID:], d.f.blockSize
	width, tokens := size, len(ids)
	if f.pairs {
		width, tokens = size+1, len(ids)-1
		d.stats.Pairs++
	}
	if size <= 0 || len(e.Handles) == 0 || tokens%size != 0 || tokens/size != len(e.Handles) {
		return fmt.Errorf("%d hashes of block size %d do not cover %d tokens", len(e.Handles), size, max(tokens, 0))
	}
	if need := 8*width + 8; cap(d.scratch) < need {
		d.scratch = make([]byte, 0, need)
	}
	d.adapter()
	var salt uint64
	if !f.hasParent {
		salt = block.SaltHash(wire.View(f.salt))
	}
	first := len(d.locals)
	for at := 0; at+width <= len(ids); at += size {
		d.locals = append(d.locals, block.Wide(d.scratch, ids[at:at+width], d.loraSeed, salt))
		salt = 0
	}
	e.Kind, e.BlockSize, e.Parent, e.HasParent, e.LoRA = event.Stored, size, f.parent, f.hasParent, d.loraName
	e.Locals = d.locals[first:len(d.locals):len(d.locals)]
	if d.Keep {
		e.Tokens, e.Session = d.keep(ids[:tokens]), string(f.session)
	}
	if d.Pad != nil {
		d.pads(ids)
	}
	d.stats.Blocks += uint64(len(e.Locals))
	return nil
}

// adapter finds the seed of the event's adapter. One that is told by number alone gets a seed of its own, so that its
// blocks are never taken for the base model's.
func (d *Decoder) adapter() {
	f := &d.f
	switch {
	case len(f.lora) > 0:
		if string(f.lora) != d.loraName {
			d.loraName = string(f.lora)
		}
	case f.hasLoRAID:
		d.stats.UnnamedLoRA++
		d.loraName = "lora_id " + strconv.Itoa(f.loraID)
	default:
		d.loraName = ""
	}
	d.loraSeed = block.SeedFor(d.loraName)
}

func (d *Decoder) keep(ids []uint64) []uint32 {
	first := len(d.tokens)
	for _, id := range ids {
		d.tokens = append(d.tokens, uint32(min(id, math.MaxUint32)))
	}
	return d.tokens[first:len(d.tokens):len(d.tokens)]
}

// pads tells of the pads among ids: all that differ from the four ids before.
func (d *Decoder) pads(ids []uint64) {
	for i, id := range ids {
		if id < FirstPad {
			continue
		}
		known := false
		for _, before := range ids[max(0, i-4):i] {
			known = known || before == id
		}
		if !known {
			d.Pad(id)
		}
	}
}
