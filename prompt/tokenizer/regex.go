package tokenizer

import (
	"fmt"
	"unicode/utf8"
)

// regex is the general engine for patterns that no scanner knows: a backtracking matcher over code points. Loops over one
// class, which is what tokenizers' patterns are made of, run as one instruction, and where what follows a loop cannot
// begin with a character of the loop it never goes back.
type regex struct {
	prog []inst
}

type opcode uint8

const (
	opMatch opcode = iota
	opSet
	opLoop   // set, min, max
	opSplit  // try x, then y
	opJump   // x
	opLook   // sub-program at x, continue at y
	opAtomic // the same
	opAssert
	opFail
	opProgress // fail if no character was taken since the mark of loop x (set by opMark)
	opMark
)

type inst struct {
	op       opcode
	set      *runeSet
	min, max int
	lazy     bool
	final    bool // a loop that never gives back
	behind   bool
	negative bool
	widthMin int // look-behind: its length in characters
	widthMax int
	assert   assertion
	x, y     int
}

const maxProgram = 20000

// compileRegex compiles a pattern (see parseRegex for the dialect).
func compileRegex(pattern string) (*regex, error) {
	n, err := parseRegex(pattern)
	if err != nil {
		return nil, err
	}
	c := &regexCompiler{}
	if err := c.compile(n); err != nil {
		return nil, fmt.Errorf("regular expression %q: %w", pattern, err)
	}
	c.emit(inst{op: opMatch})
	re := &regex{prog: c.prog}
	re.finalLoops()
	return re, nil
}

type regexCompiler struct {
	prog  []inst
	marks int
}

func (c *regexCompiler) emit(i inst) int {
	c.prog = append(c.prog, i)
	return len(c.prog) - 1
}

func (c *regexCompiler) compile(n *node) error {
	if len(c.prog) > maxProgram {
		return fmt.Errorf("too large: more than %d steps", maxProgram)
	}
	switch n.kind {
	case nodeSet:
		c.emit(inst{op: opSet, set: n.set})
	case nodeConcat:
		for _, sub := range n.subs {
			if err := c.compile(sub); err != nil {
				return err
			}
		}
	case nodeAlternate:
		var jumps []int
		for i, sub := range n.subs {
			split := -1
			if i+1 < len(n.subs) {
				split = c.emit(inst{op: opSplit})
				c.prog[split].x = len(c.prog)
			}
			if err := c.compile(sub); err != nil {
				return err
			}
			if split >= 0 {
				jumps = append(jumps, c.emit(inst{op: opJump}))
				c.prog[split].y = len(c.prog)
			}
		}
		for _, j := range jumps {
			c.prog[j].x = len(c.prog)
		}
	case nodeRepeat:
		return c.repeat(n)
	case nodeLook, nodeAtomic:
		op := opLook
		if n.kind == nodeAtomic {
			op = opAtomic
		}
		at := c.emit(inst{op: op, behind: n.behind, negative: n.negative})
		if n.behind {
			low, high := width(n.subs[0])
			if high < 0 || high > 255 {
				return fmt.Errorf("look-behind without a bounded length")
			}
			c.prog[at].widthMin, c.prog[at].widthMax = low, high
		}
		c.prog[at].x = len(c.prog)
		if err := c.compile(n.subs[0]); err != nil {
			return err
		}
		c.emit(inst{op: opMatch})
		c.prog[at].y = len(c.prog)
	case nodeAssert:
		c.emit(inst{op: opAssert, assert: n.assert})
	}
	return nil
}

func (c *regexCompiler) repeat(n *node) error {
	sub := n.subs[0]
	for sub.kind == nodeConcat && len(sub.subs) == 1 {
		sub = sub.subs[0]
	}
	if sub.kind == nodeSet {
		c.emit(inst{op: opLoop, set: sub.set, min: n.min, max: n.max, lazy: n.lazy})
		return nil
	}
	for range n.min {
		if err := c.compile(sub); err != nil {
			return err
		}
	}
	branch := func() int { return c.emit(inst{op: opSplit}) }
	patch := func(at, in, out int) {
		if n.lazy {
			in, out = out, in
		}
		c.prog[at].x, c.prog[at].y = in, out
	}
	if n.max < 0 {
		mark := c.marks
		c.marks++
		start := branch()
		c.emit(inst{op: opMark, x: mark})
		if err := c.compile(sub); err != nil {
			return err
		}
		c.emit(inst{op: opProgress, x: mark})
		c.emit(inst{op: opJump, x: start})
		patch(start, start+1, len(c.prog))
		return nil
	}
	var splits []int
	for range n.max - n.min {
		splits = append(splits, branch())
		if err := c.compile(sub); err != nil {
			return err
		}
	}
	for _, at := range splits {
		patch(at, at+1, len(c.prog))
	}
	return nil
}

// width gives the least and greatest number of characters that n matches; -1: no bound.
func width(n *node) (low, high int) {
	switch n.kind {
	case nodeSet:
		return 1, 1
	case nodeConcat, nodeAtomic:
		for _, sub := range n.subs {
			l, h := width(sub)
			low += l
			if high < 0 || h < 0 {
				high = -1
			} else {
				high += h
			}
		}
	case nodeAlternate:
		for i, sub := range n.subs {
			l, h := width(sub)
			if i == 0 {
				low, high = l, h
				continue
			}
			low = min(low, l)
			if high < 0 || h < 0 {
				high = -1
			} else {
				high = max(high, h)
			}
		}
	case nodeRepeat:
		l, h := width(n.subs[0])
		low = l * n.min
		if n.max < 0 || h < 0 {
			high = -1
		} else {
			high = h * n.max
		}
	}
	return low, high
}

// finalLoops marks the loops that never need to give a character back: what follows begins with other characters.
func (re *regex) finalLoops() {
	for i := range re.prog {
		in := &re.prog[i]
		if in.op != opLoop || in.lazy {
			continue
		}
		next := re.prog[i+1]
		switch {
		case next.op == opMatch:
			in.final = true
		case next.op == opSet, next.op == opLoop && next.min > 0:
			in.final = len(in.set.and(next.set).ranges) == 0
		}
	}
}

// regexState is the memory of one search; it lies in the scratch.
type regexState struct {
	stack []backtrack
	steps int // left for the search under way
	marks []int
}

// backtrack is a choice to come back to. With step set it stands for every position from pos down to low, one character
// apart (a greedy loop), or up to high (a lazy one).
type backtrack struct {
	pc, pos int
	low     int
	kind    uint8 // 0 plain, 1 greedy loop, 2 lazy loop, 3 mark to restore
	mark    int
}

// maxSteps bounds how often one search may step back. A pattern that needs more runs for exponential time; Oniguruma gives up
// after ten million as well, and the reference then fails, so what is returned for such a text does not matter.
const maxSteps = 10_000_000

// find gives the leftmost match in b at or behind i; ok false if there is none.
func (re *regex) find(st *regexState, b []byte, i int) (start, end int, ok bool) {
	st.steps = maxSteps
	for {
		if end := re.match(st, b, 0, i); end >= 0 {
			return i, end, true
		}
		if i >= len(b) {
			return 0, 0, false
		}
		_, n := utf8.DecodeRune(b[i:])
		i += n
	}
}

// match gives the end of a match of the program from pc at pos, or -1.
func (re *regex) match(st *regexState, b []byte, pc, pos int) int {
	base := len(st.stack)
	end := re.run(st, b, base, pc, pos)
	st.stack = st.stack[:base]
	return end
}

func (re *regex) run(st *regexState, b []byte, base, pc, pos int) int {
	for {
		in := &re.prog[pc]
		ok := true
		switch in.op {
		case opMatch:
			return pos
		case opSet:
			n := in.set.size(b, pos)
			ok = n > 0
			pos += n
			pc++
		case opLoop:
			count, p := 0, pos
			floor := pos
			limit := in.max
			if in.lazy {
				limit = in.min
			}
			for count != limit {
				n := in.set.size(b, p)
				if n == 0 {
					break
				}
				p += n
				if count++; count == in.min {
					floor = p
				}
			}
			if ok = count >= in.min; !ok {
				break
			}
			pc++
			if in.lazy {
				if in.max < 0 || in.max > in.min {
					st.stack = append(st.stack, backtrack{pc: pc, pos: p, low: in.max - in.min, kind: 2})
				}
			} else if p > floor && !in.final {
				st.stack = append(st.stack, backtrack{pc: pc, pos: p, low: floor, kind: 1})
			}
			pos = p
		case opSplit:
			st.stack = append(st.stack, backtrack{pc: in.y, pos: pos})
			pc = in.x
		case opJump:
			pc = in.x
		case opMark:
			for len(st.marks) <= in.x {
				st.marks = append(st.marks, 0)
			}
			st.stack = append(st.stack, backtrack{kind: 3, pos: st.marks[in.x], mark: in.x})
			st.marks[in.x] = pos
			pc++
		case opProgress:
			ok = st.marks[in.x] != pos
			pc++
		case opAtomic:
			end := re.match(st, b, in.x, pos)
			ok = end >= 0
			pos, pc = end, in.y
		case opLook:
			ok = re.look(st, b, in, pos) != in.negative
			pc = in.y
		case opAssert:
			ok = assertAt(in.assert, b, pos)
			pc++
		default:
			ok = false
		}
		if !ok {
			if pc, pos, ok = re.back(st, b, base); !ok {
				return -1
			}
		}
	}
}

// back goes to the latest choice.
func (re *regex) back(st *regexState, b []byte, base int) (pc, pos int, ok bool) {
	if st.steps--; st.steps < 0 {
		return 0, 0, false
	}
	for len(st.stack) > base {
		t := &st.stack[len(st.stack)-1]
		switch t.kind {
		case 0:
			st.stack = st.stack[:len(st.stack)-1]
			return t.pc, t.pos, true
		case 1:
			_, n := utf8.DecodeLastRune(b[:t.pos])
			t.pos -= n
			pc, pos = t.pc, t.pos
			if t.pos <= t.low {
				st.stack = st.stack[:len(st.stack)-1]
			}
			return pc, pos, true
		case 2:
			n := re.prog[t.pc-1].set.size(b, t.pos)
			if n == 0 || t.low == 0 {
				st.stack = st.stack[:len(st.stack)-1]
				continue
			}
			t.low--
			t.pos += n
			return t.pc, t.pos, true
		case 3:
			st.marks[t.mark] = t.pos
			st.stack = st.stack[:len(st.stack)-1]
		}
	}
	return 0, 0, false
}

func (re *regex) look(st *regexState, b []byte, in *inst, pos int) bool {
	if !in.behind {
		return re.match(st, b, in.x, pos) >= 0
	}
	p := pos
	for w := 0; w <= in.widthMax; w++ {
		if w >= in.widthMin && re.match(st, b[:pos], in.x, p) == pos {
			return true
		}
		if p == 0 {
			break
		}
		_, n := utf8.DecodeLastRune(b[:p])
		p -= n
	}
	return false
}

// size gives the length of the character at b[i] if it is in the set, else 0.
func (s *runeSet) size(b []byte, i int) int {
	if i >= len(b) {
		return 0
	}
	if c := b[i]; c < utf8.RuneSelf {
		if s.ascii[c/64]>>(c%64)&1 != 0 {
			return 1
		}
		return 0
	}
	r, n := utf8.DecodeRune(b[i:])
	if s.has(r) {
		return n
	}
	return 0
}

func assertAt(a assertion, b []byte, pos int) bool {
	switch a {
	case lineStart:
		return pos == 0 || b[pos-1] == '\n' && pos < len(b)
	case lineEnd:
		return pos == len(b) || b[pos] == '\n'
	case textStart:
		return pos == 0
	case textEnd:
		return pos == len(b)
	case textEndBreak:
		return pos == len(b) || pos == len(b)-1 && b[pos] == '\n'
	}
	before, after := false, false
	if r, n := utf8.DecodeLastRune(b[:pos]); n > 0 {
		before = isClass(r, clOnigWord)
	}
	if r, n := utf8.DecodeRune(b[pos:]); n > 0 {
		after = isClass(r, clOnigWord)
	}
	return before != after == (a == wordEdge)
}

// eachMatch calls fn for every match in b, as the reference's find_iter does: an empty match right behind the match before it
// does not count.
func (re *regex) eachMatch(st *regexState, b []byte, fn func(start, end int)) {
	last := -1
	for i := 0; i <= len(b); {
		start, end, ok := re.find(st, b, i)
		if !ok {
			return
		}
		if start == end && end == last {
			if end >= len(b) {
				return
			}
			_, n := utf8.DecodeRune(b[end:])
			i = end + n
			continue
		}
		fn(start, end)
		i, last = end, end
	}
}
