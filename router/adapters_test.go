package router

import (
	"fmt"
	"testing"
)

// Requests of an adapter go where it is loaded, unless more waits there than loading takes; one that has to go for another costs
// twice, and the one that was used least lately goes.
func TestAdaptersStay(t *testing.T) {
	w := newWorld(t, 2)
	models := w.opt.Models
	models[0].Adapters, models[0].MaxLoRAs = []string{"a", "b", "c"}, 1
	w.Serve(models, 0, w.opt.PredictedTTL)
	n := 0
	at := func(adapter string) string {
		n++
		d := w.decide(chatBody(adapter, fmt.Sprintf("%q", text(50, uint64(n)))))
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, CachedTokens: -1})
		return d.Targets[0].Worker
	}
	a := at("a")
	b := at("b")
	if a == b {
		t.Fatalf("both at %s, where one has room", a)
	}
	for range 5 {
		if at("a") != a || at("b") != b {
			t.Fatal("they moved")
		}
	}
	c := at("c")
	w.load(int(c[1]-'0'), 200)
	if got := at("c"); got == c {
		t.Error("it waits where many others are")
	}
	slot := w.slots[0]
	for _, use := range []string{"x", "y", "x", "z"} {
		w.adapters.use(slot, use, 2)
	}
	for name, want := range map[string]int{"": 0, "x": 0, "z": 0, "y": 2 * adapterLoad} {
		if got := w.adapters.work(slot, name, 2); got != want {
			t.Errorf("%q costs %d, want %d", name, got, want)
		}
	}
}
