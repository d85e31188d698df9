package template

import (
	"errors"
	"fmt"
)

// Errors come in four sorts: a *SyntaxError from Compile, and from Render a *RaisedError (the template refused the
// conversation on purpose), an error that wraps ErrLimit (a bound was reached), or an *Error (Python would have raised).
// Inside the package they travel as panics to the two entry points, as in text/template: a template cannot catch errors.

// ErrLimit is wrapped by the error of a rendering that reached one of its Limits.
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

// Error is a rendering error. Class is the name of the exception that Python would raise, such as "TypeError".
type Error struct {
	Line  int
	Class string
	Msg   string
}

func (e *Error) Error() string {
	return fmt.Sprintf("template: line %d: %s: %s", e.Line, e.Class, e.Msg)
}

func syntaxErrorf(line int, format string, args ...any) *SyntaxError {
	return &SyntaxError{Line: line, Msg: fmt.Sprintf(format, args...)}
}

// The Python exception classes that this package raises.
const (
	typeError      = "TypeError"
	valueError     = "ValueError"
	keyError       = "KeyError"
	indexError     = "IndexError"
	overflowError  = "OverflowError"
	zeroDivision   = "ZeroDivisionError"
	undefinedError = "UndefinedError"
	securityError  = "SecurityError"
	runtimeError   = "TemplateRuntimeError"
	filterArgError = "FilterArgumentError"
	notSupported   = "NotSupportedError" // Jinja2 could, this package cannot
	nameError      = "NameError"
	attributeError = "AttributeError"
	assertionError = "AssertionError"
)

// raise ends the rendering with an *Error; Render fills in the line. It gives a Value for functions that must.
func raise(class, format string, args ...any) Value {
	panic(&Error{Class: class, Msg: fmt.Sprintf(format, args...)})
}

// limit ends the rendering because a bound was reached.
func limit(format string, args ...any) {
	panic(fmt.Errorf("%w: %s", ErrLimit, fmt.Sprintf(format, args...)))
}
