package vllm

import (
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/kvevent/wire"
)

// groups is what a worker's stored events have shown of its model's KV cache groups. The first group that sees all tokens is the
// main one: its blocks have content. The other groups only say which of the same blocks they hold too, by the same hashes; their
// events have all tokens and the hashes of what is kept (mask in block_pool.py, 0.31 and later), so their places are not in them.
type groups struct {
	main      int // the main group's number plus one; 0: not known yet
	blockSize int // the main group's largest
	known     [kvevent.Groups]bool
	spec      [kvevent.Groups]kvevent.Spec
	// tails are blocks of the main group that are smaller than its others: the engine also reports the part of a prompt's last block
	// that is whole in units of another group's blocks (cache_partial_block). No hit ends there in this group.
	tails map[uint64]int // with their copies
	// singles are blocks that came one to an event before an event had several of its size: they are tails if larger ones come.
	singles map[uint64]int
	room    kvevent.Room // for tails
	sized   bool         // the main group's block size is known for sure
	// unclear says why what is held is an upper bound of what a hit finds; "": it is not.
	unclear string
}

// Reasons for which what is held is an upper bound of what a hit finds: values of groups.unclear, as people read them.
const (
	unknownNeeds  = "its events do not say what its KV cache groups need, as those of vLLM before 0.22"
	unknownWindow = "a sliding window of unknown size"
	unknownKind   = "a KV cache group of an unknown kind"
	manyGroups    = "more KV cache groups than are followed"
	severalSizes  = "a KV cache group has blocks of several sizes (prefix_match_unit), whose places events do not tell"
	offGPU        = "blocks of KV cache groups with windows or states are also kept outside of the GPU"
	assumedPlaces = "no KV cache group sees all tokens, and events do not tell all places of the others' blocks"
	severalKinds  = "no KV cache group sees all tokens, and the others are of several kinds"
)

// doubt records why what is held is an upper bound, if it is.
func (g *groups) doubt(is bool, why string) {
	if is && g.unclear == "" {
		g.unclear = why
	}
}

const (
	maxTails   = 1 << 16
	tailBytes  = 40 // approximate memory of one
	maxSingles = 1 << 10
	// llama4Chunk is the chunk of Llama 4's chunked attention, the only model that has it. Events do not say it; where config.json is
	// at hand, its attention_chunk_size counts (stream.Options.Chunk).
	llama4Chunk = 8192
)

// learn returns the number of a stored event's group and whether it is the main one; ok is false if its blocks do not count.
func (g *groups) learn(f *wire.Fields) (n int, main, ok bool) {
	n = max(f.Group, 0)
	spec := kvevent.Spec{BlockSize: f.BlockSize}
	switch string(f.SpecKind) {
	case "full_attention", "mla_attention", "sink_full_attention":
	case "": // before 0.22: group 0 sees all tokens; what others need is not known
		g.doubt(n > 0, unknownNeeds)
		ok = n == 0
		return n, g.isMain(n, ok), ok
	case "sliding_window", "sliding_window_mla":
		spec.Need, spec.Window = kvevent.NeedWindow, f.Window
		g.doubt(f.Window <= 0, unknownWindow)
	case "chunked_local_attention":
		spec.Need, spec.Window = kvevent.NeedChunk, llama4Chunk
	case "mamba":
		spec.Need = kvevent.NeedLast
	default:
		g.doubt(true, unknownKind)
		return n, false, false
	}
	if n >= kvevent.Groups {
		g.doubt(true, manyGroups)
		return n, false, false
	}
	main = g.isMain(n, spec.Need == kvevent.NeedAll)
	if !main {
		if g.known[n] && f.BlockSize < g.spec[n].BlockSize { // a part of a block, which has no place
			g.doubt(spec.Need != kvevent.NeedLast, severalSizes)
			return n, false, spec.Need == kvevent.NeedLast
		}
		g.known[n], g.spec[n] = true, spec
		return n, false, true
	}
	if f.BlockSize < g.blockSize && f.Tier() == kvevent.GPU { // a connector's blocks are of its own
		g.addTails(f.EngineHashes)
		return n, true, false
	}
	return n, true, true
}

// differ reports whether a group needs something else than this one.
func (g *groups) differ(spec kvevent.Spec) bool {
	for n, known := range g.known {
		if known && g.spec[n] != spec {
			return true
		}
	}
	return false
}

// grow learns the main group's block size from an event that counts, and returns the blocks of earlier events that turn out to be tails.
func (g *groups) grow(f *wire.Fields) (tails []uint64) {
	if f.Tier() != kvevent.GPU {
		return nil
	}
	if f.BlockSize > g.blockSize {
		for h, copies := range g.singles {
			for range copies {
				tails = append(tails, h)
			}
		}
		g.blockSize, g.singles, g.sized = f.BlockSize, nil, false
		g.addTails(tails)
	}
	switch {
	case g.sized:
	case len(f.EngineHashes) > 1:
		g.sized, g.singles = true, nil
	case len(g.singles) < maxSingles:
		if g.singles == nil {
			g.singles = map[uint64]int{}
		}
		g.singles[f.EngineHashes[0]]++
	}
	return tails
}

// isMain reports whether a group is the main one; the first that may be becomes it.
func (g *groups) isMain(n int, may bool) bool {
	if g.main == 0 && may {
		g.main = n + 1
	}
	return g.main == n+1
}

func (g *groups) addTails(engineHashes []uint64) {
	if len(engineHashes) == 0 {
		return
	}
	if len(g.tails)+len(engineHashes) > maxTails {
		g.forgetTails()
	}
	if g.tails == nil {
		g.tails = map[uint64]int{}
	}
	for _, h := range engineHashes {
		if n, known := g.tails[h]; known || len(g.tails) < maxTails && g.room.Take(tailBytes) {
			g.tails[h] = n + 1
		}
	}
}

func (g *groups) forgetTails() {
	g.room.Give(len(g.tails) * tailBytes)
	clear(g.tails)
}

// removed returns the group of a removal and whether it is the main one; ok is false if its blocks do not count. It removes from
// the event the blocks that do not.
func (g *groups) removed(f *wire.Fields) (n int, main, ok bool) {
	n = max(f.Group, 0)
	main = g.main == n+1 || g.main == 0 && n == 0 && !g.known[0]
	if !main { // the index may know a group that this decoder has not heard of yet
		return n, false, n < kvevent.Groups && (g.known[n] || f.Tier() == kvevent.GPU)
	}
	for _, h := range f.EngineHashes {
		if copies := g.singles[h]; copies > 1 {
			g.singles[h]--
		} else if copies == 1 {
			delete(g.singles, h)
		}
	}
	if len(g.tails) > 0 {
		kept := f.EngineHashes[:0]
		for _, h := range f.EngineHashes {
			switch copies := g.tails[h]; {
			case copies == 0:
				kept = append(kept, h)
			case copies == 1:
				delete(g.tails, h)
				g.room.Give(tailBytes)
			default:
				g.tails[h]--
			}
		}
		f.EngineHashes = kept
	}
	return n, true, len(f.EngineHashes) > 0
}
