// Package ledger keeps the requests that are booked at workers, this replica's and those that other replicas say they have, from the
// decision until the end.
//
// A booking ties a decided request to the slot that it was sent to, and charges it there. This is its life. Envoy's reports get lost, so
// in each stage it also expires, by timer and before each decision (Expire):
//
//	stage    begins when                                                charged  ends
//	fresh    it is booked: decided, and no report yet that a worker     yes      expired: unconfirmedTTL after the decision,
//	         has it; or its log stream broke, so its end may be lost,            or after the Envoy's next report
//	         but its Envoy lives
//	gone     its own stream ended right after the answer, before any    yes      expired: vanished after that
//	         report: its client may have left before Envoy read the
//	         answer
//	running  Envoy reported which worker has it. If it was booked at    yes      ended, or broken if by an error; expired:
//	         another, or at none yet, it moves there                             longestGeneration after that
//	done     Envoy reported that the worker has answered it, or the     no       as running
//	         worker's own reports show it (FreeAnswered), and its
//	         client has not read all. If another worker gets it after
//	         all, it runs again
//	orphan   the connection that asked or reported, or a log stream     yes      expired: orphanTTL after that
//	         over it, ended
//	taken    another replica says that it has booked it (Take)          yes      when the replica says so; lost if that is gone:
//	                                                                             then the worker most likely still has it
//
// If there are too many, or they keep too much memory, the oldest end early. However a booking ends, what it took is released, once. Those
// that end without a report are counted.
package ledger

import (
	"container/list"
	"sync"
	"time"

	"github.com/sightline-router/sightline/workers/fleet"
)

const (
	unconfirmedTTL    = fleet.Unconfirmed // Envoy may be slow to connect
	vanished          = time.Second       // a report comes up to 100 ms after the fact
	longestGeneration = 30 * time.Minute  // the longest generation that is assumed
	orphanTTL         = 3 * time.Second   // an Envoy that has only lost its connection is back within a second
	maxBookings       = 1 << 17
	maxBookingBytes   = 256 << 20
)

// Booking is one request at a slot. The Ledger's methods return copies, which do not change.
type Booking struct {
	Slot       *fleet.Slot    // nil: not known yet; nothing is charged until Confirm
	OnSlot     func(*Booking) // without a Slot: called once when Slot is set, to fill in what is booked; must not call the Ledger
	fleet.Work                // what it asks of Slot
	Decode     *fleet.Slot    // the slot that decodes, if another one
	Note       any            // the router's own data, returned at the end
	Bytes      int            // memory that Note keeps
	Source     uint64         // the Envoy connection that reported on it last; 0: not known, so its end is not noticed
	At         time.Time      // time of the decision; set by Book
	Waited     time.Duration  // at Slot until it was first computed; set at its end; 0: not known
	Model      string         // with Counted: Tenant's requests are counted by Model
	Tenant     string
	Counted    bool
}

// decoding is what it charges the slot with that decodes.
func (b *Booking) decoding() fleet.Work {
	return fleet.Work{Context: b.Context, Answers: b.Answers, PrefilledElsewhere: true}
}

type booking struct {
	Booking
	id         string
	charge     *fleet.Charge // on Slot; nil: none yet
	decoding   *fleet.Charge // on Decode; nil: none
	released   bool          // its worker is done: it has no charge, and is not counted
	stage      stage
	stageSince time.Time // of stage
	element    *list.Element
}

type stage int

const (
	stageFresh stage = iota
	stageGone
	stageRunning
	stageDone
	stageOrphan
	stageCount
)

var lifetime = [stageCount]time.Duration{stageFresh: unconfirmedTTL, stageGone: vanished, stageRunning: longestGeneration,
	stageDone: longestGeneration, stageOrphan: orphanTTL}

// Ledger is the set of open bookings. It is safe for concurrent use.
type Ledger struct {
	fleet *fleet.Fleet
	now   func() time.Time

	mu sync.Mutex
	stages
	open      map[string]*booking
	bytes     int
	tenants   map[string]map[string]int // requests in flight, by model and tenant
	work      work                      // of tenants
	expired   uint64
	onExpired func(*Booking)
	taken     map[string]map[uint64]*booking // by replica and its number
	takenSize Taken
}

// stages are the bookings by stage, and what Envoy reports of them. Its user holds Ledger.mu.
type stages struct {
	queue   [stageCount]list.List // oldest first
	reports reportWatch
}

// New returns an empty ledger of requests to a fleet's workers. now is the clock, time.Now if nil.
func New(f *fleet.Fleet, now func() time.Time) *Ledger {
	if now == nil {
		now = time.Now
	}
	return &Ledger{fleet: f, now: now, open: make(map[string]*booking), tenants: make(map[string]map[string]int),
		work:  work{of: make(map[string]*given)},
		taken: make(map[string]map[uint64]*booking)}
}

// Book charges a request to a slot, under its decision id.
func (l *Ledger) Book(id string, b Booking) {
	b.At = l.now()
	one := &booking{Booking: b, id: id}
	if b.Slot != nil {
		one.charge = b.Slot.Charge(b.Work, b.At, b.At)
	}
	if b.Decode != nil {
		one.decoding = b.Decode.Charge(b.decoding(), b.At, b.At)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if same := l.open[id]; same != nil {
		l.close(same, b.At)
	}
	l.open[id] = one
	l.count(&b, 1)
	l.work.give(&b, b.At)
	l.bytes += b.Bytes
	l.enter(one, stageFresh, b.At)
	if l.reports.waiting == nil {
		l.reports.waiting = one
	}
	l.expire(b.At)
}

func (l *stages) enter(b *booking, s stage, now time.Time) {
	b.stage, b.stageSince, b.element = s, now, l.queue[s].PushBack(b)
}

func (l *stages) leave(b *booking) {
	if b == l.reports.waiting {
		l.reports.waiting = nil
		if next := b.element.Next(); next != nil { // both are fresh
			l.reports.waiting = next.Value.(*booking)
		}
	}
	l.queue[b.stage].Remove(b.element)
}

func (l *stages) move(b *booking, to stage, now time.Time) {
	l.leave(b)
	l.enter(b, to, now)
}

// close ends a booking and releases what it took.
func (l *Ledger) close(b *booking, now time.Time) {
	delete(l.open, b.id)
	l.leave(b)
	l.bytes -= b.Bytes
	l.release(b, now)
}

// release returns a booking's place and tokens, once.
func (l *Ledger) release(b *booking, now time.Time) {
	if b.released {
		return
	}
	b.released = true
	l.count(&b.Booking, -1)
	if b.charge != nil {
		b.Waited = b.charge.Release(now)
	}
	if b.decoding != nil {
		b.decoding.Release(now)
	}
	b.charge, b.decoding = nil, nil
}

// count adds to a tenant's requests, each answer of one as a request, and removes a tenant without any.
func (l *Ledger) count(b *Booking, by int) {
	if !b.Counted {
		return
	}
	by *= max(1, b.Answers)
	of := l.tenants[b.Model]
	if of == nil {
		of = make(map[string]int)
		l.tenants[b.Model] = of
	}
	of[b.Tenant] += by
	if of[b.Tenant] == 0 {
		delete(of, b.Tenant)
	}
}

// InFlightOf returns how many of a model's requests a tenant has in flight, how many tenants have any, counting this one, and
// their total. It takes time linear in the tenants.
func (l *Ledger) InFlightOf(model, tenant string) (own, tenants, all int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := l.tenants[model]
	for _, n := range of {
		all += n
	}
	own, tenants = of[tenant], len(of)
	if own == 0 {
		tenants++
	}
	return own, tenants, all
}

// Expire ends bookings whose end was never reported, and detects what Envoy does not report. Call it once a second.
func (l *Ledger) Expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.expire(now)
	l.detectNoEnds(now)
}

// expire costs 0.1 µs if nothing expires.
func (l *Ledger) expire(now time.Time) {
	l.reports.detectNoReports(now)
	for b := l.overdue(now); b != nil; b = l.overdue(now) {
		l.close(b, now)
		l.expired++
		if l.onExpired != nil {
			l.onExpired(&b.Booking)
		}
	}
}

// overdue returns the next booking that must end; nil: none.
func (l *Ledger) overdue(now time.Time) (oldest *booking) {
	for s := range stageCount {
		b := l.first(s)
		if b == nil {
			continue
		}
		if now.Sub(b.stageSince) >= lifetime[s] {
			return b
		}
		if oldest == nil || b.stageSince.Before(oldest.stageSince) {
			oldest = b
		}
	}
	if len(l.open) <= maxBookings && l.bytes <= maxBookingBytes {
		return nil
	}
	return oldest
}

func (l *stages) first(s stage) *booking {
	if e := l.queue[s].Front(); e != nil {
		return e.Value.(*booking)
	}
	return nil
}

// OnExpired sets a function that is called for each booking that ends without a report. It must neither block nor call the
// Ledger.
func (l *Ledger) OnExpired(do func(*Booking)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.onExpired = do
}

// Expired returns the number of bookings that ended without a report.
func (l *Ledger) Expired() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expired
}

// reported notes that a source (0: the request's own stream) reported on a booking. If the booking was orphaned, its Envoy
// evidently lives: the other bookings of the lost source become fresh again, since entries that were on their way when it broke
// are lost.
func (l *stages) reported(b *booking, source uint64, now time.Time) {
	l.reports.gotReport()
	if ended := b.Source; b.stage == stageOrphan {
		l.each(stageOrphan, func(other *booking) {
			if other.Source == ended {
				other.Source = source
				l.move(other, stageFresh, now)
			}
		})
	}
	b.Source = source
}

func (l *stages) each(s stage, do func(*booking)) {
	for e := l.queue[s].Front(); e != nil; {
		b := e.Value.(*booking)
		e = e.Next() // do may move b
		do(b)
	}
}

// Lost notes that a source has ended, or a log stream over it: an Envoy died, or only the connection or stream. The bookings that
// it reported become orphans and end soon, unless another source reports on one of them; then the others may live for unconfirmedTTL
// longer. It takes time linear in the bookings.
func (l *Ledger) Lost(source uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, s := range []stage{stageFresh, stageRunning, stageDone} {
		l.each(s, func(b *booking) {
			if b.Source == source && source != 0 {
				l.move(b, stageOrphan, now)
			}
		})
	}
}

// Gone notes that a request's own stream has ended right after the answer. Without a report, the booking ends soon.
func (l *Ledger) Gone(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.open[id]; b != nil && b.stage == stageFresh {
		first := b == l.reports.waiting
		l.move(b, stageGone, l.now())
		l.reports.gone++
		if first && l.reports.gone >= fewGone {
			l.reports.waiting = &booking{Booking: Booking{At: b.At}}
		}
	}
}

// Confirm applies Envoy's report, from a source, that a request went to addr. If that is not the booked worker, the booking moves
// to the other worker's least loaded slot, and moved is the booking as it was: without a Slot if it had none, with the same Slot
// if only the decode worker changed. ok is false if the request or worker is not known.
func (l *Ledger) Confirm(id, addr string, source uint64) (now, moved *Booking, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, w := l.open[id], l.fleet.ByAddr(addr)
	if b == nil {
		return nil, nil, false
	}
	there := b.Slot != nil && b.Slot.Worker.ReachedAt(addr) // also if it has left since, and another worker has its address now
	if b.Decode != nil && (w != nil || b.Decode.Worker.ReachedAt(addr)) {
		there = true
		if was := b.Booking; !b.released && l.decodes(b, w, addr) {
			moved = &was
		}
	}
	if !there && w == nil {
		return nil, nil, false
	}
	at := l.now()
	l.reported(b, source, at)
	if b.released && there {
		is := b.Booking
		return &is, nil, true
	}
	l.move(b, stageRunning, at)
	if b.released { // a worker's answer was not passed on, and another worker has the request now
		b.released = false
		l.count(&b.Booking, 1)
	}
	if !there {
		was := b.Booking
		moved = &was
		b.Slot = w.Slots[0]
		for _, slot := range w.Slots[1:] {
			if slot.Load(at).Inflight < b.Slot.Load(at).Inflight {
				b.Slot = slot
			}
		}
		since := at
		if was.Slot == nil {
			since = b.At
			l.count(&b.Booking, -1)
			b.OnSlot(&b.Booking)
			l.count(&b.Booking, 1)
			l.work.give(&b.Booking, at)
		} else {
			if b.charge != nil {
				b.charge.Undo(at)
			}
			b.AdapterLoad = 0 // whether the new worker has the adapter is not known
			b.From = 0
			if w.Class != was.Slot.Worker.Class { // its blocks have other hashes
				b.Locals = nil
			}
		}
		b.charge = b.Slot.Charge(b.Work, at, since)
	}
	is := b.Booking
	return &is, moved, true
}

// decodes moves the decode part of a booking to the worker at addr. It returns false if it is there already. The prefill slot
// stays.
func (l *Ledger) decodes(b *booking, w *fleet.Worker, addr string) bool {
	if w == nil || b.Decode.Worker.ReachedAt(addr) {
		return false
	}
	now := l.now()
	b.decoding.Undo(now)
	b.Decode = w.Slots[0]
	b.decoding = b.Decode.Charge(b.Booking.decoding(), now, now)
	return true
}

// ServedBy returns the worker that answered a booked request at addr ("": where it was booked); nil: not known.
func (l *Ledger) ServedBy(b *Booking, addr string) *fleet.Worker {
	if b.Slot != nil && (addr == "" || b.Slot.Worker.ReachedAt(addr)) {
		return b.Slot.Worker
	}
	return l.fleet.ByAddr(addr)
}

// FailedAt returns the worker that failed a request at its own address; nil: none has it. If the request was booked there, it is
// that worker, even if another one has the address by now.
func (l *Ledger) FailedAt(id, addr string) *fleet.Worker {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b := l.open[id]; b != nil && b.Slot != nil && b.Slot.Worker.Instance == "" && b.Slot.Worker.ReachedAt(addr) {
		return b.Slot.Worker
	}
	return l.fleet.ByAddr(addr)
}

// Done releases the place and tokens of a request whose worker has answered it, and returns its booking, which lasts until End; nil: it
// is not known, or has no place any more.
func (l *Ledger) Done(id string) *Booking {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.open[id]
	if b == nil || b.released {
		return nil
	}
	l.done(b, l.now())
	is := b.Booking
	return &is
}

func (l *Ledger) done(b *booking, now time.Time) {
	l.release(b, now)
	l.move(b, stageDone, now)
}

// FreeAnswered releases the places and tokens of requests that their workers cannot have any more: Envoy sent them endsAfter ago, and
// more are booked than the worker says it has. Once Envoy's buffer is full, it reads the rest of an answer, and reports the worker's
// end, only as fast as the client reads. The oldest are released, and what the worker reports stays booked. Call it once a second.
func (l *Ledger) FreeAnswered() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	excess := make(map[*fleet.Worker]int) // answers
	old := func(do func(b *booking, w *fleet.Worker, answers int)) {
		l.each(stageRunning, func(b *booking) {
			// A pair's decode worker does not know of a request that is being prefilled.
			if b.Decode == nil && now.Sub(b.stageSince) >= endsAfter {
				do(b, b.Slot.Worker, max(1, b.Answers))
			}
		})
	}
	old(func(_ *booking, w *fleet.Worker, answers int) { excess[w] += answers })
	for w := range excess {
		for _, s := range w.Slots { // together: an engine may schedule a request on another rank
			told, ok := s.LastReport(now)
			if !ok || told.Running < 0 {
				delete(excess, w)
				break
			}
			excess[w] -= told.Running + told.Waiting
		}
	}
	old(func(b *booking, w *fleet.Worker, answers int) {
		if answers <= excess[w] {
			excess[w] -= answers
			l.done(b, now)
		}
	})
}

// End releases a request's slot and returns its booking, once. source reported the end; 0: the request's own stream.
func (l *Ledger) End(id string, source uint64) (*Booking, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.open[id]
	if b == nil {
		return nil, false
	}
	now := l.now()
	if source != 0 {
		l.reported(b, source, now)
		l.reports.gotEnd(now)
	}
	l.close(b, now)
	return &b.Booking, true
}

// Open returns the number of bookings that have not ended.
func (l *Ledger) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}
