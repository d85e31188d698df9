package vllm

// What a BlockStored or BlockRemoved becomes: which groups count, where a block lies, and how its tokens and extra keys
// turn into local hashes.

import (
	"fmt"
	"strings"

	"github.com/sightline-router/sightline/indexer/event"
	"github.com/sightline-router/sightline/indexer/wire"
	"github.com/sightline-router/sightline/mmhash/block"
)

// maxGroups bounds what is remembered of a hybrid model's groups; vLLM's models have under ten.
const maxGroups = 64

type groupState uint8

const (
	groupUnseen groupState = iota
	groupFull              // its blocks prove a full prefix
	groupOther
)

func (d *Decoder) groupState(g int) groupState {
	if g < 0 {
		g = 0
	}
	if g >= maxGroups {
		return groupOther
	}
	return d.groups[g]
}

// indexable tells whether a group's blocks prove a full prefix: the full-attention group by its kind, at any number
// (Gemma 3 has it last), and without a kind (before 0.22) only group 0. Sliding-window and state groups drop blocks in
// the middle, and their events do not say which.
func (f *fields) indexable() bool {
	if len(f.kind) == 0 {
		return f.group <= 0
	}
	return string(f.kind) == "full_attention" || string(f.kind) == "mla_attention"
}

func (f *fields) tier() event.Tier {
	if len(f.locality) > 0 && !strings.EqualFold(wire.View(f.locality), "LOCAL") {
		return event.Remote
	}
	return event.TierOf(wire.View(f.medium))
}

// emit appends an event with the handles read, group folded in.
func (d *Decoder) emit(kind event.Kind) *event.Event {
	f := &d.f
	handles := d.handles[f.firstHandle:len(d.handles):len(d.handles)]
	if f.group > 0 {
		for i := range handles {
			handles[i] = event.InGroup(handles[i], f.group)
		}
		if f.hasParent {
			f.parent = event.InGroup(f.parent, f.group)
		}
	}
	d.events = append(d.events, event.Event{Kind: kind, Tier: f.tier(), Group: max(f.group, 0), Handles: handles})
	return &d.events[len(d.events)-1]
}

func (d *Decoder) removed() {
	if d.groupState(d.f.group) == groupOther {
		d.stats.OtherGroup++
		d.handles = d.handles[:d.f.firstHandle]
		return
	}
	if len(d.handles) > d.f.firstHandle {
		d.emit(event.Removed)
	}
}

func (d *Decoder) stored() error {
	f := &d.f
	tokens := d.tokens[f.firstToken:len(d.tokens):len(d.tokens)]
	blocks := len(d.handles) - f.firstHandle
	if len(tokens) == 0 { // a connector's placeholder: the hash is all that it tells
		d.stats.Placeholders++
		if d.groupState(f.group) == groupOther {
			d.stats.OtherGroup++
		} else if blocks > 0 {
			d.emit(event.Copied)
		}
		return nil
	}
	full := f.indexable() && f.group < maxGroups
	if f.group < maxGroups {
		d.groups[max(f.group, 0)] = groupOther
		if full {
			d.groups[max(f.group, 0)] = groupFull
		}
	}
	if !full {
		d.stats.OtherGroup++
		d.drop()
		return nil
	}
	if f.blockSize <= 0 || blocks == 0 || len(tokens)%f.blockSize != 0 || len(tokens)/f.blockSize != blocks {
		return fmt.Errorf("%d hashes of block size %d do not cover %d tokens", blocks, f.blockSize, len(tokens))
	}
	first := len(d.locals)
	if err := d.hash(tokens); err != nil {
		return err
	}
	e := d.emit(event.Stored)
	e.Parent, e.HasParent, e.BlockSize = f.parent, f.hasParent, f.blockSize
	e.Locals = d.locals[first:len(d.locals):len(d.locals)]
	e.MediaUnknown = f.extra == nil
	e.LoRA = d.h.loraName
	if d.Keep {
		e.Tokens, e.Session = tokens, string(f.session)
		e.Media = d.media[d.h.firstMention:len(d.media):len(d.media)]
	} else {
		d.tokens = d.tokens[:f.firstToken]
	}
	if e.MediaUnknown {
		d.stats.MediaUnknown++
	}
	d.stats.Blocks += uint64(blocks)
	return nil
}

// drop forgets the arenas' share of an event that is not let through.
func (d *Decoder) drop() {
	d.handles, d.tokens = d.handles[:d.f.firstHandle], d.tokens[:d.f.firstToken]
}

// setAdapter finds the seed of the event's adapter. Before 0.14 only its number is told: such blocks get a seed of their
// own, so that they are never taken for the base model's.
func (d *Decoder) setAdapter() {
	f, h := &d.f, &d.h
	switch {
	case len(f.lora) > 0:
		if string(f.lora) != h.loraName {
			h.loraName = string(f.lora)
			h.loraSeed = block.SeedFor(h.loraName)
		}
	case f.hasLoRAID:
		d.stats.UnnamedLoRA++
		h.loraName = fmt.Sprintf("lora_id %d", f.loraID)
		h.loraSeed = block.SeedFor(h.loraName)
	default:
		h.loraName, h.loraSeed = "", block.Seed
	}
}
