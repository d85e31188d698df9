package router

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/router/fleet"
)

// Prefill and decode apart: the prefill worker that holds the prompt is named beside another that decodes, at each of the
// front ends, and what is reported cached (the decode worker's) is not held against the prefill worker.
func TestPrefillIsPickedByItsCache(t *testing.T) {
	w := newWorld(t, 0)
	var all []*fleet.Worker
	for _, prefill := range []bool{true, true, false, false} {
		id := fmt.Sprint(len(all) + 1)
		fw := fleet.NewWorker("dynamo-"+id, netip.MustParseAddrPort("10.0.0.9:8000"), "m", 0, func(int) indexer.SlotID { return w.index.Join(indexer.SlotOptions{}) })
		fw.Instance, fw.Frontends, fw.Prefill = id, []string{"10.0.0.9:8000", "10.0.0.8:8000"}, prefill
		all = append(all, fw)
		w.slots = append(w.slots, fw.Slots...)
	}
	w.opt.Fleet.Set(all)
	body := chatBody("m", fmt.Sprintf("%q", text(300, 7)))
	w.stores(1, body)
	decode := map[string]bool{}
	for range 2 {
		d := w.decide(body)
		if d.Reason != Exact || len(d.Targets) != 2 || d.Targets[0].Worker != "dynamo-2" || d.CachedTokens == 0 {
			t.Fatalf("%+v", d)
		}
		for _, at := range d.Targets {
			if at.Prefill != "2" || at.PrefillRank != -1 || at.Instance != d.Targets[0].Instance || at.Rank != -1 {
				t.Errorf("%+v", at)
			}
		}
		decode[d.Targets[0].Instance] = true
		w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: d.Targets[0].Addr})
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: 0, PromptTokens: -1})
	}
	if !decode["3"] || !decode["4"] {
		t.Errorf("decoded by %v, want 3 and 4 in turn", decode)
	}
	if d := w.decide(`{"model":"m"}`); len(d.Targets) == 0 || d.Targets[0].Prefill == "" || d.Targets[0].Instance == "" {
		t.Errorf("by load: %+v", d)
	}
	if d := w.decide(body); d.Reason != Exact {
		t.Errorf("after the decode worker's report: %+v", d)
	}
}
