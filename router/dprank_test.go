package router

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/workers/fleet"
)

// edited returns a body after a decision's edits.
func edited(t *testing.T, body string, edits []Edit) (out []byte) {
	t.Helper()
	at := 0
	for _, e := range edits {
		if e.From < at {
			t.Fatalf("edits overlap: %+v; got %d, want at least %d", edits, e.From, at)
		}
		out = append(append(out, body[at:e.From]...), e.Text...)
		at = e.To
	}
	return append(out, body[at:]...)
}

// onSGLang returns a router with SGLang workers of one model with so many ranks each (0: none), its index, and the slots.
func onSGLang(t *testing.T, ranks ...int) (*Router, *indexer.Index, []*fleet.Worker) {
	t.Helper()
	media, err := engine.NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(media.Close)
	s := engine.DefaultServer()
	s.Engine, s.EngineVersion, s.BlockSize = "sglang", "0.5.23", 1
	m, err := engine.LoadLive("m", "../examples/models/qwen2.5-vl", s, media)
	if err != nil {
		t.Fatal(err)
	}
	ix, fl := indexer.New(indexer.Options{}), fleet.New(nil)
	var workers []*fleet.Worker
	for i, n := range ranks {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 30000)
		workers = append(workers, fleet.NewWorker(addr.String(), addr, "m", n, func(int) indexer.SlotID {
			return ix.Join(indexer.SlotOptions{CountCopies: true})
		}))
	}
	fl.Set(workers)
	return New(Options{Models: []Model{{Name: "m", Prompts: m}}, Fleet: fl, Index: ix, PredictedTTL: time.Minute}), ix, workers
}

// store makes a slot hold a body's prompt, as by its events.
func store(t *testing.T, r *Router, ix *indexer.Index, at *fleet.Slot, skeleton string) {
	t.Helper()
	var sk body.Skeleton
	var req body.Request
	if err := body.Read([][]byte{[]byte(skeleton)}, &sk, &req); err != nil {
		t.Fatal(err)
	}
	m := r.serving.Load().names["m"].model.Prompts.Model()
	ps, err := m.Read(t.Context(), "/v1/chat/completions", "", &req)
	if err != nil {
		t.Fatal(err)
	}
	locals := ps.List[0].Locals(nil, block.Form{Size: m.Server.BlockSize}, "")
	if err := ix.Store(at.ID, indexer.GPU, 0, false, handlesOf(locals), locals); err != nil {
		t.Fatal(err)
	}
}

// handlesOf returns engine hashes for blocks: equal tokens at two places are two blocks.
func handlesOf(locals []uint64) []uint64 { return block.Fixed().Chain(nil, locals) }

// TestRankInBody checks that the rank is written into the body instead of a client's own, and that a retry goes only to workers
// that have that rank.
func TestRankInBody(t *testing.T) {
	for name, body := range map[string]string{
		"plain": `{"model":"m","messages":[{"role":"user","content":"one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"}]}`,
		"spaces": " \n{ \"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"one two three four five six " +
			"seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty one two " +
			"three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty\"}]}",
		"the client's own": `{"routed_dp_rank":7,"model":"m","messages":[{"role":"user","content":"one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty"}],"routed_dp_rank":9}`,
	} {
		r, ix, workers := onSGLang(t, 2, 1, 2)
		store(t, r, ix, workers[0].Slots[1], body)
		d := r.Decide(t.Context(), &Request{ID: "a", Path: "/v1/chat/completions", Body: [][]byte{[]byte(body[:3]), []byte(body[3:])}})
		if d.Targets[0].Addr != workers[0].Addr || d.Targets[0].Rank != 1 {
			t.Fatalf("%s: got %+v (%s), want rank 1 of %s", name, d.Targets, d.Why, workers[0].Addr)
		}
		got := edited(t, body, d.Edits)
		var sent map[string]any
		if err := json.Unmarshal(got, &sent); err != nil || sent["routed_dp_rank"] != 1.0 ||
			bytes.Count(got, []byte("routed_dp_rank")) != 1 || sent["model"] != "m" {
			t.Errorf("%s: %s (%v); got %v, %d, %v, want no error, 1.0, 1, %q",
				name, got, err, sent["routed_dp_rank"], bytes.Count(got, []byte("routed_dp_rank")), sent["model"], "m")
		}
		for _, x := range d.Targets {
			if x.Addr == workers[1].Addr {
				t.Errorf("%s: got %+v, want no retry at a worker without rank 1", name, d.Targets)
			}
		}
		if len(d.Targets) != 2 {
			t.Errorf("%s: %d targets, want the holder and the other worker with rank 1", name, len(d.Targets))
		}
	}
	r, _, _ := onSGLang(t, 0, 0)
	if d := r.Decide(t.Context(), &Request{ID: "b", Path: "/v1/chat/completions",
		Body: [][]byte{[]byte(`{"model":"m","messages":[{"role":"user","content":"x"}]}`)}}); len(d.Edits) != 0 || len(d.Targets) != 2 {
		t.Errorf("workers without ranks: %+v; got %d, %d, want 0, 2", d, len(d.Edits), len(d.Targets))
	}
}

// TestSGLangReports checks that at page size 1 a prompt is matched to the token, its last one always computed; that a report of 0
// cached tokens, which SGLang also gives if it does not report, has no effect; and that a real count drops what was not found.
func TestSGLangReports(t *testing.T) {
	body := `{"model":"m","messages":[{"role":"user","content":"one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty six seven"}]}`
	r, ix, workers := onSGLang(t, 0)
	store(t, r, ix, workers[0].Slots[0], body)
	ask := func(id string, reported int) Decision {
		d := r.Decide(t.Context(), &Request{ID: id, Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}})
		r.Observe(Outcome{ID: id, Phase: Started, Addr: workers[0].Addr})
		r.Observe(Outcome{ID: id, Phase: Ended, Addr: workers[0].Addr, Code: 200, CachedTokens: reported})
		return d
	}
	for _, id := range []string{"a", "b"} {
		if d := ask(id, 0); d.Reason != Exact || d.CachedTokens != d.PromptTokens-1 {
			t.Fatalf("%s: got %d of %d tokens, %s, want %q, %d", id, d.CachedTokens, d.PromptTokens, d.Reason, Exact, d.PromptTokens-1)
		}
	}
	ask("c", 5)
	if held := ix.HeldBlocks(workers[0].Slots[0].ID); held != 5 {
		t.Errorf("%d tokens held after a report of 5, want 5", held)
	}
}
