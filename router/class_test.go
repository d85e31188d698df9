package router

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/workers/fleet"
)

// classWorld is a router with one worker of each class, named after the class; "" is the model's own, vLLM 0.32 with blocks of
// 16.
type classWorld struct {
	*world
	model Model
	slot  map[string]*fleet.Slot
}

func newClassWorld(t *testing.T, classes map[string]func(*engine.Server)) *classWorld {
	t.Helper()
	own, err := testModel()
	if err != nil {
		t.Fatal(err)
	}
	m := Model{Name: "m", Prompts: own}
	names := []string{""}
	for name, change := range classes {
		s := *own.Server()
		change(&s)
		live := own
		if size := s.BlockSize; size == own.Server().BlockSize {
			live, err = own.LoadVariant(s)
			if err != nil {
				t.Fatal(err)
			}
		}
		m.Classes = append(m.Classes, Class{Name: name, Prompts: live, BlockSize: s.BlockSize})
		names = append(names, name)
	}
	w := &classWorld{world: &world{t: t, now: time.Unix(1_800_000_000, 0), index: indexer.New(indexer.Options{})},
		model: m, slot: map[string]*fleet.Slot{}}
	clock := func() time.Time { return w.now }
	f := fleet.New(clock)
	var workers []*fleet.Worker
	for i, name := range names {
		fw := fleet.NewWorker("w-"+name, netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:8000", i+1)), "m", 0, func(int) indexer.SlotID {
			return w.index.Join(indexer.SlotOptions{CountCopies: true})
		})
		fw.Class = name
		workers = append(workers, fw)
		w.slot[name] = fw.Slots[0]
	}
	f.Set(workers)
	w.Router = New(Options{Models: []Model{m}, Fleet: f, Index: w.index, PredictedTTL: 20 * time.Second, Now: clock})
	return w
}

// stores applies the events of the class's worker after it has prefilled the first tokens of a body. It returns how many tokens
// the engine will find cached next time.
func (w *classWorld) stores(class, skeleton string, tokens int) (cached int) {
	w.t.Helper()
	var s body.Skeleton
	var req body.Request
	if err := body.Read([][]byte{[]byte(skeleton)}, &s, &req); err != nil {
		w.t.Fatal(err)
	}
	live, size := w.model.Prompts, w.model.Prompts.Server().BlockSize
	for _, c := range w.model.Classes {
		if c.Name == class {
			live, size = c.Prompts, c.BlockSize
		}
	}
	ps, err := live.Model().Read(w.t.Context(), "/v1/chat/completions", "", &req)
	if err != nil {
		w.t.Fatal(err)
	}
	p := &ps.List[0]
	locals := p.Locals(nil, block.Form{Size: size}, "")
	locals = locals[:min(len(locals), tokens/size)]
	if err := w.index.Store(w.slot[class].ID, indexer.GPU, 0, false, block.Fixed().Chain(nil, locals), locals); err != nil {
		w.t.Fatal(err)
	}
	return min(len(locals)*size, (len(p.IDs)-1)/size*size)
}

func wide(s *engine.Server) { s.BlockSize = 32 }

// TestClassesAreRankedTogether checks that each worker is found by its own class's keys, whatever the others hold, and that the
// longest prefix in tokens wins.
func TestClassesAreRankedTogether(t *testing.T) {
	for _, c := range []struct {
		name string
		body string
	}{
		{"text", chatBody("m", fmt.Sprintf("%q", text(300, 1)))},
		{"an image", chatBody("m", testImage(1, 640, 480))},
	} {
		for _, best := range []string{"", "wide", "other"} {
			w := newClassWorld(t, map[string]func(*engine.Server){"wide": wide, "other": func(s *engine.Server) { s.EngineVersion = "0.30.0" }})
			want := 0
			for class := range w.slot {
				if class == best {
					want = w.stores(class, c.body, 1<<20)
				} else {
					w.stores(class, c.body, 64)
				}
			}
			d := w.decide(c.body)
			if d.Reason != Exact || len(d.Targets) != 3 || d.Targets[0].Worker != "w-"+best || d.CachedTokens != want {
				t.Errorf("%s on %q: %+v, want %d tokens", c.name, best, d, want)
			}
			size := 16
			if best == "wide" {
				size = 32
			}
			if d.MatchedBlocks != want/size {
				t.Errorf("%s on %q: got %d blocks of %d tokens for %d, want %d", c.name, best, d.MatchedBlocks, size, want, want/size)
			}
			w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 200, CachedTokens: want, PromptTokens: d.PromptTokens})
		}
	}
}

// TestClassPredictions checks that what was routed to a class is predicted there by its own keys.
func TestClassPredictions(t *testing.T) {
	w := newClassWorld(t, map[string]func(*engine.Server){"wide": wide})
	seen := map[string]bool{}
	for seed := range uint64(8) {
		body := chatBody("m", fmt.Sprintf("%q", text(200, seed)))
		first := w.decide(body)
		second := w.decide(body)
		if second.Reason != Predicted || second.Targets[0].Worker != first.Targets[0].Worker || second.CachedTokens < second.PromptTokens-32 {
			t.Errorf("got first %+v\nthen %+v\nwant the second predicted at the same worker, but for two blocks at most", first, second)
		}
		seen[first.Targets[0].Worker] = true
	}
	if len(seen) != 2 {
		t.Errorf("only %v took new work, want 2 of them", seen)
	}
	// Envoy took it elsewhere: nothing is predicted under another class's keys.
	body := chatBody("m", fmt.Sprintf("%q", text(200, 99)))
	d := w.decide(body)
	other := w.slot[""]
	if d.Targets[0].Addr == other.Worker.Addr {
		other = w.slot["wide"]
	}
	w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: other.Worker.Addr})
	if again := w.decide(body); again.Reason != Load {
		t.Errorf("moved to another class: got %+v, want Reason %q", again, Load)
	}
}

// TestMovedToAnotherClassIsNotJudged checks that there is no verdict if Envoy used a worker of another class, which stores other
// hashes.
func TestMovedToAnotherClassIsNotJudged(t *testing.T) {
	w := newClassWorld(t, map[string]func(*engine.Server){"wide": wide})
	au := audit.New(audit.Options{Index: w.index})
	w.opt.Audit = au
	go au.Run(t.Context())
	var last Decision
	for i, move := range []bool{true, false} {
		gone := w.decide(chatBody("m", fmt.Sprintf("%q", text(200, uint64(10+i))))) // its client leaves before the first token
		w.Observe(Outcome{ID: gone.ID, Phase: Started, Addr: gone.Targets[0].Addr})
		w.Observe(Outcome{ID: gone.ID, Phase: Ended, Code: 200, Cut: true})
		last = w.decide(chatBody("m", fmt.Sprintf("%q", text(200, uint64(i)))))
		to := last.Targets[0].Addr
		if move {
			to = last.Targets[1].Addr
		}
		w.Observe(Outcome{ID: last.ID, Phase: Started, Addr: to})
		w.Observe(Outcome{ID: last.ID, Phase: Ended, Code: 200})
	}
	for end := time.Now().Add(2 * time.Minute); len(au.Findings()) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no verdict at all, want it in time")
		}
	}
	if f := au.Findings(); len(f) != 1 || f[0].ID != last.ID || f[0].Verdict != audit.Nothing {
		t.Errorf("%+v, want one: that nothing came for %s", f, last.ID)
	}
}

// TestOneClassRefuses checks that a class whose engine will refuse a request is left out, and the other class's workers stay.
// (vLLM 0.31 and later answer request kwargs with 400, unless told to trust them.)
func TestOneClassRefuses(t *testing.T) {
	w := newClassWorld(t, map[string]func(*engine.Server){"old": func(s *engine.Server) { s.EngineVersion = "0.30.0" }})
	body := `{"model":"m","mm_processor_kwargs":{"max_pixels":50176},"messages":[{"role":"user","content":` + testImage(3, 640, 480) + `}]}`
	for range 3 {
		d := w.decide(body)
		if len(d.Targets) != 1 || d.Targets[0].Worker != "w-old" || d.PromptTokens == 0 {
			t.Fatalf("%+v: got %d, want 1, Targets[0].Worker %q, PromptTokens some", d, len(d.Targets), "w-old")
		}
	}
	both := w.decide(chatBody("m", "[3]")) // every engine refuses it
	if both.Why != "the engine will answer with an error" || len(both.Targets) != 2 {
		t.Errorf("%+v: got %d, want Why %q, 2", both, len(both.Targets), "the engine will answer with an error")
	}
}

// TestEditsAreForAllTargets checks that candidates that need other body edits than the chosen one are not offered, since a body
// is changed once.
func TestEditsAreForAllTargets(t *testing.T) {
	w := newClassWorld(t, map[string]func(*engine.Server){"named": func(s *engine.Server) { s.MediaNames = "injected" }, "wide": wide})
	body := chatBody("m", testImage(4, 640, 480))
	for _, c := range []struct {
		class   string
		targets int
		edits   int
	}{{"named", 1, 1}, {"", 2, 0}, {"wide", 2, 0}} {
		w.index.Clear(w.slot["named"].ID)
		w.index.Clear(w.slot[""].ID)
		w.index.Clear(w.slot["wide"].ID)
		w.now = w.now.Add(time.Hour)
		w.stores(c.class, body, 1<<20)
		if d := w.decide(body); d.Reason != Exact || d.Targets[0].Worker != "w-"+c.class || len(d.Targets) != c.targets ||
			len(d.Edits) != c.edits {
			t.Errorf("held by %q: %+v; got %d, %d, want Reason %q, Targets[0].Worker %q, %d, %d",
				c.class, d, len(d.Targets), len(d.Edits), Exact, "w-"+c.class, c.targets, c.edits)
		}
	}
	if d := w.decide(chatBody("m", `"no image"`)); len(d.Targets) != 3 {
		t.Errorf("nothing to change: %+v; got %d, want 3", d, len(d.Targets))
	}
}

// TestClassesShareHashes checks that two releases that read a request alike share its hashes, and that one with other names of images
// or other blocks does not.
func TestClassesShareHashes(t *testing.T) {
	w := newClassWorld(t, map[string]func(*engine.Server){
		"wide": wide,
		"like": func(s *engine.Server) { s.EngineVersion = "0.31.0" },
		"name": func(s *engine.Server) { s.EngineVersion = "0.30.0" }, // names images differently
		"big":  func(s *engine.Server) { s.BlockSize = 64 },
	})
	m := newServedModel(&w.model)
	var o overlap
	r := &reading{servedName: servedName{model: m}}
	r.begin()
	for i := range m.classes {
		o.add(r, &m.classes[i], block.Form{}, nil, 0)
	}
	if err := body.Read([][]byte{[]byte(chatBody("m", testImage(1, 640, 480)))}, &r.body, &r.req); err != nil {
		t.Fatal(err)
	}
	for i := range r.byEngine {
		r.byEngine[i].read(t.Context(), m.prompts[i].Model(), "/v1/chat/completions", "", &r.req)
		if r.byEngine[i].err != nil {
			t.Fatalf("got %v, want no error", r.byEngine[i].err)
		}
	}
	for i, c := range m.classes {
		o.lookups[i].hasWorkers, o.lookups[i].form.Size = true, c.BlockSize
		shares := o.sameBlocks(i)
		if want := c.Name == "like"; (shares != nil) != want || want && shares == &o.lookups[i] {
			t.Errorf("class %q: got another with the same hashes: %v, want %v, and never itself", c.Name, shares != nil, want)
		}
	}
	o.lookups[0].hasWorkers = false
	for i, c := range m.classes {
		if c.Name == "like" && o.sameBlocks(i) != nil {
			t.Error(`shares with a class that was not looked up, want c.Name != "like" or o.sameBlocks(i) == nil`)
		}
	}
}

// anthropic is a request to /v1/messages with images of these widths, each with its own pixels, as base64 in a source.
func anthropic(seed uint64, widths ...int) string {
	var b strings.Builder
	b.WriteString(`{"model":"m","max_tokens":2,"messages":[{"role":"user","content":[`)
	for i, w := range widths {
		fmt.Fprintf(&b, `{"type":"image","source":{"type":"base64","media_type":"image/png","data":"%s"}},`,
			base64.StdEncoding.EncodeToString(png(seed+uint64(i), w, 280)))
	}
	b.WriteString(`{"type":"text","text":"What are these?"}]}]}`)
	return b.String()
}

// TestClassesReadOneRequest checks that the classes of a model read one request concurrently, each as the client sent it: a model
// with one class gets the same tokens, and the same request again finds all its blocks predicted.
func TestClassesReadOneRequest(t *testing.T) {
	widths := []int{56, 112, 224, 448, 896}
	alone, both := newWorld(t, 1), newClassWorld(t, map[string]func(*engine.Server){"other": func(s *engine.Server) {
		s.EngineVersion = "0.30.0"
	}})
	type asked struct {
		path, body string
		tokens     int
	}
	var list []asked
	for seed := range uint64(40) {
		for path, body := range map[string]string{
			"/v1/messages":         anthropic(seed*10, widths...),
			"/v1/chat/completions": chatBody("m", testImage(seed, 640, 480)),
			"/v1/completions":      fmt.Sprintf(`{"model":"m","prompt":%q}`, text(300, seed)),
			"/v1/responses":        fmt.Sprintf(`{"model":"m","input":%q}`, text(300, seed)),
		} {
			d := alone.Decide(t.Context(), &Request{ID: "alone", Path: path, Body: [][]byte{[]byte(body)}})
			if d.PromptTokens == 0 || d.Why != "no block held" && !strings.HasPrefix(d.Why, "not confirmed") {
				t.Fatalf(`%s: %+v, want d.PromptTokens != 0, d.Why == "no block held" or strings.HasPrefix(d.Why, "not `+
					`confirmed")`, path, d)
			}
			list = append(list, asked{path, body, d.PromptTokens})
		}
	}
	ask := func(id string, q asked) Decision {
		d := both.Decide(t.Context(), &Request{ID: id, Path: q.path, Body: [][]byte{[]byte(q.body)}})
		both.Observe(Outcome{ID: id, Phase: Ended, Code: 200, CachedTokens: -1, PromptTokens: -1})
		return d
	}
	var all sync.WaitGroup
	for part := range 4 {
		all.Go(func() {
			for i := part; i < len(list); i += 4 {
				if d := ask(fmt.Sprint("first", i), list[i]); d.PromptTokens != list[i].tokens {
					t.Errorf("%s: %d tokens, want %d (%s)", list[i].path, d.PromptTokens, list[i].tokens, d.Why)
				}
			}
		})
	}
	all.Wait()
	for i, q := range list {
		if d := ask(fmt.Sprint("again", i), q); d.Reason != Predicted || d.CachedTokens < d.PromptTokens-16 {
			t.Errorf("%s once more: got %d of %d tokens, by %s, want %q, at least %d",
				q.path, d.CachedTokens, d.PromptTokens, d.Reason, Predicted, d.PromptTokens-16)
		}
	}
}
