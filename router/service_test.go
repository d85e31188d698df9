package router

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/workers/fleet"
)

// TestService: a cordoned worker gets only what it alone holds a part of, a draining one nothing, unless no other can serve; both are back
// afterwards. A failing one that is taken out is not tried.
func TestService(t *testing.T) {
	long := strings.Repeat("In the beginning the router was created. ", 12)
	ask := func(i string) string { return chatBody("m", `"`+i+long+`"`) }
	w := newWorld(t, 3)
	for i := range 3 {
		w.stores(i, ask("common"))
	}
	to := func(d Decision) string {
		if len(d.Targets) == 0 {
			return d.Why
		}
		for i := range d.Targets[1:] {
			if d.Targets[1+i].Worker == "w0" {
				return d.Targets[0].Worker + ", then w0"
			}
		}
		return d.Targets[0].Worker
	}
	zero := w.slots[0].Worker
	alone := ""
	for i := range 12 {
		w.now = w.now.Add(time.Second)
		alone = ask(fmt.Sprint("alone", i))
		w.stores(0, alone)
		zero.SetService(fleet.Cordoned, w.now)
		for _, body := range []string{ask("common"), ask("new"), `{"model":"m"}`} {
			if got := to(w.decide(body)); strings.Contains(got, "w0") {
				t.Errorf("%.30s while w0 is cordoned: to %s, want another", body, got)
			}
		}
		if got := to(w.decide(alone)); got != "w0" {
			t.Errorf("what w0 alone holds while it is cordoned: to %s, want w0", got)
		}
		zero.SetService(fleet.Draining, w.now)
		if d := w.decide(alone); d.Regret != isDraining {
			t.Errorf("regret %q for what a draining worker holds, want %q", d.Regret, isDraining)
		}
		for _, body := range []string{ask("common"), alone, `{"model":"m"}`} {
			if got := to(w.decide(body)); strings.Contains(got, "w0") {
				t.Errorf("%.30s while w0 is draining: to %s, want another", body, got)
			}
		}
		for _, s := range w.slots[1:] {
			s.Worker.SetService(fleet.Draining, w.now)
		}
		if d := w.decide(alone); len(d.Targets) == 0 {
			t.Errorf("all are draining: %q, want a worker: no other can serve", d.Why)
		}
		for _, s := range w.slots {
			s.Worker.SetService(fleet.InService, w.now)
		}
	}
	last := ask("last")
	w.stores(0, last)
	if got := to(w.decide(last)); got != "w0" {
		t.Errorf("w0 is back: to %s, want w0", got)
	}
	for range 3 {
		zero.RecordFailure("connect", w.now)
	}
	zero.SetService(fleet.Draining, w.now)
	w.now = w.now.Add(time.Minute)
	if got := to(w.decide(last)); strings.Contains(got, "w0") {
		t.Errorf("w0 fails and is draining: to %s, want no trial", got)
	}
}
