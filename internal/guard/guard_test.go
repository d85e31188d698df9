package guard

import (
	"errors"
	"strings"
	"testing"
)

func TestCall(t *testing.T) {
	want := errors.New("its own")
	if err := Call(func() error { return want }); err != want {
		t.Error(err)
	}
	var list []int
	for name, f := range map[string]func() error{
		"index out of range [3] with length 0 at guard_test.go:": func() error { list[3]++; return nil },
		"a string at guard_test.go:":                             func() error { panic("a prompt's words") },
		"a *errors.errorString at guard_test.go:":                func() error { panic(want) },
	} {
		err := Call(f)
		var p *Panic
		if !errors.As(err, &p) || !strings.Contains(err.Error(), name) || strings.Contains(err.Error(), "words") {
			t.Errorf("%v, want %q", err, name)
		}
	}
}
