package vllm

import (
	"fmt"
	"testing"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/lab/recorded"
)

// TestRecordedCases: the decoded events of a real vLLM equal what package block computes for the same request: every case of the
// selection here, every case of the whole set in TestConformanceCases.
func TestRecordedCases(t *testing.T) {
	checkCases(t, recorded.Selection(t))
}

func TestConformanceCases(t *testing.T) {
	checkCases(t, recorded.All(t))
}

func checkCases(t *testing.T, set *recorded.Set) {
	cases, prompts, blocks, unrecorded := 0, 0, 0, 0
	for worker, steps := range set.Cases {
		w := worked{t: t, worker: worker, held: map[uint64]node{}, reached: map[uint64]bool{}}
		w.d.Keep = true
		for _, s := range steps {
			t.Run(s.ID, func(t *testing.T) { w.stored(t, s) })
			cases++
		}
		// The recorder split the stream between requests by time, so a block may be in the frames of the next case. So the blocks
		// of prompts are searched among all that the worker announced, and all of these must be used.
		withTokens := true
		for i, s := range steps {
			t.Run(s.ID, func(t *testing.T) {
				n, missing := w.needed(s)
				if missing != "" && lost(steps, i) {
					unrecorded++
				} else if missing != "" {
					t.Fatal(missing)
				}
				blocks += n
			})
			prompts += len(s.Computed)
			withTokens = withTokens && len(s.Computed) > 0
		}
		if withTokens && len(w.reached) != len(w.held) {
			t.Errorf("%s: %d blocks stored, the prompts reach %d", worker, len(w.held), len(w.reached))
		}
	}
	t.Logf("%d workers, %d cases, %d prompts, %d blocks; %d cases whose frames the recorder missed", len(set.Cases), cases, prompts,
		blocks, unrecorded)
}

// lost reports whether the recorder missed a message near step i: the sequence numbers jump there. (Seen for internvl's
// c-salt and c-batch, and llama3-text's c-ids.)
func lost(steps []recorded.Step, i int) bool {
	var last *recorded.Frame
	for _, s := range steps[max(i-2, 0):min(i+3, len(steps))] {
		for _, f := range s.Frames {
			if last != nil && f.Seq != last.Seq+1 {
				return true
			}
			last = &f
		}
	}
	return false
}

// worked is everything that one worker announced, by engine hash.
type worked struct {
	t       *testing.T
	worker  string
	d       Decoder
	held    map[uint64]node
	reached map[uint64]bool
}

type node struct {
	parent    uint64
	hasParent bool
	local     uint64
}

// stored decodes a step's frames and checks that the blocks are those that the engine announced, in order.
func (w *worked) stored(t *testing.T, s recorded.Step) {
	var order []uint64
	for _, f := range s.Frames {
		batch, err := w.d.Decode(f.Payload)
		if err != nil || batch.Bad+batch.Unknown+batch.UnknownKeys > 0 {
			t.Fatalf("%v: %+v; got %d, want no error, 0", err, batch, batch.Bad+batch.Unknown+batch.UnknownKeys)
		}
		for _, e := range batch.Events {
			if e.Kind != kvevent.Stored {
				continue
			}
			size := recorded.BlockSize(w.worker)
			if e.Tier != kvevent.GPU || e.MediaUnknown || e.BlockSize != size || len(e.Tokens) != size*len(e.EngineHashes) ||
				len(e.Locals) != len(e.EngineHashes) {
				t.Fatalf("tier %s, block size %d, %d tokens, %d locals", e.Tier, e.BlockSize, len(e.Tokens), len(e.Locals))
			}
			n := node{parent: e.Parent, hasParent: e.HasParent}
			for i, h := range e.EngineHashes {
				n.local = e.Locals[i]
				if old, ok := w.held[h]; ok && old != n {
					t.Fatalf("engine hash %x is %+v and %+v", h, old, n)
				}
				w.held[h] = n
				order = append(order, h)
				n = node{parent: h, hasParent: true}
			}
		}
	}
	if len(order) != len(s.Blocks) {
		t.Fatalf("%d blocks decoded, the engine announced %d, want %d", len(order), len(s.Blocks), len(s.Blocks))
	}
	group := 0 // of the full-attention blocks; the recording does not contain its number
	for len(order) > 0 && group < 64 && kvevent.InGroup(s.Blocks[0].Handle, group) != order[0] {
		group++
	}
	for i, b := range s.Blocks {
		if want := kvevent.InGroup(b.Handle, group); order[i] != want {
			t.Fatalf("block %d: engine hash %x, want %x", i, order[i], want)
		}
	}
}

// needed follows each prompt's blocks, as package block computes them from the request, through what was stored.
func (w *worked) needed(s recorded.Step) (blocks int, missing string) {
	children := map[node]uint64{}
	for h, n := range w.held {
		children[n] = h
	}
	size := recorded.BlockSize(w.worker)
	for _, p := range s.Computed {
		var at uint64
		for i, local := range s.Locals(w.worker, p) {
			h, ok := children[node{parent: at, hasParent: i > 0, local: local}]
			if !ok {
				missing = fmt.Sprintf("block %d of %d tokens: nobody stored local %x under %x\n tokens %v\n media %v %q", i, len(p.Tokens),
					local, at, p.Tokens[i*size:(i+1)*size], p.Spans, p.Names)
				break
			}
			at = h
			w.reached[h] = true
			blocks++
		}
	}
	return blocks, missing
}
