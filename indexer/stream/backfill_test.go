package stream

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
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
	b := kvevent.Batch{Stands: true, Events: []kvevent.Event{{Kind: kvevent.Cleared}}}
	for _, e := range indexer.Events(h.Blocks) {
		e.BlockSize = h.BlockSize
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
		fails    int  // calls that fail first
		silent   bool // no other router has it
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
				sink := Join(x, true)
				one := Start(Options{Source: w, Decoder: &vllm.Decoder{}, Sink: sink})
				defer one.Close()
				<-w.ready
				one.Up()
				w.keep = 1 << 30
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
				two = Start(Options{Decoder: &vllm.Decoder{}, Sink: r, Source: &Backfill{Source: s, Ask: func(ctx context.Context) (at Position, all kvevent.Batch, ok bool, err error) {
					if fails--; fails >= 0 {
						return at, all, false, errors.New("too busy")
					}
					if c.silent {
						return at, all, false, nil
					}
					h, err := one.Held(ctx)
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
					if at = h.At; c.spoil != nil {
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
								t.Errorf("seed %d: %+v is not held", seed, k)
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
				if s := two.Stats(); s.UnknownBlocks > 0 && !c.partial {
					t.Errorf("seed %d: %+v", seed, s)
				}
				two.Close()
			}
		})
	}
}

// TestHeldIsWhole checks that Held fails if what is held is not known completely, or is in doubt.
func TestHeldIsWhole(t *testing.T) {
	w := newWorker(5, true)
	x := indexer.New(indexer.Options{})
	f := Start(Options{Source: w, Decoder: &vllm.Decoder{}, Sink: Join(x, true)})
	defer f.Close()
	<-w.ready
	held := func() error {
		_, err := f.Held(t.Context())
		return err
	}
	if err := held(); !errors.Is(err, ErrNotWhole) {
		t.Errorf("before anything: %v", err)
	}
	f.Up()
	f.Offer(w.step())
	applied(t, f, "one", func(s Stats) bool { return s.Batches == 1 && s.Live() })
	if err := held(); err != nil {
		t.Error(err)
	}
	f.Down(nil)
	if err := held(); !errors.Is(err, ErrNotWhole) {
		t.Errorf("of a dead stream: %v", err)
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
	if err := held(); !errors.Is(err, ErrNotWhole) {
		t.Errorf("in doubt: %v", err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Nanosecond)
	defer stop()
	<-ctx.Done()
	if _, err := f.Held(ctx); err == nil {
		t.Error("without time")
	}
}
