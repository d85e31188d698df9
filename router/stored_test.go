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

// What is asked for stays remembered under its own id, whatever becomes of the body that named it: with the build tag
// poison that memory is overwritten.
func TestStoredIDIsNotTheBodys(t *testing.T) {
	w := newWorld(t, 2)
	w.stored.old = map[string]string{"resp_1": "10.0.0.2:8000"}
	d := w.decide(`{"model":"m","previous_response_id":"resp_1","messages":[{"role":"user","content":"and then?"}]}`)
	if len(d.Targets) != 1 || d.Targets[0].Worker != "w1" {
		t.Errorf("%+v", d)
	}
	if addr := w.stored.young["resp_1"]; addr != "10.0.0.2:8000" || len(w.stored.young) != 1 {
		t.Errorf("remembered %q", w.stored.young)
	}
}
