package trtllm

import (
	"errors"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// The V2 block manager reports each layer group apart: the same hash for the same place, with the group's window_size. A prefix is
// reused only if the blocks of its last window_size-1 tokens are held in every group with a window (_prune_match in
// _block_radix_tree.py, get_stale_range in _life_cycle_registry.py; read, not run). So these groups follow the largest one by their
// hashes alone, as vLLM's do. Three needs are not in events, for which what is predicted stays an upper bound: blocks of attention
// sinks, pages that cover only a part of their block, and the states of recurrent layers, whose groups are reported with the largest
// window. A block outside the GPU counts too: it is brought back.
//
// V1 reports windows too, without a layer group. What it needs of the smaller ones was not read: they are not followed.

// other reads an event of a layer group with a smaller window than the largest.
func (d *Decoder) other(kind string, data gjson.Result, at scope) error {
	if !at.grouped || at.group >= kvevent.Groups || at.window >= d.scope.window || d.BlockSize == 0 {
		return nil
	}
	first := len(d.a.EngineHashes)
	e := kvevent.Event{Kind: kvevent.GroupStored, Group: at.group}
	add := func(v gjson.Result) {
		if h, ok := blockHash(v); ok {
			d.a.EngineHashes = append(d.a.EngineHashes, h)
		}
	}
	switch kind {
	case "stored":
		e.Spec = kvevent.Spec{Need: kvevent.NeedWindow, Window: at.window, BlockSize: d.BlockSize}
		data.Get("blocks").ForEach(func(_, v gjson.Result) bool {
			if v.Get("tokens.#").Int() == int64(d.BlockSize) {
				add(v.Get("block_hash"))
			}
			return true
		})
	case "removed":
		e.Kind = kvevent.GroupRemoved
		hashes := data.Get("block_hashes")
		if !hashes.IsArray() {
			return errors.New("removed: no block_hashes")
		}
		hashes.ForEach(func(_, v gjson.Result) bool { add(v); return true })
	default:
		return nil
	}
	e.EngineHashes = kvevent.Tail(d.a.EngineHashes, first)
	if len(e.EngineHashes) > 0 || kind == "stored" {
		d.a.Others = append(d.a.Others, e)
	}
	return nil
}
