package vllm

// This file turns BlockStored and BlockRemoved into events: which groups count, the tier of a block, its local hash.

import "github.com/sightline-router/sightline/indexer/kvevent"

// add appends an event with the engine hashes of d.f and mixes the group into them.
func (d *Decoder) add(kind kvevent.Kind) *kvevent.Event {
	d.f.MixGroup()
	d.a.Events = append(d.a.Events, kvevent.Event{Kind: kind, Tier: d.f.Tier(), EngineHashes: d.f.EngineHashes})
	return &d.a.Events[len(d.a.Events)-1]
}

func (d *Decoder) stored(tokens []uint32) error {
	f, blocks := &d.f, len(d.f.EngineHashes)
	if len(tokens) == 0 { // a connector's placeholder: it has only the hash
		if d.groups.Prove(f) && blocks > 0 {
			d.add(kvevent.Copied)
		}
		return nil
	}
	full := d.groups.Learn(f)
	d.recurrent = d.recurrent || string(f.SpecKind) == "mamba"
	if !full {
		d.a.EngineHashes, d.a.Tokens = d.a.EngineHashes[:len(d.a.EngineHashes)-blocks], d.a.Tokens[:f.FirstToken]
		return nil
	}
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
