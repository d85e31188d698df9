package learned

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sightline-router/sightline/body"
	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/lab/golden"
)

// worker replays what one recorded worker was sent and reported, without a file of its model: no tokenizer, no template.
type worker struct {
	t        *testing.T
	index    *indexer.Index
	slot     indexer.SlotID
	decoder  *vllm.Decoder
	memory   *Memory
	learner  *Learner
	hasher   *Hasher
	now      time.Time
	size     int
	chunk    int
	outcomes map[Outcome]int
	path     Path
}

func newWorker(t *testing.T, size int) *worker {
	w := &worker{t: t, index: indexer.New(indexer.Options{}), decoder: &vllm.Decoder{Keep: true}, memory: NewMemory(64<<20, new(Sizes)),
		hasher: NewHasher(nil),
		now:    time.Unix(1, 0), size: size, outcomes: map[Outcome]int{}}
	w.slot = w.index.Join(indexer.SlotOptions{CountCopies: true})
	w.learner = NewLearner(Options{Memory: w.memory, Chain: w.index.Chain, Now: func() time.Time {
		return w.now
	}, Outcome: func(o Outcome) { w.outcomes[o]++ }})
	return w
}

// request reads a request and returns how many cached tokens are predicted for it, and how many of these are learned.
func (w *worker) request(id, endpoint, text string) (predicted, certain int) {
	w.t.Helper()
	var s body.Skeleton
	var req body.Request
	if err := body.Read([][]byte{[]byte(text)}, &s, &req); err != nil {
		w.t.Fatal(err)
	}
	w.hasher.Read(&w.path, Head{Endpoint: endpoint, Model: req.Model}, &s, &req)
	var p Recalled
	w.memory.Recall(1, &w.path, &p)
	path := w.path
	path.Steps = slices.Clone(path.Steps)
	w.learner.Watch(&Request{ID: id, Slot: w.slot, Class: 1, Size: w.size, Path: path, Begin: slices.Clone(p.Blocks[:p.Learned])})
	if len(p.Blocks) == 0 {
		return 0, 0
	}
	var m indexer.Matches
	m.Most = len(p.Blocks)
	if p.Tokens > 0 {
		m.Most = (p.Tokens - 1) / w.size
	}
	w.index.Match(p.Blocks, &m)
	for _, h := range m.Slots {
		predicted = int(h.Blocks) * w.size
	}
	if p.Estimate {
		return predicted, -1
	}
	return predicted, predicted
}

func (w *worker) event(payload []byte) {
	w.t.Helper()
	batch, err := w.decoder.Decode(payload)
	if err != nil {
		w.t.Fatal(err)
	}
	w.apply(batch)
}

func (w *worker) apply(batch kvevent.Batch) {
	for i := range batch.Events {
		switch e := &batch.Events[i]; e.Kind {
		case kvevent.Stored:
			w.learner.Stored(w.slot, e)
			if e.BlockSize == w.size {
				_ = w.index.Store(w.slot, e.Tier, e.Parent, e.HasParent, e.EngineHashes, e.Locals)
			}
		case kvevent.Removed:
			_, _ = w.index.Remove(w.slot, e.Tier, e.EngineHashes)
		case kvevent.Cleared:
			_ = w.index.Clear(w.slot)
		case kvevent.GroupStored:
			if e.Spec.Need == kvevent.NeedChunk && w.chunk > 0 {
				e.Spec.Window = w.chunk
			}
			_, _ = w.index.StoreGroup(w.slot, w.size, e)
		case kvevent.GroupRemoved:
			_, _ = w.index.RemoveGroup(w.slot, e.Group, e.EngineHashes)
		}
	}
}

func (w *worker) end(id string, prompt, output int) {
	w.learner.End(id, Report{prompt, output})
	w.now = w.now.Add(2 * grace)
	w.learner.Settle(w.now)
}

// tally compares predictions with what an engine found.
type tally struct {
	learned, equal, above     int // predictions called learned; within: a block too low
	within                    int
	estimates, estimatesAbove int
	cold, missed              int
}

func (c *tally) add(t *testing.T, id string, size, predicted, certain, cached, prompt int) {
	if predicted > prompt {
		t.Errorf("%s: predicted %d tokens of a prompt of %d, want predicted <= %v", id, predicted, prompt, prompt)
	}
	switch {
	case predicted == 0 && cached == 0:
		c.cold++
	case predicted == 0:
		c.missed++
	case certain < predicted:
		c.estimates++
		if predicted > cached {
			c.estimatesAbove++
		}
	default:
		c.learned++
		switch d := predicted - cached; {
		case d == 0:
			c.equal++
		case d > 0:
			c.above++
			fallthrough
		default:
			if d == -size {
				c.within++
			}
			if testing.Verbose() {
				t.Logf("%s: learned %d, the engine found %d", id, predicted, cached)
			}
		}
	}
}

// TestRecordedHybrids: recordings of vLLM with several KV cache groups, read without tokenizer and template. What is called learned
// equals the engine's count, or nearly always, and is not above it; no prediction is of more than the prompt has.
func TestRecordedHybrids(t *testing.T) {
	checkHybrids(t, golden.Files(t, "../../indexer/stream/testdata/hybrid/*.jsonl.gz"), 195)
}

func TestConformanceHybrids(t *testing.T) {
	checkHybrids(t, golden.Files(t, golden.Dir(t, "vllm_hybrid", "*.jsonl.gz")), 600)
}

func checkHybrids(t *testing.T, files []string, least int) {
	all := tally{}
	for _, file := range files {
		var c tally
		w := (*worker)(nil)
		type request struct{ predicted, certain, prompt int }
		open := map[string]request{}
		lines := bufio.NewScanner(bytes.NewReader(golden.Read(t, file)))
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			var l struct {
				Header *struct {
					Groups []struct {
						Kind      string
						BlockSize int `json:"block_size"`
						Chunk     int
					}
					UseEagle bool `json:"use_eagle"`
				}
				Req, Sched, End  *string
				Cached           int
				Prompt           json.RawMessage
				Endpoint         string
				Messages, Output json.RawMessage
				Payload          []byte
			}
			if json.Unmarshal(lines.Bytes(), &l) != nil {
				continue // lines without events number differently
			}
			switch {
			case l.Header != nil:
				size, full := 0, false
				for _, g := range l.Header.Groups {
					if strings.HasSuffix(g.Kind, "full_attention") || g.Kind == "mla_attention" {
						size, full = max(size, g.BlockSize), true
					} else if !full {
						size = g.BlockSize
					}
				}
				w = newWorker(t, size)
				for _, g := range l.Header.Groups {
					w.chunk = max(w.chunk, g.Chunk)
				}
				w.index.SetWithholds(w.slot, l.Header.UseEagle)
			case l.Req != nil:
				var ids []uint32
				_ = json.Unmarshal(l.Prompt, &ids)
				text := `{"model":"m","prompt":` + string(l.Prompt) + `}`
				if len(l.Messages) > 4 {
					text = `{"model":"m","messages":` + string(l.Messages) + `}`
				}
				predicted, certain := w.request(*l.Req, l.Endpoint, text)
				open[*l.Req] = request{predicted, certain, len(ids)}
			case l.Sched != nil:
				r := open[*l.Sched]
				c.add(t, *l.Sched, w.size, r.predicted, r.certain, l.Cached, r.prompt)
			case l.End != nil:
				var output []uint32
				_ = json.Unmarshal(l.Output, &output)
				w.end(*l.End, open[*l.End].prompt, len(output))
			case l.Payload != nil:
				w.event(l.Payload)
			}
		}
		if w != nil {
			t.Logf("%s: %+v, %v, %+v", filepath.Base(file), c, w.outcomes, w.memory.Stats())
		}
		if findsParts := strings.Contains(file, "-unit16"); !findsParts { // else a prediction is a lower bound, of whole blocks
			all.sum(c)
		} else if c.above > 0 {
			t.Errorf("%s: got %d predictions above what the engine found, want none", filepath.Base(file), c.above)
		}
	}
	t.Logf("%+v", all)
	if all.learned < least || 100*all.equal < 99*all.learned || all.above > 0 || 100*all.estimatesAbove > all.estimates {
		t.Errorf("%+v: want %d learned, 99 %% of these equal and none too high, and no more than 1 %% of the estimates", all, least)
	}
}

func (c *tally) sum(o tally) {
	c.learned, c.equal, c.within, c.above = c.learned+o.learned, c.equal+o.equal, c.within+o.within, c.above+o.above
	c.estimates, c.estimatesAbove, c.cold, c.missed = c.estimates+o.estimates, c.estimatesAbove+o.estimatesAbove,
		c.cold+o.cold, c.missed+o.missed
}

// TestConformanceSequences: recordings of a real vLLM's chats with images. A restart and a reset are told at once, as a feed and the next
// event tell them. Not played are data-parallel ranks, which are slots of their own, and clients' names of images, which Sightline removes.
func TestConformanceSequences(t *testing.T) {
	all := tally{}
	for _, file := range golden.Files(t, golden.Dir(t, "vllm", "sequences", "*.jsonl")) {
		type step struct {
			Op, Endpoint string
			Status       int
			Request      json.RawMessage
			Frames       [][3]string
			Usage        struct {
				Prompt  int `json:"prompt_tokens"`
				Output  int `json:"completion_tokens"`
				Details struct {
					Cached *int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
		}
		for _, seq := range golden.Lines[struct {
			ID    string
			Steps []step
		}](t, file) {
			if strings.Contains(seq.ID, "-dp") || strings.Contains(seq.ID, "uuid") {
				t.Log(seq.ID, "is not played")
				continue
			}
			w, c := newWorker(t, 16), tally{}
			for i, s := range seq.Steps {
				id := seq.ID + "/" + string(rune('a'+i%26))
				ok := s.Op == "request" && s.Status == 200 && s.Usage.Details.Cached != nil
				predicted, certain := 0, 0
				if s.Op == "restart" || s.Op == "reset_prefix_cache" {
					if err := w.index.Clear(w.slot); err != nil {
						t.Fatal(err)
					}
				}
				if s.Op == "request" {
					predicted, certain = w.request(id, s.Endpoint, string(s.Request))
				}
				if ok && !strings.Contains(string(s.Request), "prompt_logprobs") { // of these the router predicts nothing
					c.add(t, id, w.size, predicted, certain, *s.Usage.Details.Cached, s.Usage.Prompt)
				}
				for _, f := range s.Frames {
					payload, err := base64.StdEncoding.DecodeString(f[2])
					if err != nil {
						t.Fatal(err)
					}
					w.event(payload)
				}
				if s.Op == "request" {
					w.end(id, s.Usage.Prompt, s.Usage.Output)
				}
			}
			t.Logf("%s: %+v, %v", seq.ID, c, w.outcomes)
			all.sum(c)
		}
	}
	t.Logf("%+v", all)
	if all.learned < 14 || all.equal < all.learned {
		t.Errorf("%+v: want at least 14 that are learned, and all of them equal", all)
	}
}
