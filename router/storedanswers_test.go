package router

import (
	"fmt"
	"testing"

	"github.com/sightline-router/sightline/router/speculative"
)

// TestAnswersIDIsNotTheBodys checks that an answer's id does not refer to the body that named it: with the build tag poison that
// memory is overwritten.
func TestAnswersIDIsNotTheBodys(t *testing.T) {
	w := newWorld(t, 2)
	w.answers.Add("resp_1", "10.0.0.2:8000")
	d := w.decide(`{"model":"m","previous_response_id":"resp_1","messages":[{"role":"user","content":"and then?"}]}`)
	if len(d.Targets) != 1 || d.Targets[0].Worker != "w1" {
		t.Errorf("%+v: got %d, want 1, Targets[0].Worker %q", d, len(d.Targets), "w1")
	}
	if addr, _ := w.answers.Peek("resp_1"); addr != "10.0.0.2:8000" || w.answers.Len() != 1 {
		t.Errorf(`remembered %q, want addr == "10.0.0.2:8000", w.answers.Len() == 1`, w.answers.Keys())
	}
}

// TestMemoryOfAnswersIsBounded checks the limit of remembered answers, and that evictions are counted.
func TestMemoryOfAnswersIsBounded(t *testing.T) {
	w, full := newWorld(t, 1), map[string]int{}
	w.opt.NoRoom = func(what string) { full[what]++ }
	d := w.decide(chatBody("m", `"hi"`))
	for i := range maxAnswers + 10 {
		w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: d.Targets[0].Addr, Answer: fmt.Sprint(i)})
	}
	if w.answers.Len() != maxAnswers || full["answers"] != 10 {
		t.Errorf("%d answers, went: %v; want %d, 10 gone", w.answers.Len(), full, maxAnswers)
	}
}

// TestTheirsAreBounded checks the limits of other replicas' bookings: beyond them requests do not count, or lose their blocks;
// both are counted.
func TestTheirsAreBounded(t *testing.T) {
	w, full := newWorld(t, 1), map[string]int{}
	w.opt.NoRoom = func(what string) { full[what]++ }
	w.predicted = speculative.New(0, 0)
	number := uint64(0)
	take := func(blocks []uint64) {
		number++
		w.Replicas().Apply("other", &SharedBooking{Number: number, Worker: "w0", Rank: -1, Locals: blocks})
	}
	for blocks := make([]uint64, MaxSharedBlocks); number < maxReplicaBlocks/MaxSharedBlocks; {
		take(blocks)
	}
	if full["replicas' blocks"] != 0 {
		t.Errorf("%d blocks do not fit: got %d, want 0", maxReplicaBlocks, full["replicas' blocks"])
	}
	take([]uint64{1})
	if full["replicas' blocks"] != 1 || w.Replicas().Bookings() != int(number) {
		t.Errorf("one block too many: %d bookings, %v; got %d, want 1, %d", w.Replicas().Bookings(), full, full["replicas' blocks"], int(number))
	}
	for w.Replicas().Bookings() < maxReplicaBookings {
		take(nil)
	}
	take(nil)
	if full["replicas' requests"] != 1 || w.Replicas().Bookings() != maxReplicaBookings {
		t.Errorf("one request too many: %d bookings, %v; got %d, want 1, %d",
			w.Replicas().Bookings(), full, full["replicas' requests"], maxReplicaBookings)
	}
	w.Replicas().Left("other")
	if load := w.slots[0].Load(w.now); w.Replicas().Bookings() != 0 || w.opt.Ledger.Taken().Bytes != 0 || load.OtherReplicas != 0 {
		t.Errorf("the replica has left: got %d bookings of it, %+v, want none", w.Replicas().Bookings(), load)
	}
}
