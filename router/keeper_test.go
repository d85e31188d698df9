package router

import "testing"

// What is asked for stays remembered under its own id, whatever becomes of the body that named it: with the build tag
// poison that memory is overwritten.
func TestAnswersIDIsNotTheBodys(t *testing.T) {
	w := newWorld(t, 2)
	w.answers.Add("resp_1", "10.0.0.2:8000")
	d := w.decide(`{"model":"m","previous_response_id":"resp_1","messages":[{"role":"user","content":"and then?"}]}`)
	if len(d.Targets) != 1 || d.Targets[0].Worker != "w1" {
		t.Errorf("%+v", d)
	}
	if addr, _ := w.answers.Peek("resp_1"); addr != "10.0.0.2:8000" || w.answers.Len() != 1 {
		t.Errorf("remembered %q", w.answers.Keys())
	}
}
