package router

import (
	"context"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/choose"
	"github.com/sightline-router/sightline/router/speculative"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestStagesKnowNothingElse checks what each of a decision's values is made from, through all fields that this package can reach: a reading
// knows no worker, and a choice neither the request nor the index.
func TestStagesKnowNothingElse(t *testing.T) {
	for _, c := range []struct {
		of  []any
		not []any
	}{
		{[]any{reading{}, engineReading{}}, []any{fleet.Slot{}, fleet.Worker{}, fleet.Fleet{}, indexer.Index{}, choose.Choice{}}},
		{[]any{choose.Input{}, choose.Choice{}}, []any{Request{}, body.Request{}, body.Skeleton{}, engine.Prompt{}, indexer.Index{}, Options{}}},
		{[]any{overlap{}, lookup{}}, []any{fleet.Load{}, choose.Candidate{}, choose.Choice{}, Options{}}},
	} {
		not := map[reflect.Type]bool{}
		for _, v := range c.not {
			not[reflect.TypeOf(v)] = true
		}
		for _, v := range c.of {
			seen := map[reflect.Type]bool{}
			var walk func(at reflect.Type, path string)
			walk = func(at reflect.Type, path string) {
				if seen[at] {
					return
				}
				seen[at] = true
				if not[at] {
					t.Errorf("%s is a %s, which this value must not know, want !not[at]", path, at)
					return
				}
				switch at.Kind() {
				case reflect.Pointer, reflect.Slice, reflect.Array, reflect.Map:
					walk(at.Elem(), path)
				case reflect.Struct:
					if at.PkgPath() == reflect.TypeOf(plan{}).PkgPath() || at.PkgPath() == reflect.TypeOf(choose.Input{}).PkgPath() {
						for i := range at.NumField() {
							walk(at.Field(i).Type, path+"."+at.Field(i).Name)
						}
					}
				}
			}
			walk(reflect.TypeOf(v), reflect.TypeOf(v).Name())
		}
	}
}

// TestReading reads requests without a router, an index or a worker.
func TestReading(t *testing.T) {
	live, err := testModel()
	if err != nil {
		t.Fatal(err)
	}
	m := newServedModel(&Model{Name: "m", Prompts: live})
	in := readInput{serving: &serving{names: map[string]servedName{"m": {model: m}, "lora": {model: m, adapter: "lora"}}, onlyModel: "m"},
		lanes: newLanes(), opt: &Options{}, listed: func(string) (string, string) { return "", "" }}
	for text, want := range map[string]string{
		chatBody("m", `"hi"`):                   `model "m", adapter "", 57 bytes; engine 0: 20 tokens, 0 media, exact true `,
		chatBody("lora", `"hi"`):                `model "lora", adapter "lora", 60 bytes; engine 0: 20 tokens, 0 media, exact true `,
		chatBody("x", `"hi"`):                   "model unknown",
		`{"model":"m","kv_transfer_params":{}}`: "the engine will answer with an error",
		`[]`:                                    "body is not a JSON object",
	} {
		var r reading
		q := Request{Path: "/v1/chat/completions", Body: [][]byte{[]byte(text)}}
		got := ""
		_, refusal := r.open(&in, &q)
		if refusal == nil {
			got = r.nameModel(&in, "")
		} else {
			got = refusal.Message
		}
		if got == "" {
			r.begin()
			r.byEngine[0].needed = true
			r.readAs(t.Context(), q.Path)
			got, _ = r.unreadable(false)
		}
		if got == "" {
			got = r.String()
		}
		if got != want {
			t.Errorf("%s: got %q, want %q", text, got, want)
		}
	}
}

// TestOverlap looks a literal prompt up: what events prove, what is predicted and which images were seen, of slots that may get it and of
// others, whatever their load.
func TestOverlap(t *testing.T) {
	live, err := testModel()
	if err != nil {
		t.Fatal(err)
	}
	index, now := indexer.New(indexer.Options{}), time.Unix(1_800_000_000, 0)
	r := &reading{servedName: servedName{model: newServedModel(&Model{Name: "m", Prompts: live})}}
	var list []*fleet.Slot
	for range 4 {
		w := &fleet.Worker{Model: "m"}
		w.Slots = []*fleet.Slot{{Worker: w, Rank: -1, ID: index.Join(indexer.SlotOptions{})}}
		list = append(list, w.Slots[0])
	}
	list[3].EventAge = func(time.Time) time.Duration { return time.Hour } // nothing that it has counts
	prompt := &engine.Prompt{IDs: make([]uint32, 100), HashableIDs: 100, Exact: true}
	for i := range prompt.IDs {
		prompt.IDs[i] = uint32(i)
	}
	known := memory{predicted: speculative.New(time.Minute, 100), sightings: newSightings(func(string) {}), fronts: newFronts()}
	selected := selection{known: list, slots: []*fleet.Slot{list[0], list[1], list[3]}}
	in := lookInput{reading: r, selection: &selected, memory: &known, index: index, now: now}
	var o overlap
	o.begin(&in)
	r.byEngine[0] = engineReading{needed: true, model: live.Model(), prompt: prompt}
	r.measure()
	o.hash(&in)
	l := &o.lookups[0]
	for slot, blocks := range map[int]int{0: 2, 2: 5, 3: 6} {
		if err := index.Store(list[slot].ID, indexer.GPU, 0, false, l.chain[:blocks], l.locals[:blocks]); err != nil {
			t.Fatal(err)
		}
	}
	known.predicted.Add(uint32(list[1].ID), block.Fixed().Chain(nil, l.locals[:4]), 0, time.Minute, now)
	o.match(&in)
	want := []choose.Overlap{{Slot: 0, Tokens: 100, Exact: 32, Predicted: 32}, {Slot: 1, Tokens: 100, Predicted: 64},
		{Slot: 2, Tokens: 100, Doubtful: true}}
	if !reflect.DeepEqual(o.slots, want) || !strings.Contains(o.String(), "blocks of 16: 6 computed, 6 in all") {
		t.Errorf("got %v\nwant %+v", &o, want)
	}
	if want := []choose.Overlap{{Slot: 2, Exact: 80, Predicted: 80}}; !reflect.DeepEqual(o.excluded, want) {
		t.Errorf("excluded: got %+v, want %+v", o.excluded, want)
	}
}

// TestShortlist runs the screens on a literal request.
func TestShortlist(t *testing.T) {
	w := newWorld(t, 3)
	for range 3 {
		w.slots[0].Worker.RecordFailure("reset", w.now)
	}
	l := shortlist{places: places{ledger: w.opt.Ledger}, req: &Request{}, way: &way{steers: true}, pool: "m", now: w.now,
		opt: &w.opt, answers: w.answers}
	if refusal := l.make(context.Background()); refusal != nil || len(l.known) != 3 || len(l.slots) != 2 || l.slots[0] != w.slots[1] {
		t.Errorf("got %d of %d slots, refused %v; want the last two of three", len(l.slots), len(l.known), refusal)
	}
	var out []*fleet.Slot
	l.excluded(func(_ int, s *fleet.Slot) { out = append(out, s) })
	if len(out) != 1 || out[0] != w.slots[0] || l.whyExcluded(out[0], w.now) != isOut {
		t.Errorf("left out %v, want the failing one", out)
	}
}
