package peers

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sightline-router/sightline/router/account"
	"github.com/sightline-router/sightline/router/report"
)

func told(of byte, n int) func(context.Context, string, int) ([]byte, error) {
	return func(_ context.Context, worker string, rank int) ([]byte, error) {
		if worker != "w1" || rank != -1 {
			return nil, nil
		}
		return bytes.Repeat([]byte{of}, n), nil
	}
}

func (h *hall) joinHolding(t *testing.T, held func(context.Context, string, int) ([]byte, error)) *replica {
	t.Helper()
	r := h.join(t)
	r.Held = held
	return r
}

// TestHeldIsHandedOver checks that another replica gets all that one holds for a worker, in pieces, and that replicas that hold
// nothing or too much are skipped. Its clock stands still while anything runs, so a busy machine does not use up answerTime.
func TestHeldIsHandedOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []int{1, pieceBytes - 1, pieceBytes, 5*pieceBytes + 7, MostHeld} {
			h := &hall{}
			a, b := h.joinHolding(t, told('b', n)), h.join(t)
			eventually(t, "they hear each other", known(1, a, b))
			if got, err := b.RequestHeld(t.Context(), "w1", -1); err != nil || !bytes.Equal(got, bytes.Repeat([]byte{'b'}, n)) {
				t.Fatalf("of %d bytes %d: %v, want no error, bytes.Equal(got, bytes.Repeat([]byte{'b'}, n))", n, len(got), err)
			}
			if got, err := b.RequestHeld(t.Context(), "w1", 0); got != nil || err != nil {
				t.Errorf("of a rank that is not held: got %d bytes, %v, want none", len(got), err)
			}
			if len(b.transfers.pending) != 0 {
				t.Errorf("%d answers still expected, want 0", len(b.transfers.pending))
			}
		}
		h := &hall{}
		large, none := h.joinHolding(t, told('l', MostHeld+1)), h.join(t)
		huge := h.joinHolding(t, func(context.Context, string, int) ([]byte, error) { return nil, ErrTooLarge })
		eventually(t, "they hear each other", known(2, large, none, huge))
		if got, err := none.RequestHeld(t.Context(), "w1", -1); got != nil || err != nil {
			t.Errorf("got %d bytes %q, %v, want none", len(got), got[:min(len(got), 1)], err)
		}
		for _, r := range []*replica{large, huge} {
			if n := testutil.ToFloat64(r.handovers.WithLabelValues("too large")); n != 1 {
				t.Errorf("too large: got %v, want 1", n)
			}
		}
		if n := testutil.ToFloat64(none.handovers.WithLabelValues("nobody")); n != 1 {
			t.Errorf("nobody: got %v, want 1", n)
		}
	})
}

// TestHeldIsNotWaitedFor checks that a single replica, or one beside a silent one, waits no longer than the limits.
func TestHeldIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{}
		alone := h.join(t)
		alone.startedAt = time.Now().Add(-discoveryTime)
		if got, err := alone.RequestHeld(t.Context(), "w1", -1); got != nil || err != nil {
			t.Errorf("alone: got %v %v, want nil, no error", got, err)
		}
		mute := h.joinHolding(t, func(ctx context.Context, _ string, _ int) ([]byte, error) { <-ctx.Done(); return nil, nil })
		eventually(t, "they hear each other", known(1, mute, alone))
		began := time.Now()
		if got, err := alone.RequestHeld(t.Context(), "w1", -1); got != nil || err == nil || time.Since(began) > 3*pieceTime {
			t.Errorf("of one that says nothing: got %v %v after %v, want nil, an error, at most %v", got, err, time.Since(began), 3*pieceTime)
		}
		for range maxHeldQueued + 2 { // one is being answered
			mute.queueHeldRequest(h, heldRequest{from: alone.own, worker: "w1"})
		}
		if n := testutil.ToFloat64(mute.handovers.WithLabelValues("busy")); n < 1 {
			t.Errorf("%v turned away, want some", n)
		}
		for range maxHeldTransfers {
			alone.transferSlots <- struct{}{}
		}
		ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer stop()
		if _, err := alone.RequestHeld(ctx, "w1", -1); err == nil {
			t.Errorf("a third answer at once: got %v, want an error", err)
		}
	})
}

// TestReportsPassHandovers checks that a report is answered while a handover takes long and others wait behind it.
func TestReportsPassHandovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{}
		busy := h.joinHolding(t, func(ctx context.Context, what string, _ int) ([]byte, error) {
			if what == OfReport+"{}" {
				return []byte("told"), nil
			}
			<-ctx.Done()
			return nil, nil
		})
		asks := h.join(t)
		eventually(t, "they hear each other", known(1, busy, asks))
		for range maxHeldQueued + 2 {
			busy.queueHeldRequest(h, heldRequest{from: asks.own, worker: "w1"})
		}
		if list := asks.RequestReports(t.Context(), "{}"); len(list) != 1 || string(list[0]) != "told" {
			t.Errorf("behind handovers: got %q, want the report", list)
		}
	})
}

// TestDrippingHidesNobody checks that a replica that sends its answer a byte at a time, so that it never ends, is given up for the
// next one.
func TestDrippingHidesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const name = "22222222" // before all others, if sorted
		h := &hall{}
		asked := make(chan heldRequest, 8)
		h.also = func(to string, m []byte) {
			if _, entries, err := sender(m); err == nil && to == name {
				_ = eachEntry(entries, &entryHandlers{askHeld: func(q heldRequest) { asked <- q }})
			}
		}
		a, b := h.joinHolding(t, told('b', 5)), h.join(t)
		ctx, stop := context.WithCancel(t.Context())
		var drip sync.WaitGroup
		defer drip.Wait()
		defer stop()
		dripped := 0
		drip.Go(func() {
			tick := time.NewTicker(pieceTime / 4)
			defer tick.Stop()
			for q, at := (heldRequest{}), 0; ctx.Err() == nil; at++ {
				b.Receive(appendPiece(appendState(messageHead(name), nil, true), &piece{q.number, at, MostHeld, []byte{1}}))
				select {
				case q = <-asked:
					at = -1
					dripped++
				case <-tick.C:
				case <-ctx.Done():
				}
			}
		})
		eventually(t, "they hear each other", func() bool { return known(1, a)() && known(2, b)() })
		for len(asked) == 0 && time.Since(b.startedAt) < 40*time.Second {
			began := time.Now()
			got, err := b.RequestHeld(ctx, "w1", -1)
			if string(got) != "bbbbb" || err != nil {
				t.Fatalf("%d bytes: %v; got %q, want %q, no error", len(got), err, string(got), "bbbbb")
			}
			if time.Since(began) > answerTime-time.Second {
				break // it was asked first
			}
		}
		stop()
		drip.Wait()
		if dripped == 0 {
			t.Errorf("it was never asked: got %d, want some", dripped)
		}
	})
}

// TestHostilePieces checks that pieces that were not requested, from other replicas, out of order or beyond the limit change
// nothing.
func TestHostilePieces(t *testing.T) {
	g := heldTransfers{pending: make(map[uint64]*heldTransfer)}
	fresh := func() *heldTransfer {
		g.pending[1] = &heldTransfer{from: "a", most: MostHeld, arrived: make(chan bool, 1)}
		return g.pending[1]
	}
	for i, p := range []struct {
		from string
		piece
	}{
		{"b", piece{1, 0, 1, []byte{1}}}, {"a", piece{2, 0, 1, []byte{1}}}, {"a", piece{1, 1, 2, []byte{1}}}, {"a", piece{1, 0, 1, []byte{1, 2}}},
		{"a", piece{1, 0, MostHeld + 1, []byte{1}}}, {"a", piece{1, 0, 5, nil}},
	} {
		if one := fresh(); true {
			g.addPiece(p.from, &p.piece)
			if len(one.received) > 0 || len(one.arrived) > 0 {
				t.Errorf("piece %d: got it taken, want it dropped", i)
			}
		}
	}
	one := fresh()
	for i := range 3 { // nobody receives them meanwhile
		g.addPiece("a", &piece{1, i, 3, fmt.Append(nil, i)})
	}
	g.addPiece("a", &piece{1, 3, 4, []byte{1}})
	if string(one.received) != "012" || <-one.arrived {
		t.Errorf(`%q, want string(one.received) == "012", !<-one.arrived`, one.received)
	}
}

// OnNewReplica is called once for each replica that joins; a replica that was silent for long counts as joining again.
func TestCameIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{}
		a := h.join(t)
		var came atomic.Int32
		a.OnNewReplica = func(context.Context) { came.Add(1) }
		b := h.join(t)
		eventually(t, "another is there", func() bool { return came.Load() == 1 && b.peerCount.Load() == 1 })
		h.less.Store(a)
		eventually(t, "it is gone", known(0, a))
		h.less.Store(nil)
		eventually(t, "it is there again", func() bool { return came.Load() == 2 })
	})
}

// TestReports checks that each other replica is asked for its report, all at once, that one which says nothing, or too much, leaves an
// empty place, and that the accounts of those that answer add up, each request once.
func TestReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{}
		began := time.Now()
		totals := [3]*report.Totals{}
		telling := func(i int) func(context.Context, string, int) ([]byte, error) {
			totals[i] = report.New("100%", began)
			for n := range 10 + i {
				totals[i].Add(report.Request{ID: fmt.Sprint(i, n), Arm: report.Steered, Model: "m", OK: true, Prompt: 1000, Cached: 400,
					Accounted: 1000, Uncached: account.Sums{account.New: 600 - i}}, began)
			}
			return func(_ context.Context, what string, rank int) ([]byte, error) {
				if what != OfReport+"{}" || rank != -1 {
					return nil, nil
				}
				return totals[i].Told(report.Range{}), nil
			}
		}
		asks, one, two := h.joinHolding(t, telling(0)), h.joinHolding(t, telling(1)), h.joinHolding(t, telling(2))
		mute := h.joinHolding(t, func(ctx context.Context, _ string, _ int) ([]byte, error) { <-ctx.Done(); return nil, nil })
		large := h.joinHolding(t, func(context.Context, string, int) ([]byte, error) { return make([]byte, mostReport+1), nil })
		eventually(t, "they hear each other", known(4, asks, one, two, mute, large))
		ctx, stop := context.WithTimeout(t.Context(), pieceTime/2)
		defer stop()
		list := asks.RequestReports(ctx, "{}")
		r := totals[0].Of(report.Range{}, list...)
		if len(list) != 4 || r.Replicas != 3 || r.Silent != 2 || r.Steered.Requests != 33 || r.Steered.Prompt != 33_000 ||
			r.Uncached[account.New] != 10*600+11*599+12*598 || r.Accounted != 33_000 {
			t.Errorf("got %d answers and the report %+v, want 33 requests of 3 replicas, 2 silent", len(list), r)
		}
		if list := asks.RequestReports(ctx, string(make([]byte, maxText))); len(list) != 4 || list[0] != nil {
			t.Errorf("a question too long: got %v, want four empty answers", list)
		}
		if n := len(asks.transfers.pending); n != 0 {
			t.Errorf("%d answers still expected, want 0", n)
		}
	})
}
