package router

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/router/audit"
)

// TestConsider checks that Consider returns what is decided next, lists all workers, and has no effects.
func TestConsider(t *testing.T) {
	w := newWorld(t, 5)
	body := chatBody("m", fmt.Sprintf("%q", text(400, 1)))
	w.stores(1, body)
	w.stores(3, body)
	for range 3 {
		w.slots[3].Worker.RecordFailure("503", w.now)
	}
	ask := &Request{ID: "asked", Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}}
	before, _ := w.metrics.Gather()
	d, told := w.Consider(t.Context(), ask, 64)
	after, _ := w.metrics.Gather()
	if fmt.Sprint(before) != fmt.Sprint(after) || w.opt.Ledger.Open() != 0 || len(w.Recent(9)) != 0 {
		t.Errorf("got %d open and %d decisions\n%v\n%v\nwant nothing to come of asking", w.opt.Ledger.Open(), len(w.Recent(9)), before, after)
	}
	if again, _ := w.Consider(t.Context(), ask, 64); again.CachedTokens != d.CachedTokens || again.Reason != Exact {
		t.Errorf("asked again: got %+v, before %+v, want CachedTokens %d, Reason %q", again, d, d.CachedTokens, Exact)
	}
	got := w.decide(body)
	if got.Targets[0] != d.Targets[0] || got.CachedTokens != d.CachedTokens || got.HeldTokens != d.HeldTokens || got.Reason != d.Reason {
		t.Errorf("got %+v decided, want %+v as the dry run said", got, d)
	}
	if len(told.Ranked) != 5 || told.Considered != 4 || told.Ranked[0].Worker != "w1" || told.Ranked[0].Exact == 0 || told.Margin() <= 0 {
		t.Fatalf(`told: %+v, want len(told.Ranked) == 5, told.Considered == 4, told.Ranked[0].Worker == "w1", `+
			`told.Ranked[0].Exact != 0, told.Margin() > 0`, told)
	}
	for i, c := range told.Ranked[1:4] {
		if c.Exact != 0 || c.Out != "" || c.Cost <= told.Ranked[0].Cost || c.Cost != c.Terms.Sum() || c.Cost < told.Ranked[i].Cost {
			t.Errorf(`candidate %d: %+v, want c.Exact == 0, c.Out == "", c.Cost > told.Ranked[0].Cost, c.Cost == c.Terms.Sum(), `+
				`c.Cost >= told.Ranked[i].Cost`, i+1, c)
		}
	}
	if c := told.Ranked[4]; c.Worker != "w3" || c.Out != isOut || c.Exact != told.Ranked[0].Exact {
		t.Errorf(`the worker that fails: got %+v, want c.Worker == "w3", c.Out == isOut, c.Exact == told.Ranked[0].Exact`, c)
	}
	if _, few := w.Consider(t.Context(), ask, 2); len(few.Ranked) != 2 || few.Considered != 4 {
		t.Errorf("of at most 2: %+v; got %d, want 2 of them, 4", few.Ranked, few.Considered)
	}

	// A past decision keeps its best candidates, and what the audit found; a list of decisions does not.
	w.Audited("d1", audit.Equal)
	past, _ := w.Decision("d1")
	if len(past.Ranked) != 4 || !reflect.DeepEqual(past.Ranked[0], told.Ranked[0]) || past.Audit != audit.Equal ||
		past.Margin() != told.Margin() {
		t.Errorf("got %+v kept, want four ranked, the first as told, its margin %v, and found equal by the audit", past, told.Margin())
	}
	if list := w.Recent(1); len(list[0].Ranked) != 0 || list[0].Considered != 4 {
		t.Errorf("got %+v listed, want four considered, and no ranking", list[0])
	}
	if _, err := json.Marshal(told); err != nil { // no infinite or NaN cost, even for a trial
		t.Error(err)
	}
}

// TestConsiderWithoutPrompt checks that Consider returns the reason for a request that is not read or that no worker may get, and
// leaves a trial to real requests.
func TestConsiderWithoutPrompt(t *testing.T) {
	w := newWorld(t, 2)
	if d, told := w.Consider(t.Context(), &Request{ID: "a", Body: [][]byte{[]byte(chatBody("other", `"x"`))}},
		64); d.Why != "model unknown" || told.Asked != "other" || len(told.Ranked) != 2 {
		t.Errorf("model unknown: %+v %+v; got %d, want Why %q, Asked %q, 2", d, told, len(told.Ranked), "model unknown", "other")
	}
	if d, told := w.Consider(t.Context(), &Request{ID: "a", Body: [][]byte{[]byte(`{"model":`)}}, 64); d.Refuse == nil ||
		len(told.Ranked) != 0 {
		t.Errorf("no JSON: %+v %+v; got %d, want Refuse one, 0", d, told, len(told.Ranked))
	}
	for range 3 {
		w.slots[1].Worker.RecordFailure("503", w.now)
	}
	w.now = w.now.Add(2e9) // a trial is due
	body := chatBody("m", `"Hello"`)
	d, told := w.Consider(t.Context(), &Request{ID: "b", Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}}, 64)
	if d.Targets[0].Worker != "w0" || len(told.Ranked) != 2 || told.Ranked[1].Out != isOut {
		t.Errorf("one is out: %+v %+v; got %d, want Targets[0].Worker %q, 2, Ranked[1].Out %q", d, told, len(told.Ranked), "w0", isOut)
	}
	if got := w.decide(body); got.Targets[0].Worker != "w1" {
		t.Errorf("the trial: got %+v, want Targets[0].Worker %q", got, "w1")
	}
}

// TestConsiderDecidesAlike checks that every field of what Consider returns is that of the decision that follows, among workers of
// which several are equally good too.
func TestConsiderDecidesAlike(t *testing.T) {
	w := newWorld(t, 5)
	held := chatBody("m", fmt.Sprintf("%q", text(400, 1)))
	w.stores(1, held)
	bodies := []string{held, chatBody("m", testImage(1, 640, 480)), chatBody("unknown", `"hello"`), "{", `{"model":"m"}`}
	for i := range 20 {
		bodies = append(bodies, chatBody("m", fmt.Sprintf("%q", text(300, uint64(10+i)))))
	}
	for i, body := range bodies {
		ask := &Request{ID: fmt.Sprint("asked", i), Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}}
		would, _ := w.Consider(t.Context(), ask, 64)
		got := w.Decide(t.Context(), ask)
		for f := range reflect.TypeFor[Decision]().NumField() {
			if reflect.TypeFor[Decision]().Field(f).Name == "Arm" { // drawn by lot
				continue
			}
			a, b := reflect.ValueOf(would).Field(f), reflect.ValueOf(got).Field(f)
			sa, sb := fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b)
			if sa != sb {
				t.Errorf("request %d: %s would be %s, and is %s, want %q", i, reflect.TypeFor[Decision]().Field(f).Name, sa, sb, sb)
			}
		}
		if len(got.Targets) > 0 { // so that the next ones are as idle
			w.Observe(Outcome{ID: got.ID, Phase: Ended, Addr: got.Targets[0].Addr, Code: 400, CachedTokens: -1})
		}
	}
}

// TestConsiderEncodesAlike checks that a dry run names the encode workers that the decision then names, although each image of a request
// finds the ones before it in their queues.
func TestConsiderEncodesAlike(t *testing.T) {
	w := newWorld(t, 4)
	w.asRoles("--ee")
	var parts []string
	for i := range uint64(8) {
		one := testImage(100+i, 640, 480)
		parts = append(parts, one[1:strings.Index(one, "},{")+1])
	}
	body := chatBody("m", "["+strings.Join(parts, ",")+"]")
	ask := &Request{ID: "asked", Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}}
	would, _ := w.Consider(t.Context(), ask, 64)
	again, _ := w.Consider(t.Context(), ask, 64)
	got := w.Decide(t.Context(), ask)
	if would.Encoder != got.Encoder || again.Encoder != got.Encoder || len(strings.Split(got.Encoder, ",")) != 8 {
		t.Errorf("would be encoded by %q, again %q, and is by %q: got %d, want %q, %q, 8",
			would.Encoder, again.Encoder, got.Encoder, len(strings.Split(got.Encoder, ",")), got.Encoder, got.Encoder)
	}
}

// TestConsiderChangesNothing checks that a dry run leaves nothing behind that a decision would: counted fields, models, answers,
// deadlines and refusals, and which answers were used last.
func TestConsiderChangesNothing(t *testing.T) {
	w := newWorld(t, 2)
	for i := range 3 {
		w.answers.Add(fmt.Sprint("resp_", i), "10.0.0.1:8000")
	}
	state := func() string {
		counted, err := w.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(counted, w.Unserved(), w.answers.Keys(), w.opt.Ledger.Open(), w.predicted.Size(), w.choices.Load(), w.Recent(9))
	}
	bodies := []string{chatBody("unknown", `"hello"`), chatBody("m", testImage(1, 640, 480)),
		`{"model":"m","kv_transfer_params":{"a":1},"messages":[]}`,
		`{"model":"m","previous_response_id":"resp_0","input":"and then?"}`, `{"model":"m","previous_response_id":"resp_9","input":"and then?"}`}
	for _, limit := range []int{0, 1} {
		w.limit(limit)
		for i, body := range bodies {
			before := state()
			ask := &Request{ID: fmt.Sprint(limit, i), Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}, FirstToken: 1}
			w.Consider(t.Context(), ask, 9)
			if after := state(); after != before {
				t.Errorf("%s: got\n%s\nwant the state from before\n%s", body, after, before)
			}
			w.Decide(t.Context(), ask)
			if state() == before {
				t.Errorf("%s: got %v after a decision too, want this test to see one", body, before)
			}
		}
	}
}

// TestConsiderRemembersNothing checks that dry runs do not use up the number of requests that are remembered beside rules that are not
// proven yet.
func TestConsiderRemembersNothing(t *testing.T) {
	w := newWorld(t, 1)
	o := w.opt
	o.LearnedBytes, o.Audit, o.Metrics = 1<<20, audit.New(audit.Options{Index: w.index}), nil
	w.Router = New(o)
	body := chatBody("m", `"Hello"`)
	ask := &Request{ID: "asked", Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}}
	for range 2000 {
		w.Consider(t.Context(), ask, 1)
	}
	if n := w.learning.sent.Size(); n != 0 {
		t.Errorf("dry runs predict %d steps, want 0", n)
	}
	w.decide(body)
	if w.learning.sent.Size() == 0 {
		t.Errorf("the first request after 2,000 dry runs is not remembered: got %d, want some", w.learning.sent.Size())
	}
}
