package fleet

import (
	"container/list"
	"sync"
	"time"
)

// A booking ties a decided request to the slot that it was sent to, from the decision until Envoy reports its end. Reports get
// lost, so a booking also expires, by timer and before each decision (Expire):
//
//	stage    entered when                                                expires
//	fresh    decided, and no report yet that a worker has it;            unconfirmedTTL after the decision,
//	         or its log stream broke, so its end may be lost, but its    or after the Envoy's next report
//	         Envoy lives
//	gone     its own stream ended right after the answer, before any     vanished after that
//	         report: its client may have left before Envoy read the answer
//	running  Envoy reported that a worker has it                         longestGeneration after that
//	done     Envoy reported that the worker has answered it, or the      longestGeneration after that
//	         worker's own reports show it (FreeAnswered), and its client
//	         has not read all. It has no place and no tokens
//	orphan   the connection that asked or reported, or a log stream      orphanTTL after that
//	         over it, ended
//
// If there are too many, or they keep too much memory, the oldest end early. However a booking ends, its place and its tokens are
// released. All that end without a report are counted.
const (
	unconfirmedTTL    = 30 * time.Second // Envoy may be slow to connect. A generation that runs longer than this after a break no longer counts
	vanished          = time.Second      // a report comes 20 ms after the fact
	longestGeneration = 30 * time.Minute // the longest generation that is assumed
	orphanTTL         = 3 * time.Second  // an Envoy that has only lost its connection is back within a second
	maxBookings       = 1 << 17
	maxBookingBytes   = 256 << 20
)

// Booking is one request's hold on a slot. The Fleet's methods return copies, which do not change.
type Booking struct {
	Slot        *Slot          // nil: not known yet; nothing is charged until Confirm
	OnPlaced    func(*Booking) // without a Slot: called once when Slot is set, to fill in what is booked; must not call the Fleet
	Tokens      int            // to prefill there, with pictures to encode
	AdapterLoad int            // the part of Tokens that stands for loading an adapter
	Fetch       int            // further tokens that it fetches from its own lower tiers
	Pull        int            // further tokens that it fetches from another worker
	Context     int            // tokens of the prompt, once for each answer
	Answers     int            // decoded at once (n); 0: one
	Locals      []uint64       // the prompt's blocks, by which events report its prefill; nil: they cannot
	From        int            // how many of Locals are held or predicted already
	Decode      *Slot          // who decodes, if another slot
	Note        any            // the router's own data, returned at the end
	Bytes       int            // memory that Note keeps
	Source      uint64         // the Envoy connection that reported on it last; 0: not known, so its end is not noticed
	At          time.Time      // time of the decision; set by Book
	Model       string         // with Counted: Tenant's requests are counted by Model
	Tenant      string
	Counted     bool
	decodePart  bool // it is Decode's part of another booking
}

type booking struct {
	Booking
	id         string
	hold       *hold // on Slot; nil: none yet
	decoding   *hold // on Decode; nil: none
	released   bool  // its worker is done: it has no hold, and is not counted
	stage      stage
	stageSince time.Time // of stage
	element    *list.Element
}

type stage int

const (
	stageFresh stage = iota
	gone
	stageRunning
	stageDone
	stageOrphan
	stageCount
)

var lifetime = [stageCount]time.Duration{stageFresh: unconfirmedTTL, gone: vanished, stageRunning: longestGeneration, stageDone: longestGeneration, stageOrphan: orphanTTL}

type bookings struct {
	mu        sync.Mutex
	open      map[string]*booking
	queue     [stageCount]list.List // oldest first
	bytes     int
	tenants   map[string]map[string]int // requests in flight, by model and tenant
	expired   uint64
	onExpired func(*Booking)
	reports   reportWatch
}

// Book charges a request to a slot, under its decision id.
func (f *Fleet) Book(id string, b Booking) {
	b.At = f.now()
	one := &booking{Booking: b, id: id}
	if b.Slot != nil {
		one.hold = b.Slot.book(&b, b.At, b.At)
	}
	if b.Decode != nil {
		one.decoding = b.Decode.book(&Booking{Context: b.Context, Answers: b.Answers, decodePart: true}, b.At, b.At)
	}
	t := &f.bookings
	t.mu.Lock()
	defer t.mu.Unlock()
	if same := t.open[id]; same != nil {
		t.close(same, b.At)
	}
	t.open[id] = one
	t.count(&b, 1)
	t.bytes += b.Bytes
	t.enter(one, stageFresh, b.At)
	if t.reports.waiting == nil {
		t.reports.waiting = one
	}
	t.expire(b.At)
}

func (t *bookings) enter(b *booking, s stage, now time.Time) {
	b.stage, b.stageSince, b.element = s, now, t.queue[s].PushBack(b)
}

func (t *bookings) leave(b *booking) {
	if b == t.reports.waiting {
		t.reports.waiting = nil
		if next := b.element.Next(); next != nil { // both are fresh
			t.reports.waiting = next.Value.(*booking)
		}
	}
	t.queue[b.stage].Remove(b.element)
}

func (t *bookings) move(b *booking, to stage, now time.Time) {
	t.leave(b)
	t.enter(b, to, now)
}

// close ends a booking and releases what it took.
func (t *bookings) close(b *booking, now time.Time) {
	delete(t.open, b.id)
	t.leave(b)
	t.bytes -= b.Bytes
	t.release(b, now)
}

// release returns a booking's place and tokens, once.
func (t *bookings) release(b *booking, now time.Time) {
	if b.released {
		return
	}
	b.released = true
	t.count(&b.Booking, -1)
	if b.hold != nil {
		b.hold.release(now)
	}
	if b.decoding != nil {
		b.decoding.release(now)
	}
	b.hold, b.decoding = nil, nil
}

// count adds to a tenant's requests, each answer of one as a request, and removes a tenant without any.
func (t *bookings) count(b *Booking, by int) {
	if !b.Counted {
		return
	}
	by *= max(1, b.Answers)
	of := t.tenants[b.Model]
	if of == nil {
		of = make(map[string]int)
		t.tenants[b.Model] = of
	}
	if of[b.Tenant] += by; of[b.Tenant] == 0 {
		delete(of, b.Tenant)
	}
}

// InFlightOf returns how many of a model's requests a tenant has in flight, how many tenants have any, counting this one, and
// their total. It takes time linear in the tenants.
func (f *Fleet) InFlightOf(model, tenant string) (own, tenants, all int) {
	f.bookings.mu.Lock()
	defer f.bookings.mu.Unlock()
	of := f.bookings.tenants[model]
	for _, n := range of {
		all += n
	}
	if own, tenants = of[tenant], len(of); own == 0 {
		tenants++
	}
	return own, tenants, all
}

// Expire ends bookings whose end was never reported, and detects what Envoy does not report. Call it once a second.
func (f *Fleet) Expire() {
	t := &f.bookings
	t.mu.Lock()
	defer t.mu.Unlock()
	now := f.now()
	t.expire(now)
	t.detectNoEnds(now)
}

// expire costs 0.1 µs if nothing expires.
func (t *bookings) expire(now time.Time) {
	t.reports.detectNoReports(now)
	for b := t.overdue(now); b != nil; b = t.overdue(now) {
		t.close(b, now)
		t.expired++
		if t.onExpired != nil {
			t.onExpired(&b.Booking)
		}
	}
}

// overdue returns the next booking that must end; nil: none.
func (t *bookings) overdue(now time.Time) (oldest *booking) {
	for s := range stageCount {
		b := t.first(s)
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
	if len(t.open) <= maxBookings && t.bytes <= maxBookingBytes {
		return nil
	}
	return oldest
}

func (t *bookings) first(s stage) *booking {
	if e := t.queue[s].Front(); e != nil {
		return e.Value.(*booking)
	}
	return nil
}

// OnExpired sets a function that is called for each booking that ends without a report. It must neither block nor call the
// Fleet.
func (f *Fleet) OnExpired(do func(*Booking)) {
	f.bookings.mu.Lock()
	defer f.bookings.mu.Unlock()
	f.bookings.onExpired = do
}

// Expired returns the number of bookings that ended without a report.
func (f *Fleet) Expired() uint64 {
	f.bookings.mu.Lock()
	defer f.bookings.mu.Unlock()
	return f.bookings.expired
}

// reported notes that a source (0: the request's own stream) reported on a booking. If the booking was orphaned, its Envoy
// evidently lives: the other bookings of the lost source become fresh again, since entries that were on their way when it broke
// are lost.
func (t *bookings) reported(b *booking, source uint64, now time.Time) {
	t.reports.gotReport()
	if ended := b.Source; b.stage == stageOrphan {
		t.each(stageOrphan, func(other *booking) {
			if other.Source == ended {
				other.Source = source
				t.move(other, stageFresh, now)
			}
		})
	}
	b.Source = source
}

func (t *bookings) each(s stage, do func(*booking)) {
	for e := t.queue[s].Front(); e != nil; {
		b := e.Value.(*booking)
		e = e.Next() // do may move b
		do(b)
	}
}

// Lost notes that a source has ended, or a log stream over it: an Envoy died, or only the connection or stream. The bookings that
// it reported become orphans and end soon, unless another source reports on one of them; then the others may live for unconfirmedTTL
// longer. It takes time linear in the bookings.
func (f *Fleet) Lost(source uint64) {
	t := &f.bookings
	t.mu.Lock()
	defer t.mu.Unlock()
	now := f.now()
	for _, s := range []stage{stageFresh, stageRunning, stageDone} {
		t.each(s, func(b *booking) {
			if b.Source == source && source != 0 {
				t.move(b, stageOrphan, now)
			}
		})
	}
}

// Gone notes that a request's own stream has ended right after the answer. Without a report, the booking ends soon.
func (f *Fleet) Gone(id string) {
	t := &f.bookings
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.open[id]; b != nil && b.stage == stageFresh {
		first := b == t.reports.waiting
		t.move(b, gone, f.now())
		if t.reports.gone++; first && t.reports.gone >= fewGone {
			t.reports.waiting = &booking{Booking: Booking{At: b.At}}
		}
	}
}

// Confirm applies Envoy's report, from a source, that a request went to addr. If that is not the booked worker, the booking moves
// to the other worker's least loaded slot, and moved is the booking as it was: without a Slot if it had none, with the same Slot
// if only the decode worker changed. ok is false if the request or worker is not known.
func (f *Fleet) Confirm(id, addr string, source uint64) (now, moved *Booking, ok bool) {
	t := &f.bookings
	t.mu.Lock()
	defer t.mu.Unlock()
	b, w := t.open[id], f.ByAddr(addr)
	if b == nil {
		return nil, nil, false
	}
	there := b.Slot != nil && b.Slot.Worker.reachedAt(addr) // also if it has left since, and another worker has its address now
	if b.Decode != nil && (w != nil || b.Decode.Worker.reachedAt(addr)) {
		there = true
		if was := b.Booking; !b.released && f.decodes(b, w, addr) {
			moved = &was
		}
	}
	if !there && w == nil {
		return nil, nil, false
	}
	at := f.now()
	t.reported(b, source, at)
	if b.released && there {
		is := b.Booking
		return &is, nil, true
	}
	t.move(b, stageRunning, at)
	if b.released { // a worker's answer was not passed on, and another worker has the request now
		b.released = false
		t.count(&b.Booking, 1)
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
			t.count(&b.Booking, -1)
			b.OnPlaced(&b.Booking)
			t.count(&b.Booking, 1)
		} else {
			if b.hold != nil {
				b.hold.undo(at)
			}
			b.AdapterLoad = 0                                 // whether the new worker has the adapter is not known
			if b.From = 0; w.Class != was.Slot.Worker.Class { // its blocks have other hashes
				b.Locals = nil
			}
		}
		b.hold = b.Slot.book(&b.Booking, at, since)
	}
	is := b.Booking
	return &is, moved, true
}

// decodes moves the decode part of a booking to the worker at addr. It returns false if it is there already. The prefill slot
// stays.
func (f *Fleet) decodes(b *booking, w *Worker, addr string) bool {
	if w == nil || b.Decode.Worker.reachedAt(addr) {
		return false
	}
	now := f.now()
	b.decoding.undo(now)
	b.Decode = w.Slots[0]
	b.decoding = b.Decode.book(&Booking{Context: b.Context, Answers: b.Answers, decodePart: true}, now, now)
	return true
}

// ServedBy returns the worker that answered a booked request at addr ("": where it was booked); nil: not known.
func (f *Fleet) ServedBy(b *Booking, addr string) *Worker {
	if b.Slot != nil && (addr == "" || b.Slot.Worker.reachedAt(addr)) {
		return b.Slot.Worker
	}
	return f.ByAddr(addr)
}

// FailedAt returns the worker that failed a request at its own address; nil: none has it. If the request was booked there, it is
// that worker, even if another one has the address by now.
func (f *Fleet) FailedAt(id, addr string) *Worker {
	f.bookings.mu.Lock()
	defer f.bookings.mu.Unlock()
	if b := f.bookings.open[id]; b != nil && b.Slot != nil && b.Slot.Worker.Instance == "" && b.Slot.Worker.reachedAt(addr) {
		return b.Slot.Worker
	}
	return f.ByAddr(addr)
}

// Done releases the place and tokens of a request whose worker has answered it, and returns its booking, which lasts until End; nil: it
// is not known, or has no place any more.
func (f *Fleet) Done(id string) *Booking {
	t := &f.bookings
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.open[id]
	if b == nil || b.released {
		return nil
	}
	t.done(b, f.now())
	is := b.Booking
	return &is
}

func (t *bookings) done(b *booking, now time.Time) {
	t.release(b, now)
	t.move(b, stageDone, now)
}

// FreeAnswered releases the places and tokens of requests that their workers cannot have any more: Envoy sent them endsAfter ago, and
// more are booked than the worker says it has. Once Envoy's buffer is full, it reads the rest of an answer, and reports the worker's
// end, only as fast as the client reads. The oldest are released, and what the worker reports stays booked. Call it once a second.
func (f *Fleet) FreeAnswered() {
	t := &f.bookings
	t.mu.Lock()
	defer t.mu.Unlock()
	now := f.now()
	excess := make(map[*Worker]int) // answers
	old := func(do func(b *booking, w *Worker, answers int)) {
		t.each(stageRunning, func(b *booking) {
			// A pair's decode worker does not know of a request that is being prefilled.
			if b.Decode == nil && now.Sub(b.stageSince) >= endsAfter {
				do(b, b.Slot.Worker, max(1, b.Answers))
			}
		})
	}
	old(func(_ *booking, w *Worker, answers int) { excess[w] += answers })
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
	old(func(b *booking, w *Worker, answers int) {
		if answers <= excess[w] {
			excess[w] -= answers
			t.done(b, now)
		}
	})
}

// End releases a request's slot and returns its booking, once. source reported the end; 0: the request's own stream.
func (f *Fleet) End(id string, source uint64) (*Booking, bool) {
	t := &f.bookings
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.open[id]
	if b == nil {
		return nil, false
	}
	now := f.now()
	if source != 0 {
		t.reported(b, source, now)
		t.reports.gotEnd(now)
	}
	t.close(b, now)
	return &b.Booking, true
}

// Open returns the number of bookings that have not ended.
func (f *Fleet) Open() int {
	f.bookings.mu.Lock()
	defer f.bookings.mu.Unlock()
	return len(f.bookings.open)
}
