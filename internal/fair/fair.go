// Package fair shares what is bounded among the clients that want it: no client can take all of it, and where requests wait, each
// client's wait in a line of their own.
package fair

import (
	"context"
	"hash/maphash"
	"slices"
	"sync"
)

// Client identifies the sender of requests; 0: not known. It is a hash, so that no client's text is kept, and its seed is drawn
// at the start, so that no client can choose one that equals another's.
type Client uint64

var seed = maphash.MakeSeed()

// ClientOf returns the client of a name that the client itself cannot choose; 0 for "".
func ClientOf(name string) Client {
	if name == "" {
		return 0
	}
	return Client(max(1, maphash.String(seed, name)))
}

// shareOfFree is how many times what it leaves free a client may hold of a Room that is shared: one client alone gets three
// quarters of it, a second one three quarters of the rest. Requests of unknown clients may take all of it, as there is nothing to
// share by.
const shareOfFree = 3

// Room is a number of bytes or places. Requests that find no room may wait. The next turn is that of the client that has been
// given least since it began to wait (start-time fair queueing, Goyal, Vin and Cheng 1996): clients that always wait get equal
// amounts, whatever the number and size of their requests, and one that asks seldom waits for hardly more than one turn of
// another's. Nothing overtakes the request whose turn it is, so large ones are not starved. Where no request waits, taking and giving
// cost a mutex, and in a shared Room a map's entry. The search for the next turn is linear in the number of requests that wait.
// Safe for concurrent use.
type Room struct {
	size  int64
	held  map[Client]int64 // of known clients; nil: a client may hold all of it
	line  *Room            // places for requests that wait; nil: none
	mu    sync.Mutex
	taken int64

	waiting []*waiter        // in the order of their arrival
	begun   int64            // the highest start of a request whose turn has come
	charged map[Client]int64 // where the next request of a client starts, if that is after begun
}

// waiter is a request that waits.
type waiter struct {
	client      Client
	need, start int64
	turn        chan struct{} // closed when its turn has come
}

// mostCharged limits the clients whose last turns are remembered while they do not wait.
const mostCharged = 4096

// New returns a Room that one client alone may fill, for what is held briefly. At most waiting requests wait for it, and the places
// in its line are shared.
func New(size int64, waiting int) *Room {
	r := &Room{size: size, charged: make(map[Client]int64)}
	if waiting > 0 {
		r.line = Shared(int64(waiting), 0)
	}
	return r
}

// Shared returns a Room of which no client can take all, for what may be held long.
func Shared(size int64, waiting int) *Room {
	r := New(size, waiting)
	r.held = make(map[Client]int64)
	return r
}

// TryTake takes n for a client if it need not wait.
func (r *Room) TryTake(c Client, n int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) > 0 && r.next() >= 0 || !r.fits(c, n, r.size) {
		return false
	}
	r.take(c, n)
	return true
}

// Take takes n for a client, if necessary after its turn has come. More than the whole room counts as all of it. cost is what the turn
// counts for in the comparison of clients, such as bytes or pixels; it may be n. It returns false if ctx ended first or too many wait.
func (r *Room) Take(ctx context.Context, c Client, n, cost int64) bool {
	n = min(n, r.size)
	if r.TryTake(c, n) {
		return true
	}
	if r.line == nil || !r.line.TryTake(c, 1) {
		return false
	}
	defer r.line.Give(c, 1)
	w := r.enqueue(c, n, max(1, cost))
	select {
	case <-w.turn:
		return true
	case <-ctx.Done():
		return !r.leave(w, max(1, cost))
	}
}

// Give gives back what a client took.
func (r *Room) Give(c Client, n int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.give(c, min(n, r.size))
	r.grant()
}

// Put takes n for a client, or gives -n back, whether there is room for it or not: what is there already must be counted. It reports
// whether it fitted into the first size of the room.
func (r *Room) Put(c Client, n, size int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n <= 0 {
		r.give(c, -n)
		r.grant()
		return true
	}
	fits := r.fits(c, n, size)
	r.take(c, n)
	return fits
}

// Fits reports whether n more would fit into the first size of the room.
func (r *Room) Fits(c Client, n, size int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fits(c, n, size)
}

// Taken returns how much is taken.
func (r *Room) Taken() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.taken
}

// Waiting returns how many requests wait.
func (r *Room) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.waiting)
}

// fits reports whether a client may have n more: a client that holds nothing may have whatever is free.
func (r *Room) fits(c Client, n, size int64) bool {
	left, held := size-r.taken-n, r.held[c]
	return left >= 0 && (held == 0 || held+n <= shareOfFree*left)
}

func (r *Room) take(c Client, n int64) {
	r.taken += n
	if r.held != nil && c != 0 {
		r.held[c] += n
	}
}

func (r *Room) give(c Client, n int64) {
	r.taken -= n
	if r.held == nil || c == 0 {
		return
	}
	r.held[c] -= n
	if r.held[c] <= 0 {
		delete(r.held, c)
	}
}

// Hold is what one client has of a Room, and gives back at once. Without a Room it has no bound. Not safe for concurrent use.
type Hold struct {
	Room  *Room
	For   Client
	taken int64
}

// Grow waits, if necessary, until the hold has n in all; false: as Take.
func (h *Hold) Grow(ctx context.Context, n int64) bool {
	more := n - h.taken
	if more <= 0 || h.Room == nil {
		return true
	}
	if !h.Room.Take(ctx, h.For, more, more) {
		return false
	}
	h.taken += more
	return true
}

// Free gives it all back.
func (h *Hold) Free() {
	if h.taken > 0 {
		h.Room.Give(h.For, h.taken)
		h.taken = 0
	}
}

// enqueue puts a request at the end of its client's line.
func (r *Room) enqueue(c Client, need, cost int64) *waiter {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := &waiter{client: c, need: need, start: max(r.begun, r.charged[c]), turn: make(chan struct{})}
	r.charge(c, w.start+cost)
	r.waiting = append(r.waiting, w)
	r.grant() // there may be room by now
	return w
}

// charge records where a client's next request starts.
func (r *Room) charge(c Client, at int64) {
	if len(r.charged) >= mostCharged {
		for c, at := range r.charged {
			if at <= r.begun {
				delete(r.charged, c)
			}
		}
		if len(r.charged) >= mostCharged {
			clear(r.charged)
		}
	}
	r.charged[c] = at
}

// leave takes a request that no longer waits out of the line. It returns false if its turn has come meanwhile.
func (r *Room) leave(w *waiter, cost int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.waiting, w)
	if i < 0 {
		return false
	}
	r.waiting = slices.Delete(r.waiting, i, i+1)
	if at, ok := r.charged[w.client]; ok {
		r.charge(w.client, at-cost) // it got nothing
	}
	r.grant() // it may have been in the way
	return true
}

// next returns the index of the request whose turn it is, whether there is room for it yet or not; -1: all that wait belong to
// clients that hold their share.
func (r *Room) next() int {
	best := -1
	for i, w := range r.waiting {
		if r.held[w.client] > 0 && !r.fits(w.client, w.need, r.size) {
			continue
		}
		if best < 0 || w.start < r.waiting[best].start {
			best = i
		}
	}
	return best
}

// grant gives turns while there is room.
func (r *Room) grant() {
	for {
		i := r.next()
		if i < 0 || !r.fits(r.waiting[i].client, r.waiting[i].need, r.size) {
			return
		}
		w := r.waiting[i]
		r.waiting = slices.Delete(r.waiting, i, i+1)
		r.begun = max(r.begun, w.start)
		r.take(w.client, w.need)
		close(w.turn)
	}
}
