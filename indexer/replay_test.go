package indexer

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/lab/golden"
)

// replay is one recorded run of Dynamo 1.6.1's index: events, and lookups with its answers (testdata/README.md).
type replay struct {
	Class string `json:"cls"`
	ID    string `json:"id"`
	Ops   []struct {
		Op        string
		Worker    uint64 `json:"worker_id"`
		Event     *replayEvent
		Hashes    []uint64
		EarlyExit bool         `json:"early_exit"`
		Scores    [][3]uint64  // worker, rank, blocks
		Exact     *[][3]uint64 `json:"exact_set_scores"`
		Default   *[][3]uint64 `json:"concurrent_tree_scores"`
	}
}

type replayEvent struct {
	Rank uint64 `json:"dp_rank"`
	Data json.RawMessage
}

type replayData struct {
	Stored *struct {
		Parent *uint64 `json:"parent_hash"`
		Blocks []struct {
			Handle uint64 `json:"block_hash"`
			Local  uint64 `json:"tokens_hash"`
		}
	}
	Removed *struct {
		Handles []uint64 `json:"block_hashes"`
	}
}

// replayer keeps a slot for each worker and rank.
type replayer struct {
	x     *Index
	slots map[[2]uint64]SlotID
}

func (p *replayer) slot(worker, rank uint64) SlotID {
	k := [2]uint64{worker, rank}
	id, ok := p.slots[k]
	if !ok {
		id = p.x.Join(SlotOptions{})
		p.slots[k] = id
	}
	return id
}

func (p *replayer) apply(t *testing.T, worker uint64, e *replayEvent) {
	id := p.slot(worker, e.Rank)
	if string(e.Data) == `"cleared"` {
		p.x.Clear(id)
		return
	}
	var d replayData
	if err := json.Unmarshal(e.Data, &d); err != nil {
		t.Fatal(err)
	}
	if d.Removed != nil {
		if _, err := p.x.Remove(id, GPU, d.Removed.Handles); err != nil {
			t.Fatal(err)
		}
		return
	}
	var engineHashes, locals []uint64
	for _, b := range d.Stored.Blocks {
		engineHashes, locals = append(engineHashes, b.Handle), append(locals, b.Local)
	}
	var parent uint64
	if d.Stored.Parent != nil {
		parent = *d.Stored.Parent
	}
	err := p.x.Store(id, GPU, parent, d.Stored.Parent != nil, engineHashes, locals)
	if err != nil && !errors.Is(err, ErrUnknownParent) && !errors.Is(err, ErrOwnParent) {
		t.Fatal(err)
	}
}

func (p *replayer) find(hashes []uint64) [][3]uint64 {
	var m Matches
	p.x.Match(hashes, &m)
	out := [][3]uint64{}
	for k, id := range p.slots {
		for _, r := range m.Slots {
			if r.Slot == id {
				out = append(out, [3]uint64{k[0], k[1], uint64(r.Blocks)})
			}
		}
	}
	slices.SortFunc(out, func(a, b [3]uint64) int { return slices.Compare(a[:], b[:]) })
	return out
}

// run compares every lookup and counts those in which Dynamo's own tree is wrong, and those in which its default concurrent tree
// is.
func (r *replay) run(t *testing.T) (finds, wrong, wrongDefault int) {
	p := replayer{New(Options{}), map[[2]uint64]SlotID{}}
	for i, op := range r.Ops {
		switch op.Op {
		case "event":
			p.apply(t, op.Worker, op.Event)
		case "remove_worker", "clear_all_blocks":
			for k, id := range p.slots {
				if k[0] != op.Worker {
					continue
				}
				if op.Op == "clear_all_blocks" {
					p.x.Clear(id)
				} else {
					p.x.Leave(id)
					delete(p.slots, k)
				}
			}
		case "find":
			want := op.Scores
			if op.Exact != nil {
				want = *op.Exact
			}
			got := p.find(op.Hashes)
			if op.EarlyExit {
				continue // Dynamo stops when one worker is left, so the scores are incomplete
			}
			finds++
			if op.Exact != nil {
				wrong++
			}
			if d := op.Default; d != nil && !slices.Equal(*d, want) || d == nil && op.Exact != nil {
				wrongDefault++
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s %s op %d: lookup gives %v, want %v", r.ID, r.Class, i, got, want)
			}
		default:
			t.Fatalf("unknown op %q", op.Op)
		}
	}
	return finds, wrong, wrongDefault
}

func storedReplays(t *testing.T) []replay {
	return golden.Lines[replay](t, "testdata/index_replay.jsonl.gz")
}

func TestDynamoReplay(t *testing.T) {
	finds, runs := 0, storedReplays(t)
	for i := range runs {
		n, _, _ := runs[i].run(t)
		finds += n
	}
	if len(runs) != 158 || finds != 2404 {
		t.Errorf("%d lookups in %d runs, want 2404 in 158", finds, len(runs))
	}
}

// TestRightWhereDynamoIsWrong lists the cases in which Dynamo's index is wrong, and checks that recordings of each were replayed
// with the answers of plain bookkeeping.
func TestRightWhereDynamoIsWrong(t *testing.T) {
	kinds := map[string][]string{
		"a removal in the middle forgets the blocks behind it": {"remove-middle", "remove-first", "remove-front-to-back"},
		"two engine hashes for one content are never cleaned":  {"different-engine-hashes", "engine-per-worker-hashes"},
		"the default tree credits blocks never stored":         {"concurrent-tree-overcredit"},
	}
	for name, classes := range kinds {
		t.Run(name, func(t *testing.T) {
			total := 0
			for _, r := range storedReplays(t) {
				if !slices.ContainsFunc(classes, func(c string) bool { return strings.HasPrefix(r.Class, c) }) {
					continue
				}
				_, wrong, wrongDefault := r.run(t)
				total += max(wrong, wrongDefault)
			}
			if total == 0 {
				t.Errorf("no lookup in which Dynamo is wrong: got %d, want some", total)
			}
			t.Logf("%d lookups", total)
		})
	}
}

// TestConformanceDynamoReplay replays all recordings of a golden directory.
func TestConformanceDynamoReplay(t *testing.T) {
	for _, name := range golden.Files(t, golden.Dir(t, "dynamo", "index_replay*.jsonl")) {
		runs := golden.Lines[replay](t, name)
		for i := range runs {
			runs[i].run(t)
		}
	}
}
