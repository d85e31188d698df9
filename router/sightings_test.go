package router

import (
	"fmt"
	"testing"
	"time"

	"github.com/sightline-router/sightline/router/ledger"
	"github.com/sightline-router/sightline/router/speculative"
	"github.com/sightline-router/sightline/workers/fleet"
)

func TestSightings(t *testing.T) {
	full := 0
	s := newSightings(func(string) { full++ })
	var slots [9]fleet.Slot
	for _, i := range []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 1} {
		s.add(77, &slots[i], 100)
	}
	for i := range slots { // the last eight
		if by := s.slotsOf(77); by.holds(&slots[i]) != (i > 0) {
			t.Errorf("slot %d: got it seen: %v, want it at the last eight alone", i, i == 0)
		}
	}
	if none := s.slotsOf(78); none.holds(&slots[1]) {
		t.Error("a medium that nobody saw, want !none.holds(&slots[1])")
	}
	s.add(78, &slots[1], encoderCache-200)
	if by := s.slotsOf(77); !by.holds(&slots[1]) || slots[1].AddEncoded(0) != encoderCache-100 {
		t.Errorf("got %d tokens encoded, want what there is room for to stay", slots[1].AddEncoded(0))
	}
	s.add(77, &slots[1], 100) // used again: it is recent
	s.add(79, &slots[1], 300)
	if by, old := s.slotsOf(77), s.slotsOf(78); !by.holds(&slots[1]) || !old.holds(&slots[1]) {
		t.Error("media within the cache's room are not there, want by.holds(&slots[1]), old.holds(&slots[1])")
	}
	s.add(80, &slots[1], encoderCache)
	if by := s.slotsOf(77); by.holds(&slots[1]) || !by.holds(&slots[2]) {
		t.Error("as much as the cache holds came after it, on one slot alone, want !by.holds(&slots[1]), by.holds(&slots[2])")
	}
	for i := range uint64(maxSeen + 10) {
		s.add(1000+i, &slots[1], 1)
	}
	if n, old := s.media.Len(), s.slotsOf(77); n > maxSeen || old != (seenBy{}) || full != 10+4 {
		t.Errorf("%d media, the oldest by %v; %d went, want at most %d, %v, %d", n, old, full, maxSeen, seenBy{}, 10+4)
	}
}

// TestPredictionsLast checks that a prediction counts until the request's turn comes and a while longer; for minutes without
// events, since nothing else tells what the worker holds; and never longer than speculative.Longest, during which its slot ID is
// not reused.
func TestPredictionsLast(t *testing.T) {
	w := newWorld(t, 2)
	s, ttl := w.slots[0], 20*time.Second
	done := 0
	book := func(id string, tokens int) {
		w.opt.Ledger.Book(id, ledger.Booking{Slot: s, Work: fleet.Work{Tokens: tokens, Locals: make([]uint64, tokens/16)}})
	}
	if got := predictionTTL(ttl, s, w.now); got != ttl {
		t.Errorf("%v where nothing is known of the rate, want %v", got, ttl)
	}
	for i := range 30 { // 3,200 tokens a second
		book(fmt.Sprint(i), 6400)
		for done = 80; done <= 400; done += 80 {
			w.now = w.now.Add(400 * time.Millisecond)
			s.Progress(func([]uint64) int { return done }, w.now)
		}
		w.opt.Ledger.End(fmt.Sprint(i), 1)
	}
	for _, c := range []struct {
		queue int
		want  time.Duration
	}{{0, ttl}, {32000, ttl + 10*time.Second}, {1e6, speculative.Longest(ttl)}} {
		book("queue", c.queue)
		if got := predictionTTL(ttl, s, w.now); got < c.want-time.Second || got > c.want+time.Second || got > speculative.Longest(ttl) {
			t.Errorf("%v behind %v tokens, want about %v", got, c.queue, c.want)
		}
		w.opt.Ledger.End("queue", 1)
	}
	s.EventAge = nil
	if got := predictionTTL(ttl, s, w.now); got != speculative.Longest(ttl) {
		t.Errorf("%v without events, want %v", got, speculative.Longest(ttl))
	}
	c := []uint64{1, 2, 3}
	w.predicted.Add(uint32(s.ID), c, 0, speculative.Longest(ttl), w.now)
	if n := w.predicted.Leading(uint32(s.ID), c, 0, w.now.Add(speculative.Longest(ttl))); n != 0 {
		t.Errorf("%d blocks count for ever, want 0", n)
	}
}
