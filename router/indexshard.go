package router

import (
	"context"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/prompt"
)

// A router whose index holds a part of all prompts asks the replica of another part which workers hold a prompt of that part. The answer
// replaces a lookup in its own index; without an answer the prompt is decided by predictions and load.
//
//	read ─▶ hashAndAskHolders: hashes, Options.AskHolders ─▶ (in turn) choose: match
//	another replica's question ─▶ Holders ─▶ its answer

// Holder says how many leading blocks of a prompt a worker, or one of its ranks, holds, and how many of them are on its GPU.
type Holder struct {
	Worker      string // fleet.Worker.StableName
	Rank        int    // -1: the worker has no ranks
	Blocks, GPU int
}

// MaxHolders limits the holders that are reported for one prompt.
const MaxHolders = 1 << 13

// Holders answers another replica's question: which workers hold leading blocks of a prompt, by our own index.
func (r *Router) Holders(locals []uint64) (list []Holder) {
	var m indexer.Matches
	r.opt.Index.Match(locals, &m)
	if len(m.Slots) == 0 {
		return nil
	}
	held := make(map[indexer.SlotID]indexer.Match, len(m.Slots))
	for _, s := range m.Slots {
		held[s.Slot] = s
	}
	for _, w := range r.opt.Fleet.Workers() {
		for _, s := range w.Slots {
			if h := held[s.ID]; h.Blocks > 0 && len(list) < MaxHolders {
				list = append(list, Holder{w.StableName, s.Rank, int(h.Blocks), int(m.OnGPU(h))})
			}
		}
	}
	return list
}

// Part returns the share of all prompts that the index holds.
func (r *state) Part() indexer.Part { return r.opt.Index.Part() }

// hashAndAskHolders hashes the prompt for each class that may get it, and asks which workers hold it if it belongs to another
// part than our index. It runs before the admission lock is taken, so that no decision waits for another's answer.
func (x *planner) hashAndAskHolders(ctx context.Context) {
	x.shaped = shaped(&x.mem.req)
	for class := range x.mem.blocks {
		x.stepAside(class)
		keys, rd := &x.mem.blocks[class], x.reading(class)
		if !keys.hasWorkers || rd.refused() {
			continue
		}
		x.hashPrompt(class)
		keys.fromReplica, keys.held, keys.onGPU = false, keys.held[:0], keys.onGPU[:0]
		if x.opt.AskHolders == nil || rd.reuse == prompt.Recomputed || !x.inOtherPart(keys.locals) {
			continue
		}
		var list []Holder
		list, keys.fromReplica = x.opt.AskHolders(ctx, keys.locals)
		x.tally.askedPart, x.tally.partAnswered = true, keys.fromReplica
		for _, h := range list {
			if slot := x.opt.Fleet.Find(h.Worker, h.Rank); slot != nil {
				blocks := min(max(0, h.Blocks), len(keys.locals))
				keys.held = append(keys.held, indexer.Match{Slot: slot.ID, Blocks: uint32(blocks)})
				keys.onGPU = append(keys.onGPU, indexer.Match{Slot: slot.ID, Blocks: uint32(min(max(0, h.GPU), blocks))})
			}
		}
	}
}

// inOtherPart reports whether a prompt belongs to another part than the index holds. No events will show it then.
func (r *state) inOtherPart(locals []uint64) bool {
	return len(locals) > 0 && !r.Part().Holds(locals[0])
}
