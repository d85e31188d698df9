package sim

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/lab/vllmcache"
)

// hybridLine is a line of a recording of vLLM with several KV cache groups: a header, then requests, events and answers in turn.
type hybridLine struct {
	Header *struct {
		Groups []struct {
			Kind      string
			BlockSize int `json:"block_size"`
			Window    int `json:"sliding_window"`
			Chunk     int
		}
		Retention *int `json:"retention_interval"`
		Blocks    int  `json:"num_blocks"`
		UseEagle  bool `json:"use_eagle"`
		Lookahead int
		Mode      string
		Args, Job struct {
			Step int `json:"max_num_batched_tokens"`
			Seqs int `json:"max_num_seqs"`
			Unit int `json:"prefix_match_unit"`
		}
	}
	Req, Sched, Ev, End *json.RawMessage
	Reset               any
	Seq                 any
	Prompt              []uint32
	Output              []int64
	MaxTokens           int `json:"max_tokens"`
	Cached              int
	Payload             string
}

// collector keeps a rank's events.
type collector struct{ events []event }

func (*collector) start()                   {}
func (*collector) stop()                    {}
func (*collector) told() (n uint64, h bool) { return 0, false }
func (c *collector) publish(e []event)      { c.events = append(c.events, e...) }

// TestHybridRecordings plays the requests of recorded engines with several KV cache groups to a simulated one: it must find as many
// tokens for each, and tell the same events in the same order, whatever the hashes are.
func TestHybridRecordings(t *testing.T) {
	playHybrids(t, golden.Files(t, "../../indexer/stream/testdata/hybrid/*.jsonl.gz"))
}

func TestConformanceHybridWorkers(t *testing.T) {
	playHybrids(t, golden.Files(t, golden.Dir(t, "vllm_hybrid", "*.jsonl.gz")))
}

func playHybrids(t *testing.T, files []string) {
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".jsonl.gz")
		t.Run(name, func(t *testing.T) { playHybrid(t, golden.Read(t, file), overlapDelays[name]) })
	}
}

// overlapDelays says how many steps pass before each request that arrives while others run: it is not in the recordings, and was found
// by trying. Other recordings allow none.
var overlapDelays = map[string][]int{"gemma3-w64-evict": {0, 3, 8, 1}, "gemma3-w64-dense-tight": {0, 2, 8, 0},
	"gptoss-w128-evict": {0, 11}, "lfm2-evict": {0, 8},
	"llama4-c128-evict": {0, 11}, "s32-swa-only": {0, 11}, "s32-two-windows-mamba": {0, 0, 11}}

func playHybrid(t *testing.T, recording []byte, delays []int) {
	var list []hybridLine
	outputs := map[string][]int64{}
	lines := bufio.NewScanner(bytes.NewReader(recording))
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var l hybridLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			t.Fatal(err)
		}
		if l.End != nil {
			outputs[string(*l.End)] = l.Output
		}
		list = append(list, l)
	}
	h := list[0].Header
	if h.UseEagle || h.Lookahead > 0 {
		t.Skip("the simulated worker does not draft")
	}
	if h.Job.Unit > 0 {
		t.Skip("the simulated worker stores no parts of blocks (prefix_match_unit)")
	}
	kinds := map[string]vllmcache.Kind{}
	for kind, name := range specKinds {
		kinds[name] = kind
	}
	cfg := Config{Model: "m", Blocks: h.Blocks, StepTokens: max(h.Args.Step, h.Job.Step), MaxSeqs: h.Args.Seqs, Retention: vllmcache.Dense,
		Prompt: func(context.Context, string, []byte) ([]Prompt, error) { return nil, nil }}
	if h.Retention != nil {
		cfg.Retention = *h.Retention
	}
	if h.Mode == "http server" {
		cfg.StepTokens = 512 // as its events show
	}
	for _, g := range h.Groups {
		cfg.Groups = append(cfg.Groups, vllmcache.Group{Kind: kinds[g.Kind], BlockSize: g.BlockSize, Window: max(g.Window, g.Chunk)})
	}
	w, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	e, told := w.engines[0], &collector{}
	e.pub = told
	step := func() bool {
		seqs, _ := e.schedule()
		if seqs != nil {
			e.finish(seqs)
		}
		return seqs != nil
	}
	seqs := map[string]*sequence{}
	equal, requests, events := 0, 0, 0
	known := map[uint64]uint64{} // recorded hash → simulated
	for n, l := range list[1:] {
		switch {
		case l.Reset != nil:
			if !e.reset() {
				t.Fatal("requests run at a reset")
			}
		case l.Req != nil:
			if l.Seq == "overlap" && len(delays) > 0 {
				for range delays[0] {
					step()
				}
				delays = delays[1:]
			}
			answer := outputs[string(*l.Req)]
			s := &sequence{ctx: context.Background(), size: e.pool.Unit(), max: len(answer), arrived: time.Now(),
				out:    make(chan output, len(answer)+1),
				tokens: slices.Clone(l.Prompt), answer: func(i int) uint32 { return uint32(answer[i]) }, request: request{Prompt: len(l.Prompt)}}
			seqs[string(*l.Req)] = s
			e.submit(s)
		case l.Sched != nil:
			s := seqs[string(*l.Sched)]
			for !s.admitted && step() {
			}
			requests++
			if s.cached == l.Cached {
				equal++
			} else {
				t.Errorf("line %d, request %s of %d tokens: found %d, the engine %d", n+2, *l.Sched, s.Prompt, s.cached, l.Cached)
			}
		case l.End != nil:
			s := seqs[string(*l.End)]
			for len(s.out) < s.max && step() {
			}
		case l.Ev != nil:
			payload, err := base64.StdEncoding.DecodeString(l.Payload)
			if err != nil {
				t.Fatal(err)
			}
			for _, want := range eventMaps(t, payload) {
				for len(told.events) == 0 && step() {
				}
				if len(told.events) == 0 {
					t.Fatalf("line %d: the engine told %v, the simulated one nothing; got %d, want some", n+2, want, len(told.events))
				}
				got := eventMaps(t, batchOf(w.form(), told.events[:1], 0, time.Now()))[0]
				told.events = told.events[1:]
				events++
				if how := sameEvent(got, want, known); how != "" {
					t.Fatalf("line %d: %s\ntold     %v\nrecorded %v", n+2, how, got, want)
				}
			}
		}
	}
	if equal < requests || len(told.events) > 0 {
		t.Errorf("want all equal, and no event more than recorded")
	}
	t.Logf("conformance: %d of %d requests, %d events equal; %d events more than recorded", equal, requests, events, len(told.events))
}

// eventMaps gives a payload's events as maps.
func eventMaps(t *testing.T, payload []byte) (events []map[string]any) {
	v, _, err := msgp.ReadIntfBytes(payload)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range v.([]any)[1].([]any) {
		events = append(events, e.(map[string]any))
	}
	return events
}

// sameEvent compares events but for their hashes, of which each recorded one stands for one of the simulated.
func sameEvent(got, want map[string]any, known map[uint64]uint64) (how string) {
	hash := func(v any) []uint64 {
		switch v := v.(type) {
		case nil:
			return nil
		case []any:
			var all []uint64
			for _, h := range v {
				all = append(all, reflect.ValueOf(h).Convert(reflect.TypeFor[uint64]()).Uint())
			}
			return all
		}
		return []uint64{reflect.ValueOf(v).Convert(reflect.TypeFor[uint64]()).Uint()}
	}
	for _, field := range []string{"parent_block_hash", "block_hashes"} {
		g, w := hash(got[field]), hash(want[field])
		if len(g) != len(w) {
			return fmt.Sprintf("%d of %s, recorded %d", len(g), field, len(w))
		}
		for i := range g {
			if at, ok := known[w[i]]; ok && at != g[i] {
				return field + " of another block"
			}
			known[w[i]] = g[i]
		}
		delete(got, field)
		delete(want, field)
	}
	a, b := fmt.Sprint(got), fmt.Sprint(want)
	if a != b {
		return "other fields"
	}
	return ""
}
