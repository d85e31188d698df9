package stream

import (
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
)

// TestResync checks that, if what is known turns out wrong although every message came, the feed equals what the worker holds
// after a resync.
func TestResync(t *testing.T) {
	w := newWorker(21, true)
	f, r := start(t, w, Options{})
	f.Up()
	for range 60 {
		f.Offer(w.step())
	}
	settle(t, w, r, f)
	// a block that is not there
	if err := r.Store(&kvevent.Event{Kind: kvevent.Stored, EngineHashes: []uint64{1}, Locals: []uint64{2}}); err != nil {
		t.Fatal(err)
	}
	w.failing.Store(true)
	f.Resync()
	applied(t, f, "the failed replay", func(s Stats) bool { return s.ReplayErrors > 0 && s.Partial })
	if got, _ := r.state(); len(got) == 0 {
		t.Errorf("what is known goes before there is anything better: got %d, want some", len(got))
	}
	w.failing.Store(false)
	settle(t, w, r, f) // retried by itself
	for range 20 {
		f.Offer(w.step())
	}
	settle(t, w, r, f)
	if s := f.Stats(); s.Restarts > 0 || s.Gaps > 0 {
		t.Errorf("got %+v, want Restarts 0, Gaps 0", s)
	}
}

// TestResyncWithoutReplay checks that, with nobody to ask, what is in doubt is dropped at once, and that what comes later is a
// lower bound.
func TestResyncWithoutReplay(t *testing.T) {
	w := newWorker(22, false)
	w.noClear = true
	f, r := start(t, w, Options{})
	f.Up()
	for range 30 {
		f.Offer(w.step())
	}
	settle(t, w, r, f)
	f.Resync()
	applied(t, f, "the mark", func(s Stats) bool { return s.Partial })
	if got, partial := r.state(); len(got) > 0 || !partial {
		t.Errorf("%d blocks, partial %v, want 0, true", len(got), partial)
	}
	before := f.Stats()
	f.Offer(w.step())
	applied(t, f, "the next message", func(s Stats) bool { return s.Batches == before.Batches+1 })
}

// TestReborn checks that, if somebody else notices a new process, what its predecessor held is dropped, although nothing was
// published since, or the numbers fit. A restart that the publisher does not confirm, or that was noticed already, changes
// nothing.
func TestReborn(t *testing.T) {
	for _, replays := range []bool{false, true} {
		w := newWorker(41, replays)
		f, r := start(t, w, Options{})
		f.Up()
		for range 20 {
			f.Offer(w.step())
		}
		settle(t, w, r, f)
		if replays {
			asked := f.Stats().Replays
			f.ProcessRestarted(time.Now())
			f.Offer(w.step())
			applied(t, f, "the publisher's answer", func(s Stats) bool { return s.Replays > asked })
			settle(t, w, r, f)
			if s := f.Stats(); s.Restarts != 0 {
				t.Errorf("the publisher says that it is the same: got %+v, want Restarts 0", s)
			}
		}
		was := time.Now()
		w.restart()
		f.ProcessRestarted(was)
		applied(t, f, "the restart", func(s Stats) bool { return s.Restarts == 1 })
		settleEmpty := func() {
			for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
				if got, _ := r.state(); len(got) == 0 {
					return
				} else if time.Now().After(end) {
					t.Fatalf("%d blocks of the one before", len(got))
				}
			}
		}
		settleEmpty()
		f.ProcessRestarted(was) // already noticed
		for range 25 {
			f.Offer(w.step())
		}
		settle(t, w, r, f)
		if s := f.Stats(); s.Restarts != 1 {
			t.Errorf("replays %v: got %+v, want Restarts 1", replays, s)
		}
	}
}

// TestRebornBehindItsQueue checks that a restart that is noticed while messages of the process before still wait drops these, too.
func TestRebornBehindItsQueue(t *testing.T) {
	w := newWorker(43, true)
	f, r := start(t, w, Options{})
	f.Up()
	for range 20 {
		f.Offer(w.step())
	}
	settle(t, w, r, f)
	m, was := w.step(), time.Now()
	w.restart()
	f.mu.Lock() // both come before the feed's goroutine runs
	f.queue.push(m)
	f.restartedAfter = was
	f.mu.Unlock()
	f.wake.Ring()
	applied(t, f, "the restart", func(s Stats) bool { return s.Restarts == 1 })
	settle(t, w, r, f)
	if s := f.Stats(); s.Restarts != 1 || s.Gaps != 0 {
		t.Errorf("got %+v, want one restart and no gap", s)
	}
}

// TestRebornBehindAGap checks that messages of the process before are dropped, too, if a gap among them has revealed the restart.
func TestRebornBehindAGap(t *testing.T) {
	w := newWorker(44, true)
	f, r := start(t, w, Options{})
	f.Up()
	for range 20 {
		f.Offer(w.step())
	}
	settle(t, w, r, f)
	w.step() // it is lost
	late, was := []Message{w.step(), w.step()}, time.Now()
	w.restart()
	f.mu.Lock() // all come before the feed's goroutine runs
	for _, m := range late {
		f.queue.push(m)
	}
	f.restartedAfter = was
	f.mu.Unlock()
	f.wake.Ring()
	applied(t, f, "the end of the queue", func(s Stats) bool { return s.Batches >= 22 })
	settle(t, w, r, f)
}

// TestRebornAndResync checks that a resync that is asked for with a restart does not hide it: the decoder forgets, too.
func TestRebornAndResync(t *testing.T) {
	w := newWorker(45, true)
	f, r := start(t, w, Options{})
	f.Up()
	for range 20 {
		f.Offer(w.step())
	}
	settle(t, w, r, f)
	for want := range uint64(2) {
		asked, was := f.Stats().Replays, time.Now()
		if want > 0 {
			w.restart()
			w.step()
		}
		f.mu.Lock() // both come before the feed's goroutine runs
		f.resyncWanted, f.restartedAfter = true, was
		f.mu.Unlock()
		f.wake.Ring()
		applied(t, f, "the publisher's answers", func(s Stats) bool { return s.Replays >= asked+2 || s.Restarts > 0 })
		settle(t, w, r, f)
		if s := f.Stats(); s.Restarts != want {
			t.Errorf("got %+v, want Restarts %d", s, want)
		}
	}
}

// TestIndexKnowsPartial checks that the index knows that a worker's blocks are not all reported.
func TestIndexKnowsPartial(t *testing.T) {
	ix := indexer.New(indexer.Options{})
	s := Join(ix, indexer.SlotOptions{CountCopies: true})
	for _, partial := range []bool{true, false, true} {
		s.Done(partial, !partial)
		s.Clear() // of the blocks, but not of the mark, which comes with the batch
		if ix.Partial(s.Slot()) != partial || (ix.Stats().Partial == 1) != partial {
			t.Errorf("got partial %v of the index, want %v", ix.Partial(s.Slot()), partial)
		}
		if ix.UpperBound(s.Slot()) == partial {
			t.Errorf("an upper bound %v is not what the index says", !partial)
		}
	}
	s.Leave()
	if again := Join(ix, indexer.SlotOptions{CountCopies: true}); ix.Partial(again.Slot()) || ix.UpperBound(again.Slot()) {
		t.Error("a new slot is marked from its birth")
	}
}

// said decodes a payload of one byte to the batch of that number.
type said []kvevent.Batch

func (s said) Decode(payload []byte) (kvevent.Batch, error) { return s[payload[0]], nil }

// TestWhoseWordStands checks that what a publisher with Batch.Stands (an agent) says about itself holds until its next batch, and
// another's until its engine clears; and that no statement of the publisher ends a gap of ours.
func TestWhoseWordStands(t *testing.T) {
	const whole, partial, standsWhole, standsPartial, clears = 0, 1, 2, 3, 4
	batches := said{{}, {Partial: true}, {Stands: true}, {Stands: true, Partial: true}, {Events: []kvevent.Event{{Kind: kvevent.Cleared}}}}
	for _, c := range []struct {
		first   uint64 // number of the first message
		batches []byte
		want    bool
	}{
		{0, []byte{whole}, false},
		{0, []byte{partial}, true},
		{0, []byte{partial, whole}, true},
		{0, []byte{partial, clears}, false},
		{0, []byte{standsPartial}, true},
		{0, []byte{standsPartial, standsWhole}, false},
		{0, []byte{standsPartial, standsWhole, standsPartial}, true},
		{7, []byte{standsWhole}, true},
		{7, []byte{standsPartial, standsWhole}, true},
		{7, []byte{standsPartial, clears, standsWhole}, false},
	} {
		r := newRecorder()
		f := &Feed{content: content{o: Options{Decoder: batches, Sink: r, doubtTime: doubtTime}}}
		for i, b := range c.batches {
			if err := f.apply(Message{Seq: c.first + uint64(i), Payload: []byte{b}}); err != nil {
				t.Fatal(err)
			}
		}
		if _, got := r.state(); got != c.want || f.Stats().Partial != c.want {
			t.Errorf("%+v: got partial %v, want %v", c, got, c.want)
		}
	}
}
