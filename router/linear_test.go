package router

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/lab/hostilebody"
	"github.com/sightline-router/sightline/lab/section"
	"github.com/sightline-router/sightline/workers/fleet"
)

// servers returns the kinds of engines that read a body differently.
func servers(t *testing.T) map[string]*engine.LiveModel {
	plain := func(*engine.Server) {}
	sglang := func(s *engine.Server) { s.Engine, s.EngineVersion = "sglang", "0.5.23" }
	out := map[string]*engine.LiveModel{}
	for _, kind := range []struct {
		name, dir string
		change    func(*engine.Server)
	}{
		{"vllm", shippedModel, plain},
		{"vllm, contents as one text", shippedModel, func(s *engine.Server) { s.ContentFormat = "string" }},
		{"vllm, numbered placeholders", shippedAs(t, "phi", "Qwen2_5_VLForConditionalGeneration", "Phi3VForCausalLM",
			"<|image_pad|>", "<|image|>"), func(s *engine.Server) { s.ContentFormat = "string" }},
		{"sglang", shippedModel, sglang},
		{"trtllm", shippedModel, func(s *engine.Server) { s.Engine, s.EngineVersion = "trtllm", "1.3.0" }},
	} {
		s := engine.DefaultServer()
		s.EngineModel = "m"
		kind.change(&s)
		media, err := engine.NewMedia(nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(media.Close)
		out[kind.name], err = engine.LoadLive("m", kind.dir, s, media)
		if err != nil {
			t.Fatalf("%q: got %v, want no error", kind.name, err)
		}
	}
	return out
}

// images returns the number of images of a shape of n bytes, inline or by URL.
func images(s hostilebody.Shape, n int) float64 {
	body := s.Build(n, "")
	return float64(strings.Count(body, "base64") + strings.Count(body, `"http://`))
}

// shippedAs copies the shipped model directory under a name, with texts replaced in its files.
func shippedAs(t *testing.T, name string, changes ...string) string {
	dir := filepath.Join(t.TempDir(), name)
	if err := os.CopyFS(dir, os.DirFS(shippedModel)); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"config.json", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json",
		"chat_template.jinja"} {
		path := filepath.Join(dir, file)
		text, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(path, []byte(strings.NewReplacer(changes...).Replace(string(text))), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// cpu returns the CPU time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// row is the cost of the longest body of a shape, and its ratio to the cost of prose of the same length at the same server.
type row struct {
	shape, server string
	took          time.Duration
	times         float64
	memory        float64 // bytes allocated for a byte of body
	timesMemory   float64
	atLimit       bool // it has as many items as are allowed, which bounds its memory
}

// worst returns the larger of what is judged.
func (r row) worst() float64 {
	if r.atLimit {
		return r.times
	}
	return max(r.times, r.timesMemory)
}

// dearest returns a table of costs, highest first, four at most.
func dearest(costs map[string]row) string {
	rows := slices.SortedFunc(maps.Values(costs), func(a, b row) int {
		return cmp.Or(cmp.Compare(b.worst(), a.worst()), cmp.Compare(a.server, b.server))
	})
	var b strings.Builder
	b.WriteString("| body | engine | ms | times prose | bytes allocated for a byte | times prose |\n|---|---|---|---|---|---|")
	for _, r := range rows[:min(len(rows), 4)] {
		fmt.Fprintf(&b, "\n| %s | %s | %.1f | %.1f | %.0f | %.1f |",
			r.shape, r.server, float64(r.took.Microseconds())/1000, r.times, r.memory, r.timesMemory)
	}
	return b.String()
}

// TestLinear checks that the cost of a decision depends on the body's length only. Each hostile shape is measured at growing
// lengths, each four times the previous one: memory must grow by no more than that, and the longest body may allocate only so much
// more than prose of that length. make cost compares the CPU time as well, at 1 MB for all engines (quadratic work would grow
// sixteenfold), and writes the most expensive shapes into docs/reliability.md; a test on a busy machine bounds it coarsely, by stuck.
func TestLinear(t *testing.T) {
	const (
		grows  = 10.0 // linear: 4, more where the caches end; quadratic: 16
		dearer = 20.0 // a key of ten bytes takes a thousand here, prose six times its length
		stuck  = 10 * time.Second
	)
	page, costs := os.Getenv("SIGHTLINE_COST"), map[string]row{}
	timed := page != ""
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector's work would be counted
	for server, live := range servers(t) {
		t.Run(server, func(t *testing.T) {
			index := indexer.New(indexer.Options{})
			f := fleet.New(time.Now)
			f.Set([]*fleet.Worker{fleet.NewWorker("w", netip.MustParseAddrPort("10.0.0.1:8000"), "m", 0, func(int) indexer.SlotID {
				return index.Join(indexer.SlotOptions{})
			})})
			r := New(Options{Models: []Model{{Name: "m", Prompts: live}}, Fleet: f, Index: index, PredictedTTL: time.Second})
			size := 1 << 18
			if timed {
				size = 1 << 20
			}
			nonce, why := 0, ""
			// cost returns the cost of one decision about a shape of n bytes: its time, the least of several, and the memory per
			// byte of body.
			cost := func(s hostilebody.Shape, n int, rounds int) (took time.Duration, memory float64) {
				took, memory = time.Hour, math.Inf(1)
				for range rounds {
					nonce++
					body := []byte(s.Build(n, fmt.Sprintf("n%06d", nonce)))
					req := &Request{ID: fmt.Sprint(nonce), Path: cmp.Or(s.Path, "/v1/chat/completions"), Body: [][]byte{body}}
					runtime.GC()
					var before, after runtime.MemStats
					runtime.ReadMemStats(&before)
					start := cpu()
					d := r.Decide(t.Context(), req)
					took = min(took, cpu()-start)
					runtime.ReadMemStats(&after)
					memory = min(memory, float64(after.TotalAlloc-before.TotalAlloc)/float64(len(body)))
					why = fmt.Sprint(d.Why, ", ", d.PromptTokens, " tokens")
				}
				return took, memory
			}
			cost(hostilebody.Prose, size, 2)
			plain, plainMemory := cost(hostilebody.Prose, size, 4)
			costs["prose, "+server] = row{hostilebody.Prose.Name, server, plain, 1, plainMemory, 1, false}
			for _, s := range hostilebody.All() {
				if s.Text && server != "vllm" {
					continue // one tokenizer for all
				}
				t.Run(s.Name, func(t *testing.T) {
					size, plain := size, plain
					if s.Most > 0 && s.Most < size { // with more items it is refused, and its memory is bounded by that
						size = s.Most
						plain, _ = cost(hostilebody.Prose, size, 4)
					}
					took, memory := cost(s, size/64, 3)
					for n := size / 16; n <= size; n *= 4 {
						spare := 16 + anew*images(s, n)/float64(n)
						longer, longerMemory := cost(s, n, 1)
						tooMuch := func() bool {
							return timed && float64(longer) > grows*float64(took) || longer > stuck || longerMemory > 2*memory+spare
						}
						// The machine may be busy, or a table may have grown.
						for round := 0; tooMuch() && longer < stuck && round < 5; round++ {
							again, _ := cost(s, n/4, 2)
							took = min(took, again)
							again, less := cost(s, n, 1)
							longer, longerMemory = min(longer, again), min(longerMemory, less)
						}
						if tooMuch() {
							t.Fatalf("%d bytes take %v and %.0f bytes of memory each, got %v and %.0f of %d (%s), want no more each",
								n/4, took, memory, longer, longerMemory, n, why)
						}
						took, memory = longer, longerMemory
					}
					// The least of many, since other processes compute too.
					for round := 0; timed && float64(took) > dearer*float64(plain) && round < 8; round++ {
						again, _ := cost(s, size, 2)
						took = min(took, again)
					}
					pooled := anew * images(s, size) / float64(size)
					c := row{s.Name, server, took, float64(took) / float64(plain), memory, memory / plainMemory, s.Most > 0}
					if timed && c.times > dearer || s.Most == 0 && memory > dearer*plainMemory+pooled {
						t.Errorf("%v and %.0f bytes of memory a byte, where prose takes %v and %.0f (%s), want !timed or c.times "+
							"<= %v, s.Most != 0 or memory <= dearer*plainMemory+pooled", took, memory, plain, plainMemory, why, dearer)
					}
					if c.worst() > costs[s.Name].worst() {
						costs[s.Name] = c
					}
				})
			}
		})
	}
	table := dearest(costs)
	t.Log("\n" + table)
	if page != "" && !t.Failed() {
		section.Write(t, page, "cost", table)
	}
}
