package indexer

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// naive is the reference index: each slot is a map from engine hash to content and tiers, content is a hash of the whole path,
// and a lookup asks for each block in turn. The model checker runs it beside the real one.
type naive struct {
	slots map[SlotID]*naiveSlot
}

type naiveSlot struct {
	counting bool
	partial  bool // its worker may hold more than the events said: neither a clear nor the blocks of a resync change that
	names    map[uint64]*naiveBlock
	paths    map[uint64]*[Tiers]int // number of blocks at each path, by tier
	parents  map[uint64]uint64      // of each path
}

type naiveBlock struct {
	path     uint64
	held     [Tiers]int
	doubtful bool
}

func pathOf(parent, local uint64) uint64 { return mix(local, mix(parent, 99)) }

const frontPath = 12345

func (n *naiveSlot) forget(engineHash uint64) {
	for t, c := range n.names[engineHash].held {
		if c > 0 {
			n.paths[n.names[engineHash].path][t]--
		}
	}
	delete(n.names, engineHash)
}

func (n *naiveSlot) store(tier Tier, parent uint64, hasParent bool, engineHashes, locals []uint64) error {
	path := uint64(frontPath)
	if hasParent {
		if slices.Contains(engineHashes, parent) {
			return ErrOwnParent
		}
		p := n.names[parent]
		if p == nil {
			return ErrUnknownParent
		}
		path = p.path
	}
	for i, h := range engineHashes {
		n.parents[pathOf(path, locals[i])] = path
		path = pathOf(path, locals[i])
		if old := n.names[h]; old != nil && old.path != path {
			n.forget(h)
		}
		name := n.names[h]
		if name == nil {
			name = &naiveBlock{path: path}
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

func (n *naiveSlot) remove(tier Tier, engineHashes []uint64) (unknown int) {
	for _, h := range engineHashes {
		name := n.names[h]
		if name == nil || name.held[tier] == 0 {
			unknown++
			continue
		}
		name.held[tier]--
		if name.held[tier] == 0 {
			n.paths[name.path][tier]--
		}
		if name.held == [Tiers]int{} {
			delete(n.names, h)
		}
	}
	return unknown
}

func (n *naiveSlot) drop(locals []uint64, from int) (dropped int) {
	path := uint64(frontPath)
	paths := map[uint64]bool{}
	for i, l := range locals {
		path = pathOf(path, l)
		if i >= from {
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

// doubt puts some blocks in doubt, or all; the others are not.
func (n *naiveSlot) doubt(engineHashes []uint64) {
	for h, name := range n.names {
		name.doubtful = len(engineHashes) == 0 || slices.Contains(engineHashes, h)
		for t, c := range name.held {
			name.held[t] = min(c, 1)
		}
	}
}

func (n *naiveSlot) doubtful() (list []uint64) {
	for h, name := range n.names {
		if name.doubtful {
			list = append(list, h)
		}
	}
	return list
}

func (n *naiveSlot) confirm(engineHash uint64) (confirmed int) {
	name := n.names[engineHash]
	if name == nil || !name.doubtful {
		return 0
	}
	name.doubtful = false
	at := map[uint64][]*naiveBlock{}
	for _, b := range n.names {
		at[b.path] = append(at[b.path], b)
	}
	confirmed = 1
	for path := n.parents[name.path]; path != frontPath; path = n.parents[path] {
		here := at[path]
		if len(here) == 0 || slices.ContainsFunc(here, func(b *naiveBlock) bool { return !b.doubtful }) {
			break
		}
		if len(here) == 1 {
			here[0].doubtful = false
			confirmed++
		}
	}
	return confirmed
}

// match returns how many leading blocks are held, and how many of them on the GPU.
func (n *naiveSlot) match(locals []uint64) (m Match, gpu uint32) {
	path := uint64(frontPath)
	for _, l := range locals {
		path = pathOf(path, l)
		if held := n.paths[path]; held == nil || *held == [Tiers]int{} {
			break
		} else if held[GPU] > 0 && gpu == m.Blocks {
			gpu++
		}
		m.Blocks++
	}
	return m, gpu
}

// script drives both indexes with the same random calls.
type script struct {
	*rand.Rand
	t     *testing.T
	x     *Index
	model naive
	live  []SlotID
	docs  [][]uint64
	m     Matches
	tiers int
	crowd int // number of slots that hold a common beginning of all documents
	log   []string
}

func newScript(t *testing.T, seed uint64) *script {
	s := &script{Rand: rand.New(rand.NewPCG(seed, 7)), t: t, x: New(Options{}), model: naive{map[SlotID]*naiveSlot{}}}
	s.tiers = 1 + s.IntN(2)*s.IntN(Tiers)
	long := 40
	switch s.IntN(8) {
	case 0:
		long = 6000 // more than one node
	case 1, 2:
		long = 400
	}
	var front []uint64
	if seed%8 == 0 { // a common beginning of all documents, and many slots that hold it
		for range 1 + s.IntN(60) {
			front = append(front, s.Uint64())
		}
		s.crowd = 200 + s.IntN(1500)
	}
	for range 4 + s.IntN(12) { // documents that share their beginning with earlier ones
		d := slices.Clone(front)
		if n := len(s.docs); n > 0 && s.IntN(4) > 0 {
			from := s.docs[s.IntN(n)]
			d = append(d, from[:s.IntN(len(from)+1)]...)
		}
		for n := len(front) + 1 + s.IntN(long); len(d) < n || len(d) == 0; {
			d = append(d, s.Uint64N(1<<uint(1+s.IntN(40))))
		}
		s.docs = append(s.docs, d)
	}
	for range s.crowd {
		s.join()
		id := s.live[len(s.live)-1]
		engineHashes := s.names(front, 0, len(front), 0)
		s.x.Store(id, GPU, 0, false, engineHashes, front)
		s.model.slots[id].store(GPU, 0, false, engineHashes, front)
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

// names returns the engine hashes of a range of blocks: by content, by a second name (kind 1), or one of a few that move from
// content to content. None is repeated.
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

func (s *script) join() {
	counting := s.IntN(2) == 0
	id := s.x.Join(SlotOptions{CountCopies: counting})
	if s.model.slots[id] != nil {
		s.fail("Join gave %d twice", id)
	}
	s.note("join %d counting %v", id, counting)
	s.model.slots[id] = &naiveSlot{counting: counting, names: map[uint64]*naiveBlock{}, paths: map[uint64]*[Tiers]int{},
		parents: map[uint64]uint64{}}
	s.live = append(s.live, id)
}

func (s *script) step() {
	if len(s.live) == 0 || len(s.live) < 20+s.crowd && s.IntN(200) == 0 {
		s.join()
	}
	k := s.IntN(len(s.live))
	if s.crowd > 0 && s.IntN(4) > 0 { // most of these slots end there
		k = s.IntN(min(len(s.live), 20))
	}
	id := s.live[k]
	n := s.model.slots[id]
	doc := s.docs[s.IntN(len(s.docs))]
	tier := Tier(s.IntN(s.tiers))
	switch op := s.IntN(1000); {
	case op < 2:
		s.note("leave %d", id)
		if err := s.x.Leave(id); err != nil {
			s.fail("%v", err)
		}
		delete(s.model.slots, id)
		s.live = append(s.live[:k], s.live[k+1:]...)
	case op < 5:
		s.note("clear %d", id)
		if err := s.x.Clear(id); err != nil {
			s.fail("%v", err)
		}
		n.names, n.paths = map[uint64]*naiveBlock{}, map[uint64]*[Tiers]int{}
	case op < 20:
		from := s.IntN(len(doc) + 1)
		s.note("drop %d doc %d from %d", id, len(doc), from)
		got, err := s.x.Drop(id, doc, from, s.x.Stores(id))
		if want := n.drop(doc, from); got != want || err != nil {
			s.fail("drop: %d blocks, model %d, %v", got, want, err)
		}
	case op < 24: // another replica, or the worker after a resync: the same blocks under a new number
		s.note("rejoin %d", id)
		list, err := s.x.Blocks(id)
		if err == nil && s.IntN(2) == 0 {
			err = s.x.Leave(id)
			delete(s.model.slots, id)
			id = s.x.Join(SlotOptions{CountCopies: n.counting})
			s.model.slots[id], s.live[k] = n, id
			n.partial = false
		}
		if err == nil {
			err = rebuild(s.x, id, list)
		}
		for _, name := range n.names {
			name.doubtful = false
		}
		if err != nil {
			s.fail("%v", err)
		}
	case op < 28:
		n.partial = s.IntN(2) == 0
		s.note("partial %d %v", id, n.partial)
		s.x.Mark(id, n.partial, false)
	case op < 34:
		var only []uint64
		if s.IntN(3) == 0 {
			only = s.names(doc, 0, 1+s.IntN(len(doc)), s.kind())
		}
		s.note("doubt %d %x", id, only[:min(4, len(only))])
		s.x.Doubt(id, only)
		n.doubt(only)
	case op < 90:
		at := s.IntN(len(doc))
		h := s.names(doc, at, at+1, s.kind())[0]
		s.note("confirm %d doc %d at %d %x", id, len(doc), at, h)
		if got, want := s.x.Confirm(id, h), n.confirm(h); got != want {
			s.fail("confirm: %d blocks, model %d", got, want)
		}
	case op < 110:
		from := s.IntN(len(doc))
		list := s.names(doc, from, from+1+s.IntN(len(doc)-from), s.kind())
		s.note("drop doubtful %d doc %d from %d", id, len(doc), from)
		var want []uint64
		for _, h := range list {
			if name := n.names[h]; name != nil && name.doubtful {
				n.forget(h)
				want = append(want, h)
			}
		}
		if got := s.x.DropDoubtful(id, list); !slices.Equal(got, want) {
			s.fail("drop doubtful: %x, model %x", got, want)
		}
	case op < 600:
		from := 0
		if s.IntN(3) > 0 {
			from = s.IntN(len(doc))
			if s.IntN(2) == 0 {
				from &^= 15
			}
		}
		to := min(len(doc), from+1+s.IntN(min(len(doc), 1<<uint(1+s.IntN(11)))))
		engineHashes := s.names(doc, from, to, s.kind())
		var parent uint64
		if from > 0 {
			parent = s.names(doc, from-1, from, s.kind())[0]
		}
		s.note("store %d %v doc %d [%d:%d) parent %x engine hashes %x", id, tier, len(doc), from, to, parent,
			engineHashes[:min(4, len(engineHashes))])
		got := s.x.Store(id, tier, parent, from > 0, engineHashes, doc[from:to])
		want := n.store(tier, parent, from > 0, engineHashes, doc[from:to])
		if (got == nil) != (want == nil) {
			s.fail("store: %v, model %v", got, want)
		}
	default:
		var engineHashes []uint64
		kind := s.kind()
		from := s.IntN(len(doc))
		to := from + 1 + s.IntN(min(len(doc)-from, 1<<uint(s.IntN(10))))
		if s.IntN(2) == 0 {
			to = len(doc)
		}
		engineHashes = s.names(doc, from, to, kind)
		switch s.IntN(4) {
		case 0:
			s.Shuffle(len(engineHashes), func(i, j int) { engineHashes[i], engineHashes[j] = engineHashes[j], engineHashes[i] })
			engineHashes = append(engineHashes, engineHashes[0])
		case 1:
		default:
			for i, j := 0, len(engineHashes)-1; i < j; i, j = i+1, j-1 {
				engineHashes[i], engineHashes[j] = engineHashes[j], engineHashes[i]
			}
		}
		s.note("remove %d %v doc %d [%d:%d) %x", id, tier, len(doc), from, to, engineHashes[:min(4, len(engineHashes))])
		got, err := s.x.Remove(id, tier, engineHashes)
		if want := n.remove(tier, engineHashes); got != want || err != nil {
			s.fail("remove: %d unknown, model %d, %v", got, want, err)
		}
	}
	if n := s.model.slots[id]; n != nil && (s.x.HeldBlocks(id) != len(n.names) || s.x.Partial(id) != n.partial) {
		s.fail("slot %d has %d blocks, partial %v; model %d, %v", id, s.x.HeldBlocks(id), s.x.Partial(id), len(n.names), n.partial)
	}
	if n := s.model.slots[id]; n != nil {
		want := n.doubtful()
		if got := s.x.InDoubt(id); got != len(want) {
			s.fail("slot %d has %d blocks in doubt, model %d", id, got, len(want))
		}
		if s.IntN(20) == 0 {
			got := s.x.Doubtful(id)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				s.fail("slot %d: in doubt %x, model %x", id, got, want)
			}
		}
	}
}

// rebuild makes a slot hold what a listing says.
func rebuild(x *Index, id SlotID, list []Block) error {
	if err := x.Clear(id); err != nil {
		return err
	}
	for e := range Events(list) {
		if e.Kind == kvevent.Removed {
			if unknown, err := x.Remove(id, e.Tier, e.EngineHashes); unknown > 0 || err != nil {
				return fmt.Errorf("%d unknown, %w", unknown, err)
			}
		} else if err := x.Store(id, e.Tier, e.Parent, e.HasParent, e.EngineHashes, e.Locals); err != nil {
			return err
		}
	}
	return nil
}

func (s *script) check(doc []uint64) {
	if s.crowd > 0 && s.IntN(8) > 0 {
		return // slow: the model asks every slot
	}
	q := doc
	if s.IntN(4) == 0 {
		q = append(append([]uint64{}, doc[:s.IntN(len(doc)+1)]...), s.Uint64())
	}
	s.x.Match(q, &s.m)
	longest, found := 0, 0
	for _, id := range s.live {
		want, gpu := s.model.slots[id].match(q)
		want.Slot = id
		longest = max(longest, int(want.Blocks))
		got := Match{Slot: id}
		if i, ok := slices.BinarySearchFunc(s.m.Slots, id, Match.bySlot); ok {
			got = s.m.Slots[i]
			found++
		}
		if on := s.m.OnGPU(got); got != want || on != gpu {
			s.fail("lookup of %d blocks, slot %d: %+v, %d on the GPU, model %+v, %d", len(q), id, got, on, want, gpu)
		}
	}
	if s.m.Longest != longest || found != len(s.m.Slots) {
		s.fail("longest %d, model %d; %d rows, %d known", s.m.Longest, longest, len(s.m.Slots), found)
	}
}

// finish empties the index and checks that nothing is left.
func (s *script) finish() {
	audit(s.t, s.x)
	for _, id := range s.live {
		n := s.model.slots[id]
		if s.IntN(2) == 0 {
			s.x.Leave(id)
			delete(s.model.slots, id)
			continue
		}
		for t := range Tier(Tiers) {
			for {
				var engineHashes []uint64
				for engineHash, name := range n.names {
					if name.held[t] > 0 {
						engineHashes = append(engineHashes, engineHash)
					}
				}
				if len(engineHashes) == 0 {
					break
				}
				got, _ := s.x.Remove(id, t, engineHashes)
				if want := n.remove(t, engineHashes); got != want {
					s.fail("last removal: %d unknown, model %d", got, want)
				}
			}
		}
	}
	st := s.x.Stats()
	if st.Nodes != 0 || st.Blocks != 0 {
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
