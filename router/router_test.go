package router

import (
	"cmp"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/workers/fleet"
)

// testModel is the shipped model directory, loaded once.
var testModel = sync.OnceValues(func() (*engine.LiveModel, error) {
	media, err := engine.NewMedia(nil)
	if err != nil {
		return nil, err
	}
	s := engine.DefaultServer()
	s.EngineModel = "m"
	return engine.LoadLive("m", shippedModel, s, media)
})

type world struct {
	client fair.Client // of the requests
	*Router
	t          testing.TB
	now        time.Time
	index      *indexer.Index
	metrics    *prometheus.Registry
	slots      []*fleet.Slot
	ids        int
	firstToken time.Duration // requested by the requests
	prompts    *engine.LiveModel
}

// limit sets max_in_flight.
func (w *world) limit(most int) { w.Serve(w.opt.Models, most, w.opt.PredictedTTL) }

// newWorld returns a router with n workers w0, w1, … at 10.0.0.1:8000, 10.0.0.2:8000, …
func newWorld(t testing.TB, n int) *world {
	t.Helper()
	m, err := testModel()
	if err != nil {
		t.Fatal(err)
	}
	return newWorldOf(t, n, m)
}

// newWorldOf is newWorld for a model that is read otherwise.
func newWorldOf(t testing.TB, n int, m *engine.LiveModel) *world {
	w := &world{t: t, prompts: m, now: time.Unix(1_800_000_000, 0), metrics: prometheus.NewRegistry(), index: indexer.New(indexer.Options{})}
	clock := func() time.Time { return w.now }
	f := fleet.New(clock)
	var workers []*fleet.Worker
	for i := range n {
		fw := fleet.NewWorker(fmt.Sprint("w", i), netip.MustParseAddrPort(fmt.Sprintf("10.0.0.%d:8000", i+1)), "m", 0, func(int) indexer.SlotID {
			return w.index.Join(indexer.SlotOptions{CountCopies: true})
		})
		fw.Slots[0].EventAge = func(time.Time) time.Duration { return 0 }
		workers = append(workers, fw)
		w.slots = append(w.slots, fw.Slots...)
	}
	f.Set(workers)
	w.Router = New(Options{Models: []Model{{Name: "m", Aliases: []string{"other-name"}, Adapters: []string{"lora"}, Prompts: m}},
		Fleet: f, Index: w.index,
		PredictedTTL: 20 * time.Second, Now: clock, Metrics: w.metrics})
	return w
}

func (w *world) decide(body string) Decision {
	w.ids++
	return w.Decide(w.t.Context(), &Request{ID: fmt.Sprint("d", w.ids), Path: "/v1/chat/completions",
		Body: [][]byte{[]byte(body)}, FirstToken: w.firstToken, Client: w.client})
}

// stores applies the events of a worker that has prefilled a body.
func (w *world) stores(worker int, skeleton string) { w.storesIn(indexer.GPU, worker, skeleton, 1) }

// storesIn applies those of a tier that has a share of the prompt's blocks.
func (w *world) storesIn(tier indexer.Tier, worker int, skeleton string, share float64) {
	var s body.Skeleton
	var req body.Request
	if err := body.Read([][]byte{[]byte(skeleton)}, &s, &req); err != nil {
		w.t.Fatal(err)
	}
	m := w.prompts.Model()
	ps, err := m.Read(w.t.Context(), "/v1/chat/completions", "", &req)
	if err != nil {
		w.t.Fatal(err)
	}
	form := w.index.Form(w.slots[worker].ID)
	form.Size = cmp.Or(form.Size, m.Server.BlockSize)
	locals := ps.List[0].Locals(nil, form, "")
	locals = locals[:int(share*float64(len(locals)))]
	if err := w.index.Store(w.slots[worker].ID, tier, 0, false, block.Fixed().Chain(nil, locals), locals); err != nil {
		w.t.Fatal(err)
	}
}

func text(words int, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var b strings.Builder
	for range words {
		fmt.Fprintf(&b, "%c%d ", 'a'+r.IntN(26), r.IntN(1000))
	}
	return b.String()
}

func chatBody(model, content string) string {
	return fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":%s}]}`, model, content)
}

func testImage(seed uint64, w, h int) string {
	return fmt.Sprintf(`[{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}},{"type":"text","text":"What is it?"}]`,
		base64.StdEncoding.EncodeToString(png(seed, w, h)))
}

// png is a file whose header says w×h and whose pixels are noise; nothing here decodes pixels.
func png(seed uint64, w, h int) []byte {
	b := []byte("\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR")
	b = append(b, byte(w>>24), byte(w>>16), byte(w>>8), byte(w), byte(h>>24), byte(h>>16), byte(h>>8), byte(h), 8, 2, 0, 0, 0)
	b = withCRC(b, 12)
	at := len(b)
	noise := make([]byte, 2000)
	r := rand.New(rand.NewPCG(seed, 9))
	for i := range noise {
		noise[i] = byte(r.IntN(256))
	}
	b = append(b, byte(len(noise)>>24), byte(len(noise)>>16), byte(len(noise)>>8), byte(len(noise)))
	b = append(append(b, "IDAT"...), noise...)
	b = withCRC(b, at+4)
	at = len(b)
	b = append(b, 0, 0, 0, 0)
	b = append(b, "IEND"...)
	return withCRC(b, at+4)
}

// withCRC ends a PNG chunk that begins with its type at from.
func withCRC(b []byte, from int) []byte {
	return binary.BigEndian.AppendUint32(b, crc32.ChecksumIEEE(b[from:]))
}

// TestLadder checks the reasons, step by step, for one prompt.
func TestLadder(t *testing.T) {
	w := newWorld(t, 3)
	body := chatBody("m", fmt.Sprintf("%q", text(300, 1)))
	first := w.decide(body)
	if first.Reason != Load || len(first.Targets) != 3 || first.PromptTokens < 500 || first.Targets[0].Rank != -1 {
		t.Fatalf("%+v: got %d, want Reason %q, 3, PromptTokens at least 500, Targets[0].Rank -1", first, len(first.Targets), Load)
	}
	second := w.decide(body)
	if second.Reason != Predicted || second.Targets[0].Worker != first.Targets[0].Worker || second.CachedTokens < first.PromptTokens-16 {
		t.Errorf("a second later: got %+v, want all but a block of it predicted at %s", second, first.Targets[0].Worker)
	}
	w.now = w.now.Add(21 * time.Second)
	third := w.decide(body)
	if third.Reason != Load {
		t.Errorf("after the prediction's end: got %+v, want Reason %q", third, Load)
	}
	idle := 0 // the worker that got neither
	for name := "w0"; name == first.Targets[0].Worker || name == third.Targets[0].Worker; name = fmt.Sprint("w", idle) {
		idle++
	}
	w.stores(idle, body)
	exact := w.decide(body)
	if exact.Reason != Exact || exact.Targets[0].Worker != fmt.Sprint("w", idle) || exact.MatchedBlocks*16 != exact.CachedTokens ||
		exact.Why != "" {
		t.Errorf("after events: %+v; got %d, want Reason %q, Targets[0].Worker %q, %d, Why %q",
			exact, exact.MatchedBlocks*16, Exact, fmt.Sprint("w", idle), exact.CachedTokens, "")
	}
	img := chatBody("m", testImage(1, 640, 480))
	seen := w.decide(img)
	w.now = w.now.Add(time.Minute)
	if again := w.decide(img); again.Reason != Affinity || again.Targets[0].Worker != seen.Targets[0].Worker {
		t.Errorf("an image seen a minute ago: got %+v, want it sent to %s by affinity", again, seen.Targets[0].Worker)
	}
}

// TestAffinityByURL checks that an image whose bytes are not available goes where its URL went before.
func TestAffinityByURL(t *testing.T) {
	w := newWorld(t, 3)
	body := chatBody("m", `[{"type":"image_url","image_url":{"url":"http://10.0.0.1/a.png"}}]`)
	first := w.decide(body)
	w.now = w.now.Add(time.Minute)
	second := w.decide(body)
	if first.Reason != Load || second.Reason != Affinity || second.Targets[0].Worker != first.Targets[0].Worker ||
		second.Why != whyNoFetchText {
		t.Errorf("got first %+v\nthen %+v\nwant load, then affinity to the same worker, since %s", first, second, whyNoFetchText)
	}
}

// TestUnreadable checks that a request that cannot be read is routed by load, counted under a fixed word, and not kept, and that
// a body that is not JSON is refused.
func TestUnreadable(t *testing.T) {
	w := newWorld(t, 2)
	for body, why := range map[string]string{
		chatBody("x", `"hi"`): "model unknown",
		chatBody("m", `[3]`):  "the engine will answer with an error",
		`{"model":"m"}`:       "the engine will answer with an error",
		chatBody("m", `[{"type":"image_url","image_url":{"url":"http://10.0.0.1/x.png"}}]`): whyNoFetchText,
	} {
		d := w.decide(body)
		if d.Reason != Load || d.Why != why || len(d.Targets) != 2 || d.Refuse != nil {
			t.Errorf("%.60s: reason %s, why %q (want %q), %d targets", body, d.Reason, d.Why, why, len(d.Targets))
		}
	}
	if d := w.decide(`[]`); d.Refuse == nil || d.Refuse.Status != 400 || d.Why != "body is not a JSON object" || len(d.Targets) != 0 {
		t.Errorf("no object: got %+v, want status 400", d)
	}
	if d := w.decide(`{`); d.Refuse == nil || d.Refuse.Status != 400 || !strings.HasPrefix(d.Why, "body is not valid JSON") ||
		len(d.Targets) != 0 {
		t.Errorf("no JSON: %+v; got %d, want Refuse one, Refuse.Status 400, Why %q first, 0", d, len(d.Targets), "body is not valid JSON")
	}
	if d := w.Decide(t.Context(), &Request{ID: "x"}); d.Why != "body not read" || len(d.Targets) != 2 {
		t.Errorf("%+v: got %d, want Why %q, 2", d, len(d.Targets), "body not read")
	}
	if d := newWorld(t, 0).decide(chatBody("m", `"hi"`)); len(d.Targets) != 0 || d.Why != "no worker known" {
		t.Errorf("without workers: %+v; got %d, want 0, Why %q", d, len(d.Targets), "no worker known")
	}
}

// TestUnknownModelIsNamed checks that an unknown model is shown to people: printable, cut, and in memory of its own.
func TestUnknownModelIsNamed(t *testing.T) {
	w := newWorld(t, 1)
	for model, want := range map[string]string{
		"gpt-x":                    "gpt-x",
		"名前\u0000\nx\u202e":        "名前��x�",
		strings.Repeat("é", 1<<20): strings.Repeat("é", 64) + "…",
	} {
		body, err := json.Marshal(map[string]any{"model": model, "messages": []any{}})
		if err != nil {
			t.Fatal(err)
		}
		d := w.Decide(t.Context(), &Request{ID: fmt.Sprint(len(model)), Path: "/v1/chat/completions", Body: [][]byte{body}})
		clear(body) // as the pool does after a request
		if d.Why != "model unknown" || d.Asked != want || w.Recent(1)[0].Asked != want {
			t.Errorf("%.20q: %q, asked %q, want %q", model, d.Why, d.Asked, want)
		}
	}
}

// TestNoModelNamed checks requests without a model: they ask for the only model, or the route's; with several models they are
// refused, unless requests are not steered.
func TestNoModelNamed(t *testing.T) {
	w := newWorld(t, 2)
	nameless := []string{`{"messages":[{"role":"user","content":"hi"}]}`, `{"model":null,"messages":[{"role":"user","content":"hi"}]}`,
		`{"model":"","messages":[{"role":"user","content":"hi"}]}`}
	named := w.decide(chatBody("m", `"hi"`))
	for _, body := range nameless {
		if d := w.decide(body); d.Model != "m" || d.Refuse != nil || d.PromptTokens != named.PromptTokens || d.PromptTokens == 0 {
			t.Errorf("one model: %s: model %q, %d tokens, refused %v, want %q, nil, %d, some",
				body, d.Model, d.PromptTokens, d.Refuse, "m", named.PromptTokens)
		}
	}

	one := w.opt.Models[0]
	two := one
	two.Name = "m2"
	w.Serve([]Model{one, two}, 0, time.Minute)
	for _, body := range nameless {
		d := w.decide(body)
		if d.Refuse == nil || d.Refuse.Status != 404 || !strings.Contains(d.Refuse.Message, "GET /v1/models") || len(d.Targets) != 0 {
			t.Errorf("two models: %s: %+v; got %d, want Refuse one, Refuse.Status 404, Refuse.Message %q in it, 0",
				body, d, len(d.Targets), "GET /v1/models")
		}
		d = w.Decide(t.Context(), &Request{ID: "p", Pool: "m", Path: "/v1/chat/completions", Body: [][]byte{[]byte(body)}})
		if d.Model != "m" || d.Refuse != nil {
			t.Errorf("two models, the route's pool: %s: got %+v, want Model %q, Refuse nil", body, d, "m")
		}
	}
	w.SetUnsteered(1)
	if d := w.decide(nameless[0]); d.Refuse != nil || d.Why != "model unknown" {
		t.Errorf("observing: got %+v, want Refuse nil, Why %q", d, "model unknown")
	}
}

const whyNoFetchText = "image URL, and fetching is off"

// TestObserve checks that load and prediction move to the worker really used, and that a refusal withdraws the prediction.
func TestObserve(t *testing.T) {
	w := newWorld(t, 2)
	body := chatBody("m", fmt.Sprintf("%q", text(300, 2)))
	d := w.decide(body)
	other := 0
	if d.Targets[0].Worker == "w0" {
		other = 1
	}
	w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: w.slots[other].Worker.Addr})
	if n := w.slots[other].Load(w.now).Inflight; n != 1 {
		t.Errorf("%d in flight on the worker that took it, want 1", n)
	}
	again := w.decide(body)
	if again.Reason != Predicted || again.Targets[0].Worker != w.slots[other].Worker.Name {
		t.Errorf("got %+v, want the prediction to move to %s", again, w.slots[other].Worker.Name)
	}
	w.Observe(Outcome{ID: again.ID, Phase: Ended, Code: 400})
	w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: 400})
	if last := w.decide(body); last.Reason != Load {
		t.Errorf("after refusals: got %+v, want Reason %q", last, Load)
	}
	w.Observe(Outcome{ID: "nonsense", Phase: Ended, Code: 200})
	w.Observe(Outcome{ID: "nonsense", Phase: Started, Addr: "1.2.3.4:5"})
}

// TestReportedPromptTokens checks that the engine's count of prompt tokens is compared if ours is exact.
func TestReportedPromptTokens(t *testing.T) {
	w := newWorld(t, 1)
	count := func(body string, more, code int) string {
		d := w.decide(body)
		w.Observe(Outcome{ID: d.ID, Phase: Ended, Code: code, CachedTokens: -1, PromptTokens: d.PromptTokens + more})
		all, err := w.metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, f := range all {
			if f.GetName() == "sightline_prompt_tokens_reported_total" {
				for _, m := range f.GetMetric() {
					out += fmt.Sprint(m.GetLabel()[1].GetValue(), " ", m.GetCounter().GetValue(), " ")
				}
			}
		}
		return out
	}
	words := chatBody("m", `"some words"`)
	for _, c := range []struct {
		body       string
		more, code int
		want       string
	}{
		{words, 0, 200, "equal 1 "},
		{words, 1, 200, "differs 1 equal 1 "},
		{words, 1, 400, "differs 1 equal 1 "},
		{words, -1 << 20, 200, "differs 1 equal 1 "}, // not reported
		{chatBody("nobody", `"some words"`), 5, 200, "differs 1 equal 1 "},
		{chatBody("m", `[{"type":"image_url","image_url":{"url":"http://127.0.0.1:9/x.png"}}]`), 5, 200, "differs 1 equal 1 "},
		{chatBody("m", testImage(7, 640, 480)), 0, 200, "differs 1 equal 2 "},
	} {
		if got := count(c.body, c.more, c.code); got != c.want {
			t.Errorf("%.60s: %+d, status %d: counted %q, want %q", c.body, c.more, c.code, got, c.want)
		}
	}
}

// TestEngineFindsLess checks that an engine that finds less than its events promised is believed.
func TestEngineFindsLess(t *testing.T) {
	w := newWorld(t, 2)
	body := chatBody("m", fmt.Sprintf("%q", text(300, 7)))
	w.stores(1, body)
	d := w.decide(body)
	if d.Reason != Exact || d.Targets[0].Worker != "w1" {
		t.Fatalf("got %+v, want Reason %q, Targets[0].Worker %q", d, Exact, "w1")
	}
	w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: d.Targets[0].Addr})
	w.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, CachedTokens: d.CachedTokens})
	if again := w.decide(body); again.CachedTokens != d.CachedTokens {
		t.Errorf("after a report that agrees: got %+v, want CachedTokens %d", again, d.CachedTokens)
	}
	e := w.decide(body)
	w.Observe(Outcome{ID: e.ID, Phase: Ended, Code: 200, CachedTokens: 480})
	w.now = w.now.Add(time.Minute)
	if f := w.decide(body); f.CachedTokens != 480 {
		t.Errorf("after a report of 480 cached tokens: got %+v, want CachedTokens 480", f)
	}
}

func TestNames(t *testing.T) {
	w := newWorld(t, 2)
	body := fmt.Sprintf("%q", text(200, 3))
	w.stores(1, chatBody("m", body))
	if d := w.decide(chatBody("other-name", body)); d.Reason != Exact || d.Model != "m" {
		t.Errorf("an alias: got %+v, want Reason %q, Model %q", d, Exact, "m")
	}
	if d := w.decide(chatBody("lora", body)); d.Reason != Load || d.Model != "m" {
		t.Errorf("an adapter shares no blocks with its base model: got %+v, want Reason %q, Model %q", d, Load, "m")
	}
}

// TestUUIDs checks that a uuid on an image with data is removed from the body, and that one without data is refused.
func TestUUIDs(t *testing.T) {
	w := newWorld(t, 1)
	img := testImage(5, 64, 64)
	body := chatBody("m", strings.Replace(img, `"type":"image_url"`, `"type":"image_url","uuid":"someone-else's"`, 1))
	d := w.decide(body)
	if d.Refuse != nil || len(d.Edits) == 0 {
		t.Fatalf("%+v: got %d, want Refuse nil, some", d, len(d.Edits))
	}
	edited := body
	for i := len(d.Edits) - 1; i >= 0; i-- {
		edited = edited[:d.Edits[i].From] + string(d.Edits[i].Text) + edited[d.Edits[i].To:]
	}
	if strings.Contains(edited, "someone") {
		t.Errorf(`the uuid is still there: %.200s, want no "someone" in edited`, edited)
	}
	if plain := w.decide(edited); plain.PromptTokens != d.PromptTokens || plain.CachedTokens < 16 {
		t.Errorf("the edited body is another prompt: got %+v, want PromptTokens %d, CachedTokens at least 16", plain, d.PromptTokens)
	}
	alone := w.decide(chatBody("m", `[{"type":"image_url","image_url":null,"uuid":"someone-else's"}]`))
	if alone.Refuse == nil || alone.Refuse.Status != 400 || len(alone.Targets) != 0 {
		t.Errorf("a uuid without data: %+v; got %d, want Refuse one, Refuse.Status 400, 0", alone, len(alone.Targets))
	}
}

// TestConcurrentDecisions decides in many goroutines, with events and reports in between.
func TestConcurrentDecisions(t *testing.T) {
	w := newWorld(t, 4)
	bodies := make([]string, 8)
	for i := range bodies {
		bodies[i] = chatBody("m", fmt.Sprintf("%q", text(100, uint64(i))))
	}
	w.stores(0, bodies[0])
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 50 {
				id := fmt.Sprint(g, "-", i)
				d := w.Decide(t.Context(), &Request{ID: id, Path: "/v1/chat/completions", Body: [][]byte{[]byte(bodies[(g+i)%8])}})
				if len(d.Targets) == 0 {
					t.Errorf("no target: got %d, want some", len(d.Targets))
				}
				w.Observe(Outcome{ID: id, Phase: Started, Addr: d.Targets[0].Addr})
				w.Observe(Outcome{ID: id, Phase: Ended, Addr: d.Targets[0].Addr, Code: 200, FirstByte: time.Millisecond, CachedTokens: -1})
			}
		})
	}
	all.Wait()
	for _, s := range w.slots {
		if n := s.Load(w.now).Inflight; n != 0 {
			t.Errorf("%s: got %d in flight at the end, want 0", s.Worker.Name, n)
		}
	}
	if got := w.Recent(1000); len(got) != 400 || got[0].Code != 200 {
		t.Errorf("got %d decisions remembered, want 400, the last with status 200", len(got))
	}
}

func benchDecide(b *testing.B, body string) {
	w := newWorld(b, 8)
	w.stores(3, body)
	pieces := make([][]byte, 0, len(body)/16384+1)
	for rest := []byte(body); len(rest) > 0; rest = rest[min(16384, len(rest)):] {
		pieces = append(pieces, rest[:min(16384, len(rest))])
	}
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	n := 0
	var d Decision
	for b.Loop() {
		n++
		w.now = w.now.Add(10 * time.Millisecond)
		id := fmt.Sprint(n)
		d = w.Decide(b.Context(), &Request{ID: id, Path: "/v1/chat/completions", Body: pieces})
		w.Observe(Outcome{ID: id, Phase: Ended, Code: 200, CachedTokens: -1})
	}
	if d.Reason != Exact {
		b.Fatalf("got %+v, want Reason %q", d, Exact)
	}
	b.ReportMetric(float64(d.PromptTokens), "tokens")
}

func BenchmarkDecideText32KB(b *testing.B) {
	benchDecide(b, chatBody("m", fmt.Sprintf("%q", prose(32<<10))))
}

func BenchmarkDecide720pDataURL(b *testing.B) {
	file := append(png(1, 1280, 720), make([]byte, 2_760_000)...)
	benchDecide(b,
		chatBody("m", fmt.Sprintf(`[{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}},{"type":"text","text":"What is it?"}]`,
			base64.StdEncoding.EncodeToString(file))))
}

// prose returns English text of about n bytes.
func prose(n int) string {
	words := strings.Fields("the of and to in a is that for it as was with be by on not he his but at are this have from " +
		"which or had they you were all their one there would when who will more no if out so said what up its about into " +
		"than them can only other new some could time these two may then do first any my now such like our over man me even " +
		"most made after also did many before must through back years where much your way well down should because each just those people")
	r := rand.New(rand.NewPCG(4, 4))
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(words[r.IntN(len(words))])
		b.WriteByte(" \n"[max(0, r.IntN(12)-10)])
	}
	return b.String()
}

// TestForget checks that a worker's counters are dropped when nobody needs them any more.
func TestForget(t *testing.T) {
	w := newWorld(t, 2)
	var open []string
	for range 8 { // concurrently: no worker gets all
		open = append(open, w.decide(chatBody("m", `"some words"`)).ID)
	}
	for _, id := range open {
		w.Observe(Outcome{ID: id, Phase: Ended, Code: 200, CachedTokens: -1})
	}
	w.Forget("w0")
	if left := w.labels(t, "sightline_outcomes_total", 1); left != "w1" {
		t.Errorf("outcomes are counted of %q, want those of w1 alone", left)
	}
}

// labels joins the values of one label, by its index, of all non-zero series of a metric.
func (w *world) labels(t *testing.T, metric string, label int) (out string) {
	all, err := w.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == metric {
			for _, m := range f.GetMetric() {
				if m.GetCounter().GetValue() > 0 {
					out += m.GetLabel()[label].GetValue()
				}
			}
		}
	}
	return out
}
