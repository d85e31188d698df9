package vllm

// This file turns BlockStored and BlockRemoved into events: which groups count, the tier of a block, its local hash.

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/kvevent/wire"
	"github.com/sightline-router/sightline/mmhash/block"
)

// add appends an event with the engine hashes of d.f.
func (d *Decoder) add(kind kvevent.Kind) *kvevent.Event {
	d.a.Events = append(d.a.Events, kvevent.Event{Kind: kind, Tier: d.f.Tier(), EngineHashes: d.f.EngineHashes})
	return &d.a.Events[len(d.a.Events)-1]
}

// addOther records an event of another group than the main one. Whichever comes first in a message, the main group's events come
// first in the batch: they give the places of the others' blocks.
func (d *Decoder) addOther(kind kvevent.Kind, group int) {
	if d.f.Tier() != kvevent.GPU {
		d.groups.doubt(true, offGPU)
		return
	}
	e := kvevent.Event{Kind: kind, Group: group, EngineHashes: d.f.EngineHashes}
	if kind == kvevent.GroupStored {
		e.Spec = d.groups.spec[group]
		e.Spec.BlockSize = d.f.BlockSize // less than the group's: a part of a block with a state
	}
	d.a.Others = append(d.a.Others, e)
}

// storedOther records a stored event of another group than the main one.
func (d *Decoder) storedOther(tokens []uint32, n int) (err error) {
	spec := d.groups.spec[n]
	d.groups.doubt(d.chains.unit > 0 && d.f.BlockSize < spec.BlockSize, severalSizes)
	if d.groups.main == 0 && d.lone == 0 && showsAll(spec, len(tokens)) {
		d.lone = spec.BlockSize
	}
	if d.chains.unit > 0 && d.f.Tier() == kvevent.GPU {
		d.groups.doubt(d.groups.differ(spec), severalKinds)
		err = d.chain(tokens, spec)
	}
	if !d.Keep || d.chains.unit == 0 {
		d.a.Tokens = d.a.Tokens[:d.f.FirstToken]
	}
	if err == nil {
		d.addOther(kvevent.GroupStored, n)
	}
	return err
}

// addOthers appends the other groups' events to the batch.
func (d *Decoder) addOthers() {
	d.a.Events = append(d.a.Events, d.a.Others...)
	d.a.Others = d.a.Others[:0]
}

func (d *Decoder) stored(tokens []uint32) error {
	f, blocks := &d.f, len(d.f.EngineHashes)
	if len(tokens) == 0 { // a connector's placeholder: it has only the hash
		if n := max(f.Group, 0); blocks > 0 && (d.groups.main == 0 && n == 0 || d.groups.main == n+1) {
			d.add(kvevent.Copied)
		} else {
			d.groups.doubt(blocks > 0, offGPU)
		}
		return nil
	}
	n, main, ok := d.groups.learn(f)
	if !main || !ok {
		if ok {
			return d.storedOther(tokens, n)
		}
		d.a.Tokens = d.a.Tokens[:f.FirstToken]
		return nil
	}
	if d.chains.unit > 0 {
		d.unchain()
	}
	if err := f.Cover(len(tokens)); err != nil {
		return err
	}
	lookahead, err := d.lookahead(len(tokens))
	if err != nil {
		return err
	}
	first, firstMention := len(d.a.Locals), len(d.a.Media)
	err = d.hash(d.a.Tokens[f.FirstToken:], blocks, lookahead)
	d.a.Tokens = d.a.Tokens[:f.FirstToken+len(tokens)]
	if err != nil {
		return err
	}
	if tails := d.groups.grow(f); len(tails) > 0 {
		d.a.Events = append(d.a.Events, kvevent.Event{Kind: kvevent.Removed, EngineHashes: tails})
	}
	e := d.add(kvevent.Stored)
	e.Parent, e.HasParent, e.BlockSize, e.Lookahead = f.Parent, f.HasParent, f.BlockSize, lookahead
	e.Locals = kvevent.Tail(d.a.Locals, first)
	e.MediaUnknown = f.ExtraKeys == nil
	e.LoRA = d.h.loraName
	e.Session = unsafe.String(unsafe.SliceData(f.Session), len(f.Session)) // as long as the payload
	if d.Keep {
		e.Tokens = tokens
		e.Media = kvevent.Tail(d.a.Media, firstMention)
	} else {
		d.a.Tokens = d.a.Tokens[:f.FirstToken]
	}
	return nil
}

// lookahead returns how many tokens after a block the engine's hashes of this event cover too (lookahead_token_ids, one list for each
// block; 0: none), and appends those of the last block to the event's tokens. The others' are the tokens of the blocks after them.
func (d *Decoder) lookahead(tokens int) (n int, err error) {
	f := &d.f
	if f.Lookahead == nil {
		return 0, nil
	}
	blocks, b, err := wire.ArrayHeader(f.Lookahead)
	if err == nil && blocks != len(f.EngineHashes) {
		err = fmt.Errorf("%d lists for %d blocks", blocks, len(f.EngineHashes))
	}
	end := f.FirstToken + tokens
	for i := 0; i < blocks && err == nil; i++ {
		d.a.Tokens, b, err = wire.AppendTokens(d.a.Tokens[:end], b)
		if err != nil {
			break
		}
		own := d.a.Tokens[end:]
		if i == 0 {
			n = len(own)
		}
		after := d.a.Tokens[f.FirstToken+(i+1)*f.BlockSize : end]
		common := min(len(own), len(after))
		switch {
		case len(own) != n || n > block.MaxLookahead:
			err = fmt.Errorf("%d tokens after block %d, %d after the first (want as many, %d at most)", len(own), i, n, block.MaxLookahead)
		case !slices.Equal(own[:common], after[:common]):
			err = fmt.Errorf("the tokens after block %d are not those of the next one", i)
		}
	}
	if err != nil {
		return 0, fmt.Errorf("lookahead_token_ids: %w", err)
	}
	return n, nil
}
