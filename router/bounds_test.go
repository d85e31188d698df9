package router

import (
	"encoding/base64"
	"fmt"
	"math"
	"net/netip"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/lab/hostilebody"
	"github.com/sightline-router/sightline/workers/fleet"
)

// oneWorker returns a router with one worker of the shipped model, with the server options set by change.
func oneWorker(t *testing.T, change func(*engine.Server)) *Router {
	t.Helper()
	s := engine.DefaultServer()
	s.EngineModel = "m"
	change(&s)
	media, err := engine.NewMedia(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(media.Close)
	live, err := engine.LoadLive("m", shippedModel, s, media)
	if err != nil {
		t.Fatal(err)
	}
	index := indexer.New(indexer.Options{})
	f := fleet.New(time.Now)
	f.Set([]*fleet.Worker{fleet.NewWorker("w", netip.MustParseAddrPort("10.0.0.1:8000"), "m", 0, func(int) indexer.SlotID {
		return index.Join(indexer.SlotOptions{})
	})})
	return New(Options{Models: []Model{{Name: "m", Prompts: live}}, Fleet: f, Index: index, PredictedTTL: time.Second})
}

// TestBoundBeforeWork checks that a prompt that is too long is detected before its ids are made: of a text, and of images whose
// headers claim a huge size. With max_model_len the engine refuses it; without, its beginning is known.
func TestBoundBeforeWork(t *testing.T) {
	large := png(1, 3500, 3500) // by the header: 15,625 tokens
	image := `{"type":"image_url","image_url":{"url":"data:image/png;base64,` + base64.StdEncoding.EncodeToString(large) + `"}}`
	images := hostilebody.Holding(strings.TrimSuffix(strings.Repeat(image+",", 1000), ","))
	text := hostilebody.Saying(strings.Repeat("a b c d e f g ", 8<<20/14)) // 4 M tokens
	for _, c := range []struct {
		name, body, engine string
		maxLen, most       int // ids that are made
		why                string
	}{
		{"images, bounded by the model", images, "vllm", 100_000, 100_000, "the engine will answer with an error"},
		{"images", images, "vllm", 0, 1 << 21, "prompt of more than 2097152 tokens"},
		{"images, sglang", images, "sglang", 0, 1 << 21, "prompt of more than 2097152 tokens"},
		{"images, trtllm", images, "trtllm", 100_000, 100_000, "the engine will answer with an error"},
		{"text, bounded by the model", text, "vllm", 100_000, 100_000, "the engine will answer with an error"},
		{"text", text, "vllm", 0, 1 << 21, "prompt of more than 2097152 tokens"},
		{"text, sglang", text, "sglang", 0, 1 << 21, "prompt of more than 2097152 tokens"},
	} {
		t.Run(c.name, func(t *testing.T) {
			// The body's texts are copied a few times; ids are 4 bytes, in lists that grow.
			most := uint64(4*len(c.body) + 40*c.most + 16<<20 + anew*strings.Count(c.body, "base64"))
			took := uint64(math.MaxUint64)
			for range 3 { // what goroutines of other tests allocate meanwhile counts too
				r := oneWorker(t, func(s *engine.Server) {
					s.MaxModelLen = c.maxLen
					s.Engine = c.engine
					if c.engine != "vllm" {
						s.EngineVersion = map[string]string{"sglang": "0.5.23", "trtllm": "1.3.0"}[c.engine]
					}
				})
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				d := r.Decide(t.Context(), &Request{ID: "1", Path: "/v1/chat/completions", Body: [][]byte{[]byte(c.body)}})
				runtime.ReadMemStats(&after)
				if d.Why != c.why || d.PromptTokens > c.most {
					t.Errorf("%d tokens, %q; want %q", d.PromptTokens, d.Why, c.why)
				}
				took = min(took, after.TotalAlloc-before.TotalAlloc)
				if took <= most {
					return
				}
			}
			t.Errorf("%d MiB of memory for a body of %d, want at most %d", took>>20, len(c.body)>>20, most>>20)
		})
	}
}

// TestHostileBodies checks that a body beyond the limits of reading is cleaned and routed by load, or refused if it cannot be
// cleaned, and is counted.
func TestHostileBodies(t *testing.T) {
	many := func(n int, of string) string { return strings.Repeat(of+",", n-1) + of }
	keys := make([]string, 1<<16+1)
	for i := range keys {
		keys[i] = fmt.Sprintf(`"k%d":1`, i)
	}
	const said = `{"model":"m","messages":[{"role":"user","content":"a"}`
	toomany, values := "more than 4096 messages or content parts, or more than 65536 keys in them",
		"the chat template goes beyond its limits on this conversation"
	for body, want := range map[string]struct {
		status int
		why    string
	}{
		said + "," + many(4096, `{"role":"user","content":"a"}`) + `]}`:                                  {0, toomany},
		`{"model":"m","messages":[{"role":"user","content":[` + many(4097, `{"type":"text"}`) + `]}]}`:   {0, toomany},
		`{"model":"m","messages":[{"role":"user","content":"a",` + strings.Join(keys, ",") + `}]}`:       {0, toomany},
		said + `],"chat_template_kwargs":{"x":[` + many(1<<17, "1") + `]}}`:                              {0, values},
		said + `],"tools":[{"type":"function","function":{"name":"f","x":[` + many(1<<17, "1") + `]}}]}`: {0, values},
		said + `],"chat_template_kwargs":{"x":"` + strings.Repeat("x", 16<<20) + `"}}`:                   {0, values},
		said + `],"x":[` + many(5<<20, "1") + `]}`: {0,
			"body has more than 8 MiB outside of long strings"},
		said + `],"x":` + strings.Repeat("[", 201) + strings.Repeat("]", 201) + `}`: {400,
			"body is nested deeper than 200 levels"},
		said + `,{"role":"user","content":[` + many(4097, `{"type":"text","text":"","uuid":1}`) + `]}]}`: {400, "more than 4096 fields"},
	} {
		w := newWorld(t, 2)
		d := w.decide(body)
		if (d.Refuse != nil) != (want.status > 0) || d.Refuse != nil && d.Refuse.Status != want.status ||
			!strings.HasPrefix(d.Why, want.why) || d.Refuse == nil && (d.Reason != Load || len(d.Targets) != 2) {
			t.Errorf("%.80s…: %s, %q, refused %+v; want %q", body, d.Reason, d.Why, d.Refuse, want.why)
		}
		if n := w.counted(t, "sightline_steps_down_total"); n != d.Why+"=1 " {
			t.Errorf(`%.80s…: counted as %q, want n == d.Why+"=1 "`, body, n)
		}
	}
}

// TestMemoryOfPieces checks how much memory a decision about a body of many small pieces allocates, in multiples of the body.
func TestMemoryOfPieces(t *testing.T) {
	list := func(size int, format string) string {
		var b strings.Builder
		for i := 0; b.Len() < size; i++ {
			fmt.Fprintf(&b, format, i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	part := `{"type":"text","text":"a",` + list(100_000, `"k%d":0,`) + `},`
	image := `{"type":"image_url","image_url":{"url":"data:image/gif;base64,R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"}},`
	r := oneWorker(t, func(*engine.Server) {})
	for _, c := range []struct {
		name, body string
		most       float64 // bytes a byte
	}{
		{"keys", `{"model":"m","messages":[{"role":"user","content":"a"}],` + list(7<<20, `"k%d":0,`) + `}`, 10},
		{"keys of a message", `{"model":"m","messages":[{"role":"user","content":"a",` + list(7<<20, `"k%d":0,`) + `}]}`, 10},
		{"keys of a part", hostilebody.Holding(`{"type":"text","text":"a",` + list(7<<20, `"k%d":0,`) + `}`), 10},
		{"keys of many parts", hostilebody.Holding(strings.TrimSuffix(strings.Repeat(part, 70), ",")), 10},
		{"token ids", `{"model":"m","prompt":[` + list(4<<20, "%d,") + `]}`, 5},
		{"an escaped text", hostilebody.Saying(strings.Repeat(`\u00e9`, 4<<20)), 5},
		{"images of one token", hostilebody.Holding(strings.TrimSuffix(strings.Repeat(image, 4000), ",")),
			68 + anew*4000/float64(4000*len(image))},
	} {
		path := "/v1/chat/completions"
		if c.name == "token ids" {
			path = "/v1/completions"
		}
		took := math.Inf(1)
		for i := range 3 { // what goroutines of other tests allocate meanwhile counts too
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			d := r.Decide(t.Context(), &Request{ID: fmt.Sprint(c.name, i), Path: path, Body: [][]byte{[]byte(c.body)}})
			runtime.ReadMemStats(&after)
			took = min(took, float64(after.TotalAlloc-before.TotalAlloc-uint64(len(c.body)))/float64(len(c.body)))
			t.Logf("%s: %.1f bytes a byte, %q, %d tokens", c.name, took, d.Why, d.PromptTokens)
			if took <= c.most {
				break
			}
		}
		if took > c.most {
			t.Errorf("%s: %.1f bytes a byte, want at most %.0f", c.name, took, c.most)
		}
	}
}

// TestMemoryOfLongTexts checks that a long text takes a few times its length while it is read, and nothing afterwards.
func TestMemoryOfLongTexts(t *testing.T) {
	const size = 24 << 20
	r := oneWorker(t, func(*engine.Server) {})
	heap := func() uint64 {
		runtime.GC()
		runtime.GC() // frees what pools keep for one more collection
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	r.Decide(t.Context(), &Request{ID: "0", Path: "/v1/chat/completions",
		Body: [][]byte{[]byte(hostilebody.Saying(strings.Repeat("\u0301\u0323a中 ", 1000)))}})
	idle := heap()
	for name, unit := range map[string]string{"combining marks": "\u0301", "marks out of order": "\u0301\u0323",
		"composing letters": "a\u0323\u0302", "letters": "q", "Chinese": "港口", "prose": hostilebody.Words} {
		t.Run(name, func(t *testing.T) {
			body := []byte(hostilebody.Saying(strings.Repeat(unit, size/len(unit))))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			r.Decide(t.Context(), &Request{ID: name, Path: "/v1/chat/completions", Body: [][]byte{body}})
			runtime.ReadMemStats(&after)
			kept := int64(heap()) - int64(idle)
			t.Logf("%.1f bytes a byte, %d KiB kept", float64(after.TotalAlloc-before.TotalAlloc)/size, kept>>10)
			if took := after.TotalAlloc - before.TotalAlloc; took > 8*size {
				t.Errorf("%d MiB taken for %d of text: got %d, want at most %d", took>>20, size>>20, took, 8*size)
			}
			if kept > 64<<20 {
				t.Errorf("%d MiB kept: got %d, want at most %d", kept>>20, kept, 64<<20)
			}
		})
	}
}
