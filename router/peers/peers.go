// Package peers lets replicas share their decisions: bookings go to all others, and Envoy's reports on another replica's request
// go to the replica that decided it.
//
//	router ─ Share ─▶ Exchange ── at once, then at most every 2 ms ─▶ Line ─▶ the others' Exchange ─▶ Replicas.Apply
//	access log ─ Forward ─▶ ┘     all that is open, every 500 ms ────▶                                       └▶ Reconcile, Observe
//
// Nothing blocks: an entry that does not fit is dropped and counted, and the next state corrects it, as it informs replicas that
// join late. A replica from which nothing came for 1.25 s is considered gone, and its bookings end. Messages are untrusted input:
// bounded, and believed only about the sender's own data. The Line decides who may send: the replicas
// that this one dials.
//
//	wire.go    the message format
//	direct.go  the Line: a gRPC stream to each replica
//	secret.go  one secret of the block hashes for all
//	held.go    questions for all that a worker holds, if the worker cannot replay it any more
//	lessons.go what requests taught, and questions for all of it
package peers

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/learned"
	"github.com/sightline-router/sightline/workers/fleet"
)

const (
	queueEntries = 8192                    // entries that wait to be sent
	sendPause    = 2 * time.Millisecond    // between two messages; with 10 ms, two replicas answer 7 % later (sightline-lab sim)
	stateEvery   = 500 * time.Millisecond  // a state is a heartbeat too
	peerTimeout  = 1250 * time.Millisecond // then a replica is gone; noticed within 2 s, since it is checked with each state
	maxPeers     = 256
	maxStreams   = 1024 // Envoy's log streams at one replica that others track

	streamsRefused = "streams refused"

	lessonsSent    = "lessons sent"
	lessonsDropped = "lessons dropped"
	lessonsTaken   = "lessons taken"
	lessonsRefused = "lessons refused"
)

// Line carries messages between replicas.
type Line interface {
	// Send sends to a replica, or to all for "", without waiting for them.
	Send(to string, message []byte) error
}

// Instance returns a new random name for this process as a replica. It begins the ids of its decisions.
func Instance() string { return rand.Text()[:instanceBytes] }

// InstanceOf returns the replica that made a decision's id; "": it is not such an id.
func InstanceOf(id string) string {
	if len(id) <= instanceBytes {
		return ""
	}
	return id[:instanceBytes]
}

// Exchange is one replica's side of the sharing.
type Exchange struct {
	own  string
	log  *zap.Logger
	out  chan entry
	seed maphash.Seed

	router *router.Router
	report func(router.Outcome)

	mu        sync.Mutex
	peers     map[string]*peer
	peerCount atomic.Int32 // len(peers)

	line atomic.Pointer[Line] // nil: Run has not begun

	lessons     chan []byte // that wait to be sent
	lessonBytes atomic.Int64

	// Held, if set before Run, returns all that is held for a worker's rank (-1: the worker has no ranks), for another replica;
	// nil: not known. A worker without a name stands for all that requests taught. It should end early with ErrTooLarge if that is
	// more than MostHeld bytes.
	Held func(ctx context.Context, worker string, rank int) ([]byte, error)
	// OnNewReplica, if set before Run, is called after another replica was first heard, in a goroutine of its own:
	// RequestHeld may find it now.
	OnNewReplica  func(ctx context.Context)
	newReplica    atomic.Bool // a replica was first heard since the last state was sent
	startedAt     time.Time
	heldRequests  chan heldRequest // other replicas' questions that wait to be answered
	reportsAsked  chan heldRequest // those for reports
	transferSlots chan struct{}    // limits the answers received at once
	transfers     heldTransfers

	// Orders and Ordered, if set before Run, return what is ordered of workers here, and take what is ordered at another replica.
	Orders  func() []Order
	Ordered func(Order)

	// Secret is what the shared hashes depend on.
	Secret  Secret
	secrets secretState

	entries, handovers *prometheus.CounterVec
	loggedUnreadable   atomic.Bool // an unreadable message was logged
}

// Order is what an operator lets a worker have.
type Order struct {
	Worker  string // as replicas name it to each other, with its address
	Service fleet.Service
	Age     time.Duration // since it was ordered
}

type peer struct {
	lastHeard time.Time
	key       uint64 // ID of its key
	lessons   lessonAllowance
	streams   map[uint64]struct{} // Envoy's access log streams there, by our number for them
}

// entry is one thing to send: a booking to all, or a report to the replica that decided.
type entry struct {
	shared *router.SharedBooking
	to     string
	report router.Outcome
}

// New returns the Exchange of the replica named own. Nothing is sent until Run.
func New(own string, log *zap.Logger, metrics prometheus.Registerer) *Exchange {
	of := meter.At(metrics)
	x := &Exchange{own: own, log: log, out: make(chan entry, queueEntries), seed: maphash.MakeSeed(),
		peers: make(map[string]*peer), startedAt: time.Now(),
		lessons:      make(chan []byte, maxLessonsQueued),
		heldRequests: make(chan heldRequest, maxHeldQueued), reportsAsked: make(chan heldRequest, maxHeldQueued),
		transferSlots: make(chan struct{}, maxHeldTransfers),
		transfers:     heldTransfers{pending: make(map[uint64]*heldTransfer)},
		handovers: of.Counters("peer_handovers_total",
			"Transfers of what a worker holds, or was learned. Asked for: taken, nobody, late. Asked by another: told, not held, "+
				"too large, busy.", "what"),
		entries: of.Counters("peer_entries_total",
			"Entries exchanged with other replicas; dropped: no room or connection; refused: another key, or too many.", "what")}
	for _, what := range []string{"sent", "dropped", "taken", "unread", "too many replicas", streamsRefused, "reports sent", "reports taken",
		lessonsSent, lessonsDropped, lessonsTaken, lessonsRefused} {
		x.entries.WithLabelValues(what)
	}
	for _, what := range []string{"taken", "nobody", "late", "told", "not held", "too large", "busy"} {
		x.handovers.WithLabelValues(what)
		x.handovers.WithLabelValues(ofLearned + what)
	}
	of.ReadGauge("peers", "Other replicas that this one shares with.", func() float64 { return float64(x.peerCount.Load()) })
	of.ReadGauge("peer_requests", "Other replicas' requests that count here as in flight.", func() float64 {
		if x.router == nil {
			return 0
		}
		return float64(x.router.Replicas().Bookings())
	})
	return x
}

// OtherReplicas returns the number of other replicas, and how long ago the least recently heard one was heard.
func (x *Exchange) OtherReplicas() (others int, ago time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.peers {
		ago = max(ago, time.Since(p.lastHeard))
	}
	return len(x.peers), ago
}

// Refused returns the counter of streams that a line refused, because no replica that is dialled here opened them.
func (x *Exchange) Refused() prometheus.Counter { return x.entries.WithLabelValues(streamsRefused) }

// Share implements router.Options.Share.
func (x *Exchange) Share(s *router.SharedBooking) {
	if x.peerCount.Load() > 0 { // replicas that join later get the state
		x.enqueue(entry{shared: s})
	}
}

// Forward sends Envoy's report to the replica that decided; "": to all. It returns false if that replica is not known.
func (x *Exchange) Forward(to string, o router.Outcome) bool {
	if to != "" {
		x.mu.Lock()
		_, known := x.peers[to]
		x.mu.Unlock()
		if !known {
			return false
		}
	}
	x.enqueue(entry{to: to, report: o})
	return true
}

func (x *Exchange) enqueue(e entry) {
	select {
	case x.out <- e:
	default:
		x.entries.WithLabelValues("dropped").Inc()
	}
}

// Start sets the receivers of the others' messages: the router, and report for Envoy's reports on its requests. Call it before
// Receive and Run.
func (x *Exchange) Start(r *router.Router, report func(router.Outcome)) {
	x.router, x.report = r, report
}

// Run sends on the line until ctx ends, then says good-bye.
func (x *Exchange) Run(ctx context.Context, line Line) {
	states, flush := time.NewTicker(stateEvery), time.NewTimer(0)
	defer states.Stop()
	x.line.Store(&line)
	var answers sync.WaitGroup
	defer answers.Wait()
	answers.Go(func() { x.answerHeldRequests(ctx, line, x.heldRequests) })
	answers.Go(func() { x.answerHeldRequests(ctx, line, x.reportsAsked) })
	came := make(retry.Bell, 1)
	answers.Go(func() { x.watchNewReplicas(ctx, came) })
	answers.Go(func() { x.sendLessons(ctx, line) })
	x.send(line, true)
	for {
		select {
		case <-ctx.Done():
			x.message(line, "", append(messageHead(x.own), kindBye), 1)
			return
		case <-states.C:
			x.expire(time.Now())
			x.send(line, true)
			if x.newReplica.Swap(false) { // by now it most likely receives what is sent to it
				came.Ring()
			}
		case e := <-x.out:
			x.send(line, false, e)
			flush.Reset(sendPause)
			select { // entries that come meanwhile go into one message
			case <-ctx.Done():
			case <-flush.C:
			}
		}
	}
}

// send sends the waiting entries and, with state, all open bookings after them: what ended before is not among those, what begins
// from now on is sent again.
func (x *Exchange) send(line Line, state bool, first ...entry) {
	type batch struct {
		bytes []byte
		n     int
	}
	batches := map[string]*batch{}
	add := func(to string, n int, put func([]byte) []byte) {
		b := batches[to]
		if b == nil {
			b = &batch{bytes: messageHead(x.own)}
			batches[to] = b
		}
		b.bytes, b.n = put(b.bytes), b.n+n
		if len(b.bytes) > targetBytes {
			x.message(line, to, b.bytes, b.n)
			*b = batch{bytes: messageHead(x.own)}
		}
	}
	one := func(e entry) {
		add(e.to, 1, func(b []byte) []byte {
			if e.shared != nil {
				return appendShared(b, e.shared)
			}
			return appendReport(b, &e.report)
		})
	}
	for _, e := range first {
		one(e)
	}
	for range len(x.out) {
		one(<-x.out)
	}
	if state {
		open, whole := x.router.Replicas().Open(maxOpen)
		if !whole {
			open = nil
		}
		add("", 0, func(b []byte) []byte {
			b = appendState(b, open, whole)
			if x.Secret.Secret != nil {
				x.mu.Lock()
				k := x.key()
				x.mu.Unlock()
				b = appendNumber(append(binary.LittleEndian.AppendUint64(append(b, kindKey), k.id), k.flags), int(k.age.Milliseconds()))
			}
			if x.Orders != nil {
				if list := x.Orders(); len(list) > 0 { // at the end: replicas of older releases do not know it
					b = appendOrders(b, list[:min(len(list), maxOrders)])
				}
			}
			return b
		})
	}
	for to, b := range batches {
		if len(b.bytes) > headBytes {
			x.message(line, to, b.bytes, b.n)
		}
	}
}

func (x *Exchange) message(line Line, to string, b []byte, n int) {
	what := "sent"
	if to != "" {
		what = "reports sent"
	}
	if line.Send(to, b) != nil {
		what = "dropped"
	}
	x.entries.WithLabelValues(what).Add(float64(n))
}

// expire ends the replicas from which nothing has come for too long.
func (x *Exchange) expire(now time.Time) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name, p := range x.peers {
		if now.Sub(p.lastHeard) > peerTimeout {
			x.removePeer(name, p)
		}
	}
}

// removePeer forgets a replica: its bookings end, and Envoy's log streams to it may have ended too.
func (x *Exchange) removePeer(name string, p *peer) {
	delete(x.peers, name)
	x.peerCount.Store(int32(len(x.peers)))
	x.router.Replicas().Left(name)
	for source := range p.streams {
		x.report(router.Outcome{Phase: router.Lost, Source: source})
	}
	x.log.Info("a replica is gone; its requests count as other senders'", zap.String("replica", name))
}

// Receive processes a message from the Line.
func (x *Exchange) Receive(message []byte) {
	from, entries, err := sender(message)
	if err == nil {
		err = guard.Call(func() error {
			held, secret, err := x.handleEntries(from, entries)
			line := x.line.Load()
			if secret != 0 && line != nil { // if sending fails, the next state asks again
				b := append(messageHead(x.own), secret)
				if secret == kindSecret {
					own := x.Secret.Bytes()
					b = append(b, own[:]...)
				}
				_ = (*line).Send(from, b)
			}
			if held != nil && line != nil {
				x.queueHeldRequest(*line, *held)
			}
			return err
		})
	}
	if err != nil {
		x.entries.WithLabelValues("unread").Inc()
		if !x.loggedUnreadable.Swap(true) {
			x.log.Warn("another replica's message cannot be read; logged once", zap.Error(err))
		}
	}
}

// handleEntries processes a replica's entries. secret is the entry about secrets to answer with; 0: none.
// A question is a message of its own; of several in one message the last is answered.
func (x *Exchange) handleEntries(name string, entries []byte) (held *heldRequest, secret byte, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.peers[name]
	if p == nil {
		if len(entries) == 0 || entries[0] == kindBye {
			return nil, 0, nil
		}
		if len(x.peers) >= maxPeers {
			x.entries.WithLabelValues("too many replicas").Inc()
			return nil, 0, nil
		}
		p = &peer{streams: make(map[uint64]struct{})}
		x.peers[name] = p
		x.peerCount.Store(int32(len(x.peers)))
		x.newReplica.Store(true)
		x.log.Info("found another replica", zap.String("replica", name))
	}
	p.lastHeard = time.Now()
	count := x.entries.WithLabelValues("taken")
	err = eachEntry(entries, &entryHandlers{
		shared: func(s *router.SharedBooking) { x.router.Replicas().Apply(name, s); count.Inc() },
		state:  func(open []router.SharedBooking) { x.router.Replicas().Reconcile(name, open) },
		lesson: func(key uint64, l *learned.Lesson, bytes int) { x.takeLesson(p, key, l, bytes) },
		report: func(o router.Outcome) {
			if o.Phase == router.Lost || InstanceOf(o.ID) == x.own {
				o.Source = x.streamNumber(name, p, &o)
				x.report(o)
				x.entries.WithLabelValues("reports taken").Inc()
			}
		},
		bye:     func() { x.removePeer(name, p) },
		askHeld: func(q heldRequest) { q.from = name; held = &q },
		piece:   func(p *piece) { x.transfers.addPiece(name, p) },
		ordered: func(o Order) {
			if x.Ordered != nil {
				x.Ordered(o)
			}
		},
		key: func(k key) {
			p.key = k.id
			if x.sawKey(name, k) {
				secret = kindAskKey
			}
		},
		askKey: func() {
			if x.Secret.Secret != nil {
				secret = kindSecret
			}
		},
		secret: func(b [block.SecretBytes]byte) { x.takeSecret(name, b) },
	})
	return held, secret, err
}

// streamNumber returns our number for another replica's log stream; 0: there are too many.
func (x *Exchange) streamNumber(name string, p *peer, o *router.Outcome) uint64 {
	h := maphash.Comparable(x.seed, [2]any{name, o.Source}) | 1<<63 // our own streams count from 1
	if o.Phase == router.Lost {
		delete(p.streams, h)
		return h
	}
	if _, known := p.streams[h]; !known && len(p.streams) >= maxStreams {
		return 0
	}
	p.streams[h] = struct{}{}
	return h
}
