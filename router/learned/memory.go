// Package learned remembers what engines made of requests that no rule reads, by the blocks that their workers report:
//
//	recall   a request's path → the blocks that its prompt should begin with                      recall.go: Memory.Recall
//	watch    a worker's stored events → whose blocks they are, for certain or as a guess           watch.go: Learner.Watch, Stored
//	end      the end of a request, and the tokens that its engine counted → kept, or dropped       end.go: Learner.End, Memory.Teach
//
// Of a request it remembers keyed hashes of its steps (path.go) and of its answer (said.go), and the local hashes of blocks: no text. A
// later request is called learned, and not only predicted,
//
//   - from the second time on if it is the same request and the engine told its tokens (envoy.token_usage),
//   - from the third on if it begins as two others did, for the blocks that these share; from a later one on where they part within a text
//     (node.unsure),
//   - once more than that if what taught it was a guess: then another prompt must have the same blocks.
//
// One that goes on with an answer is predicted until its own prompt was stored: up to the answer, or with the answer's blocks if that came
// back as it was generated (root.kept). A client may send back another one, and even the same text may become other tokens.
package learned

import (
	"cmp"
	"maps"
	"slices"
	"sync"
)

// Memory remembers which blocks the engines made of the beginnings of requests. It is a tree of paths; a node is where a request ended
// or where two requests parted. Of each node it knows the leading blocks of all prompts that begin so:
//
//	a request ended here       all blocks of its prompt
//	two requests parted here   what their blocks have in common
//	a request passed through   not known: an estimate by its share of the steps
//
// Blocks that two prompts share are stored once. A memory is bounded in bytes, and forgets what was not used for longest. It is safe for
// concurrent use.
type Memory struct {
	mu    sync.Mutex
	most  int
	sizes *Sizes
	nodes map[edge]*node
	roots map[uint32]*root // by class
	ring  node             // of all leaves by their last use, the oldest at next
	stats Stats

	changes  uint64 // of what is remembered
	shared   bool   // with other replicas
	awaiting bool   // a snapshot of theirs may come
	since    []Lesson
	steps    int // and blocks, of those since then
}

const (
	mostAwaiting = 1 << 19 // steps and blocks of the lessons that are kept while a snapshot is awaited: 16 MiB; with more it is not
	lessonSteps  = 8       // that take as much memory as a lesson without any
)

// Stats are what a memory holds and has done.
type Stats struct {
	Nodes, Bytes int
	Forgotten    uint64 // nodes that were dropped for lack of room
	NoRoom       uint64 // requests that taught nothing: they were of too many classes
}

// root is the node before all paths of a class.
type root struct {
	node
	kept int8 // +1 for an answer that came back and was made of the blocks that were generated, -4 for one that was not; -8 to 8
	cut  int8 // above 0: a prompt that goes on loses its last block, as where templates drop <think>; 64 when that is seen, one less an answer

	rows      map[uint32]int8 // by worker: prompts in a row that had fewer blocks than others had where they begin alike
	judged    uint8
	odd       uint32 // the only worker of several with oddRow of them: what has fewer blocks there says nothing about the others; 0: none
	first     uint32 // that taught
	several   bool   // another one has taught since
	low, fine bool   // what is taught now has fewer blocks than others; has all of them
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
	branch               // of the parent's chain
	ending     *ending   // nil: no path ended here
	common     int32     // blocks that nearly all paths share which part at this node; -1 while no path has parted here
	weight     int32     // about how many tokens the steps stand for
	children   int32
	latest     *node  // of the children
	least      int32  // while more is above 0, the fewest blocks of the paths that it counts; else common before it was lowered last
	by         uint32 // the worker that alone has lowered common; 0: not known, several, or it agrees with the others again
	span       int16  // bytes of the step by which the path parted that told common: so much text of both may be in it
	agreed     uint8  // paths that have parted here since, that one too
	ended      bool   // a prompt of token ids ended within a step behind the node
	guess      bool   // common was told by guesses alone, and no further prompt has had it
	strays     int8   // +1 for a prompt with less than half of the known blocks, -1 for any other; not below 0
	more       int8   // new paths in a row with more blocks than common, see Memory.outdated
}

// ending is what is known of the request whose path is a node's.
type ending struct {
	branch          // of the node's chain: the latest prompt's
	held   int32    // leading blocks of it that are believed: earlier ones had them too
	tokens int32    // of the prompt; 0: not known
	by     uint32   // the worker that alone had fewer; 0: as node.by
	more   int8     // equal prompts in a row since then
	guess  bool     // see Taught.Guess; a second one that agrees is believed
	said   uint64   // the latest answer, see Path.Said; 0: it is not known
	answer []uint64 // blocks behind own that were generated with it
}

const (
	nodeBytes   = 192 // with its entry in nodes
	endingBytes = 80
)

// A worker with another template, or a request to which another's events were attributed, must not unmake what is known of a beginning that
// all share; nor must a template that has changed do so for good.
const (
	mostStrays = 3  // prompts with less than half of what is known that change nothing of it
	enoughMore = 8  // new paths with at least twice the common blocks that raise these
	moreBlocks = 8  // more than they may have by chance
	enoughRow  = 64 // new paths in a row, each with more than the common blocks and than their texts may share, that raise these
	enoughSame = 32 // equal prompts in a row of one request that are believed whole
	oddRow     = 3
	oddStays   = 32 // prompts that agree until an odd worker is none
	cutStays   = 64
)

func (n *node) bytes() int {
	size := nodeBytes + 2*len(n.steps) + 8*len(n.own)
	if n.ending != nil {
		size += endingBytes + 8*len(n.ending.own) + 8*len(n.ending.answer)
	}
	return size
}

// branch is a chain of blocks: the first from blocks of another chain, and its own.
type branch struct {
	own  []uint64
	from int32
}

func branchOf(chain []uint64, from int) branch {
	return branch{append([]uint64(nil), chain[from:]...), int32(from)}
}

// length returns how many blocks the chain has.
func (b *branch) length() int { return int(b.from) + len(b.own) }

// shared returns how many leading blocks of it a prompt has that has the first before of the other chain.
func (b *branch) shared(chain []uint64, before int) int {
	from := int(b.from)
	if before < from {
		return before
	}
	return from + common(b.own, chain[min(from, len(chain)):])
}

// NewMemory returns an empty memory that takes at most the given number of bytes. sizes tells what share of a prompt some steps are.
func NewMemory(most int, sizes *Sizes) *Memory {
	m := &Memory{most: most, sizes: sizes}
	m.Clear()
	return m
}

// Clear forgets everything.
func (m *Memory) Clear() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.nodes, m.roots = make(map[edge]*node), make(map[uint32]*root)
	m.ring.prev, m.ring.next = &m.ring, &m.ring
	m.stats.Nodes, m.stats.Bytes = 0, 0
	m.awaiting, m.since, m.steps = m.shared, nil, 0
}

// Await reports whether a snapshot can still be loaded. The first call keeps what an empty memory is taught from then on, so that it can
// be taught again behind the snapshot, and Clear does from then on. Load ends it, and so does more than can be kept.
func (m *Memory) Await() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.shared {
		m.shared, m.awaiting = true, len(m.nodes) == 0
	}
	return m.awaiting
}

// Stats returns what the memory holds and has done.
func (m *Memory) Stats() Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stats
}

// Lesson is what one request taught.
type Lesson struct {
	Class  uint32 // of engines
	Path   Path
	Taught Taught
}

// Taught is a prompt that an engine made of a request.
type Taught struct {
	Chain  []uint64 // local hashes of its leading blocks
	Answer []uint64 // those of the blocks behind them that were generated
	Said   uint64   // the answer's text, as Path.Said; 0: it is not known
	Prompt int      // how many of them are of the prompt
	Tokens int      // of the prompt; 0: not known
	Guess  bool     // some blocks may be another request's
	Worker uint32   // that served it; 0: not known, as of other replicas

	Size, Lookahead int // tokens in a block, and those behind it that its hash covers too; 0: not known, as of other replicas
}

// holds reports whether the steps before the last rest have all tokens of some blocks. Only a prompt that is token ids alone tells.
func (l *Lesson) holds(rest, blocks int) bool {
	have, all := 0, 0
	for i := range l.Path.Steps {
		if i == len(l.Path.Steps)-rest {
			have = all
		}
		all += int(l.Path.Steps[i].IDs)
	}
	return l.Taught.Size > 0 && all == l.Taught.Tokens && have >= blocks*l.Taught.Size+l.Taught.Lookahead
}

// Teach records what an engine made of a request, and reports whether that says more than was remembered. It keeps nothing of l.
func (m *Memory) Teach(l *Lesson) (news bool) {
	l.Taught.Chain = l.Taught.Chain[:max(0, min(l.Taught.Prompt, len(l.Taught.Chain)))]
	if len(l.Path.Steps) == 0 || len(l.Taught.Chain) == 0 {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.awaiting {
		m.steps += len(l.Path.Steps) + len(l.Taught.Chain) + len(l.Taught.Answer) + lessonSteps
		again := *l
		again.Path.Steps, again.Taught.Chain = slices.Clone(l.Path.Steps), slices.Clone(l.Taught.Chain)
		again.Path.Media, again.Taught.Answer = nil, slices.Clone(l.Taught.Answer)
		m.since = append(m.since, again)
		if m.steps > mostAwaiting {
			m.awaiting, m.since, m.steps = false, nil, 0
		}
	}
	return m.teach(l)
}

// root returns the root of a class; nil: there are too many classes.
func (m *Memory) root(class uint32) *root {
	r := m.roots[class]
	if r != nil {
		return r
	}
	if len(m.roots) == maxClasses {
		maps.DeleteFunc(m.roots, func(_ uint32, r *root) bool { return r.children == 0 })
	}
	if len(m.roots) == maxClasses {
		return nil
	}
	r = &root{node: node{common: -1}}
	m.roots[class] = r
	return r
}

func (m *Memory) teach(l *Lesson) (news bool) {
	p, t, before := &l.Path, l.Taught, m.changes
	root := m.root(l.Class)
	if root == nil {
		m.stats.NoRoom++
		return false
	}
	root.low, root.fine = false, false
	if t.Guess {
		t.Worker = 0 // it may be another's
	}
	last := &root.node
	same := 0 // leading blocks of last's chain that the prompt has
	for at := 0; at < len(p.Steps); {
		if e := last.ending; e != nil && p.Steps[at].Answer && !root.isOdd(t.Worker) {
			root.answered(e, p.at(at), same, t.Chain, last.children == 0)
		}
		n, equal := m.follow(last, p.Steps[at:])
		if n != nil && equal == 0 {
			return false // another path has the edge: one in 65,536
		}
		if n == nil {
			m.part(root, last, same, &t, p.Steps[at:], l.holds)
			if m.outdated(root, last, same, &t, p.Steps[at]) {
				m.dropBelow(last)
				return m.teach(l)
			}
			n, equal = m.add(last, p.Steps[at:], m.sizes.weigh(l.Class, p.Steps[at:]), same, t.Chain), len(p.Steps)-at
		} else {
			m.lower(root, last, same, t.Worker)
			if equal < len(n.steps) {
				n = m.split(n, p.Steps[at:at+equal], m.sizes.weigh(l.Class, p.Steps[at:at+equal]))
			}
		}
		same = n.shared(t.Chain, same)
		last, at = n, at+equal
	}
	m.endAt(root, last, same, t)
	root.judge(t.Worker)
	m.use(last)
	m.forget(last)
	return m.changes != before && !root.isOdd(t.Worker)
}

func (r *root) isOdd(worker uint32) bool { return worker != 0 && worker == r.odd }

// judge notes whether a worker's prompt had fewer blocks than others. A worker of which that is so again and again, and of no other one, is
// started otherwise than they are.
func (r *root) judge(worker uint32) {
	if worker == 0 || !r.low && !r.fine {
		return
	}
	r.judged, r.first = r.judged+1, cmp.Or(r.first, worker)
	r.several = r.several || worker != r.first
	if r.judged == 0 { // some are of workers that are gone; there are 255 at most
		maps.DeleteFunc(r.rows, func(w uint32, _ int8) bool { return w != r.odd })
	}
	row := r.rows[worker]
	switch {
	case !r.low && row <= 1:
		delete(r.rows, worker)
		if r.odd == worker {
			r.odd = 0
		}
		return
	case !r.low && r.odd == worker:
		row--
	case !r.low:
		row = 0
	case r.odd == worker:
		row = oddStays
	default:
		row = min(row+1, oddRow)
	}
	if r.rows == nil {
		r.rows = make(map[uint32]int8)
	}
	r.rows[worker] = row
	if !r.low || row < 2 || r.odd == worker {
		return
	}
	for other, has := range r.rows {
		if other != worker && has >= 2 { // it is no worker's own
			r.odd = 0
			return
		}
	}
	if row == oddRow && r.several {
		r.odd, r.rows[worker] = worker, oddStays
	}
}

// answered notes what became of a prompt and its answer in one that goes on with an answer of some hash.
func (r *root) answered(e *ending, said uint64, same int, chain []uint64, first bool) {
	has := e.shared(chain, same)
	r.cut = max(0, r.cut-1)
	if first && has == e.length()-1 && int(e.held) == e.length() {
		r.cut = cutStays
	}
	switch {
	case said == 0 || e.said != said || len(e.answer) == 0:
	case has == e.length() && common(e.answer, chain[has:]) == len(e.answer):
		r.kept = min(r.kept+1, 8)
	default:
		r.kept = max(r.kept-4, -8)
	}
}

// common returns how many leading blocks are the same.
func common(a, b []uint64) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// part records that a path with the first same blocks of the node's chain parts here from the others by the rest of its steps; or, of none,
// ends here.
func (m *Memory) part(r *root, n *node, same int, t *Taught, rest []Step, holds func(rest, blocks int) bool) {
	before, by := n.common, Step{}
	if len(rest) > 0 {
		by = rest[0]
	}
	m.lower(r, n, same, t.Worker)
	if n.common < 0 && (n.children > 0 || n.ending != nil) && !r.isOdd(t.Worker) {
		n.common, n.guess = int32(same), t.Guess || n.ending != nil && n.ending.guess
		m.changes++
	}
	n.ended = n.ended || by.IDs > 0 && (len(rest) == 1 || n.latest != nil && n.latest.ending != nil && len(n.latest.steps) == 1)
	if n.common != before {
		n.agreed, n.span = 0, int16(min(by.Bytes, 1<<10))
		if by.Media || by.IDs > 0 && holds(len(rest), int(n.common)) {
			n.span = 0
		}
	}
	if same >= int(n.common) && n.agreed < 255 {
		n.agreed++
	}
}

// unsure reports whether a path that parts here, with some steps behind it, may have other blocks than common: those that told it may go on
// alike within a step, and a prompt of token ids that ended within one may have an answer with which this one goes on.
func (n *node) unsure(rest []Step) bool {
	return n.ended && len(rest) > 1 || n.span > 24 && int(n.span) > 4*int(n.agreed)
}

// lower records that a path of a worker goes on behind a node and has the first same blocks of its chain.
func (m *Memory) lower(r *root, n *node, same int, worker uint32) {
	if n.common < 0 {
		return
	}
	known := int(n.common)
	if n.by != 0 && n.by == worker && n.more > 0 {
		known = max(known, int(n.least)) // others have had so many since
	}
	r.low = r.low || same < known
	r.fine = r.fine || same >= known && n.by != worker
	if same < known && r.isOdd(worker) || n.isStray(same, int(n.common)) {
		return
	}
	if n.guess { // now another one has them
		n.guess = false
		m.changes++
	}
	switch {
	case same < int(n.common):
		m.changes++
		if n.by == 0 {
			n.least, n.by = n.common, worker
		} else if n.by != worker {
			n.by = 0
		}
		n.common, n.more = int32(same), 0
	case same == int(n.common) && n.by != worker:
		n.by = 0
	}
}

// isStray reports whether a prompt has so few of the known blocks, the first same, that it changes nothing of what is known. After
// mostStrays of them, less the others, it does.
func (n *node) isStray(same, known int) bool {
	switch {
	case 2*same >= known:
		n.strays = max(0, n.strays-1)
	case n.strays < mostStrays:
		n.strays++
		return true
	}
	return false
}

// outdated counts how far new paths at a node, of whose chain this one has the first same blocks, agree with it and with the one before.
// Where they have more than was common, that is raised:
//
//   - after enoughMore of them if it is far more, or if a worker has lowered it that is odd,
//   - after enoughRow, none of another worker with fewer between them, if it is more than their texts can share behind the node.
//
// It reports whether they agree with each other and not with the node's chain.
func (m *Memory) outdated(r *root, n *node, same int, t *Taught, by Step) bool {
	if n.parent == nil || n.common < 0 {
		return false
	}
	has, known := same, int(n.common)
	if n.latest != nil {
		has = max(same, n.latest.shared(t.Chain, same))
	}
	far := 2*known + moreBlocks
	switch {
	case has < far && n.more > 0 && int(n.least) >= far:
		if !r.isOdd(t.Worker) {
			n.more--
		}
		return false
	case has <= known:
		if t.Worker == 0 || t.Worker != n.by {
			n.more = 0
		}
		return false
	case t.Worker == n.by:
		n.by = 0
	}
	if n.more == 0 && n.by == 0 || has < int(n.least) {
		n.least = int32(has)
	}
	n.more = min(n.more+1, enoughRow)
	least, alike := int(n.least), (by.alike()+t.Size-1)/max(1, t.Size)
	if n.more < enoughMore || least < far && !r.isOdd(n.by) && (n.more < enoughRow || least <= known+alike) {
		return false
	}
	n.more, n.by = 0, 0
	if has > same {
		return true
	}
	n.common = min(n.least, int32(same))
	m.changes++
	return false
}

// alike returns how many tokens two paths can share within the step by which they part: two bytes make one at least, if they are a text.
func (s Step) alike() int {
	switch {
	case s.Media:
		return 0
	case s.IDs > 0:
		return int(s.IDs)
	}
	return int(s.Bytes) / 2
}

// add adds steps as a leaf behind a node of whose chain the prompt has the first same blocks.
func (m *Memory) add(parent *node, steps []Step, weight int32, same int, chain []uint64) *node {
	n := &node{parent: parent, end: steps[len(steps)-1].Number, steps: make([]uint16, len(steps)),
		branch: branchOf(chain, same), common: -1, weight: weight}
	for i := range steps {
		n.steps[i] = low(steps[i])
	}
	m.nodes[edge{parent, n.steps[0]}] = n
	parent.latest = n
	parent.children++
	m.changes++
	if parent.prev != nil {
		parent.unlink()
	}
	m.stats.Nodes++
	m.stats.Bytes += n.bytes()
	return n
}

// split makes the first steps of a node, which are a path's, a node of their own: the other's parent, with its chain.
func (m *Memory) split(n *node, steps []Step, weight int32) *node {
	m.stats.Bytes -= n.bytes()
	head := &node{parent: n.parent, end: steps[len(steps)-1].Number, steps: append([]uint16(nil), n.steps[:len(steps)]...),
		branch: n.branch, common: -1, weight: weight, children: 1, latest: n}
	if n.parent.latest == n {
		n.parent.latest = head
	}
	n.parent, n.steps, n.branch = head, append([]uint16(nil), n.steps[len(steps):]...), branch{from: int32(head.length())}
	n.weight = max(0, n.weight-head.weight)
	m.nodes[edge{head.parent, head.steps[0]}] = head
	m.nodes[edge{head, n.steps[0]}] = n
	m.stats.Nodes++
	m.changes++
	m.stats.Bytes += n.bytes() + head.bytes()
	return head
}

// endAt records that a path ended at a node, of whose chain its prompt has the first same blocks.
func (m *Memory) endAt(r *root, n *node, same int, t Taught) {
	e := ending{tokens: int32(t.Tokens), guess: t.Guess, said: t.Said, answer: slices.Clone(t.Answer), held: int32(len(t.Chain))}
	if old := n.ending; old != nil {
		agreed, known := old.shared(t.Chain, same), min(int(old.held), len(t.Chain)) // with the earlier request
		other := agreed < min(old.length(), len(t.Chain))
		r.low = r.low || agreed < known || other && t.Worker != 0 && old.by == t.Worker && old.more > 0
		r.fine = r.fine || agreed >= known && old.by != t.Worker
		if other && (r.isOdd(t.Worker) || t.Worker != 0 && old.by == t.Worker && agreed >= known) || n.isStray(agreed, known) {
			return
		}
		if 2*agreed >= known {
			e.guess = t.Guess && old.guess && (agreed < max(old.length(), len(t.Chain)) || old.tokens != e.tokens)
			if agreed < len(t.Chain) {
				e.said, e.answer = 0, nil
			} else if e.said == 0 && agreed == old.length() {
				e.said, e.answer = old.said, old.answer
			}
			e.held, e.by = min(old.held, int32(agreed)), old.by
			switch {
			case agreed < known:
				e.by = t.Worker
			case e.by == t.Worker:
				e.by = 0
			}
			if agreed == old.length() && agreed == len(t.Chain) {
				e.more = min(old.more+1, enoughSame)
			}
			if e.more == enoughSame || e.more >= enoughMore && r.isOdd(e.by) {
				e.held = int32(agreed)
			}
		}
	}
	if n.children > 0 {
		m.part(r, n, same, &t, nil, nil)
	} else {
		n.common = min(n.common, int32(same)) // others parted here that are forgotten
	}
	if old := n.ending; old == nil || old.tokens != e.tokens || old.guess != e.guess || old.held != e.held || old.length() != len(t.Chain) ||
		same < int(old.from) || common(old.own, t.Chain[old.from:]) < len(old.own) {
		m.changes++
	}
	m.stats.Bytes -= n.bytes()
	if n.children == 0 {
		n.branch = branchOf(t.Chain, min(int(n.from), same))
		e.from = int32(len(t.Chain))
	} else { // others rely on the node's chain
		e.branch = branchOf(t.Chain, min(same, n.length()))
	}
	n.ending = &e
	m.stats.Bytes += n.bytes()
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
		parent.children--
		if parent.latest == n {
			parent.latest = nil
		}
		if parent.children > 0 || parent.parent == nil {
			return
		}
		parent.link(before)
		if parent.ending != nil {
			return
		}
		n = parent
	}
}

// dropBelow forgets a node and all that follows it.
func (m *Memory) dropBelow(n *node) {
	var leaves []*node
	for leaf := m.ring.next; leaf != &m.ring; leaf = leaf.next {
		for x := leaf; x != nil; x = x.parent {
			if x == n {
				leaves = append(leaves, leaf)
				break
			}
		}
	}
	for _, leaf := range leaves {
		for x := leaf; x != n.parent; x = x.parent {
			m.stats.Bytes -= x.bytes()
			x.ending = nil // else it would stay as a leaf
			m.stats.Bytes += x.bytes()
		}
		m.drop(leaf)
	}
}
