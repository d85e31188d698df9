// Package template renders chat templates exactly as Hugging Face transformers does (Jinja2 3.1 in its immutable sandbox). A
// template is compiled once per model, 0.1 ms; a render of six turns takes 10 µs and some 20 allocations, from any goroutine.
// Errors name the line: a *SyntaxError from Compile; from Render a *RaisedError, ErrLimit, or an *Error where Python would raise.
//
// It supports the tags, filters, tests and methods that chat templates use and related ones, with trim_blocks, lstrip_blocks, loop
// controls, transformers' tojson, raise_exception, strftime_now, namespace and dict, and the {% generation %} tag. Values follow
// Python: ordered dicts, float repr, str(dict), Markup. A rendering that comes to other parts of Jinja2 fails, and the error names
// them; integers beyond 64 bits can be printed but not computed with. Source of the rules: jinja2 3.1.6, markupsafe 3.0,
// transformers 5.23 (utils/chat_template_utils.py).
//
// The files: lexer and parser read the source into a tree, names finds which variables it reads; eval and expr evaluate the tree;
// value, dict, ops, attr and format are Python's data model; filters, tests and methods are the library.
package template

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// Options are a template's environment. The zero value is the default.
type Options struct {
	Now    func() time.Time // the clock of strftime_now, which prints UTC; time.Now if nil
	Limits Limits
}

// Limits bound one rendering, because templates come from files of third parties. A zero field means its default.
type Limits struct {
	Steps       int // statements, loop iterations and calls, and 1 for each element produced; default 5 million
	Depth       int // nesting of macros and of values; default 200
	OutputBytes int // bytes of output, and of one string; default 64 MiB
	MadeBytes   int // bytes of all strings and lists made on the way; default four times OutputBytes
}

// Var is one top-level variable of a rendering.
type Var struct {
	Name  string
	Value Value
}

// Vars are the top-level variables of a rendering; the last of equal names wins. transformers always defines messages, tools,
// documents and add_generation_prompt (None, None and False if not given): see Chat.
type Vars []Var

// Set appends a variable.
func (v *Vars) Set(name string, value Value) { *v = append(*v, Var{name, value}) }

func (v Vars) get(name string) (Value, bool) {
	for i := len(v) - 1; i >= 0; i-- {
		if v[i].Name == name {
			return v[i].Value, true
		}
	}
	return Value{}, false
}

// Template is a compiled template, safe for concurrent use.
type Template struct {
	opts     Options
	source   string
	tree     []node
	asked    map[string]bool // names that it reads from its variables
	shadowed []string        // names that it sets itself before it reads them
	states   sync.Pool
}

// Compile parses a template and prepares it for rendering. The error is a *SyntaxError.
func Compile(src string, opts Options) (t *Template, err error) {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	opts.Limits = opts.Limits.withDefaults()
	defer func() {
		if r := recover(); r != nil {
			t, err = nil, recovered(r, 0)
		}
	}()
	t = &Template{opts: opts, source: src, tree: parse(src)}
	t.resolveNames()
	t.states.New = func() any { return &state{t: t} }
	return t, nil
}

func (l Limits) withDefaults() Limits {
	l.Steps, l.Depth, l.OutputBytes = cmp.Or(l.Steps, 5_000_000), cmp.Or(l.Depth, 200), cmp.Or(l.OutputBytes, 64<<20)
	l.MadeBytes = cmp.Or(l.MadeBytes, 4*l.OutputBytes)
	return l
}

// Render appends the rendered text to dst and returns the extended slice. The error is a *RaisedError if the template refused the
// conversation, wraps ErrLimit if a bound was reached, and is an *Error if Python would have raised; dst is then returned
// unchanged.
func (t *Template) Render(dst []byte, vars Vars) ([]byte, error) { return t.render(dst, vars, nil) }

func (t *Template) render(dst []byte, vars Vars, done <-chan struct{}) ([]byte, error) {
	s := t.states.Get().(*state)
	s.done = done
	out, err := s.run(dst, vars)
	s.release()
	return out, err
}

// recovered converts a panic of this package to the error it carries. A panic of the Go runtime becomes an error as well: a
// template must not take the process down.
func recovered(r any, line int) error {
	switch e := r.(type) {
	case *SyntaxError:
		return e
	case *RaisedError:
		e.Line = line
		return e
	case *Error:
		e.Line = line
		return e
	case runtime.Error:
		return &Error{Line: line, Msg: "internal error: " + e.Error(), Unsupported: true, internal: true}
	case error:
		if errors.Is(e, ErrLimit) || e == ErrStopped {
			return fmt.Errorf("template: line %d: %w", line, e)
		}
	}
	panic(r)
}
