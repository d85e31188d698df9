package bus

// What the worker holds, as its agent knows it, to be told to routers that ask.

import (
	"fmt"
	"slices"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/event"
)

// mirror is one worker-rank's blocks by handle: plain maps, some 100 bytes a block, because an agent has one worker and
// nobody looks anything up in it. A block that is gone but has children stays as a hole: storing it again heals it.
type mirror struct {
	blocks map[uint64]known
}

type known struct {
	local, parent uint64
	hasParent     bool
	size          int32
	children      int32
	copies        [event.Tiers]uint8
}

func (k *known) held() bool { return k.copies != [event.Tiers]uint8{} }

func (m *mirror) store(e *event.Event) error {
	if e.HasParent {
		if p, ok := m.blocks[e.Parent]; !ok || !p.held() {
			return fmt.Errorf("%w: handle %#x", indexer.ErrUnknownParent, e.Parent)
		}
		if slices.Contains(e.Handles, e.Parent) {
			return fmt.Errorf("%w: handle %#x", indexer.ErrOwnParent, e.Parent)
		}
	}
	parent, has := e.Parent, e.HasParent
	for i, h := range e.Handles {
		k, ok := m.blocks[h]
		if ok && (k.local != e.Locals[i] || k.parent != parent || k.hasParent != has) {
			m.moved(h)
			k, ok = known{}, false
		}
		if !ok {
			k.local, k.parent, k.hasParent, k.size = e.Locals[i], parent, has, int32(e.BlockSize)
			m.child(k, 1)
		}
		if k.copies[e.Tier] < 255 {
			k.copies[e.Tier]++
		}
		m.blocks[h] = k
		parent, has = h, true
	}
	return nil
}

// child counts a block with its parent.
func (m *mirror) child(k known, n int32) {
	if !k.hasParent {
		return
	}
	if p, ok := m.blocks[k.parent]; ok {
		p.children += n
		m.blocks[k.parent] = p
	}
}

// moved forgets a block whose handle has come back for other content, and all behind it: where those lie could not be
// told any more. A chained hash never does this, so it may cost a scan of everything.
func (m *mirror) moved(h uint64) {
	behind := []uint64{h}
	for i := 0; i < len(behind); i++ {
		for c, k := range m.blocks {
			if k.hasParent && k.parent == behind[i] {
				behind = append(behind, c)
			}
		}
	}
	for _, h := range slices.Backward(behind) {
		if _, ok := m.blocks[h]; ok {
			m.drop(h)
		}
	}
}

// drop forgets a block, and the holes above it that it was the last child of.
func (m *mirror) drop(h uint64) {
	for {
		k := m.blocks[h]
		delete(m.blocks, h)
		m.child(k, -1)
		p, ok := m.blocks[k.parent]
		if !k.hasParent || !ok || p.held() || p.children > 0 {
			return
		}
		h = k.parent
	}
}

func (m *mirror) remove(tier event.Tier, h uint64) bool {
	k, ok := m.blocks[h]
	if !ok || k.copies[tier] == 0 {
		return false
	}
	k.copies[tier]--
	m.blocks[h] = k
	if !k.held() && k.children == 0 {
		m.drop(h)
	}
	return true
}

// snapshot appends events that build the mirror: a clear, every chain from its front, further copies, and removals of
// the holes.
func (m *mirror) snapshot(b []byte) []byte {
	b = appendEvent(b, &event.Event{Kind: event.Cleared}, false)
	type start struct {
		handle    uint64
		hasParent bool
	}
	children := make(map[uint64][]uint64, len(m.blocks))
	var open []start
	var holes []uint64
	var extra []event.Event
	for h, k := range m.blocks {
		_, parent := m.blocks[k.parent]
		if k.hasParent && parent {
			children[k.parent] = append(children[k.parent], h)
		} else if !k.hasParent {
			open = append(open, start{h, false})
		}
	}
	var e event.Event
	for len(open) > 0 {
		s := open[len(open)-1]
		open = open[:len(open)-1]
		first := m.blocks[s.handle]
		e = event.Event{Tier: first.tier(), HasParent: s.hasParent, Parent: first.parent, BlockSize: int(first.size), Handles: e.Handles[:0], Locals: e.Locals[:0]}
		for h := s.handle; ; {
			k := m.blocks[h]
			e.Handles, e.Locals = append(e.Handles, h), append(e.Locals, k.local)
			if !k.held() {
				holes = append(holes, h)
			}
			extra = k.furtherCopies(extra, h, e.Tier)
			kids := children[h]
			for _, c := range kids[min(1, len(kids)):] {
				open = append(open, start{c, true})
			}
			if len(kids) == 0 {
				break
			}
			if next := m.blocks[kids[0]]; next.tier() != e.Tier || next.size != k.size {
				open = append(open, start{kids[0], true})
				break
			}
			h = kids[0]
		}
		b = appendEvent(b, &e, false)
	}
	for i := range extra {
		b = appendEvent(b, &extra[i], false)
	}
	if len(holes) > 0 {
		b = appendEvent(b, &event.Event{Kind: event.Removed, Handles: holes}, false)
	}
	return b
}

// tier is the best tier of a block; that of a hole is GPU, from where the snapshot removes it again.
func (k *known) tier() event.Tier {
	for t := range event.Tier(event.Tiers) {
		if k.copies[t] > 0 {
			return t
		}
	}
	return event.GPU
}

// furtherCopies appends what a block has beyond one copy in tier.
func (k known) furtherCopies(extra []event.Event, h uint64, tier event.Tier) []event.Event {
	for t, n := range k.copies {
		if event.Tier(t) == tier && n > 0 {
			n--
		}
		for range n {
			extra = append(extra, event.Event{Tier: event.Tier(t), HasParent: k.hasParent, Parent: k.parent, BlockSize: int(k.size),
				Handles: []uint64{h}, Locals: []uint64{k.local}})
		}
	}
	return extra
}
