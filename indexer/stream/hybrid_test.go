package stream

import (
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"

	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/lab/golden"
	"github.com/sightline-router/sightline/mmhash/block"
)

// hybridLine is a line of a recording of vLLM with several KV cache groups: a header, then requests, events and answers in turn.
type hybridLine struct {
	Header *struct {
		Groups []struct {
			Kind      string
			BlockSize int `json:"block_size"`
			Chunk     int
		}
		UseEagle  bool `json:"use_eagle"`
		Lookahead int
	}
	Req     *string
	Prompt  []uint32
	Sched   *string
	Cached  int
	Seq     string // of a request
	Ev      *uint64
	Payload []byte
}

// TestRecordedHybrids: before each recorded request the index predicts what the engine then took from its cache, from the events of
// all KV cache groups. Recordings of vLLM 0.32.0 with Gemma 3 (windows), of its scheduler with Gemma 4's groups (windows over smaller
// blocks), with states and MTP, and without a group that sees all tokens; see testdata/hybrid/README.md.
func TestRecordedHybrids(t *testing.T) {
	checkHybrids(t, golden.Files(t, "testdata/hybrid/*.jsonl.gz"))
}

// TestHybridsAfterGaps: after messages were lost, what is stored since is found, nothing is called exact, and no block waits for a parent.
func TestHybridsAfterGaps(t *testing.T) {
	for _, name := range []string{"s32-swa-only", "s32-mamba-only"} {
		got := playHybrid(t, "testdata/hybrid/"+name+".jsonl.gz", func(number int) bool { return number%40 == 20 })
		if got.exactHigh > 0 || got.high > 0 || got.equal*10 < got.requests*6 || got.stats.UnknownParents+got.stats.UnknownBlocks > 0 {
			t.Errorf("%s: %+v; got %d, %d, want exactHigh 0, high 0, at least %d, 0",
				name, got, got.equal*10, got.stats.UnknownParents+got.stats.UnknownBlocks, got.requests*6)
		}
	}
}

func TestConformanceHybrids(t *testing.T) {
	checkHybrids(t, golden.Files(t, golden.Dir(t, "vllm_hybrid", "*.jsonl.gz")))
}

func checkHybrids(t *testing.T, files []string) {
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl.gz"), func(t *testing.T) { checkHybrid(t, file) })
	}
}

// hybridResult counts the requests of a recording by what was predicted for them.
type hybridResult struct {
	requests, equal, high, low int
	exactHigh                  int  // too high, and not called an upper bound
	exactLow                   int  // too low, and not called a lower bound
	full                       bool // a group sees all tokens
	stats                      Stats
}

func checkHybrid(t *testing.T, file string) {
	got := playHybrid(t, file, func(int) bool { return false })
	s, want := &got.stats, 100.0
	switch {
	case !got.full:
		want, got.exactLow = 97, 0
	case got.high > 0: // called an upper bound, or exactHigh says so
		want = 93
	case got.low > 0:
		want = 69
	}
	t.Logf("%d requests, %d equal, %d too high (%d not called an upper bound), %d too low (%d not called a lower bound); "+
		"unknown blocks %d, parents %d, other size %d, bad %d, partial %v",
		got.requests, got.equal, got.high, got.exactHigh, got.low, got.exactLow, s.UnknownBlocks, s.UnknownParents, s.OtherBlockSize,
		s.Bad, s.Partial)
	if got.exactHigh+got.exactLow > 0 || s.OtherBlockSize+s.UnknownBlocks+s.UnknownParents+s.Bad > 0 ||
		100*float64(got.equal) < want*float64(got.requests) {
		t.Errorf("want %.0f %% equal, the others called what they are, and nothing unknown", want)
	}
}

// playHybrid feeds a recording's messages to an index, except those that lost says.
func playHybrid(t *testing.T, file string, lost func(number int) bool) (out hybridResult) {
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, 64<<20)
	var feed *Feed
	index, size, drafts := indexer.New(indexer.Options{}), 0, false
	predicted, prompts := map[string]int{}, map[string]hybridLine{}
	slot := indexer.SlotID(0)
	seq := uint64(0)
	for lines.Scan() {
		var l hybridLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			var other struct{ Seq any } // lines without events number differently
			if json.Unmarshal(lines.Bytes(), &other) != nil {
				t.Fatal(err)
			}
			continue
		}
		switch {
		case l.Header != nil:
			d, chunk := &vllm.Decoder{}, 0
			for _, g := range l.Header.Groups {
				chunk = max(chunk, g.Chunk)
				if strings.HasSuffix(g.Kind, "full_attention") || g.Kind == "mla_attention" {
					size, out.full = max(size, g.BlockSize), true
				} else if !out.full {
					size = g.BlockSize
				}
			}
			drafts = l.Header.UseEagle
			sink := Join(index, indexer.SlotOptions{CountCopies: true})
			slot = sink.Slot()
			feed = &Feed{content: content{o: Options{Source: newWorker(0, false), Decoder: d, Sink: sink, Chunk: chunk}}}
			index.SetWithholds(slot, drafts)
		case l.Req != nil:
			var m indexer.Matches
			form := index.Form(slot)
			form.Size = cmp.Or(form.Size, size)
			m.Most = (len(l.Prompt) - 1) / form.Size
			index.Match(block.Fixed().Locals(nil, l.Prompt, form, nil, block.Fixed().Root("", "")), &m)
			n := 0
			for _, s := range m.Slots {
				n = min(int(s.Blocks), m.Most) * form.Size
			}
			predicted[*l.Req], prompts[*l.Req] = n, l
		case l.Sched != nil:
			out.requests++
			got := predicted[*l.Sched]
			switch {
			case got == l.Cached:
				out.equal++
			case got > l.Cached:
				out.high++
				if !index.UpperBound(slot) {
					out.exactHigh++
				}
			default:
				out.low++
				if !index.FindsParts(slot) || index.UpperBound(slot) {
					out.exactLow++
				}
			}
			if got != l.Cached && testing.Verbose() && out.high+out.low <= 8 {
				t.Logf("request %s (%s, %d tokens): predicted %d, the engine %d", *l.Sched,
					prompts[*l.Sched].Seq, len(prompts[*l.Sched].Prompt), got, l.Cached)
			}
		case l.Ev != nil:
			if !lost(int(seq)) {
				feed.takeMessage(context.Background(), Message{Seq: seq, Payload: l.Payload})
			}
			seq++
		}
	}
	out.stats = feed.Stats()
	if out.full && out.stats.Blocks > 0 && index.Form(slot).Size != size {
		t.Errorf("blocks of %d tokens, want %d", index.Form(slot).Size, size)
	}
	if index.UpperBound(slot) != (out.stats.UpperBound != "" || index.WindowsMayWithhold(slot)) {
		t.Errorf("an upper bound %t, because %q", index.UpperBound(slot), out.stats.UpperBound)
	}
	return out
}

// TestOtherProcess: a process that was started otherwise, at the address of one before, is followed as if it were the first.
func TestOtherProcess(t *testing.T) {
	stored := func(group, size, window int, kind string, hashes ...any) map[string]any {
		tokens := make([]any, len(hashes)*size)
		for i := range tokens {
			tokens[i] = i
		}
		e := map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": tokens, "block_size": size,
			"group_idx": group, "kv_cache_spec_kind": kind, "extra_keys": make([]any, len(hashes))}
		if window > 0 {
			e["kv_cache_spec_sliding_window"] = window
		}
		return e
	}
	index := indexer.New(indexer.Options{})
	sink := Join(index, indexer.SlotOptions{CountCopies: true})
	f := &Feed{content: content{o: Options{Source: newWorker(0, false), Decoder: &vllm.Decoder{}, Sink: sink}}}
	for _, c := range []struct {
		size, window int
		kind         string
		upper        bool
	}{{8, 5, "sliding_window", false}, {4, 9, "sliding_window", false}, {4, 9, "a new kind", true}, {4, 5, "sliding_window", false}} {
		full, group := stored(1, c.size, 0, "full_attention", 1, 2), stored(0, 4, c.window, c.kind, 1, 2)
		payload, err := msgp.AppendIntf(nil, []any{1.5, []any{full, group}, 0})
		if err != nil {
			t.Fatal(err)
		}
		f.takeMessage(t.Context(), Message{Payload: payload})
		s := f.Stats()
		if index.Form(sink.Slot()).Size != c.size || index.HeldBlocks(sink.Slot()) != 2 || index.UpperBound(sink.Slot()) != c.upper ||
			s.OtherBlockSize+s.Bad > 0 {
			t.Errorf("%+v: blocks of %d, %d held, an upper bound %v, %+v", c, index.Form(sink.Slot()).Size,
				index.HeldBlocks(sink.Slot()), index.UpperBound(sink.Slot()), s)
		}
		f.restart(0)
	}
}
