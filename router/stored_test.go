package router

import (
	"fmt"
	"testing"
)

func TestStoredAnswersAreBounded(t *testing.T) {
	var s stored
	for i := range 5 * maxStored {
		s.add(fmt.Sprint(i), "10.0.0.1:8000")
		if i%1000 == 0 {
			s.worker("0") // asked for again and again
		}
	}
	if n := len(s.young) + len(s.old); n > 2*maxStored {
		t.Errorf("%d remembered, want at most %d", n, 2*maxStored)
	}
	if s.worker("0") == "" || s.worker(fmt.Sprint(5*maxStored-1)) == "" || s.worker(fmt.Sprint(4*maxStored)) == "" {
		t.Error("an answer asked for, or a new one, is forgotten")
	}
	if s.worker("1") != "" || s.worker("never") != "" {
		t.Error("an old answer nobody asked for is remembered")
	}
}
