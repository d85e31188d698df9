package router

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	imagepng "image/png"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tidwall/gjson"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/registry"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/engine/rules"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
	"github.com/sightline-router/sightline/router/audit"
	"github.com/sightline-router/sightline/workers/fleet"
)

// simPrompts reads requests as the workers do, loaded once.
var simPrompts = sync.OnceValues(func() (lab.Prompts, error) { return lab.NewPrompts(shippedModel, sim.VLLM, "m", 16) })

// ruled is a router before simulated workers, whose rules or whose workers are broken on purpose.
type ruled struct {
	*Router
	t       *testing.T
	au      *audit.Auditor
	live    *engine.LiveModel
	workers map[string]*sim.Worker // by address
	used    map[string]int         // requests by worker
	only    string                 // worker that may get the next requests; "": each
	ids     int
	wrong   []string // decisions called exact that were not
}

// newRuled starts n workers. breaks changes how the router reads requests, and worker what the i-th worker computes.
func newRuled(t *testing.T, n int, breaks func(*engine.Server), worker func(i int, p *sim.Prompt)) *ruled {
	t.Helper()
	read, err := simPrompts()
	if err != nil {
		t.Fatal(err)
	}
	media, err := engine.NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(media.Close)
	s := engine.DefaultServer()
	s.EngineModel, s.EngineVersion = "m", "0.32.0"
	if breaks != nil {
		breaks(&s)
	}
	live, err := engine.LoadLive("m", shippedModel, s, media)
	if err != nil {
		t.Fatal(err)
	}
	r := &ruled{t: t, live: live, workers: map[string]*sim.Worker{}, used: map[string]int{}}
	index, f, reg := indexer.New(indexer.Options{}), fleet.New(nil), prometheus.NewRegistry()
	r.au = audit.New(audit.Options{Index: index, Metrics: reg, Verdict: func(id string, v audit.Verdict) { r.Audited(id, v) }})
	r.Router = New(Options{Models: []Model{{Name: "m", Prompts: live}}, Fleet: f, Index: index, LearnedBytes: 8 << 20, Audit: r.au,
		PredictedTTL: time.Millisecond, Metrics: reg, Seed: 1})
	ctx, cancel := context.WithCancel(context.Background())
	var runs sync.WaitGroup
	runs.Go(func() { r.au.Run(ctx) })
	runs.Go(func() { r.Learner().Run(ctx) })
	t.Cleanup(func() { cancel(); runs.Wait() })
	set := registry.New(registry.Options{Index: index, Fleet: f, Audit: r.au, Learner: r.Learner(), Log: zap.NewNop(), Metrics: reg,
		Changed: func([]*fleet.Worker) {}})
	t.Cleanup(set.Close)
	for i := range n {
		w, err := sim.New(sim.Config{Model: "m", Prompt: func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error) {
			ps, err := read(ctx, path, body)
			if err == nil && worker != nil {
				worker(i, &ps[0])
			}
			return ps, err
		}})
		if err != nil {
			t.Fatal(err)
		}
		w.Start()
		t.Cleanup(w.Close)
		r.workers[w.Addr()] = w
		if err := set.Add(0, registry.Spec{ID: i, Name: fmt.Sprint("w", i), Addr: netip.MustParseAddrPort(w.Addr()), Ready: true, Model: "m",
			CountsCopies: true, Listen: func(_ *fleet.Slot, _ int, o *stream.Options) (bool, error) {
				o.BlockSize = 16
				o.Source = stream.ZMQ{Endpoint: w.EventsAddr(), ReplayEndpoint: w.ReplayAddr()}
				o.Decoder = live.Server().Rules().Decoder(rules.Decoding{KeepTokens: true})
				return true, nil
			}}); err != nil {
			t.Fatal(err)
		}
	}
	r.eventually("the feeds", func() bool {
		for _, slot := range set.Slots() {
			if stats := slot.Feed.Stats(); !stats.Live() {
				return false
			}
		}
		return true
	})
	return r
}

func (r *ruled) eventually(what string, cond func() bool) {
	r.t.Helper()
	for end := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("%s: not in time; rules aside %+v, findings %+v", what, r.au.Aside(), r.au.Findings())
		}
	}
}

// send decides a request and has the chosen worker answer it.
func (r *ruled) send(text string) (d Decision, cached int) {
	r.t.Helper()
	r.ids++
	req := &Request{ID: fmt.Sprint("d", r.ids), Path: "/v1/chat/completions", Body: [][]byte{[]byte(text)}}
	if r.only != "" {
		for _, w := range r.opt.Fleet.Workers() {
			if w.Name == r.only {
				req.Only = []string{w.Addr}
			}
		}
	}
	d = r.Decide(r.t.Context(), req)
	if len(d.Targets) == 0 {
		r.t.Fatalf("%+v", d)
	}
	addr := d.Targets[0].Addr
	r.used[d.Targets[0].Worker]++
	var body bytes.Buffer
	at := 0
	for _, e := range d.Edits {
		body.WriteString(text[at:e.From])
		body.Write(e.Text)
		at = e.To
	}
	body.WriteString(text[at:])
	post, err := http.NewRequest(http.MethodPost, "http://"+addr+req.Path, &body)
	if err != nil {
		r.t.Fatal(err)
	}
	post.Header.Set("X-Session-ID", d.Session)
	r.Observe(Outcome{ID: d.ID, Phase: Started, Addr: addr, CachedTokens: -1})
	resp, err := http.DefaultTransport.RoundTrip(post)
	if err != nil {
		r.t.Fatal(err)
	}
	answer, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK {
		r.t.Fatalf("%s %s %v", resp.Status, answer, err)
	}
	usage := gjson.GetBytes(answer, "usage")
	cached = int(usage.Get("prompt_tokens_details.cached_tokens").Int())
	r.Observe(Outcome{ID: d.ID, Phase: Ended, Addr: addr, Code: 200, Answered: true, CachedTokens: cached,
		PromptTokens: int(usage.Get("prompt_tokens").Int()), OutputTokens: int(usage.Get("completion_tokens").Int())})
	if d.Reason == Exact && (cached < d.CachedTokens || cached > d.CachedTokens && !d.Partial) {
		r.wrong = append(r.wrong, fmt.Sprintf("%s at %s: %d cached tokens predicted, %d found (%s)", d.ID, d.Targets[0].Worker,
			d.CachedTokens, cached, d.Why))
	}
	return d, cached
}

// settled waits until all that was sent is audited and learned.
func (r *ruled) settled() {
	r.t.Helper()
	time.Sleep(1600 * time.Millisecond) // both wait a second for events that are late
}

func (r *ruled) aside() string {
	var names []string
	for _, s := range r.au.Aside() {
		names = append(names, s.Rule)
	}
	return strings.Join(names, " ")
}

// photograph is a message with an image, different for each seed.
func photograph(seed uint64, question string) string {
	rnd := rand.New(rand.NewPCG(seed, 4))
	img := image.NewRGBA(image.Rect(0, 0, 224, 168))
	for i := range img.Pix {
		img.Pix[i] = 255
	}
	for range 200 {
		img.SetRGBA(rnd.IntN(224), rnd.IntN(168), color.RGBA{uint8(seed), uint8(rnd.IntN(256)), 0, 255})
	}
	var b bytes.Buffer
	_ = imagepng.Encode(&b, img)
	return fmt.Sprintf(`[{"type":"text","text":%q},{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}},{"type":"text","text":%q}]`,
		text(20, 99), base64.StdEncoding.EncodeToString(b.Bytes()), question)
}

func asked(content string) string {
	return fmt.Sprintf(`{"model":"m","max_tokens":4,"messages":[{"role":"user","content":%s}]}`, content)
}

// TestRuleStepsAside: a rule is wrong. From the first contradiction on nothing wrong is called exact, and what has been seen twice is
// known. What no broken rule is about remains exact.
func TestRuleStepsAside(t *testing.T) {
	for name, c := range map[string]struct {
		breaks func(t *testing.T, s *engine.Server)
		rule   string
	}{
		"the number of an image's tokens": {func(_ *testing.T, s *engine.Server) { s.ProcessorKwargs = `{"max_pixels":12544}` }, "images"},
		"an image's name":                 {func(_ *testing.T, s *engine.Server) { s.EngineModel = "other" }, "images"},
		"the template": {func(t *testing.T, s *engine.Server) {
			file, err := os.ReadFile(filepath.Join(shippedModel, "chat_template.jinja"))
			if err != nil {
				t.Fatal(err)
			}
			s.ChatTemplate = filepath.Join(t.TempDir(), "wrong.jinja")
			_ = os.WriteFile(s.ChatTemplate, bytes.ReplaceAll(file, []byte("<|im_start|>"), []byte("<|im_start|> ")), 0o600)
		}, "text"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRuled(t, 2, func(s *engine.Server) { c.breaks(t, s) }, nil)
			first := asked(photograph(1, "What is this?"))
			d, _ := r.send(first)
			if d.Why == "" || d.CachedTokens > 0 {
				t.Fatalf("got %+v, want Why some, CachedTokens 0", d)
			}
			r.eventually("the rule steps aside", func() bool { return r.aside() == c.rule })
			if s := r.au.Aside()[0]; s.First.ID != d.ID || s.First.Position == 0 || s.Text() == "" || !s.All || len(s.Workers) != 1 {
				t.Errorf(`got %+v, want s.First.ID == d.ID, s.First.Position != 0, s.Text() != "", s.All, len(s.Workers) == 1`, s)
			}
			r.settled()
			r.wrong = nil
			expect := func(what, body string, want Reason) {
				t.Helper()
				d, cached := r.send(body)
				if d.Reason != want || want == Learned && (cached == 0 || cached != d.CachedTokens) {
					t.Errorf("%s: %s (%s), %d cached tokens predicted and %d found; want %s", what, d.Reason, d.Why, d.CachedTokens, cached, want)
				}
			}
			expect("the second sighting of the first request", first, Learned)
			for seed := uint64(2); seed < 6; seed++ {
				r.send(asked(photograph(seed, "And this?")))
			}
			plain := asked(fmt.Sprintf("%q", text(100, 7)))
			r.send(plain)
			r.settled()
			for seed := uint64(2); seed < 6; seed++ {
				expect(fmt.Sprint("image ", seed, " again"), asked(photograph(seed, "And this?")), Learned)
			}
			want := Exact
			if c.rule == "text" {
				want = Learned
			}
			expect("a text again", plain, want)
			if len(r.wrong) > 0 {
				t.Errorf("got called exact and wrong:\n%s\nwant none", strings.Join(r.wrong, "\n"))
			}
			r.Serve(r.opt.Models, 0, time.Millisecond)
			if r.aside() != "" {
				t.Errorf("after a reload the rules aside are %s, want %q", r.aside(), "")
			}
		})
	}
}

// TestRuleOfOneWorker: a worker is not what it is configured to be. The rules stay in use for the others, which agree with them; and when
// the worker has been corrected they are in use for it too, after so many requests that agree.
func TestRuleOfOneWorker(t *testing.T) {
	t.Parallel()
	var other atomic.Bool
	other.Store(true)
	r := newRuled(t, 2, nil, func(i int, p *sim.Prompt) {
		if i == 0 && other.Load() {
			p.Tokens[8]++ // its template is another one
		}
	})
	plain := func(seed uint64) string { return asked(fmt.Sprintf("%q", text(60, seed))) }
	r.only = "w1"
	r.send(plain(1))
	r.settled()
	r.only = "w0"
	for seed := uint64(2); seed < 5; seed++ {
		r.send(plain(seed))
	}
	r.eventually("the rule steps aside", func() bool { return r.aside() == "text" })
	r.settled()
	if d, cached := r.send(plain(2)); d.Reason != Learned || cached != d.CachedTokens {
		t.Errorf("at w0: got %+v, %d tokens found, want Reason %q, %d", d, cached, Learned, d.CachedTokens)
	}
	r.only = "w1"
	if d, cached := r.send(plain(1)); d.Reason != Exact || d.Why != "" || cached == 0 || cached != d.CachedTokens {
		t.Errorf("at w1: got %+v, %d tokens found, want Reason %q, Why %q, some, %d", d, cached, Exact, "", d.CachedTokens)
	}
	if d, _ := r.send(plain(6)); d.Why != "no block held" {
		t.Errorf("at w1: got %+v, want Why %q", d, "no block held")
	}
	if len(r.wrong) > 0 {
		t.Errorf("got called exact and wrong:\n%s\nwant none", strings.Join(r.wrong, "\n"))
	}

	other.Store(false)
	r.only = "w0"
	for seed := uint64(100); r.aside() != ""; seed += 8 {
		for i := range uint64(8) {
			r.send(plain(seed + i))
		}
		r.settled()
		if seed > 200 {
			t.Fatalf("%+v: got %d, want at most 200", r.au.Aside(), seed)
		}
	}
	r.send(plain(300))
	time.Sleep(100 * time.Millisecond)
	if d, cached := r.send(plain(300)); d.Reason != Exact || d.Why != "" || cached != d.CachedTokens {
		t.Errorf("back in use: got %+v, %d tokens found, want Reason %q, Why %q, %d", d, cached, Exact, "", d.CachedTokens)
	}
}
