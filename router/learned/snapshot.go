package learned

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/sightline-router/sightline/internal/binread"
)

// A snapshot has what a Memory remembers, for another replica's, what was used last first:
//
//	node …: parent+1, as the number of a node before it; or 0, class u32
//	        | steps: n, u16 … | end, 16 bytes | from | own: n, u64 … | common+1 | weight
//	        | flags; with 1: from | own: n, u64 … | tokens
//
// Numbers without a type are varints.

const (
	hasEnding byte = 1 << iota
	endingGuess
	nodeGuess
	nodeUnsure
)

const fewSince = 64 // lessons that are taught while others wait

// MaxTokens is the longest prompt that is learned.
const MaxTokens = 1 << 28

var errSnapshot = errors.New("a snapshot that cannot be read")

// Snapshot returns what the memory remembers, in at most the given number of bytes.
func (m *Memory) Snapshot(most int) []byte {
	list, parents, classes := m.copy(most)
	b := []byte{}
	for i := range list {
		n, before := &list[i], len(b)
		b = binary.AppendUvarint(b, uint64(parents[i]+1))
		if parents[i] < 0 {
			b = binary.LittleEndian.AppendUint32(b, classes[n.parent])
		}
		b = binary.AppendUvarint(b, uint64(len(n.steps)))
		for _, s := range n.steps {
			b = binary.LittleEndian.AppendUint16(b, s)
		}
		b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, n.end[0]), n.end[1])
		b = appendChain(b, n.from, n.own)
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(n.common+1)), uint64(n.weight))
		flags := byte(0)
		if n.guess {
			flags |= nodeGuess
		}
		if n.unsure(nil) {
			flags |= nodeUnsure
		}
		if e := n.ending; e == nil {
			b = append(b, flags)
		} else {
			if e.guess {
				flags |= endingGuess
			}
			b = appendChain(append(b, flags|hasEnding), min(e.from, e.held), e.own[:max(0, e.held-e.from)])
			b = binary.AppendUvarint(b, uint64(e.tokens))
		}
		if len(b) > most {
			return b[:before]
		}
	}
	return b
}

func appendChain(b []byte, from int32, own []uint64) []byte {
	b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(from)), uint64(len(own)))
	for _, h := range own {
		b = binary.LittleEndian.AppendUint64(b, h)
	}
	return b
}

// copy returns the memory's nodes, each behind its parent, and the parents' numbers; -1: a class. What a node's slices hold never
// changes, so the lock is held for a copy of the nodes alone: 30 to 80 ms for a full memory of 64 MiB on a busy machine.
func (m *Memory) copy(most int) (list []node, parents []int, classes map[*node]uint32) {
	nodes := m.Stats().Nodes
	list, parents = make([]node, 0, nodes), make([]int, 0, nodes)
	m.mu.Lock()
	defer m.mu.Unlock()
	classes = make(map[*node]uint32, len(m.roots))
	for class, root := range m.roots {
		classes[&root.node] = class
	}
	number := make(map[*node]int) // of those with children: a leaf is met once
	var above []*node
	for leaf, bytes := m.ring.prev, 0; leaf != &m.ring && bytes < 2*most; leaf = leaf.prev {
		above = append(above[:0], leaf)
		for n := leaf.parent; n.parent != nil; n = n.parent {
			if _, has := number[n]; has {
				break
			}
			above = append(above, n)
		}
		for i := len(above) - 1; i >= 0; i-- {
			n, parent := above[i], -1
			if n.parent.parent != nil {
				parent = number[n.parent]
			}
			if n.children > 0 {
				number[n] = len(list)
			}
			list, parents, bytes = append(list, *n), append(parents, parent), bytes+n.bytes()
		}
	}
	return list, parents, classes
}

// Load replaces what is remembered by a snapshot, as far as it has room, and by what was taught since Await, which it ends. A snapshot
// that is not one changes nothing.
func (m *Memory) Load(snapshot []byte) error {
	fresh := NewMemory(m.most, m.sizes)
	if err := fresh.load(snapshot); err != nil {
		return err
	}
	m.mu.Lock()
	for len(m.since) > fewSince { // decisions wait for the lock: what has come since then is less each time
		list := m.since
		m.since, m.steps = nil, 0
		m.mu.Unlock()
		for i := range list {
			fresh.teach(&list[i])
		}
		m.mu.Lock()
	}
	defer m.mu.Unlock()
	if !m.awaiting {
		return errors.New("too much was learned before the snapshot came")
	}
	m.nodes, m.roots = fresh.nodes, fresh.roots
	m.stats.Nodes, m.stats.Bytes = fresh.stats.Nodes, fresh.stats.Bytes
	m.stats.Forgotten += fresh.stats.Forgotten
	oldest, newest := fresh.ring.next, fresh.ring.prev
	m.ring.prev, m.ring.next = &m.ring, &m.ring
	if oldest != &fresh.ring {
		m.ring.next, oldest.prev = oldest, &m.ring
		m.ring.prev, newest.next = newest, &m.ring
	}
	for i := range m.since {
		m.teach(&m.since[i])
	}
	m.awaiting, m.since, m.steps = false, nil, 0
	return nil
}

func (m *Memory) load(snapshot []byte) error {
	r := &snapshotReader{binread.Reader{B: snapshot}}
	type place struct {
		*node
		depth int // steps up to its end
	}
	var list []place
	for len(r.B) > 0 && m.stats.Bytes < m.most {
		at := place{node: &node{}}
		number := r.Number(len(list))
		if number == 0 {
			class := r.Uint32()
			root := m.root(class)
			if root == nil {
				return fmt.Errorf("%w: it has more than %d classes", errSnapshot, maxClasses)
			}
			at.parent = &root.node
		} else {
			at.parent, at.depth = list[number-1].node, list[number-1].depth
		}
		r.node(at.node)
		at.depth += len(at.steps)
		if r.Err != nil || at.depth > MaxSteps {
			return fmt.Errorf("%w: node %d is cut off or beyond its bounds", errSnapshot, len(list))
		}
		as := edge{at.parent, at.steps[0]}
		if m.nodes[as] != nil {
			return fmt.Errorf("%w: two nodes begin alike", errSnapshot)
		}
		m.nodes[as] = at.node
		at.parent.children++
		m.stats.Nodes++
		m.stats.Bytes += at.bytes()
		list = append(list, at)
	}
	for _, n := range list {
		if n.children == 0 {
			n.link(&m.ring)
		}
	}
	return nil
}

type snapshotReader struct{ binread.Reader }

// node reads what follows a node's parent.
func (r *snapshotReader) node(n *node) {
	n.steps = make([]uint16, r.Count(MaxSteps, 2))
	for i := range n.steps {
		n.steps[i] = r.Uint16()
	}
	if len(n.steps) == 0 {
		r.Fail(errSnapshot)
	}
	n.end[0], n.end[1] = r.Word(), r.Word()
	n.from, n.own = r.chain(n.parent.length())
	n.common = int32(r.Number(n.length()+1)) - 1
	n.weight = int32(r.Number(1 << 30))
	flags := r.Byte()
	n.guess = flags&nodeGuess != 0
	if flags&nodeUnsure != 0 {
		n.span = 512
	}
	if flags&hasEnding == 0 {
		return
	}
	e := &ending{guess: flags&endingGuess != 0}
	e.from, e.own = r.chain(n.length())
	e.held = int32(e.length())
	e.tokens = int32(r.Number(MaxTokens))
	n.ending = e
}

// chain reads blocks behind the first of a chain of some blocks.
func (r *snapshotReader) chain(before int) (from int32, own []uint64) {
	from = int32(r.Number(before))
	if n := r.Count(MaxBlocks-int(from), 8); n > 0 {
		own = r.Words(n)
	}
	return from, own
}
