package indexer

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
)

// The naive index: each holder is a map from handle to content and tiers, content is a hash of the whole path, and a
// lookup asks for each block in turn. The model checker runs it beside the real one.
type naive struct {
	holders map[Holder]*naiveHolder
}

type naiveHolder struct {
	counting bool
	partial  bool // may hold more than the index was told: neither a clear nor a resync's blocks change that
	names    map[uint64]*naiveName
	paths    map[uint64]*[Tiers]int // names that hold a path, by tier
}

type naiveName struct {
	path uint64
	held [Tiers]int
}

func pathOf(parent, local uint64) uint64 { return mix(local, mix(parent, 99)) }

const frontPath = 12345

func (n *naiveHolder) forget(handle uint64) {
	for t, c := range n.names[handle].held {
		if c > 0 {
			n.paths[n.names[handle].path][t]--
		}
	}
	delete(n.names, handle)
}

func (n *naiveHolder) store(tier Tier, parent uint64, hasParent bool, handles, locals []uint64) error {
	path := uint64(frontPath)
	if hasParent {
		for _, h := range handles {
			if h == parent {
				return ErrOwnParent
			}
		}
		p := n.names[parent]
		if p == nil {
			return ErrUnknownParent
		}
		path = p.path
	}
	for i, h := range handles {
		path = pathOf(path, locals[i])
		if old := n.names[h]; old != nil && old.path != path {
			n.forget(h)
		}
		name := n.names[h]
		if name == nil {
			name = &naiveName{path: path}
			n.names[h] = name
		}
		if n.paths[path] == nil {
			n.paths[path] = new([Tiers]int)
		}
		switch {
		case name.held[tier] == 0:
			name.held[tier] = 1
			n.paths[path][tier]++
		case n.counting:
			name.held[tier] = min(name.held[tier]+1, maxCopies+1)
		}
	}
	return nil
}

func (n *naiveHolder) remove(tier Tier, handles []uint64) (unknown int) {
	for _, h := range handles {
		name := n.names[h]
		if name == nil || name.held[tier] == 0 {
			unknown++
			continue
		}
		if name.held[tier]--; name.held[tier] == 0 {
			n.paths[name.path][tier]--
		}
		if name.held == [Tiers]int{} {
			delete(n.names, h)
		}
	}
	return unknown
}

func (n *naiveHolder) drop(locals []uint64, from int) (dropped int) {
	path := uint64(frontPath)
	paths := map[uint64]bool{}
	for i, l := range locals {
		if path = pathOf(path, l); i >= from {
			paths[path] = true
		}
	}
	for h, name := range n.names {
		if paths[name.path] {
			n.forget(h)
			dropped++
		}
	}
	return dropped
}

func (n *naiveHolder) clearTier(tier Tier) {
	for h, name := range n.names {
		if name.held[tier] > 0 {
			n.paths[name.path][tier]--
			name.held[tier] = 0
		}
		if name.held == [Tiers]int{} {
			delete(n.names, h)
		}
	}
}

func (n *naiveHolder) match(locals []uint64) (m Match) {
	path := uint64(frontPath)
	for _, l := range locals {
		path = pathOf(path, l)
		held, best := n.paths[path], -1
		for t := Tiers - 1; held != nil && t >= 0; t-- {
			if held[t] > 0 {
				best = t
			}
		}
		if best < 0 {
			break
		}
		m.Blocks++
		m.InTier[best]++
	}
	return m
}

// script drives both indexes with the same random calls.
type script struct {
	*rand.Rand
	t     *testing.T
	x     *Index
	model naive
	live  []Holder
	docs  [][]uint64
	m     Matches
	tiers int
	log   []string
}

func newScript(t *testing.T, seed uint64) *script {
	s := &script{Rand: rand.New(rand.NewPCG(seed, 7)), t: t, x: New(Options{}), model: naive{map[Holder]*naiveHolder{}}}
	s.tiers = 1 + s.IntN(2)*s.IntN(Tiers)
	long := 40
	switch s.IntN(8) {
	case 0:
		long = 6000 // beyond one stem
	case 1, 2:
		long = 400
	}
	for range 4 + s.IntN(12) { // documents that share fronts with earlier ones
		var d []uint64
		if n := len(s.docs); n > 0 && s.IntN(4) > 0 {
			from := s.docs[s.IntN(n)]
			d = append(d, from[:s.IntN(len(from)+1)]...)
		}
		for n := 1 + s.IntN(long); len(d) < n || len(d) == 0; {
			d = append(d, s.Uint64N(1<<uint(1+s.IntN(40))))
		}
		s.docs = append(s.docs, d)
	}
	return s
}

func (s *script) fail(format string, args ...any) {
	s.t.Helper()
	for _, l := range s.log[max(0, len(s.log)-30):] {
		s.t.Log(l)
	}
	s.t.Fatalf(format, args...)
}

func (s *script) note(format string, args ...any) {
	if len(s.log) > 200 {
		s.log = append(s.log[:0], s.log[100:]...)
	}
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

func (s *script) kind() int {
	switch k := s.IntN(20); {
	case k < 15:
		return 0
	case k < 19:
		return 1
	}
	return 2 + s.IntN(3)
}

// names gives the handles of a range of blocks: by content, by a second name (kind 1), or by one of few that wander from
// content to content. None comes twice.
func (s *script) names(doc []uint64, from, to, kind int) []uint64 {
	path := uint64(frontPath)
	out, seen := []uint64{}, map[uint64]bool{}
	for i, l := range doc[:to] {
		path = pathOf(path, l)
		if i < from {
			continue
		}
		h := path
		if kind == 1 {
			h ^= 0xABCDEF
		} else if kind > 1 {
			h = 1000 + (path+uint64(kind))%50
		}
		if seen[h] {
			h = path ^ uint64(kind)<<32
		}
		seen[h] = true
		out = append(out, h)
	}
	return out
}

func (s *script) step() {
	if len(s.live) == 0 || len(s.live) < 20 && s.IntN(200) == 0 {
		counting := s.IntN(2) == 0
		h := s.x.Join(HolderOptions{CountCopies: counting, BlocksHint: s.IntN(2) * s.IntN(5000)})
		if s.model.holders[h] != nil {
			s.fail("Join gave %d twice", h)
		}
		s.note("join %d counting %v", h, counting)
		s.model.holders[h] = &naiveHolder{counting: counting, names: map[uint64]*naiveName{}, paths: map[uint64]*[Tiers]int{}}
		s.live = append(s.live, h)
	}
	k := s.IntN(len(s.live))
	h := s.live[k]
	n := s.model.holders[h]
	doc := s.docs[s.IntN(len(s.docs))]
	tier := Tier(s.IntN(s.tiers))
	switch op := s.IntN(1000); {
	case op < 2:
		s.note("leave %d", h)
		if err := s.x.Leave(h); err != nil {
			s.fail("%v", err)
		}
		delete(s.model.holders, h)
		s.live = append(s.live[:k], s.live[k+1:]...)
	case op < 5:
		s.note("clear %d", h)
		if err := s.x.Clear(h); err != nil {
			s.fail("%v", err)
		}
		n.names, n.paths = map[uint64]*naiveName{}, map[uint64]*[Tiers]int{}
	case op < 8:
		s.note("clear %d %v", h, tier)
		if err := s.x.ClearTier(h, tier); err != nil {
			s.fail("%v", err)
		}
		n.clearTier(tier)
	case op < 20:
		from := s.IntN(len(doc) + 1)
		s.note("drop %d doc %d from %d", h, len(doc), from)
		got, err := s.x.Drop(h, doc, from)
		if want := n.drop(doc, from); got != want || err != nil {
			s.fail("drop: %d blocks, model %d, %v", got, want, err)
		}
	case op < 24: // another replica, or the worker after a resync: the same blocks under a new number
		s.note("rejoin %d", h)
		snapshot, err := s.x.AppendSnapshot(nil, h)
		if err == nil && s.IntN(2) == 0 {
			err = s.x.Leave(h)
			delete(s.model.holders, h)
			h = s.x.Join(HolderOptions{CountCopies: n.counting})
			s.model.holders[h], s.live[k] = n, h
			n.partial = false
		}
		if err == nil {
			err = s.x.Load(h, snapshot)
		}
		if err != nil {
			s.fail("%v", err)
		}
	case op < 28:
		n.partial = s.IntN(2) == 0
		s.note("partial %d %v", h, n.partial)
		s.x.MarkPartial(h, n.partial)
	case op < 600:
		from := 0
		if s.IntN(3) > 0 {
			from = s.IntN(len(doc))
			if s.IntN(2) == 0 {
				from &^= 15
			}
		}
		to := min(len(doc), from+1+s.IntN(min(len(doc), 1<<uint(1+s.IntN(11)))))
		handles := s.names(doc, from, to, s.kind())
		var parent uint64
		if from > 0 {
			parent = s.names(doc, from-1, from, s.kind())[0]
		}
		s.note("store %d %v doc %d [%d:%d) parent %x handles %x", h, tier, len(doc), from, to, parent, handles[:min(4, len(handles))])
		got := s.x.Store(h, tier, parent, from > 0, handles, doc[from:to])
		want := n.store(tier, parent, from > 0, handles, doc[from:to])
		if (got == nil) != (want == nil) {
			s.fail("store: %v, model %v", got, want)
		}
	default:
		var handles []uint64
		kind := s.kind()
		from := s.IntN(len(doc))
		to := from + 1 + s.IntN(min(len(doc)-from, 1<<uint(s.IntN(10))))
		if s.IntN(2) == 0 {
			to = len(doc)
		}
		handles = s.names(doc, from, to, kind)
		switch s.IntN(4) {
		case 0:
			s.Shuffle(len(handles), func(i, j int) { handles[i], handles[j] = handles[j], handles[i] })
			handles = append(handles, handles[0])
		case 1:
		default:
			for i, j := 0, len(handles)-1; i < j; i, j = i+1, j-1 {
				handles[i], handles[j] = handles[j], handles[i]
			}
		}
		s.note("remove %d %v doc %d [%d:%d) %x", h, tier, len(doc), from, to, handles[:min(4, len(handles))])
		got, err := s.x.Remove(h, tier, handles)
		if want := n.remove(tier, handles); got != want || err != nil {
			s.fail("remove: %d unknown, model %d, %v", got, want, err)
		}
	}
	if n := s.model.holders[h]; n != nil && (s.x.HeldBlocks(h) != len(n.names) || s.x.Partial(h) != n.partial) {
		s.fail("holder %d has %d blocks, partial %v; model %d, %v", h, s.x.HeldBlocks(h), s.x.Partial(h), len(n.names), n.partial)
	}
}

func (s *script) check(doc []uint64) {
	q := doc
	if s.IntN(4) == 0 {
		q = append(append([]uint64{}, doc[:s.IntN(len(doc)+1)]...), s.Uint64())
	}
	s.x.Match(q, &s.m)
	longest, found := 0, 0
	for _, h := range s.live {
		want := s.model.holders[h].match(q)
		want.Holder = h
		longest = max(longest, int(want.Blocks))
		got := Match{Holder: h}
		for _, r := range s.m.Holders {
			if r.Holder == h {
				got = r
				found++
			}
		}
		if got != want {
			s.fail("lookup of %d blocks, holder %d: %+v, model %+v", len(q), h, got, want)
		}
	}
	if s.m.Longest != longest || found != len(s.m.Holders) {
		s.fail("longest %d, model %d; %d rows, %d known", s.m.Longest, longest, len(s.m.Holders), found)
	}
}

// finish empties the index and looks for anything left behind.
func (s *script) finish() {
	audit(s.t, s.x)
	for _, h := range s.live {
		n := s.model.holders[h]
		if s.IntN(2) == 0 {
			s.x.Leave(h)
			delete(s.model.holders, h)
			continue
		}
		for t := range Tier(Tiers) {
			for {
				var handles []uint64
				for handle, name := range n.names {
					if name.held[t] > 0 {
						handles = append(handles, handle)
					}
				}
				if len(handles) == 0 {
					break
				}
				got, _ := s.x.Remove(h, t, handles)
				if want := n.remove(t, handles); got != want {
					s.fail("last removal: %d unknown, model %d", got, want)
				}
			}
		}
	}
	st := s.x.Stats()
	if st.Stems != 0 || st.Blocks != 0 {
		s.fail("left behind: %+v", st)
	}
	audit(s.t, s.x)
}

// TestModel runs some thousand random calls; with SIGHTLINE_LONG=1, millions.
func TestModel(t *testing.T) {
	seeds, steps := uint64(24), 400
	if os.Getenv("SIGHTLINE_LONG") != "" {
		seeds, steps = 600, 5000
	}
	for seed := range seeds {
		s := newScript(t, seed)
		for range steps {
			s.step()
			s.check(s.docs[s.IntN(len(s.docs))])
		}
		s.finish()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}
