package router

import (
	"fmt"
	"testing"
)

// TestAdaptersStay checks that requests for an adapter go where it is loaded, unless the queue there costs more than loading,
// that an adapter which has to be evicted doubles the cost, and that the least recently used one is evicted.
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
		t.Fatalf("both at %s, where one has room, want other than %q", a, b)
	}
	for range 5 {
		if at("a") != a || at("b") != b {
			t.Fatalf(`they moved, want at("a") == %v, at("b") == %v`, a, b)
		}
	}
	c := at("c")
	w.load(int(c[1]-'0'), 200)
	if got := at("c"); got == c {
		t.Errorf("got %s, where many others wait, want another worker", c)
	}
	slot := w.slots[0]
	for _, use := range []string{"x", "y", "x", "z"} {
		w.adapters.Sent(slot, use, 2)
	}
	for name, want := range map[string]int{"x": 0, "z": 0, "y": 2 * 2500} {
		if got := w.adapters.LoadCost(slot, name, 2); got != want {
			t.Errorf("%q costs %d, want %d", name, got, want)
		}
	}
}

// TestAdaptersAreListed checks that an adapter that workers list needs no configuration, that its requests go to the workers that
// list it, or to any if none does, and that adapters in the workers' metrics count as loaded.
func TestAdaptersAreListed(t *testing.T) {
	w := newWorld(t, 3)
	n := 0
	ask := func() Decision {
		n++
		d := w.decide(chatBody("new", fmt.Sprintf("%q", text(50, uint64(n)))))
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, CachedTokens: -1})
		return d
	}
	if d := ask(); d.Why != "model unknown" {
		t.Fatalf("got %+v, want Why %q", d, "model unknown")
	}
	list := func(i int, names ...string) {
		listed := map[string]string{}
		for _, name := range names {
			listed[name] = "/" + name
		}
		w.slots[i].Worker.SetAdapters(listed)
	}
	list(0)
	list(1, "new")
	w.load(1, 50)
	for range 6 {
		if d := ask(); d.Targets[0].Worker != w.slots[1].Worker.Name || len(d.Targets) != 1 || d.Model == "" {
			t.Fatalf(`got %+v, want d.Targets[0].Worker == w.slots[1].Worker.Name, len(d.Targets) == 1, d.Model != ""`, d)
		}
	}
	list(1, "w")
	if d := w.decide(chatBody("any:w", `"short"`)); d.Targets[0].Worker != w.slots[1].Worker.Name || len(d.Targets) != 1 {
		t.Fatalf("got %+v, want %s alone, which has the adapter", d, w.slots[1].Worker.Name)
	}
	if d := w.decide(chatBody("any:v", `"short"`)); d.Why != "model unknown" {
		t.Fatalf("got %+v, want Why %q", d, "model unknown")
	}
	list(1)
	if d := ask(); d.Why != "model unknown" {
		t.Fatalf("got %+v, want Why %q", d, "model unknown")
	}
	w.slots[2].Worker.SetLoadedAdapters([]string{"x"}, 3)
	for name, want := range map[string]int{"x": 0, "y": 2500} {
		if got := w.adapters.LoadCost(w.slots[2], name, 0); got != want {
			t.Errorf("%q costs %d, want %d", name, got, want)
		}
	}
}
