package sglang

// This file turns fields into an event: ids become local hashes; the salt enters the first block of a sequence, the adapter the
// seed.

import (
	"math"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/kvevent/wire"
)

// emit appends the event in d.f to the batch.
func (d *Decoder) emit() error {
	e := kvevent.Event{Kind: d.f.Kind, Tier: d.f.Tier(), EngineHashes: d.f.EngineHashes}
	switch { // fields of vLLM that no release of SGLang sends and that are not read here
	case d.f.ExtraKeys != nil:
		d.f.NoteUnknownKey("extra_keys")
	case d.f.Group >= 0:
		d.f.NoteUnknownKey("group_idx")
	}
	switch {
	case e.Kind == kvevent.Cleared:
		e = kvevent.Event{Kind: kvevent.Cleared}
	case e.Kind == kvevent.Stored:
		if err := d.stored(&e); err != nil {
			return err
		}
	case len(e.EngineHashes) == 0:
		return nil
	}
	d.a.Events = append(d.a.Events, e)
	return nil
}

// stored hashes the event's blocks.
func (d *Decoder) stored(e *kvevent.Event) error {
	f, ids, size := &d.f, d.a.Wide, d.f.BlockSize
	if !f.HasTokens {
		ids = nil // they are left over from an earlier event
	}
	width, tokens := size, len(ids)
	if d.pairs {
		width, tokens = size+1, len(ids)-1
	}
	if err := f.Cover(tokens); err != nil {
		return err
	}
	if need := 4 * width; cap(d.scratch) < need {
		d.scratch = make([]byte, 0, need)
	}
	name, key := f.Adapter(d.loraName), d.Secret.Key()
	d.loraName = name
	root := key.Root(name, wire.View(f.Salt))
	at := root.Rest
	if !f.HasParent {
		at = root.First
	}
	first := len(d.a.Locals)
	for from := 0; from+width <= len(ids); from += size {
		d.a.Locals = append(d.a.Locals, key.Local64(d.scratch, ids[from:from+width], at))
		at = root.Rest
	}
	e.Kind, e.BlockSize, e.Parent, e.HasParent, e.LoRA = kvevent.Stored, size, f.Parent, f.HasParent, name
	e.Locals = kvevent.Tail(d.a.Locals, first)
	if d.Keep {
		e.Tokens, e.Session = d.keep(ids[:tokens]), string(f.Session)
	}
	if d.Pad != nil {
		d.pads(ids)
	}
	return nil
}

func (d *Decoder) keep(ids []uint64) []uint32 {
	first := len(d.a.Tokens)
	for _, id := range ids {
		d.a.Tokens = append(d.a.Tokens, uint32(min(id, math.MaxUint32)))
	}
	return kvevent.Tail(d.a.Tokens, first)
}

// pads calls Pad for the pads among ids, except those equal to one of the four ids before: pads repeat every four tokens.
func (d *Decoder) pads(ids []uint64) {
	for i, id := range ids {
		if id < firstPad {
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
