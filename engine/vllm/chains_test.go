package vllm

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// loneWorker is a worker with one group, of windows or states over blocks of two tokens, as its events show it.
type loneWorker struct {
	t     *testing.T
	d     Decoder
	held  map[uint64]uint64 // engine hashes that the reported group holds, with a hash of the blocks up to there
	group map[uint64]int    // copies that the real group holds
	more  []any             // of stored events
}

func newLoneWorker(t *testing.T, states bool) *loneWorker {
	w := &loneWorker{t: t, held: map[uint64]uint64{}, group: map[uint64]int{}}
	w.more = []any{"group_idx", 0, "kv_cache_spec_kind", "sliding_window", "kv_cache_spec_sliding_window", 7} // three blocks
	if states {
		w.more = []any{"group_idx", 0, "kv_cache_spec_kind", "mamba"}
	}
	return w
}

// take decodes a message and checks that the reported group's events are those of a group that an engine could have.
func (w *loneWorker) take(events ...any) kvevent.Batch {
	w.t.Helper()
	b, err := w.d.Decode(batchOf(events...))
	if err != nil || b.Bad > 0 {
		w.t.Fatal(err, b.Bad)
	}
	for _, e := range b.Events {
		switch e.Kind {
		case kvevent.Stored:
			path, ok := w.held[e.Parent]
			if e.HasParent && !ok {
				w.t.Fatalf("parent %x is not held", e.Parent)
			}
			for i, h := range e.EngineHashes {
				path = chainID(path, e.Locals[i])
				if was, ok := w.held[h]; ok && was == path {
					w.t.Fatalf("%x is held already", h)
				}
				w.held[h] = path
			}
		case kvevent.Removed:
			for _, h := range e.EngineHashes {
				if _, ok := w.held[h]; !ok {
					w.t.Fatalf("%x is not held", h)
				}
				delete(w.held, h)
			}
		case kvevent.GroupStored:
			for _, h := range e.EngineHashes {
				w.group[h]++
			}
		case kvevent.GroupRemoved:
			for _, h := range e.EngineHashes {
				w.group[h]--
				if w.group[h] == 0 {
					delete(w.group, h)
				}
			}
		}
	}
	return b
}

func hashAfter(tokens []int) uint64 {
	h := uint64(1469598103934665603)
	for _, t := range tokens {
		h = (h ^ uint64(t+1)) * 1099511628211
	}
	return h | 1<<63
}

// store is the event of tokens[from:to], of which the blocks that end at some places are kept.
func (w *loneWorker) store(tokens []int, from, to int, kept ...int) object {
	hashes, ids, parent := list{}, list{}, any(nil)
	for _, end := range kept {
		hashes = append(hashes, hashAfter(tokens[:end]))
	}
	for _, t := range tokens[from:to] {
		ids = append(ids, t)
	}
	if from > 0 {
		parent = hashAfter(tokens[:from])
	}
	return mapStored(hashes, parent, ids, w.more...)
}

func counted(n int) (tokens []int) {
	for i := range n {
		tokens = append(tokens, 1000+i)
	}
	return tokens
}

// TestChainsPlace checks where kept blocks are placed: by the engine hash of a block, the blocks before it.
func TestChainsPlace(t *testing.T) {
	prompt := counted(40)
	places := func(w *loneWorker) (out string) { // the kept blocks' places in the prompt
		for end := 2; end <= len(prompt); end += 2 {
			k, ok := w.d.chains.kept[hashAfter(prompt[:end])]
			if !ok {
				continue
			}
			n := 0
			for id := k.at; id != 0; id = w.d.chains.blocks[id].before {
				n++
			}
			out += fmt.Sprintf("%d:%d ", end/2, n)
		}
		return out
	}
	w := newLoneWorker(t, false)
	if b := w.take(w.store(prompt, 0, 6, 2, 4, 6)); w.d.chains.unit != 0 || b.UpperBound {
		t.Errorf("a few tokens do not show that there is no main group: got %d, %v, want 0, false", w.d.chains.unit, b.UpperBound)
	}
	w.take(object{"type", "BlockRemoved", "block_hashes", list{hashAfter(prompt[:2]), hashAfter(prompt[:4]), hashAfter(prompt[:6])},
		"medium", "GPU", "group_idx", 0})
	if b := w.take(w.store(prompt, 0, 20, 14, 16, 18, 20)); !b.UpperBound || places(w) != "7:7 8:8 9:9 10:10 " {
		t.Errorf("the end: %s; got %v, want true, %q", places(w), b.UpperBound, "7:7 8:8 9:9 10:10 ")
	}
	w.take(w.store(prompt, 20, 30, 26, 28))
	if places(w) != "7:7 8:8 9:9 10:10 13:14 14:15 " {
		t.Errorf("a prompt that ends with its last block: got %s, want %q", places(w), "7:7 8:8 9:9 10:10 13:14 14:15 ")
	}
	// The answer's block continues after the last kept one, so that one was placed too far.
	w.take(w.store(prompt, 28, 30))
	if places(w) != "7:7 8:8 9:9 10:10 13:13 14:14 " {
		t.Errorf("moved: got %s, want %q", places(w), "7:7 8:8 9:9 10:10 13:13 14:14 ")
	}
	w.take(w.store(prompt, 20, 30, 24, 26))
	if places(w) != "7:7 8:8 9:9 10:10 12:12 13:13 14:14 " {
		t.Errorf("one of them is known: got %s, want %q", places(w), "7:7 8:8 9:9 10:10 12:12 13:13 14:14 ")
	}
	if b := w.take(w.store(prompt, 28, 36, 32)); b.Unplaced != 0 || places(w) != "7:7 8:8 9:9 10:10 12:12 13:13 14:14 16:18 " {
		t.Errorf("the middle is not known to be one: %s; got %d, want 0, %q", places(w), b.Unplaced, "7:7 8:8 9:9 10:10 12:12 13:13 14:14 16:18 ")
	}

	w = newLoneWorker(t, true)
	w.take(w.store(prompt, 0, 16))
	w.take(w.store(prompt, 16, 24))
	w.take(w.store(prompt, 24, 30, 30))
	if places(w) != "15:15 " || w.d.chains.open != 0 {
		t.Errorf("a prompt in three steps: %s; got %d, want %q, 0", places(w), w.d.chains.open, "15:15 ")
	}
	if b := w.take(w.store(prompt, 6, 20, 20)); b.Unplaced != 1 {
		t.Errorf("%d unplaced, want the one after an unknown block", b.Unplaced)
	}
	if b := w.take(w.store(prompt, 0, 40, 10, 20, 40)); b.Unplaced != 2 || places(w) != "15:15 20:20 " {
		t.Errorf("states within the prompt: got %s, %d unplaced, want 2, %q", places(w), b.Unplaced, "15:15 20:20 ")
	}
	// A main group after all.
	full := append(mapStored(list{uint64(7)}, nil, list{1, 2}), "group_idx", 1, "kv_cache_spec_kind", "full_attention")
	w.take(full)
	if len(w.held) != 1 || w.d.chains.unit != 0 {
		t.Errorf("%d held beside the main group's block: got %d, %d, want 1, 0", len(w.held)-1, len(w.held), w.d.chains.unit)
	}
}

// TestChainsAtRandom stores prompts that share beginnings and removes kept blocks at random: the events of the reported group are
// consistent, and nothing is left at the end. The first five seeds move kept blocks to places that others of the same event leave.
func TestChainsAtRandom(t *testing.T) {
	seeds := []uint64{848, 2188, 3006, 3116, 3534}
	for seed := range uint64(100) {
		seeds = append(seeds, seed)
	}
	for _, seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newLoneWorker(t, seed%2 == 1)
		most := 1 + 2*int(1-seed%2)
		var prompts [][]int
		for range 60 {
			prompt := []int{}
			if len(prompts) > 0 {
				p := prompts[rng.IntN(len(prompts))]
				prompt = slices.Clone(p[:rng.IntN(len(p)+1)])
			}
			for range 1 + rng.IntN(40) {
				prompt = append(prompt, rng.IntN(3))
			}
			prompts = append(prompts, prompt)
			from, last := 0, len(prompt)/2*2 // where it is continued, and its end in whole blocks
			for end := 2; end < len(prompt); end += 2 {
				if w.group[hashAfter(prompt[:end])] > 0 && rng.IntN(3) > 0 {
					from = end
				}
			}
			for from < last {
				to := last
				if rng.IntN(3) == 0 {
					to = from + 2*(1+rng.IntN((last-from)/2))
				}
				var kept []int
				for end := from + 2; end <= to; end += 2 {
					if n := ((len(prompt)-1)/2*2 - end) / 2; n >= 0 && n < most && end < len(prompt) {
						kept = append(kept, end)
					}
				}
				w.take(w.store(prompt, from, to, kept...))
				from = to
			}
			for _, h := range slices.Sorted(maps.Keys(w.group)) {
				if rng.IntN(4) == 0 {
					w.take(object{"type", "BlockRemoved", "block_hashes", list{h}, "medium", "GPU", "group_idx", 0})
				}
			}
		}
		for _, h := range slices.Sorted(maps.Keys(w.group)) {
			for range w.group[h] {
				w.take(object{"type", "BlockRemoved", "block_hashes", list{h}, "medium", "GPU", "group_idx", 0})
			}
		}
		w.d.release(w.d.chains.open)
		if len(w.d.chains.blocks)+len(w.d.chains.kept) > 0 {
			t.Fatalf("seed %d: %d blocks, %d kept ones left; got %d, want 0",
				seed, len(w.d.chains.blocks), len(w.d.chains.kept), len(w.d.chains.blocks)+len(w.d.chains.kept))
		}
	}
}

// TestChainsAreBounded checks that kept blocks of prompts for which there is no room are counted, and that there is room again later.
func TestChainsAreBounded(t *testing.T) {
	w := newLoneWorker(t, true)
	long := counted(maxChained + 16)
	w.take(w.store(long, 0, len(long), len(long)))
	if b := w.take(w.store(long[1:], 0, len(long)-16, len(long)-16)); b.Unplaced != 1 || len(w.d.chains.blocks) > maxChained {
		t.Errorf("%d unplaced, %d blocks, want 1, at most %d", b.Unplaced, len(w.d.chains.blocks), maxChained)
	}
	w.take(object{"type", "BlockRemoved", "block_hashes", list{hashAfter(long)}, "medium", "GPU", "group_idx", 0})
	if b := w.take(w.store(long[1:], 0, len(long)-16, len(long)-16)); b.Unplaced != 0 {
		t.Errorf("%d unplaced although there is room, want 0", b.Unplaced)
	}
}
