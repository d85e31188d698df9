package router

import "github.com/sightline-router/sightline/indexer"

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

// inOtherPart reports whether a prompt belongs to another part than the index holds. No events will show it then.
func (r *state) inOtherPart(locals []uint64) bool {
	return len(locals) > 0 && !r.Part().Holds(locals[0])
}
