package indexer

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sightline-router/sightline/lab/benchpeers/trace"
)

// audit checks every count and link of a shard against what it counts or links. It adds the shard's nodes to children, by their
// parents.
func (sh *shard) audit(x *Index, children map[uint32]int) error {
	free := map[uint32]bool{}
	for _, id := range sh.freeNumbers {
		free[id] = true
	}
	runs := map[uint32]int{} // run → units
	nodes := 0
	for id := sh.first + 1; id < sh.first+sh.numbersUsed; id++ {
		if free[id] {
			continue
		}
		nodes++
		run := *sh.runOf(id)
		nd := sh.mem.node(run)
		if nd.id != id {
			return fmt.Errorf("node %d lies in run %#x of node %d", id, run, nd.id)
		}
		runs[run] = nd.capacity()
		if units(nodeWords+nd.length()) > nd.capacity() || nd.length() == 0 {
			return fmt.Errorf("node %d: %d blocks in %d units", id, nd.length(), nd.capacity())
		}
		children[nd.parent]++
		if nd.parent != root {
			p := x.shardOfNode(nd.parent).node(nd.parent)
			if p.id != nd.parent || nd.parentOffset > p.maxChildOffset || int(nd.parentOffset) > p.length() {
				return fmt.Errorf("node %d hangs at %d of node %d", id, nd.parentOffset, nd.parent)
			}
			if locals := sh.mem.locals(run, 1); int(nd.parentOffset) < p.length() &&
				sh.mem.locals(*x.shardOfNode(p.id).runOf(p.id), p.length())[nd.parentOffset] == locals[0] {
				return fmt.Errorf("node %d hangs at %d of node %d, which goes on with the same block", id, nd.parentOffset, nd.parent)
			}
		}
		key := sh.keyOf(run)
		if got := sh.child(key, nd.parent, int(nd.parentOffset), sh.mem.locals(run, 1)); got != run || x.shardOfKey(key) != sh {
			return fmt.Errorf("node %d in run %#x is found in %#x", id, run, got)
		}
		residents, last := 0, -1
		for at := nd.list; ; {
			residencies, _, next := sh.mem.residenciesOf(nd, at)
			for _, res := range residencies {
				residents++
				if int(res.owner()) <= last {
					return fmt.Errorf("node %d: owner %d behind owner %d", id, res.owner(), last)
				}
				last = int(res.owner())
			}
			if at != 0 {
				runs[at] = int(sh.mem.residencyList(at).units)
			}
			at = next
			if at == 0 {
				break
			}
		}
		if residents != int(nd.residents) {
			return fmt.Errorf("node %d has %d residencies, counts %d", id, residents, nd.residents)
		}
	}
	inTable := 0
	sh.children.each(func(s *segment) { inTable += s.count() })
	if inTable != nodes {
		return fmt.Errorf("%d nodes, %d in the children table", nodes, inTable)
	}
	used := map[uint32]string{} // no unit is used twice
	claim := func(at uint32, n int, by string) error {
		for u := at; u < at+uint32(n); u++ {
			if used[u] != "" {
				return fmt.Errorf("unit %#x belongs to %s and to %s at %#x+%d", u, used[u], by, at, n)
			}
			used[u] = by
		}
		return nil
	}
	for at, n := range runs {
		if err := claim(at, n, fmt.Sprintf("the node or list at %#x+%d", at, n)); err != nil {
			return err
		}
	}
	for n, at := range sh.runs.freeBySize {
		for ; at != 0; at = uint32(sh.mem.run(at, 1)[0]) {
			if int(sh.mem.run(at, 2)[1]) != n {
				return fmt.Errorf("free run of %d units on the list of %d", sh.mem.run(at, 2)[1], n)
			}
			if err := claim(at, n, "a free run"); err != nil {
				return err
			}
		}
	}
	return nil
}

func audit(t *testing.T, x *Index) {
	t.Helper()
	children := map[uint32]int{}
	for i := range x.shards {
		if err := x.shards[i].audit(x, children); err != nil {
			t.Fatalf("shard %d: got %v, want no error", i, err)
		}
	}
	for i := range x.shards {
		sh := &x.shards[i]
		for id := sh.first + 1; id < sh.first+sh.numbersUsed; id++ {
			if !slices.Contains(sh.freeNumbers, id) && int(sh.node(id).childCount) != children[id] {
				t.Fatalf("node %d has %d children, counts %d", id, children[id], sh.node(id).childCount)
			}
		}
	}
}

// TestTraces runs small forms of the traces with which the index is measured. It compares the checksums of a thousand lookups and
// audits the structure after each phase.
func TestTraces(t *testing.T) {
	for name, n := range map[string]uint64{"A": 64, "B": 5000, "P": 5000} {
		t.Run(name, func(t *testing.T) {
			shape, err := trace.Named(name, n)
			if err != nil {
				t.Fatal(err)
			}
			x := New(Options{})
			var ids []SlotID
			for range shape.Workers {
				ids = append(ids, x.Join(SlotOptions{}))
			}
			for range 2 {
				play(t, x, ids, &shape, (*trace.Shape).Stored, func(id SlotID, engineHashes, locals []uint64, e trace.Event) error {
					var parent uint64
					if e.From > 0 {
						parent = engineHashes[e.From-1]
					}
					return x.Store(id, GPU, parent, e.From > 0, engineHashes[e.From:e.To], locals[e.From:e.To])
				})
				audit(t, x)
				sum := uint64(0)
				var m Matches
				for q := range uint64(1000) {
					x.Match(shape.Locals(nil, shape.Query(q)), &m)
					for _, id := range ids {
						for _, r := range m.Slots {
							if r.Slot == id {
								sum = trace.Checksum(sum, uint64(id), uint64(r.Blocks))
							}
						}
					}
				}
				if want := trace.Sums[fmt.Sprintf("%s %d", name, n)]; sum != want {
					t.Errorf("checksum %016x, want %016x", sum, want)
				}
				play(t, x, ids, &shape, (*trace.Shape).Removed, func(id SlotID, engineHashes, _ []uint64, e trace.Event) error {
					var deepest []uint64
					for k := e.To; k > e.From; k-- {
						deepest = append(deepest, engineHashes[k-1])
					}
					_, err := x.Remove(id, GPU, deepest)
					return err
				})
				audit(t, x)
			}
		})
	}
}

// TestOneShard runs a fleet in which every prompt begins with one system prompt: thousands of nodes in one shard, added and
// removed, so that the table of children splits, fills and reuses free entries.
func TestOneShard(t *testing.T) {
	x := New(Options{})
	id := x.Join(SlotOptions{})
	system := make([]uint64, 20)
	for i := range system {
		system[i] = pathOf(5, uint64(i))
	}
	const live = 3000
	prompt := func(i uint64) []uint64 {
		i %= live + live/3 // blocks removed earlier are stored again
		p := append([]uint64{}, system...)
		for k := range i%40 + 1 {
			p = append(p, pathOf(i, k))
		}
		return p
	}
	var m Matches
	for i := range uint64(8 * live) {
		p := prompt(i)
		if err := x.Store(id, GPU, 0, false, trace.EngineHashes(nil, p), p); err != nil {
			t.Fatal(err)
		}
		if i >= live {
			old := trace.EngineHashes(nil, prompt(i-live))
			if n, err := x.Remove(id, GPU, old[len(system):]); n != 0 || err != nil {
				t.Fatalf("prompt %d: got %d unknown, %v, want 0, no error", i-live, n, err)
			}
			x.Match(prompt(i-live), &m)
			if m.Longest != len(system) {
				t.Fatalf("prompt %d removed, %d blocks left, want %d", i-live, m.Longest, len(system))
			}
		}
		x.Match(p, &m)
		if m.Longest != len(p) {
			t.Fatalf("prompt %d: got %d of %d blocks, want %d", i, m.Longest, len(p), len(p))
		}
		if i%2000 == 0 {
			audit(t, x)
		}
	}
	audit(t, x)
}

func play(t *testing.T, x *Index, ids []SlotID, s *trace.Shape, events func(*trace.Shape, []trace.Event, uint64) []trace.Event,
	apply func(id SlotID, engineHashes, locals []uint64, e trace.Event) error) {
	var locals, engineHashes []uint64
	var list []trace.Event
	for i := range s.N {
		locals = s.Locals(locals[:0], i)
		engineHashes = trace.EngineHashes(engineHashes[:0], locals)
		list = events(s, list[:0], i)
		for _, e := range list {
			if err := apply(ids[e.Worker], engineHashes, locals, e); err != nil {
				t.Fatal(err)
			}
		}
	}
}
