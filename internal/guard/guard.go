// Package guard stops a panic where strangers' bytes are read in a goroutine of our own: one message must not end the process.
package guard

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
)

// Panic is a panic that was stopped. Its text names the fault and where it lies, and none of the bytes.
type Panic struct{ text string }

func (p *Panic) Error() string { return p.text }

// Call calls f and gives its error, or a *Panic. Only for what leaves nothing behind that others need: no lock held without a
// defer, no half-written structure.
func Call(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &Panic{fmt.Sprintf("panic: %s at %s", fault(v), place())}
		}
	}()
	return f()
}

// fault is the runtime's own text; other values may hold what was read, so their type must do.
func fault(v any) string {
	if e, ok := v.(runtime.Error); ok {
		return strings.TrimPrefix(e.Error(), "runtime error: ")
	}
	return fmt.Sprintf("a %T", v)
}

// place is the line that panicked.
func place() string {
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
			return "an unknown place"
		}
	}
}
