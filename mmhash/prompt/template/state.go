package template

import "time"

// state is one rendering in progress: the output, the current frame and what has been spent of the limits.
// States are pooled per template, so a rendering in the steady state allocates only what its values need.
type state struct {
	t        *Template
	out      []byte
	fr       *frame // the frame of the function that runs
	resolved []Value

	steps, made, depth int
	done               <-chan struct{} // Chat.Done
	unseen             int             // work since done was looked at: bytes, and 64 a step
	maxOut             int
	line               int

	args   []Value  // evaluated call arguments, as a stack
	slots  []Value  // slots of frames, as a stack
	frames []*frame // frames given back
	scrap  Value    // what a place that is no variable evaluates to

	frameArena arena[frame]
	loopArena  arena[loopContext]
	calls      arena[callArgs] // argument lists of calls in progress

	now time.Time
}

// frame holds the local variables of one function call; outer is the frame of the function around it.
type frame struct {
	slots []Value
	outer *frame
}

// arena keeps objects for use in one rendering after the other.
type arena[T any] struct {
	all  []*T
	used int
}

func (a *arena[T]) next() *T {
	if a.used == len(a.all) {
		a.all = append(a.all, new(T))
	}
	a.used++
	return a.all[a.used-1]
}

// reset empties the objects that were used.
func (a *arena[T]) reset() {
	var zero T
	for _, o := range a.all[:a.used] {
		*o = zero
	}
	a.used = 0
}

func newState(t *Template) *state { return &state{t: t} }

func (s *state) run(dst []byte, vars Vars) (out []byte, err error) {
	s.out = dst
	s.maxOut = len(dst) + s.t.opts.Limits.OutputBytes
	if s.resolved == nil {
		s.resolved = make([]Value, len(s.t.globals))
	}
	for i, name := range s.t.globals {
		v, ok := vars.get(name)
		if !ok {
			if v, ok = globals[name]; !ok {
				v = missing
			}
		}
		s.resolved[i] = v
	}
	defer func() {
		if r := recover(); r != nil {
			out, err = dst, recovered(r, s.line)
		}
	}()
	fr := s.enter(s.t.root, nil)
	s.fr = fr
	s.load(s.t.loads)
	s.block(s.t.body)
	return s.out, nil
}

// release cleans the state, so that it holds no request memory, and gives it back.
func (s *state) release() {
	const keep = 1 << 12 // a rare huge rendering must not stay resident
	if cap(s.args) > keep || cap(s.slots) > keep || len(s.loopArena.all) > keep || len(s.frameArena.all) > keep {
		return
	}
	clear(s.resolved)
	clear(s.args[:cap(s.args)])
	clear(s.slots) // those of frames given back are empty already
	s.frameArena.reset()
	s.loopArena.reset()
	for _, a := range s.calls.all {
		a.clear()
	}
	s.calls.used = 0
	*s = state{t: s.t, resolved: s.resolved, args: s.args[:0], slots: s.slots[:0], frames: s.frames[:0],
		frameArena: s.frameArena, loopArena: s.loopArena, calls: s.calls}
	s.t.states.Put(s)
}

// step spends n steps.
func (s *state) step(n int) {
	if s.steps += n; s.steps > s.t.opts.Limits.Steps {
		limit("more than %d steps", s.t.opts.Limits.Steps)
	}
	s.work(64 * n)
}

// work counts what was done, and ends the rendering if its time is over.
func (s *state) work(n int) {
	if s.unseen += n; s.unseen < 1<<18 {
		return
	}
	s.unseen = 0
	select {
	case <-s.done:
		panic(ErrStopped)
	default:
	}
}

// grow accounts for n bytes of strings made.
func (s *state) grow(n int) {
	if s.made += n; s.made > 4*s.t.opts.Limits.OutputBytes || n > s.t.opts.Limits.OutputBytes {
		limit("strings of more than %d bytes", s.t.opts.Limits.OutputBytes)
	}
	s.work(n)
}

// str makes a str of s's own, accounted for.
func (s *state) str(text string) Value {
	s.grow(len(text))
	return String(text)
}

// list makes a list of s's own, accounted for.
func (s *state) list(items []Value) Value {
	s.step(len(items))
	return NewList(items...)
}

func (s *state) deeper() {
	if s.depth++; s.depth > s.t.opts.Limits.Depth {
		limit("nested deeper than %d", s.t.opts.Limits.Depth)
	}
}

// enter makes a frame for a call of fn. leave must follow for the frame to be used again.
func (s *state) enter(fn *funcScope, outer *frame) *frame {
	var fr *frame
	if n := len(s.frames); n > 0 {
		fr, s.frames = s.frames[n-1], s.frames[:n-1]
	} else {
		fr = s.frameArena.next()
	}
	from := len(s.slots)
	if from+fn.slots > cap(s.slots) {
		// Older frames keep their part of the old array.
		s.slots = make([]Value, 0, max(64, 2*cap(s.slots), fn.slots))
		from = 0
	}
	s.slots = s.slots[:from+fn.slots]
	fr.slots = s.slots[from : from+fn.slots : from+fn.slots]
	fr.outer = outer
	return fr
}

// leave gives a frame back, unless inner functions may still see it.
func (s *state) leave(fn *funcScope, fr *frame) {
	if fn.captured {
		return
	}
	clear(fr.slots)
	if n := len(s.slots); len(fr.slots) > 0 && n >= len(fr.slots) && &s.slots[n-1] == &fr.slots[len(fr.slots)-1] {
		s.slots = s.slots[:n-len(fr.slots)]
	}
	fr.slots, fr.outer = nil, nil
	s.frames = append(s.frames, fr)
}

// write appends text to the output.
func (s *state) write(text string) {
	s.out = append(s.out, text...)
	if len(s.out) > s.maxOut {
		limit("output of more than %d bytes", s.t.opts.Limits.OutputBytes)
	}
}

// print appends str(v).
func (s *state) print(v *Value) {
	if v.IsString() {
		s.write(v.str)
		return
	}
	s.out = s.appendStr(s.out, *v)
	s.write("")
}

// capture runs f and gives what it wrote, which does not reach the output.
func (s *state) capture(f func() ctl) (string, ctl) {
	from := s.beginCapture()
	c := f()
	return s.endCapture(from), c
}

func (s *state) beginCapture() int { return len(s.out) }

func (s *state) endCapture(from int) string {
	text := string(s.out[from:])
	s.out = s.out[:from]
	s.grow(len(text))
	return text
}

// ctl is how a statement ended.
type ctl uint8

const (
	ctlNext ctl = iota
	ctlBreak
	ctlContinue
)

type (
	expr func(*state) Value
	stmt struct {
		line int
		run  func(*state) ctl
	}
)

// block runs statements until one of them breaks out.
func (s *state) block(body []stmt) ctl {
	for i := range body {
		s.line = body[i].line
		s.step(1)
		if c := body[i].run(s); c != ctlNext {
			return c
		}
	}
	return ctlNext
}

// slotLoad fills one slot on entry to a scope.
type slotLoad struct {
	slot   int
	action loadAction
	global int // index into resolved
	from   varRef
}

// varRef is a variable seen from a function: hops frames out, then the slot.
type varRef struct{ hops, slot int }

func (s *state) at(r varRef) *Value {
	fr := s.fr
	for i := r.hops; i > 0; i-- {
		fr = fr.outer
	}
	return &fr.slots[r.slot]
}

func (s *state) load(loads []slotLoad) {
	for i := range loads {
		l := &loads[i]
		switch l.action {
		case loadResolve:
			s.fr.slots[l.slot] = s.resolved[l.global]
		case loadAlias:
			s.fr.slots[l.slot] = *s.at(l.from)
		case loadUndefined:
			s.fr.slots[l.slot] = missing
		}
	}
}
