package stream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/lab/recorded"
	"github.com/sightline-router/sightline/mmhash/block"
)

// TestRecordedSequences replays recorded sequences against one cache (repeats, growing chats, salts, eviction, resets, a restart,
// two ranks): before each request the index must predict what the engine then reported as cached tokens.
func TestRecordedSequences(t *testing.T) {
	checkSequences(t, recorded.Selection(t))
}

func TestConformanceSequences(t *testing.T) {
	checkSequences(t, recorded.All(t))
}

// growing skips the resets that the recorder made between requests, so that the cache grows.
type growing struct{ vllm.Decoder }

func (g *growing) Decode(b []byte) (kvevent.Batch, error) {
	batch, err := g.Decoder.Decode(b)
	batch.Events = slices.DeleteFunc(batch.Events, func(e kvevent.Event) bool { return e.Kind == kvevent.Cleared })
	return batch, err
}

// TestRecordedCasesAreFound checks that every recorded request finds, in an index fed with its worker's frames, every full block
// that it stored.
func TestRecordedCasesAreFound(t *testing.T) {
	checkFound(t, recorded.Selection(t))
}

func TestConformanceCasesAreFound(t *testing.T) {
	checkFound(t, recorded.All(t))
}

func checkFound(t *testing.T, set *recorded.Set) {
	prompts, found := 0, 0
	for worker, steps := range set.Cases {
		index := indexer.New(indexer.Options{})
		f := &Feed{content: content{o: Options{Source: newWorker(0, false), Decoder: &growing{},
			Sink: Join(index, indexer.SlotOptions{CountCopies: true})}}}
		seq := uint64(0)
		for _, s := range steps {
			for _, frame := range s.Frames { // renumbered: the recorder missed a few
				f.takeMessage(context.Background(), Message{Seq: seq, Payload: frame.Payload})
				seq++
			}
		}
		var missed []string
		for _, s := range steps {
			for _, p := range s.Computed {
				locals := s.Locals(worker, p)
				var m indexer.Matches
				index.Match(locals, &m)
				prompts++
				if m.Longest == len(locals) {
					found++
				} else {
					missed = append(missed, fmt.Sprintf("%s: %d of %d blocks", s.ID, m.Longest, len(locals)))
				}
			}
		}
		frames, first, last := 0, uint64(0), uint64(0)
		for _, s := range steps {
			for _, frame := range s.Frames {
				if frames == 0 {
					first = frame.Seq
				}
				frames, last = frames+1, frame.Seq
			}
		}
		if lost := int(last-first) + 1 - frames; len(missed) > lost {
			t.Errorf("%s: %d messages missed by the recorder, but %q, want at most %d of them", worker, lost, missed, lost)
		}
		if s := f.Stats(); s.Gaps+s.Restarts+s.DecodeErrors+s.UnknownKeys+s.UnknownParents+s.Refused+s.OtherBlockSize > 0 {
			t.Errorf("%s: %+v; got %d, want 0",
				worker, s, s.Gaps+s.Restarts+s.DecodeErrors+s.UnknownKeys+s.UnknownParents+s.Refused+s.OtherBlockSize)
		}
	}
	t.Logf("%d of %d prompts found whole, the rest in messages that the recorder missed", found, prompts)
}

func checkSequences(t *testing.T, set *recorded.Set) {
	equal, afterReset := 0, 0
	for _, s := range set.Sequences {
		t.Run(s.ID, func(t *testing.T) {
			ranks := strings.Contains(s.Worker, "dp2")
			p := &player{t: t, index: indexer.New(indexer.Options{}), feeds: map[int]*rank{}}
			defer p.close()
			reset := true // the recorder emptied the cache before
			for i, step := range s.Steps {
				switch step.Op {
				case "request":
					want := step.Cached
					if want >= 0 && len(step.Computed) == 1 && !ranks {
						got := p.foretell(step.Computed[0], recorded.BlockSize(s.Worker), step.Salt)
						if got == want {
							equal++
						} else if reset {
							afterReset++
						} else {
							t.Errorf("step %d: foretold %d cached tokens, the engine had %d", i, got, want)
						}
					}
					reset = false
				case "reset_prefix_cache":
					reset = true
				case "restart":
					reset = true
					p.restarts++
				}
				p.play(step.Frames)
			}
			p.check(ranks)
		})
	}
	t.Logf("%d requests foretold, %d not, each the first after a reset or restart, which only the next event tells of", equal, afterReset)
	if equal < 40 || afterReset > 3 {
		t.Errorf("%d requests foretold, %d not, after a reset, want at least 40, at most 3", equal, afterReset)
	}
}

type rank struct {
	f    *Feed
	sink *IndexSink
}

// player feeds recorded frames to one feed for each rank.
type player struct {
	t        *testing.T
	index    *indexer.Index
	feeds    map[int]*rank
	restarts uint64
}

func (p *player) play(frames []recorded.Frame) {
	for _, frame := range frames {
		n := int(frame.Payload[len(frame.Payload)-1]) // a frame ends in its rank, here a single byte
		r := p.feeds[n]
		if r == nil {
			w := newWorker(0, false)
			r = &rank{sink: Join(p.index, indexer.SlotOptions{CountCopies: true})}
			r.f = Start(Options{Source: w, Decoder: &vllm.Decoder{}, Sink: r.sink})
			p.feeds[n] = r
		}
		before := r.f.Stats().Batches
		r.f.Offer(Message{Seq: frame.Seq, Payload: frame.Payload})
		applied(p.t, r.f, "a frame", func(s Stats) bool { return s.Batches == before+1 })
	}
}

// foretell returns the tokens of a prompt that a worker holds. vLLM computes at least the last token again.
func (p *player) foretell(prompt recorded.Computed, size int, salt string) int {
	locals := block.Fixed().Locals(nil, prompt.Tokens[:prompt.Asked], block.Form{Size: size}, prompt.Spans, block.Fixed().Root("", salt))
	var m indexer.Matches
	p.index.Match(locals, &m)
	return min(m.Longest, (prompt.Asked-1)/size) * size
}

func (p *player) check(ranks bool) {
	if ranks && len(p.feeds) != 2 {
		p.t.Errorf("%d ranks, want 2", len(p.feeds))
	}
	for n, r := range p.feeds {
		s := r.f.Stats()
		if s.Restarts != p.restarts || s.Gaps+s.UnknownParents+s.UnknownBlocks+s.UnknownKeys+s.DecodeErrors+s.Refused+s.Unresolved > 0 {
			p.t.Errorf("rank %d: %+v", n, s)
		}
	}
}

func (p *player) close() {
	for _, r := range p.feeds {
		r.f.Close()
		if n := p.index.HeldBlocks(r.sink.Slot()); n != 0 {
			p.t.Errorf("%d blocks left", n)
		}
	}
}

// BenchmarkFeed measures the whole path of an event: queue, order, decode, hash, index. One worker of 0.32 with batches of 64
// blocks.
func BenchmarkFeed(b *testing.B) {
	payloads := recorded.Selection(b).Payloads("qwen2.5-vl-b16")
	sink := Join(indexer.New(indexer.Options{}), indexer.SlotOptions{})
	f := &Feed{content: content{o: Options{Source: newWorker(0, false), Decoder: &vllm.Decoder{}, Sink: sink}}, wake: make(chan struct{}, 1)}
	seq, ctx := uint64(0), b.Context()
	b.ReportAllocs()
	b.ResetTimer()
	for b.Loop() {
		for _, payload := range payloads {
			f.takeMessage(ctx, Message{Seq: seq, Payload: payload})
			seq++
		}
	}
	b.ReportMetric(float64(f.stats.Blocks)/b.Elapsed().Seconds(), "blocks/s")
	if f.stats.Gaps+f.stats.DecodeErrors > 0 {
		b.Errorf("%+v: got %d, want 0", f.stats, f.stats.Gaps+f.stats.DecodeErrors)
	}
}
