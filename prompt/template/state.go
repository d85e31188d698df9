package template

import (
	"strings"
	"time"
	"unsafe"
)

// state is one rendering in progress: the output, the current scope and what has been used of the limits. States are pooled per
// template, so that a rendering allocates little besides its values.
type state struct {
	t     *Template
	vars  Vars
	scope *scope
	out   []byte

	steps, made, depth int
	done               <-chan struct{} // Chat.Done
	unseen             int             // work since done was last checked: bytes, and 64 per step
	maxOut             int
	line               int

	args []Value // evaluated call arguments, as a stack
	free []*scope
	now  time.Time
}

// scope holds the variables set by one loop, macro, block or the template itself. A macro keeps the scope in which it was defined.
type scope struct {
	outer *scope
	names []string
	vals  []Value
	held  bool // a macro refers to it: it may outlive its block
}

// find returns a variable's storage, nil if no scope has set it.
func (c *scope) find(name string) *Value {
	for ; c != nil; c = c.outer {
		if v := c.own(name); v != nil {
			return v
		}
	}
	return nil
}

func (c *scope) own(name string) *Value {
	for i := range c.names {
		if c.names[i] == name {
			return &c.vals[i]
		}
	}
	return nil
}

func (c *scope) set(name string, v Value) {
	if at := c.own(name); at != nil {
		*at = v
		return
	}
	c.names, c.vals = append(c.names, name), append(c.vals, v)
}

// shadow declares names that the scope itself sets later, so that they are not looked up outside.
func (c *scope) shadow(names []string) {
	for _, name := range names {
		c.set(name, unset)
	}
}

func (c *scope) reset() {
	clear(c.vals)
	c.names, c.vals = c.names[:0], c.vals[:0]
}

// open starts a scope inside outer and makes it the current one; leave ends it.
func (s *state) open(outer *scope) *scope {
	var c *scope
	if n := len(s.free); n > 0 {
		c, s.free = s.free[n-1], s.free[:n-1]
	} else {
		c = new(scope)
	}
	c.outer, s.scope = outer, c
	return c
}

func (s *state) leave(c, back *scope) {
	s.scope = back
	if !c.held {
		c.reset()
		c.outer = nil
		s.free = append(s.free, c)
	}
}

// hold keeps the current scopes alive for a macro.
func (s *state) hold() *scope {
	for c := s.scope; c != nil && !c.held; c = c.outer {
		c.held = true
	}
	return s.scope
}

// run renders the template and appends the text to dst.
func (s *state) run(dst []byte, vars Vars) (out []byte, err error) {
	s.out, s.vars = dst, vars
	s.maxOut = len(dst) + s.t.opts.Limits.OutputBytes
	defer func() {
		if r := recover(); r != nil {
			out, err = dst, recovered(r, s.line)
		}
	}()
	root := s.open(nil)
	root.shadow(s.t.shadowed)
	s.block(s.t.tree)
	return s.out, nil
}

// release clears the state, so that it holds no request memory, and returns it to the pool.
func (s *state) release() {
	const keep = 1 << 12 // the buffers of a rare huge rendering must not stay resident
	if cap(s.args) > keep || len(s.free) > keep {
		return
	}
	clear(s.args[:cap(s.args)])
	for _, c := range s.free {
		clear(c.vals[:cap(c.vals)])
	}
	*s = state{t: s.t, args: s.args[:0], free: s.free}
	s.t.states.Put(s)
}

// step counts n steps.
func (s *state) step(n int) {
	s.steps += n
	if s.steps > s.t.opts.Limits.Steps {
		limit("more than %d steps", s.t.opts.Limits.Steps)
	}
	s.work(64 * n)
}

// work counts work done, and ends the rendering if its time is over.
func (s *state) work(n int) {
	s.unseen += n
	if s.unseen < 1<<18 {
		return
	}
	s.unseen = 0
	select {
	case <-s.done:
		panic(ErrStopped)
	default:
	}
}

// fits ends the rendering if a string of n bytes would be too long.
func (s *state) fits(n int) {
	if n > s.t.opts.Limits.OutputBytes {
		limit("a string of more than %d bytes", s.t.opts.Limits.OutputBytes)
	}
}

// grow accounts for n bytes of strings or values, before they are made.
func (s *state) grow(n int) {
	s.fits(n)
	s.made += n
	if s.made > s.t.opts.Limits.MadeBytes {
		limit("strings and lists of more than %d bytes", s.t.opts.Limits.MadeBytes)
	}
	s.work(n)
}

const (
	maxItems   = 1 << 18                        // elements of one list made by a template
	valueBytes = int(unsafe.Sizeof(Value{}))    // of a list's element
	pairBytes  = 3*valueBytes + 48              // of a dict's entry, with its place in the index
	tupleBytes = 2*valueBytes + 24 + valueBytes // of a pair as a tuple, with its place in a list
)

// list accounts for a list of n elements, before it is made.
func (s *state) list(n int) {
	if n > maxItems {
		limit("a list of more than %d elements", maxItems)
	}
	s.step(n)
	s.grow(n * valueBytes)
}

// scan counts steps for reading a text once, such as for a comparison.
func (s *state) scan(text string) {
	if len(text) >= 256 {
		s.step(len(text) >> 8)
	}
}

// builder makes a string that stays within the limits.
type builder struct {
	s *state
	b strings.Builder
}

func (b *builder) add(text string) {
	b.s.fits(b.b.Len() + len(text))
	b.s.work(len(text))
	b.b.WriteString(text)
}

// text returns the string and accounts for it.
func (b *builder) text() string {
	b.s.grow(b.b.Len())
	return b.b.String()
}

func (s *state) deeper() {
	s.depth++
	if s.depth > s.t.opts.Limits.Depth {
		limit("nested deeper than %d", s.t.opts.Limits.Depth)
	}
}

// write appends text to the output.
func (s *state) write(text string) {
	s.room(s.out, len(text))
	s.out = append(s.out, text...)
}

// room ends the rendering if n more bytes behind dst exceed the output limit.
func (s *state) room(dst []byte, n int) {
	if len(dst)+n > s.maxOut {
		limit("output of more than %d bytes", s.t.opts.Limits.OutputBytes)
	}
	s.work(n)
}

// print appends str(v).
func (s *state) print(v Value) {
	switch {
	case v.IsString():
		s.write(v.str)
	case v.kind != KindUndefined:
		s.out = s.appendRepr(s.out, v)
		s.write("")
	}
}

// captured removes and returns the output written since it had length from.
func (s *state) captured(from int) string {
	s.grow(len(s.out) - from)
	text := string(s.out[from:])
	s.out = s.out[:from]
	return text
}
