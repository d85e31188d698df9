package stream

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
)

// forms is a Source without a replay, and a Decoder that reads "good", calls "bad" damaged and "typed" events of unknown types.
type forms struct{ feed chan *Feed }

func (s forms) Run(ctx context.Context, f *Feed) error {
	f.Up()
	s.feed <- f
	<-ctx.Done()
	return ctx.Err()
}

func (forms) Replay(context.Context, uint64, func(Message) error) error { return errors.ErrUnsupported }

func (forms) Decode(payload []byte) (kvevent.Batch, error) {
	switch string(payload) {
	case "good":
		return kvevent.Batch{Events: []kvevent.Event{{Kind: kvevent.Cleared}}}, nil
	case "typed":
		return kvevent.Batch{Unknown: 1, Unread: errors.New("unknown types")}, nil
	}
	return kvevent.Batch{}, errors.New("damaged")
}

// TestUnreadable: three messages in a row that cannot be read make a stream unreadable and not live; one that can be read, or a new
// connection, ends it. Messages of new types alone do so only if nothing else was ever read.
func TestUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := forms{make(chan *Feed, 1)}
		links := []bool{}
		f := Start(Options{Source: src, Decoder: src, Sink: Join(indexer.New(indexer.Options{}), indexer.SlotOptions{CountCopies: true}),
			OnLink: func(_ *Feed, up bool) { links = append(links, up) }})
		defer f.Close()
		<-src.feed
		seq := uint64(0)
		for i, step := range []struct {
			do   func()
			want string
		}{
			{func() {}, ""},
			{f.offers(&seq, "typed", "typed", "typed"), "unknown types"},
			{f.offers(&seq, "good"), ""},
			{f.offers(&seq, "bad", "bad"), ""},
			{f.offers(&seq, "good", "bad", "bad"), ""},
			{f.offers(&seq, "bad"), "damaged"},
			{f.Up, ""},
			{func() { f.Malformed("1 frame"); f.Malformed("1 frame") }, ""},
			{func() { f.Malformed("1 frame") }, "1 frame"},
			{f.offers(&seq, "good"), ""},
			{f.offers(&seq, "typed", "typed", "typed", "typed"), ""},
		} {
			step.do()
			synctest.Wait()
			if st := f.Stats(); st.Unreadable != step.want || st.Live() != (step.want == "") || (f.Age(st.LastMessage) > 0) != (step.want != "") {
				t.Errorf("step %d: %q, live %v, want %q", i, st.Unreadable, st.Live(), step.want)
			}
		}
		want := []bool{true, false, true, false, true, false, true}
		if len(links) != len(want) {
			t.Errorf("%v, want %v", links, want)
		}
	})
}

// TestIdleAfterUnreadable: a publisher whose last message cannot be read is no new one each time that it is asked for that message again.
// A publisher that has restarted since is.
func TestIdleAfterUnreadable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorker(1, true)
		f, r := start(t, w, Options{Idle: time.Second})
		f.Up()
		f.Offer(w.step())
		synctest.Wait()
		damaged := Message{Seq: 1, Payload: []byte("no event")}
		w.mu.Lock()
		w.sent = append(w.sent, damaged)
		w.mu.Unlock()
		f.Offer(damaged)
		synctest.Wait()
		before, clears := f.Stats(), r.clears
		time.Sleep(time.Minute)
		st := f.Stats()
		if st.Replays < before.Replays+30 || st.Restarts != 0 || r.clears != clears || st.DecodeErrors != before.DecodeErrors {
			t.Errorf("a minute later: %d replays, %d restarts, cleared %d times, %d messages that cannot be read; before: %d, 0, %d, %d",
				st.Replays, st.Restarts, r.clears, st.DecodeErrors, before.Replays, clears, before.DecodeErrors)
		}
		w.restart()
		for range 3 {
			w.step()
		}
		time.Sleep(10 * time.Second)
		if st := f.Stats(); st.Restarts != 1 {
			t.Errorf("%d restarts after one, want 1", st.Restarts)
		}
	})
}

func (f *Feed) offers(seq *uint64, payloads ...string) func() {
	return func() {
		for _, p := range payloads {
			f.Offer(Message{Seq: *seq, Payload: []byte(p)})
			*seq++
		}
	}
}
