package router

import (
	"fmt"
	"testing"
	"time"
)

// TestAnswersIDIsNotTheBodys checks that an answer's id does not refer to the body that named it: with the build tag poison that
// memory is overwritten.
func TestAnswersIDIsNotTheBodys(t *testing.T) {
	w := newWorld(t, 2)
	w.answers.Add("resp_1", "10.0.0.2:8000")
	d := w.decide(`{"model":"m","previous_response_id":"resp_1","messages":[{"role":"user","content":"and then?"}]}`)
	if len(d.Targets) != 1 || d.Targets[0].Worker != "w1" {
		t.Errorf("%+v", d)
	}
	if addr, _ := w.answers.Peek("resp_1"); addr != "10.0.0.2:8000" || w.answers.Len() != 1 {
		t.Errorf("remembered %q", w.answers.Keys())
	}
}

// TestMemoryOfAnswersAndPicturesIsBounded checks the limits of remembered answers and picture encoders, and that evictions are
// counted.
func TestMemoryOfAnswersAndPicturesIsBounded(t *testing.T) {
	w, full := newWorld(t, 1), map[string]int{}
	w.opt.NoRoom = func(what string) { full[what]++ }
	d := w.decide(chatBody("m", `"hi"`))
	for i := range maxAnswers + 10 {
		w.Observe(Outcome{ID: d.ID, Phase: Started, Addr: d.Targets[0].Addr, Answer: fmt.Sprint(i)})
	}
	e := newEncodeQueues(w.opt.NoRoom)
	for i := range uint64(maxSeen + 7) {
		e.book([]encoding{e.assign(i, 1, w.slots, time.Unix(1, 0), nil)}, time.Unix(1, 0))
	}
	if w.answers.Len() != maxAnswers || full["answers"] != 10 || e.lastEncoder.Len() != maxSeen || full["pictures encoded"] != 7 {
		t.Errorf("%d answers and %d pictures, went: %v", w.answers.Len(), e.lastEncoder.Len(), full)
	}
}

// TestTheirsAreBounded checks the limits of other replicas' bookings: beyond them requests do not count, or lose their blocks;
// both are counted.
func TestTheirsAreBounded(t *testing.T) {
	w, full := newWorld(t, 1), map[string]int{}
	w.opt.NoRoom = func(what string) { full[what]++ }
	take := func(number uint64) (blocks int) {
		w.ApplyShared("other", &SharedBooking{Number: number, Worker: "w0", Rank: -1, Tokens: 10, Locals: []uint64{1, 2}})
		if f := w.replicaBookings.byReplica["other"][number]; f != nil {
			return len(f.chain)
		}
		return -1
	}
	w.replicaBookings.blocks = maxReplicaBlocks - 2
	if one, two := take(1), take(2); one != 2 || two != 0 || full["replicas' blocks"] != 1 {
		t.Errorf("%d and %d blocks kept, %v", one, two, full)
	}
	w.replicaBookings.count = maxReplicaBookings
	if three := take(3); three != -1 || full["replicas' requests"] != 1 {
		t.Errorf("%d, %v", three, full)
	}
}
