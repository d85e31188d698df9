package learned

import "sync"

// Memory remembers which blocks the engines made of the beginnings of requests. It is a tree of paths; a node is where a request ended
// or where two requests parted. Of each node it knows the leading blocks of all prompts that begin so:
//
//	a request ended here       all blocks of its prompt, and those of the answer if an answer follows
//	two requests parted here   what their blocks have in common
//	a request passed through   not known: an estimate by its share of the steps
//
// Blocks that two prompts share are stored once. A memory is bounded in bytes, and forgets what was not used for longest. It is safe for
// concurrent use.
type Memory struct {
	mu    sync.Mutex
	most  int
	nodes map[edge]*node
	roots map[uint32]*node // by class
	ring  node             // of all leaves by their last use, the oldest at next
	stats Stats
}

// Stats are what a memory holds and has done.
type Stats struct {
	Nodes, Bytes int
	Taught       uint64 // requests
	Forgotten    uint64 // nodes that were dropped for lack of room
	Lowered      uint64 // times that a later prompt had fewer blocks than were learned
}

// edge leads to a node: its parent, and the low bits of its first step's number.
type edge struct {
	from *node
	step uint16
}

// node is a run of steps that no remembered path leaves. It ends where a path ended, or where two parted.
type node struct {
	parent     *node
	prev, next *node     // in ring, if it is a leaf
	end        [2]uint64 // the last step's number
	steps      []uint16  // low bits of each step's number
	own        []uint64  // the node's chain: the first from blocks of the parent's, and these
	from       int32
	common     int32 // blocks of the chain that all paths through the node have; -1 while no second one has passed
	prompt     int32 // blocks of the chain that are of a prompt which ended here; -1: none did
	tokens     int32 // of that prompt
	children   int32
}

const nodeBytes = 192 // with its entry in nodes

func (n *node) bytes() int { return nodeBytes + 2*len(n.steps) + 8*len(n.own) }

// length returns how many blocks the node's chain has.
func (n *node) length() int { return int(n.from) + len(n.own) }

// NewMemory returns an empty memory of at most so many bytes.
func NewMemory(most int) *Memory {
	m := &Memory{most: most}
	m.Clear()
	return m
}

// Clear forgets everything.
func (m *Memory) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes, m.roots = make(map[edge]*node), make(map[uint32]*node)
	m.ring.prev, m.ring.next = &m.ring, &m.ring
	m.stats.Nodes, m.stats.Bytes = 0, 0
}

// Stats returns what the memory holds and has done.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

// Prompt is what a memory knows about a request's prompt.
type Prompt struct {
	Blocks  []uint64 // local hashes of its leading blocks
	Learned int      // how many of them are certain
	Tokens  int      // of the prompt, if this very request was seen before; else 0
	// Estimate: the request goes on for some time as another one did, so that more than Learned may be in its prompt, and Blocks is an
	// estimate.
	Estimate bool
}

// Recall sets out to what is known of a request's prompt, for engines of a class. It reuses out.Blocks.
func (m *Memory) Recall(class uint32, p *Path, out *Prompt) {
	*out = Prompt{Blocks: out.Blocks[:0]}
	m.mu.Lock()
	defer m.mu.Unlock()
	last, at := m.roots[class], 0
	if last == nil {
		return
	}
	for at < len(p.Steps) {
		n, equal := m.follow(last, p.Steps[at:])
		if equal == 0 {
			break
		}
		if equal < len(n.steps) {
			m.estimate(n, equal, last.certain(p.Steps[at:]), out)
			m.use(n)
			return
		}
		last, at = n, at+equal
	}
	out.Learned = last.certain(p.Steps[at:])
	out.Blocks = last.chain(out.Blocks, out.Learned)
	if at == len(p.Steps) {
		out.Tokens, out.Estimate = int(last.tokens), last.prompt < 0
	}
	m.use(last)
}

// follow finds the node that begins with the first of some steps behind another, and how many of its steps are these; 0: there is none.
func (m *Memory) follow(from *node, steps []Step) (n *node, equal int) {
	if n = m.nodes[edge{from, low(steps[0])}]; n == nil {
		return nil, 0
	}
	most := min(len(n.steps), len(steps))
	for equal < most && n.steps[equal] == low(steps[equal]) {
		equal++
	}
	if equal == len(n.steps) && steps[equal-1].Number != n.end {
		equal-- // only low bits are kept of the steps before the last
	}
	return n, equal
}

func low(s Step) uint16 { return uint16(s.Number[1]) }

// certain returns how many blocks of the node's chain a path has that goes on with some steps behind the node.
func (n *node) certain(rest []Step) int {
	switch {
	case len(rest) == 0 && n.prompt >= 0:
		return int(n.prompt)
	case n.common >= 0:
		return int(n.common)
	case n.prompt < 0:
		return 0
	case rest[0].Answer:
		return n.length() // the answer is in the prompt that follows it
	}
	return max(int(n.prompt)-1, 0) // what asks for an answer, at the prompt's end, is not in one that goes on without
}

// estimate sets out for a path that leaves the node after some of its steps, and has certain blocks of what is before it.
func (m *Memory) estimate(n *node, equal, certain int, out *Prompt) {
	reach := int(max(n.common, n.prompt))
	if n.prompt < 0 && n.common < 0 {
		reach = n.length()
	}
	out.Estimate = true
	likely := int(n.from) + max(0, reach-int(n.from))*equal/len(n.steps)
	if likely <= certain {
		out.Blocks = n.parent.chain(out.Blocks, certain)
		out.Learned = certain
		return
	}
	out.Blocks = n.chain(out.Blocks, likely)
	out.Learned = min(certain, int(n.from))
}

// chain appends the first blocks of the node's chain to dst.
func (n *node) chain(dst []uint64, blocks int) []uint64 {
	at := len(dst)
	dst = append(dst, make([]uint64, blocks)...)
	for out := dst[at:]; len(out) > 0; n = n.parent {
		if from := int(n.from); len(out) > from {
			copy(out[from:], n.own)
			out = out[:from]
		}
	}
	return dst
}

// Taught is a prompt that an engine made of a request.
type Taught struct {
	Chain  []uint64 // local hashes of its leading blocks, and of the answer's behind them
	Prompt int      // how many of them are of the prompt; -1: not known
	Tokens int      // of the prompt
}

// Teach records what an engine of a class made of a request. It keeps neither p nor t.
func (m *Memory) Teach(class uint32, p *Path, t Taught) {
	if len(p.Steps) == 0 || len(t.Chain) == 0 {
		return
	}
	t.Prompt = min(t.Prompt, len(t.Chain))
	m.mu.Lock()
	defer m.mu.Unlock()
	m.stats.Taught++
	last := m.roots[class]
	if last == nil {
		last = &node{common: -1, prompt: -1}
		m.roots[class] = last
	}
	same := 0 // leading blocks of last's chain that the prompt has
	for at := 0; at < len(p.Steps); {
		n, equal := m.follow(last, p.Steps[at:])
		if n != nil && equal == 0 {
			return // another path has the edge: one in 65,536
		}
		if n == nil {
			n, equal = m.add(last, p.Steps[at:], same, t.Chain), len(p.Steps)-at
		} else if equal < len(n.steps) {
			n = m.split(n, equal, p.Steps[at+equal-1].Number)
		}
		same = n.shared(t.Chain, same)
		if last, at = n, at+equal; at < len(p.Steps) {
			m.agree(last, same)
		}
	}
	m.endAt(last, same, t)
	m.use(last)
	m.forget(last)
}

// shared returns how many leading blocks of the node's chain a prompt has that has the first before of the parent's.
func (n *node) shared(chain []uint64, before int) int {
	same := int(n.from)
	if before < same {
		return before
	}
	for same < min(n.length(), len(chain)) && n.own[same-int(n.from)] == chain[same] {
		same++
	}
	return same
}

// agree records that another path through the node has the first same blocks of its chain.
func (m *Memory) agree(n *node, same int) {
	if n.common < 0 || same < int(n.common) {
		if n.common >= 0 {
			m.stats.Lowered++
		}
		n.common = int32(same)
	}
}

// add adds steps as a leaf behind a node of whose chain the prompt has the first same blocks.
func (m *Memory) add(parent *node, steps []Step, same int, chain []uint64) *node {
	n := &node{parent: parent, end: steps[len(steps)-1].Number, steps: make([]uint16, len(steps)), from: int32(same),
		own: append([]uint64(nil), chain[same:]...), common: -1, prompt: -1}
	for i := range steps {
		n.steps[i] = low(steps[i])
	}
	m.nodes[edge{parent, n.steps[0]}] = n
	if parent.children++; parent.prev != nil {
		parent.unlink()
	}
	m.stats.Nodes++
	m.stats.Bytes += n.bytes()
	return n
}

// split makes the first steps of a node, of which the last has a number, a node of their own, which is the other's parent and has its
// chain.
func (m *Memory) split(n *node, steps int, number [2]uint64) *node {
	m.stats.Bytes -= n.bytes()
	head := &node{parent: n.parent, end: number, steps: append([]uint16(nil), n.steps[:steps]...), own: n.own, from: n.from,
		common: -1, prompt: -1, children: 1}
	n.parent, n.steps, n.from, n.own = head, append([]uint16(nil), n.steps[steps:]...), int32(head.length()), nil
	m.nodes[edge{head.parent, head.steps[0]}] = head
	m.nodes[edge{head, n.steps[0]}] = n
	m.stats.Nodes++
	m.stats.Bytes += n.bytes() + head.bytes()
	return head
}

// endAt records that a path ended at a node, of whose chain its prompt has the first same blocks.
func (m *Memory) endAt(n *node, same int, t Taught) {
	if n.prompt >= 0 && same < min(int(n.prompt), t.Prompt) {
		m.stats.Lowered++
		n.prompt = int32(same) // the same request became two prompts, such as by a date in the template
		return
	}
	if n.children == 0 || same == n.length() { // the newest answer is the likeliest to be continued
		m.stats.Bytes -= n.bytes()
		n.own = append(n.own[:0:0], t.Chain[min(int(n.from), len(t.Chain)):]...)
		n.from = int32(min(int(n.from), len(t.Chain)))
		m.stats.Bytes += n.bytes()
		same = len(t.Chain)
	}
	if t.Prompt >= 0 {
		n.prompt, n.tokens = int32(min(t.Prompt, same)), int32(t.Tokens)
	}
}

// use moves a leaf to the end of the ring.
func (m *Memory) use(n *node) {
	if n.children > 0 || n.parent == nil {
		return
	}
	if n.prev != nil {
		n.unlink()
	}
	n.link(m.ring.prev)
}

// link puts a node into the ring behind another.
func (n *node) link(before *node) {
	n.prev, n.next = before, before.next
	before.next.prev = n
	before.next = n
}

func (n *node) unlink() {
	n.prev.next, n.next.prev = n.next, n.prev
	n.prev, n.next = nil, nil
}

// forget drops the leaves that were not used for longest until the rest has room. It keeps one node, and those before it.
func (m *Memory) forget(keep *node) {
	for m.stats.Bytes > m.most {
		n := m.ring.next
		if n == keep {
			n = n.next
		}
		if n == &m.ring {
			return
		}
		m.drop(n)
	}
}

// drop forgets a leaf. Its parent is a leaf then if it has no other child, and goes too if no path ended there.
func (m *Memory) drop(n *node) {
	for {
		parent, before := n.parent, n.prev
		delete(m.nodes, edge{parent, n.steps[0]})
		m.stats.Nodes--
		m.stats.Bytes -= n.bytes()
		m.stats.Forgotten++
		n.unlink()
		if parent.children--; parent.children > 0 || parent.parent == nil {
			return
		}
		parent.link(before)
		if parent.prompt >= 0 {
			return
		}
		n = parent
	}
}
