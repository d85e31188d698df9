package learned

import "slices"

const enoughKept = 2 // see root.kept

// Recalled is what a memory knows about a request's prompt.
type Recalled struct {
	Blocks  []uint64 // local hashes of its leading blocks
	Learned int      // how many of them were taught, the others are an estimate
	Steps   int      // of the request's path, whose beginning those are
	Reach   int      // steps that Blocks are of; beyond Steps they are an estimate
	Tokens  int      // of the prompt, if this very request was seen before; else 0
	// Estimate: Blocks is an estimate. The request goes on for some time as another one did, or with an answer that may be the one
	// that was generated, so that more than Learned may be cached; or how long its prompt is was not reported; or Learned is a guess.
	Estimate bool
}

// Recall sets out to what is known of a request's prompt, for engines of a class. It reuses out.Blocks.
func (m *Memory) Recall(class uint32, p *Path, out *Recalled) {
	*out = Recalled{Blocks: out.Blocks[:0]}
	m.mu.Lock()
	defer m.mu.Unlock()
	root, at := m.roots[class], 0
	if root == nil {
		return
	}
	last := &root.node
	for at < len(p.Steps) {
		n, equal := m.follow(last, p.Steps[at:])
		if equal == 0 {
			break
		}
		if equal < len(n.steps) {
			last.certain(p, at, root, out)
			n.estimate(m.sizes.weigh(class, p.Steps[at:at+equal]), m.sizes.weigh(class, p.Steps[at+equal:])/2, out)
			out.Reach = at + equal
			m.use(n)
			return
		}
		last, at = n, at+equal
	}
	last.certain(p, at, root, out)
	if e := last.ending; at == len(p.Steps) && e != nil {
		out.Tokens, out.Estimate = int(e.tokens), e.tokens == 0 || e.guess
	} else if !slices.ContainsFunc(p.Steps[at:], func(s Step) bool { return s.Media || s.Bytes > 0 }) {
		out.Estimate = true // its end may be that of a longer one's beginning: then the last block may not be whole
	}
	m.use(last)
}

// follow finds the node that begins with the first of some steps behind another, and how many of its steps are these; 0: there is none.
func (m *Memory) follow(from *node, steps []Step) (n *node, equal int) {
	n = m.nodes[edge{from, low(steps[0])}]
	if n == nil {
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

// certain sets out to the blocks of a path whose first steps end at the node.
func (n *node) certain(p *Path, at int, root *root, out *Recalled) {
	e, blocks, rest := n.ending, max(int(n.common), 0), p.Steps[at:]
	out.Steps, out.Reach = at, at
	if e != nil && len(rest) > 0 {
		out.Estimate = rest[0].Answer || n.common < 0
	}
	kept := e != nil && e.said != 0 && e.said == p.at(at) && root.kept >= enoughKept
	if e == nil || n.common >= 0 && len(rest) > 0 && !kept {
		out.Estimate = out.Estimate || n.guess || n.unsure(rest) || len(rest) > 0 && rest[0].Answer
		out.Blocks, out.Learned = n.chain(out.Blocks, blocks), blocks
		return
	}
	blocks, out.Estimate = int(e.held), out.Estimate || e.guess
	if len(rest) > 0 && (root.cut > 0 || !rest[0].Answer) { // what asks for an answer, at the prompt's end, is not in one that goes on without
		blocks = max(blocks-1, 0)
	}
	out.Blocks, out.Learned = append(n.chain(out.Blocks, min(blocks, int(e.from))), e.own[:max(0, blocks-int(e.from))]...), blocks
	if kept && blocks == e.length() {
		out.Blocks = append(out.Blocks, e.answer...)
	}
}

// at returns the hash of the answer that begins with a step; 0: it is not known.
func (p *Path) at(step int) uint64 {
	if step < len(p.Steps) && step == p.SaidAt {
		return p.Said
	}
	return 0
}

// estimate replaces the certain blocks of out by those of the node, if a path that leaves it after steps of some weight, and has others of
// at least the weight rest behind them, probably has more. Its whole prompt has more still: it is not shorter than the node's by more than
// twice what is expected.
func (n *node) estimate(weight, rest int32, out *Recalled) {
	out.Estimate = true
	reach := int(n.common) // -1: what its chain has belongs to a longer path
	if n.common < 0 && n.ending != nil {
		reach = int(n.ending.held) - 1 // see certain
	}
	known := len(out.Blocks)
	behind := max(0, float64(reach-known))
	each := behind / float64(max(n.weight, weight, 1))
	likely, most := each*float64(weight), behind-1-2*each*float64(max(0, n.weight-weight-rest))
	if more := known + int(min(likely, max(most, likely/2))); more > known {
		out.Blocks = n.chain(out.Blocks[:0], more)
		out.Learned = min(out.Learned, int(n.from))
	}
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
