package template

import (
	"errors"
	"fmt"
)

// There are four kinds of errors: a *SyntaxError from Compile, and from Render a *RaisedError (the template refused the
// conversation on purpose), an error that wraps ErrLimit (a bound was reached), or an *Error (Python would have raised). Inside the
// package they travel as panics to the two entry points, as in text/template: a template cannot catch errors.

// ErrLimit is wrapped by the error of a rendering that reached one of its Limits, and of JSON beyond the bounds of FromJSON.
var ErrLimit = errors.New("template: limit reached")

// ErrStopped is wrapped by the error of a rendering whose Chat.Done was closed.
var ErrStopped = errors.New("template: stopped")

// SyntaxError says why a source does not compile.
type SyntaxError struct {
	Line int // 1-based line of the source
	Msg  string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("template: line %d: %s", e.Line, e.Msg) }

// RaisedError is a refusal by the template itself: it called raise_exception(Message).
type RaisedError struct {
	Line    int
	Message string
}

func (e *RaisedError) Error() string {
	return fmt.Sprintf("template: line %d: raised: %s", e.Line, e.Message)
}

// Error is a rendering error: Python would have raised an exception here.
type Error struct {
	Line        int
	Msg         string
	Unsupported bool // this package lacks a feature that the template uses
	internal    bool // a bug of this package
}

func (e *Error) Error() string { return fmt.Sprintf("template: line %d: %s", e.Line, e.Msg) }

func syntaxErrorf(line int, format string, args ...any) *SyntaxError {
	return &SyntaxError{Line: line, Msg: fmt.Sprintf(format, args...)}
}

const notSupported = " is not supported in chat templates"

// raise ends the rendering with an *Error; Render fills in the line. The result type is for callers that must return a Value.
func raise(format string, args ...any) Value {
	panic(&Error{Msg: fmt.Sprintf(format, args...)})
}

// unsupported ends the rendering because this package lacks a feature of Python.
func unsupported(format string, args ...any) Value {
	panic(&Error{Msg: fmt.Sprintf(format, args...) + notSupported, Unsupported: true})
}

// limit ends the rendering because a bound was reached.
func limit(format string, args ...any) {
	panic(fmt.Errorf("%w: %s", ErrLimit, fmt.Sprintf(format, args...)))
}
