package stream

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/internal/fair"
)

// second is a further feed of a worker.
type second struct {
	*worker
	ready chan struct{}
}

func (s *second) Run(ctx context.Context, _ *Feed) error {
	close(s.ready)
	<-ctx.Done()
	return ctx.Err()
}

// batch returns what a feed holds, as sent to another router.
func (h *Held) batch() kvevent.Batch {
	b := kvevent.Batch{Partial: h.At.Partial, Events: []kvevent.Event{{Kind: kvevent.Cleared}}}
	for e := range indexer.Events(h.Blocks) {
		e.BlockSize, e.Lookahead = h.Form.Size, h.Form.Lookahead
		e.EngineHashes, e.Locals = slices.Clone(e.EngineHashes), slices.Clone(e.Locals)
		b.Events = append(b.Events, e)
	}
	return b
}

// TestBackfill checks that a feed that joins a worker whose replay no longer begins at 0 holds what the worker holds after
// another feed has sent its state, whatever the worker does meanwhile; and nothing else if the other's state is of another
// worker, or is not sent.
func TestBackfill(t *testing.T) {
	for name, c := range map[string]struct {
		during   int // messages between the other's answer and the replay
		keep     int // messages that the worker can replay
		spoil    func(at *Position, b *kvevent.Batch)
		fails    int  // questions that fail first
		serves   int  // live messages after each of them
		silent   bool // no replica knows the worker
		partial  bool // the feed stays partial, with the worker's own replay
		restarts bool // the worker restarts between the answer and the replay
	}{
		"nothing meanwhile":         {keep: 20},
		"much meanwhile":            {keep: 20, during: 12},
		"more than is replayed":     {keep: 20, during: 40, partial: true},
		"another worker":            {keep: 20, spoil: func(at *Position, _ *kvevent.Batch) { at.Sum++ }, partial: true},
		"a number never reached":    {keep: 20, spoil: func(at *Position, _ *kvevent.Batch) { at.Next += 1000 }, partial: true},
		"no number":                 {keep: 20, spoil: func(at *Position, _ *kvevent.Batch) { at.Next = 0 }, partial: true},
		"the question fails twice":  {keep: 20, fails: 2},
		"the question always fails": {keep: 20, fails: 1 << 30, partial: true}, // as with a replica that cannot read it, or drips
		"it serves meanwhile":       {keep: 20, fails: 1, serves: 5},
		"nobody knows":              {keep: 20, silent: true, partial: true},
		"a restart meanwhile":       {keep: 20, restarts: true},
	} {
		t.Run(name, func(t *testing.T) {
			seeds := uint64(8)
			if c.fails > 0 { // which takes a second
				seeds = 1
			}
			for seed := range seeds {
				w := newWorker(seed, true)
				w.noClear = true // a Clear would give the feed everything without the other's help
				x := indexer.New(indexer.Options{})
				sink := Join(x, indexer.SlotOptions{CountCopies: true})
				one := Start(Options{Source: w, Decoder: &vllm.Decoder{}, Sink: sink})
				defer one.Close()
				<-w.ready
				one.Up()
				w.mu.Lock()
				w.keep = 1 << 30
				w.mu.Unlock()
				for range 100 {
					one.Offer(w.step())
				}
				applied(t, one, "all", func(s Stats) bool { return s.LastSeq == 99 && s.Live() })
				w.mu.Lock()
				w.keep = c.keep
				w.mu.Unlock()

				r, fails := newRecorder(), c.fails
				var two *Feed
				s := &second{w, make(chan struct{})}
				two = Start(Options{Decoder: &vllm.Decoder{}, Sink: r,
					Source: &Backfill{Source: s, Ask: func(ctx context.Context) (at Position, all kvevent.Batch, ok bool, err error) {
						fails--
						if fails >= 0 {
							for range c.serves {
								m := w.step()
								one.Offer(m)
								two.Offer(m)
							}
							return at, all, false, errors.New("too busy")
						}
						if c.silent {
							return at, all, false, nil
						}
						h, err := one.Held(ctx, math.MaxInt)
						if err != nil {
							t.Error(err)
						}
						for range c.during {
							m := w.step()
							one.Offer(m)
							two.Offer(m)
						}
						if c.restarts {
							w.restart()
							for range 10 {
								two.Offer(w.step())
							}
						}
						all = h.batch()
						at = h.At
						if c.spoil != nil {
							c.spoil(&at, &all)
						}
						return at, all, true, nil
					}}})
				<-s.ready
				two.Up()
				if c.partial {
					applied(t, two, "the worker's own replay", func(s Stats) bool { return s.Batches > 0 && s.CaughtUp })
					if got, partial := r.state(); !partial || two.Stats().Backfilled > 0 && name != "more than is replayed" {
						t.Errorf("seed %d: partial %v, %+v", seed, partial, two.Stats())
					} else {
						w.mu.Lock()
						for k := range got {
							if w.truth[k] == 0 {
								t.Errorf("seed %d: %+v is not held; got %d, want some", seed, k, w.truth[k])
							}
						}
						w.mu.Unlock()
					}
				} else {
					applied(t, two, "an answer", func(s Stats) bool { return s.Batches > 0 && s.CaughtUp && s.Backfilled == 1 != c.restarts })
					settle(t, w, r, two)
					w.noClear = false
					for range 50 { // and continues
						two.Offer(w.step())
					}
					settle(t, w, r, two)
				}
				if s := two.Stats(); s.UnknownBlocks > 0 && !c.partial && c.serves == 0 {
					t.Errorf("seed %d: %+v", seed, s)
				}
				two.Close()
			}
		})
	}
}

// together holds two feeds of one worker that can replay its last 20 messages. The first feed has received all messages; the other one
// asks it as soon as a replica is known.
type together struct {
	*worker
	one, two *Feed
	r        *recorder
	there    atomic.Bool
}

func joined(t *testing.T, o indexer.Options, there bool) *together {
	w := newWorker(3, true)
	w.noClear = true
	b := &together{worker: w, r: newRecorder()}
	b.there.Store(there)
	b.one = Start(Options{Source: w, Decoder: &vllm.Decoder{}, Sink: Join(indexer.New(o), indexer.SlotOptions{CountCopies: true})})
	t.Cleanup(b.one.Close)
	<-w.ready
	b.one.Up()
	applied(t, b.one, "an empty worker", func(s Stats) bool { return s.Live() })
	b.steps(100, b.one)
	applied(t, b.one, "all", func(s Stats) bool { return s.LastSeq == 99 })
	w.mu.Lock()
	w.keep = 20
	w.mu.Unlock()
	s := &second{w, make(chan struct{})}
	b.two = Start(Options{Decoder: &vllm.Decoder{}, Sink: b.r,
		Source: &Backfill{Source: s, Ask: func(ctx context.Context) (at Position, all kvevent.Batch, ok bool, err error) {
			h, err := b.one.Held(ctx, math.MaxInt)
			if err != nil || !b.there.Load() {
				return at, all, false, nil
			}
			return h.At, h.batch(), true, nil
		}}})
	t.Cleanup(b.two.Close)
	<-s.ready
	b.two.Up()
	applied(t, b.two, "the first replay", func(s Stats) bool { return s.LastSeq == 99 && s.Live() })
	return b
}

func (b *together) steps(n int, to ...*Feed) {
	for range n {
		m := b.step()
		for _, f := range to {
			f.Offer(m)
		}
	}
}

// A feed that asked before another replica was reachable asks again when one is, and loses nothing if none knows the worker.
func TestAskOthersLater(t *testing.T) {
	b := joined(t, indexer.Options{}, false)
	b.steps(30, b.one, b.two)
	applied(t, b.two, "what comes live", func(s Stats) bool { return s.LastSeq == 129 })
	before, partial := b.r.state()
	b.two.AskOthers(t.Context())
	if !partial || b.two.Stats().Backfilled > 0 {
		t.Fatalf("got partial %v: %+v, want it partial, and nothing from others", partial, b.two.Stats())
	}
	if after, _ := b.r.state(); !maps.Equal(before, after) {
		t.Errorf("%d blocks are %d after nobody answered: got %v, want %v", len(before), len(after), before, after)
	}
	b.there.Store(true)
	b.two.AskOthers(t.Context())
	settle(t, b.worker, b.r, b.two)
	b.steps(30, b.two)
	settle(t, b.worker, b.r, b.two)
	if s := b.two.Stats(); s.Backfilled != 1 || s.Restarts > 0 {
		t.Errorf("got %+v, want Backfilled 1, Restarts 0", s)
	}
}

// A feed that was disconnected for longer than the worker's replay covers gets the state from another replica, and doubts no block.
func TestBackfillOfAGap(t *testing.T) {
	b := joined(t, indexer.Options{}, true)
	settle(t, b.worker, b.r, b.two)
	b.two.Down(nil)
	b.steps(30, b.one)
	applied(t, b.one, "all", func(s Stats) bool { return s.LastSeq == 129 })
	b.two.Up()
	settle(t, b.worker, b.r, b.two)
	if s := b.two.Stats(); s.Backfilled != 2 || s.Unfilled > 0 || s.Restarts > 0 {
		t.Errorf("got %+v, want Backfilled 2, Unfilled 0, Restarts 0", s)
	}
	b.two.Down(nil)
	b.steps(20, b.one) // as many as the worker can replay
	applied(t, b.one, "all", func(s Stats) bool { return s.LastSeq == 149 })
	b.two.Up()
	settle(t, b.worker, b.r, b.two)
	if s := b.two.Stats(); s.Backfilled != 2 {
		t.Errorf("others were asked for what the worker tells itself: got %+v, want Backfilled 2", s)
	}
}

// Blocks that the other replica had no memory for do not count as missing here either.
func TestBackfillOfAPart(t *testing.T) {
	b := joined(t, indexer.Options{MaxBytes: 1}, false) // 16 MiB
	x, slot := b.one.o.Sink.Held()
	other, of := make([]uint64, 1000), x.Join(indexer.SlotOptions{Owner: fair.Client(slot + 1)}) // the same
	for n := uint64(0); !x.Partial(slot); {
		for i := range other {
			n++
			other[i] = n << 20
		}
		if err := x.Store(of, kvevent.GPU, 0, false, other, other); err != nil || n > 1<<22 {
			t.Fatalf("got %d %v, want no error, at most %d", n, err, 1<<22)
		}
	}
	b.there.Store(true)
	b.two.AskOthers(t.Context())
	got, partial := b.r.state()
	if !partial || b.two.Stats().Backfilled != 1 {
		t.Errorf("got %d blocks, partial %v: %+v, want it partial, and filled once by others", len(got), partial, b.two.Stats())
	}
	b.steps(1, b.two)
	applied(t, b.two, "another", func(s Stats) bool { return s.LastSeq == 100 })
	if _, partial := b.r.state(); !partial {
		t.Error("it is taken for whole")
	}
}

// A state that is incomplete or in doubt is given to no replica.
func TestHeldIsWhole(t *testing.T) {
	w := newWorker(5, true)
	x := indexer.New(indexer.Options{})
	f := Start(Options{Source: w, Decoder: &vllm.Decoder{}, Sink: Join(x, indexer.SlotOptions{CountCopies: true})})
	defer f.Close()
	<-w.ready
	held := func() error {
		_, err := f.Held(t.Context(), 6)
		return err
	}
	if err := held(); !errors.Is(err, ErrIncomplete) {
		t.Errorf("before anything: got %v, want %v", err, ErrIncomplete)
	}
	f.Up()
	f.Offer(w.step())
	applied(t, f, "one", func(s Stats) bool { return s.Batches == 1 && s.Live() })
	if err := held(); err != nil {
		t.Error(err)
	}
	if h, err := f.Held(t.Context(), 0); !errors.Is(err, ErrTooMany) || h.Blocks != nil {
		t.Errorf("of too many: %v, %d listed; got %+v, want %v, nil", err, len(h.Blocks), h.Blocks, ErrTooMany)
	}
	f.Down(nil)
	if err := held(); !errors.Is(err, ErrIncomplete) {
		t.Errorf("of a dead stream: got %v, want %v", err, ErrIncomplete)
	}
	w.mu.Lock()
	w.keep = 1
	w.mu.Unlock()
	for range 9 {
		w.step()
	}
	f.Up()
	f.Offer(w.step())
	applied(t, f, "a gap", func(s Stats) bool { return s.LastSeq == 10 && s.Live() })
	if err := held(); !errors.Is(err, ErrIncomplete) {
		t.Errorf("in doubt: got %v, want %v", err, ErrIncomplete)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Nanosecond)
	defer stop()
	<-ctx.Done()
	if _, err := f.Held(ctx, math.MaxInt); err == nil {
		t.Errorf("without time: got %v, want an error", err)
	}
}
