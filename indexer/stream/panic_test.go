package stream

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer/kvevent"
)

// brittle is a decoder that panics at one payload, so many times.
type brittle struct {
	vllm.Decoder
	at    atomic.Pointer[[]byte]
	times int
}

func (b *brittle) Decode(payload []byte) (kvevent.Batch, error) {
	if at := b.at.Load(); at != nil && b.times > 0 && bytes.Equal(payload, *at) {
		b.times--
		_ = payload[len(payload)]
	}
	return b.Decoder.Decode(payload)
}

// fragile is a worker whose connection's reader panics once, and whose first replay does.
type fragile struct {
	*worker
	run, asked atomic.Int32
}

func (s *fragile) Run(ctx context.Context, f *Feed) error {
	if s.run.Add(1) == 1 {
		panic("a message's words")
	}
	return s.worker.Run(ctx, f)
}

func (s *fragile) Replay(ctx context.Context, from uint64, each func(Message) error) error {
	if s.asked.Add(1) == 1 {
		panic(from)
	}
	return s.worker.Replay(ctx, from, each)
}

// TestPanicsAreStopped checks that a feed counts panics of its parts and goes on: the message is requested again, the source is
// restarted, and in the end the sink equals what the worker holds.
func TestPanicsAreStopped(t *testing.T) {
	w := newWorker(31, true)
	src, r, d := &fragile{worker: w}, newRecorder(), &brittle{times: 1}
	stored := 0
	f := Start(Options{Source: src, Decoder: d, Sink: r, Stored: func(*kvevent.Event) {
		stored++
		if stored == 3 {
			panic(errors.New("an audit's fault"))
		}
	}})
	t.Cleanup(f.Close)
	<-w.ready
	if s := f.Stats(); s.Panics != 1 || strings.Contains(s.LastError, "words") || !strings.Contains(s.LastError, "panic_test.go") {
		t.Errorf("after the source's: got %+v, want Panics 1, LastError no %q in it, LastError %q in it", s, "words", "panic_test.go")
	}
	f.Up()
	applied(t, f, "the replay's panic", func(s Stats) bool { return s.Panics == 2 })
	for i := range 40 {
		m := w.step()
		if i == 20 {
			at := bytes.Clone(m.Payload)
			d.at.Store(&at)
		}
		drained(f) // before d.at is read
		f.Offer(m)
	}
	settle(t, w, r, f)
	if s := f.Stats(); s.Panics != 4 || s.DecodeErrors != 1 || s.Replays == 0 {
		t.Errorf("got %+v, want Panics 4, DecodeErrors 1, Replays some", s)
	}
}

// TestPoisonIsSkipped checks that one message that always panics costs what is known, not the feed: it goes on with a lower
// bound.
func TestPoisonIsSkipped(t *testing.T) {
	w := newWorker(32, true)
	w.noClear = true
	r, d := newRecorder(), &brittle{times: 1 << 30}
	m := w.step()
	at := bytes.Clone(m.Payload)
	d.at.Store(&at)
	f := Start(Options{Source: w, Decoder: d, Sink: r})
	t.Cleanup(f.Close)
	<-w.ready
	f.Up()
	f.Offer(m)
	last := m
	for range 10 {
		last = w.step()
		f.Offer(last)
	}
	applied(t, f, "what follows", func(s Stats) bool { return s.LastSeq == last.Seq && s.Panics > 0 && s.Partial })
}

// deaf is a source whose publisher cannot be asked until it is back; it records when it was asked.
type deaf struct {
	began time.Time
	at    []time.Duration
	back  bool // from now on it answers, with nothing
}

func (d *deaf) Run(ctx context.Context, f *Feed) error {
	f.Up()
	<-ctx.Done()
	return ctx.Err()
}

func (d *deaf) Replay(context.Context, uint64, func(Message) error) error {
	d.at = append(d.at, time.Since(d.began))
	if d.back {
		return nil
	}
	return errors.New("not now")
}

// TestLongAway checks that a publisher that was away for long, and was asked ever more rarely, is asked at once when it is back.
func TestLongAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deaf{began: time.Now()}
		f := Start(Options{Source: d, Decoder: &vllm.Decoder{}, Sink: newRecorder()})
		defer f.Close()
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		asked := len(d.at)
		f.Down(errors.New("refused"))
		d.back = true
		f.Up()
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if s := f.Stats(); len(d.at) != asked+1 || !s.Live() {
			t.Errorf("got %d queries after %d: %+v, want one more, and the feed live", len(d.at)-asked, asked, s)
		}
	})
}

// TestRetriesAreSpread checks that feeds that lost their publishers at one moment do not retry at the same moments.
func TestRetriesAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []*deaf
		for range 32 {
			d := &deaf{began: time.Now()}
			f := Start(Options{Source: d, Decoder: &vllm.Decoder{}, Sink: newRecorder()})
			defer f.Close()
			all = append(all, d)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		for k := 1; k < 5; k++ {
			together := map[time.Duration]int{} // by tenth of a second
			for _, d := range all {
				if len(d.at) <= k {
					t.Fatalf("%d attempts in a minute: %v, want more than %d", len(d.at), d.at, k)
				}
				together[d.at[k].Truncate(100*time.Millisecond)]++
			}
			for at, n := range together {
				if n > len(all)*2/3 {
					t.Errorf("attempt %d: got %d of %d feeds within the tenth of a second at %v, want at most %d", k, n, len(all), at, len(all)*2/3)
				}
			}
		}
	})
}
