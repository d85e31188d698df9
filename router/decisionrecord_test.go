package router

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/router/decisionlog"
	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestDecisionLog checks the decision log's lines for every kind of end: one line each, in the order of their ends.
func TestDecisionLog(t *testing.T) {
	w := newWorld(t, 3)
	file := filepath.Join(t.TempDir(), "decisions.jsonl")
	log, err := decisionlog.Open(decisionlog.Options{File: file, MaxBytes: 1 << 20, Keep: 1})
	if err != nil {
		t.Fatal(err)
	}
	w.opt.Decisions, w.opt.Metrics = log, nil
	w.Router = New(w.opt)
	front := text(600, 8)
	body := func(more string) string { return chatBody("m", fmt.Sprintf("%q", front+strings.Repeat(more+" ", 20))) }
	w.stores(0, body("first"))
	ask := func(id, body string) Decision {
		return w.Decide(t.Context(), &Request{ID: id, Path: "/v1/chat/completions", Session: "a client's session", Body: [][]byte{[]byte(body)}})
	}
	first := ask("first", body("first"))
	if first.CachedTokens < 1024 {
		t.Fatalf("got %+v, want CachedTokens at least 1024", first)
	}
	w.opt.Ledger.Book("other", ledger.Booking{Slot: w.slots[0], Work: fleet.Work{Tokens: 1 << 20}})
	ask("second", body("second"))
	ask("image", chatBody("m", testImage(1, 640, 480)))
	ask("refused", "\xff\xfe{")
	w.now = w.now.Add(2 * time.Second)
	w.Observe(Outcome{ID: "second", Phase: Ended, Addr: "10.0.0.3:8000", Code: 200, CachedTokens: 32, PromptTokens: 2000,
		OutputTokens: 99, FirstByte: time.Second})
	w.Observe(Outcome{ID: "first", Phase: Ended, Addr: "10.9.9.9:1", Code: 503, CachedTokens: -1})
	w.now = w.now.Add(time.Minute)
	w.opt.Ledger.Expire()
	w.opt.Fleet.Set(nil)
	ask("nowhere", body("first"))
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}

	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, secret := range []string{front[:20], "client", "What is it"} {
		if bytes.Contains(b, []byte(secret)) {
			t.Errorf("the log holds %q, want it not in b", secret)
		}
	}
	got := map[string]decisionlog.Line{}
	var order []string
	for one := range bytes.Lines(b) {
		var l decisionlog.Line
		if err := json.Unmarshal(one, &l); err != nil {
			t.Fatalf("%s: got %v, want no error", one, err)
		}
		got[l.ID] = l
		order = append(order, fmt.Sprint(l.ID, " ", l.Outcome))
	}
	if want := "refused refused, second ended, first ended, image expired, nowhere none"; strings.Join(order, ", ") != want {
		t.Fatalf("%v, want %s", order, want)
	}
	a, c := got["first"], got["second"]
	if a.Reason != "exact" || a.Worker != "w0" || a.Cached != first.CachedTokens || a.Held != a.Cached || a.Status != 503 ||
		a.Used != "other" || a.ReportedCached != -1 ||
		a.Timestamp != 1_800_000_000_000 || a.InputLength != first.PromptTokens || a.Considered != 3 || len(a.Ranked) != 3 ||
		a.Ties != 0 || a.End != 2000 {
		t.Errorf(`%+v, want a.Reason == "exact", a.Worker == "w0", a.Cached == %v, a.Held == %v, a.Status == 503, a.Used == `+
			`"other", a.ReportedCached == -1, a.Timestamp == 1_800_000_000_000, a.InputLength == %v, a.Considered == 3, `+
			`len(a.Ranked) == 3, a.Ties == 0, a.End == 2000`, a, first.CachedTokens, a.Cached, first.PromptTokens)
	}
	best, next := a.Ranked[0], a.Ranked[1]
	if best.Worker != "w0" || best.Exact < a.Cached || next.Exact != 0 || best.Terms.Prefill == 0 ||
		best.Cost > best.Terms.Sum()+1 || a.Margin < next.Cost-best.Cost-1 || a.Margin <= 0 {
		t.Errorf(`%+v, want best.Worker == "w0", best.Exact >= %v, next.Exact == 0, best.Terms.Prefill != 0, best.Cost <= `+
			`best.Terms.Sum()+1, a.Margin >= next.Cost-best.Cost-1, a.Margin > 0`, a.Ranked, a.Cached)
	}
	if c.Worker == "w0" || c.Regret != "queue" || c.Held <= c.Cached || c.Used != "w2" || c.OutputLength != 99 ||
		c.ReportedCached != 32 || c.ReportedPrompt != 2000 || c.FirstByte != 1000 {
		t.Errorf(`%+v, want c.Worker != "w0", c.Regret == "queue", c.Held > %v, c.Used == "w2", c.OutputLength == 99, `+
			`c.ReportedCached == 32, c.ReportedPrompt == 2000, c.FirstByte == 1000`, c, c.Cached)
	}
	if n := (a.InputLength + 511) / 512; len(a.HashIDs) != n || n < 3 || a.HashIDs[0] != c.HashIDs[0] ||
		a.HashIDs[1] != c.HashIDs[1] || a.HashIDs[n-1] == c.HashIDs[n-1] {
		t.Errorf("%v, %v: want equal numbers for the front alone", a.HashIDs, c.HashIDs)
	}
	if a.Session == "" || a.Session != c.Session {
		t.Errorf("sessions %q, %q, want some, %q", a.Session, c.Session, c.Session)
	}
	if p := got["image"]; len(p.Images) != 1 || p.Images[0].ID == 0 || p.Images[0].Tokens < 100 || p.Images[0].Offset == 0 ||
		p.End < 30_000 {
		t.Errorf("got %+v, want one image with an id, at least 100 tokens, not at the beginning, and the prompt's end from 30,000 on", p)
	}
	if r := got["refused"]; r.Status != 400 || r.Worker != "" || len(r.HashIDs) != 0 {
		t.Errorf("%+v: got %d, want Status 400, Worker %q, 0", r, len(r.HashIDs), "")
	}
}
