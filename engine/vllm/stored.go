package vllm

// BlockStored and BlockRemoved → events: which groups count, in which tier a block lies, and its local hash.

import (
	"fmt"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// maxGroups bounds the number of a hybrid model's groups that are remembered; vLLM's models have under ten.
const maxGroups = 64

type groupState uint8

const (
	groupUnseen groupState = iota
	groupFull              // its blocks prove a full prefix
	groupOther
)

func (d *Decoder) groupState() groupState {
	if g := max(d.f.Group, 0); g < maxGroups {
		return d.groups[g]
	}
	return groupOther
}

// add appends an event with the engine hashes of d.f, its group mixed in.
func (d *Decoder) add(kind kvevent.Kind) *kvevent.Event {
	f := &d.f
	if f.Group > 0 {
		for i := range f.EngineHashes {
			f.EngineHashes[i] = kvevent.InGroup(f.EngineHashes[i], f.Group)
		}
		if f.HasParent {
			f.Parent = kvevent.InGroup(f.Parent, f.Group)
		}
	}
	d.a.Events = append(d.a.Events, kvevent.Event{Kind: kind, Tier: f.Tier(), EngineHashes: f.EngineHashes})
	return &d.a.Events[len(d.a.Events)-1]
}

func (d *Decoder) stored(tokens []uint32) error {
	f, blocks := &d.f, len(d.f.EngineHashes)
	if len(tokens) == 0 { // a connector's placeholder: it has only the hash
		if d.groupState() != groupOther && blocks > 0 {
			d.add(kvevent.Copied)
		}
		return nil
	}
	full := f.FullPrefix() && f.Group < maxGroups
	if f.Group < maxGroups {
		d.groups[max(f.Group, 0)] = groupOther
		if full {
			d.groups[max(f.Group, 0)] = groupFull
		}
	}
	d.recurrent = d.recurrent || string(f.SpecKind) == "mamba"
	if !full {
		d.a.EngineHashes, d.a.Tokens = d.a.EngineHashes[:len(d.a.EngineHashes)-blocks], d.a.Tokens[:f.FirstToken]
		return nil
	}
	if f.BlockSize <= 0 || blocks == 0 || len(tokens)%f.BlockSize != 0 || len(tokens)/f.BlockSize != blocks {
		return fmt.Errorf("%d hashes of block size %d do not cover %d tokens", blocks, f.BlockSize, len(tokens))
	}
	first, firstMention := len(d.a.Locals), len(d.a.Media)
	if err := d.hash(tokens); err != nil {
		return err
	}
	e := d.add(kvevent.Stored)
	e.Parent, e.HasParent, e.BlockSize = f.Parent, f.HasParent, f.BlockSize
	e.Locals = d.a.Locals[first:len(d.a.Locals):len(d.a.Locals)]
	e.MediaUnknown = f.ExtraKeys == nil
	e.LoRA = d.h.loraName
	if d.Keep {
		e.Tokens, e.Session = tokens, string(f.Session)
		e.Media = d.a.Media[firstMention:len(d.a.Media):len(d.a.Media)]
	} else {
		d.a.Tokens = d.a.Tokens[:f.FirstToken]
	}
	return nil
}
