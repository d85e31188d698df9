package vllm

// This file turns BlockStored and BlockRemoved into events: which groups count, the tier of a block, its local hash.

import (
	"cmp"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// add appends an event with the engine hashes of d.f.
func (d *Decoder) add(kind kvevent.Kind) *kvevent.Event {
	d.a.Events = append(d.a.Events, kvevent.Event{Kind: kind, Tier: d.f.Tier(), EngineHashes: d.f.EngineHashes})
	return &d.a.Events[len(d.a.Events)-1]
}

// addOther records an event of another group than the main one. Whichever comes first in a message, the main group's events come
// first in the batch: they tell the places of the others' blocks.
func (d *Decoder) addOther(kind kvevent.Kind, group int) {
	if d.f.Tier() != kvevent.GPU {
		d.groups.unclear = true
		return
	}
	e := kvevent.Event{Kind: kind, Group: group, EngineHashes: d.f.EngineHashes}
	if kind == kvevent.GroupStored {
		e.Spec = d.groups.spec[group]
	}
	d.others = append(d.others, e)
}

// addOthers appends the other groups' events to the batch.
func (d *Decoder) addOthers() {
	d.a.Events = append(d.a.Events, d.others...)
	d.others = d.others[:0]
}

func (d *Decoder) stored(tokens []uint32) error {
	f, blocks := &d.f, len(d.f.EngineHashes)
	if len(tokens) == 0 { // a connector's placeholder: it has only the hash
		if n := max(f.Group, 0); blocks > 0 && (d.groups.main == 0 && n == 0 || d.groups.main == n+1) {
			d.add(kvevent.Copied)
		} else if blocks > 0 {
			d.groups.unclear = true
		}
		return nil
	}
	n, main, ok := d.groups.learn(f, cmp.Or(d.Chunk, llama4Chunk))
	if !main || !ok {
		d.a.Tokens = d.a.Tokens[:f.FirstToken]
		if ok {
			d.addOther(kvevent.GroupStored, n)
		}
		return nil
	}
	d.groups.unclear = d.groups.unclear || f.Lookahead != nil // the engine finds a block only if the next tokens are the same too
	if err := f.Cover(len(tokens)); err != nil {
		return err
	}
	first, firstMention := len(d.a.Locals), len(d.a.Media)
	if err := d.hash(tokens); err != nil {
		return err
	}
	e := d.add(kvevent.Stored)
	e.Parent, e.HasParent, e.BlockSize = f.Parent, f.HasParent, f.BlockSize
	e.Locals = kvevent.Tail(d.a.Locals, first)
	e.MediaUnknown = f.ExtraKeys == nil
	e.LoRA = d.h.loraName
	if d.Keep {
		e.Tokens, e.Session = tokens, string(f.Session)
		e.Media = kvevent.Tail(d.a.Media, firstMention)
	} else {
		d.a.Tokens = d.a.Tokens[:f.FirstToken]
	}
	return nil
}
