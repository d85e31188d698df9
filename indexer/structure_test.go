package indexer

import (
	"fmt"
	"testing"

	"github.com/sightline-router/sightline/internal/benchpeers/trace"
)

// audit walks a shard and holds every count and link against what it counts and links.
func (t *tree) audit() error {
	free := map[uint32]bool{}
	for _, id := range t.spare {
		free[id] = true
	}
	runs := map[uint32]int{} // run → units
	children := map[uint32]uint32{}
	for id := uint32(root + 1); id < t.count; id++ {
		if free[id] {
			continue
		}
		run := *t.at(id)
		st := t.mem.record(run)
		if st.id != id {
			return fmt.Errorf("stem %d lies in run %#x of stem %d", id, run, st.id)
		}
		if runs[run] = st.capacity(); units(recordWords+st.length()) > st.capacity() || st.length() == 0 {
			return fmt.Errorf("stem %d: %d blocks in %d units", id, st.length(), st.capacity())
		}
		if children[st.parent]++; st.parent != root && (free[st.parent] || int(st.parentAt) > t.stem(st.parent).length()) {
			return fmt.Errorf("stem %d hangs at %d of stem %d", id, st.parentAt, st.parent)
		}
		if got := t.child(st.parent, int(st.parentAt), t.mem.hashes(run, 1)); got != run {
			return fmt.Errorf("stem %d in run %#x is found in %#x", id, run, got)
		}
		if st.list != 0 {
			for at := st.list; at != 0; at = t.mem.seatList(at).next {
				runs[at] = int(t.mem.seatList(at).units)
			}
		}
	}
	kids := 0
	t.kids.each(func(s *segment) { kids += s.count() })
	total := uint32(0)
	for id, n := range children {
		if total += n; t.stem(id).children != n {
			return fmt.Errorf("stem %d has %d children, counts %d", id, n, t.stem(id).children)
		}
	}
	if kids != int(total) {
		return fmt.Errorf("%d stems, %d in the children table", total, kids)
	}
	used := map[uint32]string{} // no unit twice
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
		if err := claim(at, n, fmt.Sprintf("the stem or list at %#x+%d", at, n)); err != nil {
			return err
		}
	}
	for n, at := range t.runs.heads {
		for ; at != 0; at = uint32(t.mem.run(at, 1)[0]) {
			if int(t.mem.run(at, 2)[1]) != n {
				return fmt.Errorf("free run of %d units on the list of %d", t.mem.run(at, 2)[1], n)
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
	for i := range x.trees {
		if err := x.trees[i].audit(); err != nil {
			t.Fatalf("shard %d: %v", i, err)
		}
	}
}

// TestTraces plays small forms of the traces on which the index is measured: the checksums over a thousand lookups, and
// a sound structure after each kind of work.
func TestTraces(t *testing.T) {
	for name, n := range map[string]uint64{"A": 64, "B": 5000, "P": 5000} {
		t.Run(name, func(t *testing.T) {
			shape, err := trace.Named(name, n)
			if err != nil {
				t.Fatal(err)
			}
			x := New(Options{})
			var hs []Holder
			for range shape.Workers {
				hs = append(hs, x.Join(HolderOptions{}))
			}
			for range 2 {
				play(t, x, hs, &shape, (*trace.Shape).Stored, func(h Holder, handles, locals []uint64, e trace.Event) error {
					var parent uint64
					if e.From > 0 {
						parent = handles[e.From-1]
					}
					return x.Store(h, GPU, parent, e.From > 0, handles[e.From:e.To], locals[e.From:e.To])
				})
				audit(t, x)
				sum := uint64(0)
				var m Matches
				for q := range uint64(1000) {
					x.Match(shape.Locals(nil, shape.Query(q)), &m)
					for _, h := range hs {
						for _, r := range m.Holders {
							if r.Holder == h {
								sum = trace.Checksum(sum, uint64(h), uint64(r.Blocks))
							}
						}
					}
				}
				if want := trace.Sums[fmt.Sprintf("%s %d", name, n)]; sum != want {
					t.Errorf("checksum %016x, want %016x", sum, want)
				}
				play(t, x, hs, &shape, (*trace.Shape).Removed, func(h Holder, handles, _ []uint64, e trace.Event) error {
					var deepest []uint64
					for k := e.To; k > e.From; k-- {
						deepest = append(deepest, handles[k-1])
					}
					_, err := x.Remove(h, GPU, deepest)
					return err
				})
				audit(t, x)
			}
		})
	}
}

// TestOneShard has a fleet in which every prompt begins with one system prompt: thousands of stems in one shard, coming
// and going, so that the children table splits, fills and reuses what was free.
func TestOneShard(t *testing.T) {
	x := New(Options{})
	h := x.Join(HolderOptions{})
	system := make([]uint64, 20)
	for i := range system {
		system[i] = pathOf(5, uint64(i))
	}
	const live = 3000
	prompt := func(i uint64) []uint64 {
		i %= live + live/3 // what went comes back
		p := append([]uint64{}, system...)
		for k := range i%40 + 1 {
			p = append(p, pathOf(i, k))
		}
		return p
	}
	var m Matches
	for i := range uint64(8 * live) {
		p := prompt(i)
		if err := x.Store(h, GPU, 0, false, trace.Handles(nil, p), p); err != nil {
			t.Fatal(err)
		}
		if i >= live {
			old := trace.Handles(nil, prompt(i-live))
			if n, err := x.Remove(h, GPU, old[len(system):]); n != 0 || err != nil {
				t.Fatalf("prompt %d: %d unknown, %v", i-live, n, err)
			}
			if x.Match(prompt(i-live), &m); m.Longest != len(system) {
				t.Fatalf("prompt %d removed, %d blocks left", i-live, m.Longest)
			}
		}
		if x.Match(p, &m); m.Longest != len(p) {
			t.Fatalf("prompt %d: %d of %d blocks", i, m.Longest, len(p))
		}
		if i%2000 == 0 {
			audit(t, x)
		}
	}
	audit(t, x)
}

func play(t *testing.T, x *Index, hs []Holder, s *trace.Shape, events func(*trace.Shape, []trace.Event, uint64) []trace.Event,
	apply func(h Holder, handles, locals []uint64, e trace.Event) error) {
	var locals, handles []uint64
	var list []trace.Event
	for i := range s.N {
		locals = s.Locals(locals[:0], i)
		handles = trace.Handles(handles[:0], locals)
		list = events(s, list[:0], i)
		for _, e := range list {
			if err := apply(hs[e.Worker], handles, locals, e); err != nil {
				t.Fatal(err)
			}
		}
	}
}
