package fair

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

const hostile, victim, third = Client(1), Client(2), Client(3)

// queue lets n requests of a client wait; each writes the client to order when its turn has come, and leaves.
func queue(t *testing.T, r *Room, c Client, n int, need, cost int64, order *[]Client) {
	t.Helper()
	for range n {
		go func() {
			if r.Take(t.Context(), c, need, cost) {
				*order = append(*order, c) // one at a time: need is the whole room
				r.Give(c, need)
			}
		}()
		synctest.Wait()
	}
}

// TestTurns: clients that wait get equal amounts, whatever the number and the size of their requests.
func TestTurns(t *testing.T) {
	for _, test := range []struct {
		name         string
		theirs, cost int64 // number and cost of the hostile client's requests
		want         []Client
	}{
		{name: "many", theirs: 5, cost: 1, want: []Client{hostile, victim, hostile, victim, hostile, victim, hostile, hostile}},
		{name: "large ones", theirs: 5, cost: 25, want: []Client{hostile, victim, victim, victim, hostile, hostile, hostile, hostile}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, order := New(1, 100), []Client(nil)
				r.TryTake(third, 1)
				queue(t, r, hostile, int(test.theirs), 1, test.cost, &order)
				queue(t, r, victim, 3, 1, 1, &order)
				r.Give(third, 1)
				synctest.Wait()
				if !slices.Equal(order, test.want) {
					t.Errorf("turns %v, want %v", order, test.want)
				}
				if r.Taken() != 0 || r.Waiting() != 0 || r.line.Taken() != 0 {
					t.Errorf("%d taken, %d wait, %d places of the line taken, want nothing", r.Taken(), r.Waiting(), r.line.Taken())
				}
			})
		})
	}
}

// TestPauses: a client gains nothing by leaving the line between its requests.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, order := New(1, 100), []Client(nil)
		r.TryTake(third, 1)
		queue(t, r, hostile, 1, 1, 25, &order)
		queue(t, r, victim, 1, 1, 1, &order)
		r.Give(third, 1)
		synctest.Wait()
		r.TryTake(third, 1)
		queue(t, r, hostile, 1, 1, 25, &order)
		queue(t, r, victim, 2, 1, 1, &order)
		r.Give(third, 1)
		synctest.Wait()
		if want := []Client{hostile, victim, victim, victim, hostile}; !slices.Equal(order, want) {
			t.Errorf("turns %v, want %v", order, want)
		}
	})
}

// TestOrderOfUnknownClients: requests of unknown clients come in the order of their arrival, and nothing overtakes a large one.
func TestOrderOfUnknownClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(10, 100)
		asked := func(n int64) chan bool {
			got := make(chan bool, 1)
			go func() { got <- r.Take(t.Context(), 0, n, n) }()
			synctest.Wait()
			return got
		}
		if !r.TryTake(0, 6) || !r.TryTake(0, 4) || r.TryTake(0, 1) {
			t.Fatal("the room is not of 10")
		}
		large, small := asked(50), asked(1)
		r.Give(0, 4)
		if r.TryTake(0, 1) || len(large) > 0 || len(small) > 0 {
			t.Error("a turn came out of order")
		}
		r.Give(0, 6)
		if !<-large { // more than the room: alone
			t.Error("what is larger than the room was never given any")
		}
		synctest.Wait()
		if len(small) > 0 {
			t.Errorf("the room was exceeded: got %d, want 0", len(small))
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if r.Take(gone, 0, 1, 1) {
			t.Error("a request without time left got a turn")
		}
		r.Give(0, 50)
		if !<-small || r.Taken() != 1 || r.Waiting() != 0 {
			t.Errorf("%d taken, %d wait, want <-small, r.Taken() == 1, r.Waiting() == 0", r.Taken(), r.Waiting())
		}
	})
}

// TestLeave: who leaves the line gives its turn to the next, and is not charged for it.
func TestLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, order := New(1, 100), []Client(nil)
		r.TryTake(third, 1)
		left, leave := context.WithCancel(t.Context())
		for range 10 {
			go r.Take(left, victim, 1, 100)
		}
		synctest.Wait()
		leave()
		synctest.Wait()
		queue(t, r, hostile, 2, 1, 25, &order)
		queue(t, r, victim, 2, 1, 1, &order)
		r.Give(third, 1)
		synctest.Wait()
		if want := []Client{hostile, victim, victim, hostile}; !slices.Equal(order, want) {
			t.Errorf("turns %v, want %v", order, want)
		}
	})
}

// TestShared: of what is held long, no client gets more than three quarters of what the others leave, and waits for its own.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := Shared(64, 100)
		take := func(c Client) (n int64) {
			for r.TryTake(c, 1) {
				n++
			}
			return n
		}
		if n := take(hostile); n != 48 {
			t.Errorf("the first client got %d of 64, want 48", n)
		}
		got := make(chan bool, 1)
		go func() { got <- r.Take(t.Context(), hostile, 1, 1) }()
		synctest.Wait()
		if n := take(victim); n != 12 {
			t.Errorf("the second client got %d of the other 16, want 12, whoever waits", n)
		}
		if !r.TryTake(third, 4) || r.TryTake(third+1, 1) {
			t.Error("a client that holds nothing did not get what is free, or more than that")
		}
		r.Give(third, 4)
		r.Give(hostile, 9)
		synctest.Wait()
		if len(got) > 0 {
			t.Error("one that holds its share got a turn")
		}
		r.Give(hostile, 1)
		if !<-got || r.Taken() != 51 { // 39 of the 52 that the others leave
			t.Errorf("%d taken, want 51 with the one that waited", r.Taken())
		}
		r.Give(hostile, 39)
		r.Give(victim, 12)
		if r.Taken() != 0 || len(r.held) != 0 {
			t.Errorf("%d taken, %d clients remembered, want 0, 0", r.Taken(), len(r.held))
		}
		if n := take(0); n != 64 {
			t.Errorf("unknown clients got %d of 64, want all", n)
		}
	})
}

// TestLine: no client fills the line.
func TestLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(1, 8)
		r.TryTake(third, 1)
		ctx, cancel := context.WithCancel(t.Context())
		for range 20 {
			go r.Take(ctx, hostile, 1, 1)
		}
		synctest.Wait()
		if n := r.Waiting(); n != 6 {
			t.Errorf("%d of one client wait in a line of 8, want 6", n)
		}
		go r.Take(ctx, victim, 1, 1)
		synctest.Wait()
		if r.Waiting() != 7 {
			t.Error("another client found no place in the line")
		}
		cancel()
	})
}

// TestChargedIsBounded: a Room remembers a bounded number of clients.
func TestChargedIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := New(1, 10)
		r.TryTake(0, 1)
		for c := range Client(3 * mostCharged) {
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			r.Take(ctx, c, 1, 1<<20)
		}
		if len(r.charged) > mostCharged {
			t.Errorf("%d clients remembered, want %d at most", len(r.charged), mostCharged)
		}
	})
}

// TestPut: what is there already is counted, and whether it fits is told.
func TestPut(t *testing.T) {
	r := Shared(16, 0)
	if !r.Put(hostile, 9, 12) || r.Put(hostile, 1, 12) || !r.Fits(victim, 2, 12) || r.Fits(victim, 3, 12) {
		t.Error("the first 12 of the room are not shared")
	}
	r.Put(hostile, 100, 16)
	if r.Taken() != 110 || !r.Put(hostile, -110, 16) || r.Taken() != 0 {
		t.Errorf("%d taken, want r.Taken() == 110, r.Put(hostile, -110, 16), r.Taken() == 0", r.Taken())
	}
}

func TestClientOf(t *testing.T) {
	first, again := ClientOf("a"), ClientOf("a")
	if ClientOf("") != 0 || first == 0 || first != again || first == ClientOf("b") {
		t.Error("clients are not told apart")
	}
}

// TestConcurrently: for the race detector.
func TestConcurrently(t *testing.T) {
	r := Shared(4, 64)
	var all sync.WaitGroup
	for c := range Client(8) {
		all.Go(func() {
			for range 1000 {
				if r.Take(t.Context(), c, 1, 1) {
					r.Give(c, 1)
				}
			}
		})
	}
	all.Wait()
	if r.Taken() != 0 || r.Waiting() != 0 {
		t.Errorf("%d taken, %d wait, want 0, 0", r.Taken(), r.Waiting())
	}
}

func BenchmarkNobodyWaits(b *testing.B) {
	for name, r := range map[string]*Room{"new": New(1<<20, 8), "shared": Shared(1<<20, 8)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				r.TryTake(victim, 10)
				r.Give(victim, 10)
			}
		})
	}
}
