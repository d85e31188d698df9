// Package guard recovers from panics where untrusted bytes are parsed in a goroutine of our own: one message must not end the
// process.
package guard

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
)

// Panic is the error for a recovered panic. Its text names the fault and its location, and contains none of the input.
type Panic struct{ text string }

func (p *Panic) Error() string { return p.text }

// Call calls f and returns its error, or a *Panic. f must leave nothing inconsistent behind: no lock held without a defer, no
// half-written shared structure.
func Call(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Panic{fmt.Sprintf("panic: %s at %s", Fault(v), where())}
		}
	}()
	return f()
}

// Fault says what a recovered value is: the runtime's own text. Other values may contain input, so only their type is named.
func Fault(v any) string {
	if e, ok := v.(runtime.Error); ok {
		return strings.TrimPrefix(e.Error(), "runtime error: ")
	}
	return fmt.Sprintf("a %T", v)
}

// where returns the line that panicked.
func where() string {
	var pcs [32]uintptr
	frames, panicking := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])]), false
	for {
		f, more := frames.Next()
		if f.Function == "runtime.gopanic" {
			panicking = true
		} else if panicking && !strings.HasPrefix(f.Function, "runtime.") {
			return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line)
		}
		if !more {
			return "unknown location"
		}
	}
}
