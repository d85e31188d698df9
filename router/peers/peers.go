// Package peers lets replicas share their decisions: bookings go to all others, and Envoy's reports on another replica's request
// go to the replica that decided it.
//
//	router ─ Share ─▶ Exchange ── at once, then at most every 2 ms ─▶ Line (NATS, or Direct) ─▶ the others' Exchange ─▶ ApplyShared
//	access log ─ Forward ─▶ ┘     all that is open, every 500 ms ────▶                                       └▶ Reconcile, Observe
//
// Nothing blocks: an entry that does not fit is dropped and counted, and the next state corrects it, as it informs replicas that
// join late. A replica from which nothing came for 1.25 s is considered gone, and its bookings end. Messages are untrusted input:
// bounded, and believed only about the sender's own data. The Line decides who may send (NATS' permissions; the listener's
// certificates and tokens).
//
//	wire.go    the message format
//	direct.go  the Line without NATS, or while it is away: a gRPC stream to each replica
//	holders.go questions during a decision to a replica that holds another part of the index
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

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/internal/meter"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/learned"
)

const (
	queueEntries = 8192                    // entries that wait to be sent
	sendPause    = 2 * time.Millisecond    // between two messages; with 10 ms, two replicas answer 7 % later (sightline-lab sim)
	stateEvery   = 500 * time.Millisecond  // a state is a heartbeat too
	echoTimeout  = 750 * time.Millisecond  // a state not echoed within this was lost; shorter than peerTimeout
	peerTimeout  = 1250 * time.Millisecond // then a replica is gone; noticed within 2 s, since it is checked with each state
	maxPeers     = 256
	maxStreams   = 1024 // Envoy's log streams at one replica that others track

	anothersName = "another's name"

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
	lastEcho  atomic.Int64 // when the first Line last returned a message sent to all, in Unix nanoseconds

	lines         atomic.Pointer[[]Line] // nil: Run has not begun
	holderQueries holderQueries

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
	transferSlots chan struct{}    // limits the answers received at once
	transfers     heldTransfers

	// Secret is what the shared hashes depend on.
	Secret  Secret
	secrets secretState

	entries, questions, handovers *prometheus.CounterVec
	loggedUnreadable              atomic.Bool // an unreadable message was logged
}

type peer struct {
	lastHeard time.Time
	part      indexer.Part // part of the index that it says it holds
	key       uint64       // ID of its key
	lessons   lessonAllowance

	readsLessons bool
	readsPaths   bool
	streams      map[uint64]struct{} // Envoy's access log streams there, by our number for them
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
		heldRequests: make(chan heldRequest, maxHeldQueued), transferSlots: make(chan struct{}, maxHeldTransfers),
		transfers: heldTransfers{pending: make(map[uint64]*heldTransfer)},
		handovers: of.Counters("peer_handovers_total",
			"Transfers between replicas of all that a worker holds (with \"learned \": that requests taught). Requested here: "+
				"taken, nobody (has it), late; by another replica: told (sent), not held, too large, busy.", "what"),
		entries: of.Counters("peer_entries_total",
			"Entries exchanged with other replicas, by outcome; dropped: no room or connection; refused: another key, or too many.", "what"),
		questions: of.Counters("part_questions_total",
			"Questions to other index shards, by outcome; nobody: no replica of the shard is reached.", "what")}
	for _, what := range []string{"sent", "dropped", "taken", "unread", "too many replicas", anothersName, "reports sent", "reports taken",
		lessonsSent, lessonsDropped, lessonsTaken, lessonsRefused} {
		x.entries.WithLabelValues(what)
	}
	for _, what := range []string{"answered", "late", "nobody"} {
		x.questions.WithLabelValues(what)
	}
	for _, what := range []string{"taken", "nobody", "late", "told", "not held", "too large", "busy"} {
		x.handovers.WithLabelValues(what)
		x.handovers.WithLabelValues(ofLearned + what)
	}
	of.ReadGauge("peers", "Other replicas that this one shares with.", func() float64 { return float64(x.peerCount.Load()) })
	of.ReadGauge("peer_age_seconds", "Time since the last message of the replica that has been silent longest.", func() float64 {
		_, ago := x.OtherReplicas()
		return ago.Seconds()
	})
	of.ReadGauge("peer_requests", "Other replicas' requests that count here as in flight.", func() float64 {
		if x.router == nil {
			return 0
		}
		return float64(x.router.ReplicaBookings())
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

// Refused returns the counter of messages that a line refused because they were in another replica's name.
func (x *Exchange) Refused() prometheus.Counter { return x.entries.WithLabelValues(anothersName) }

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

// Run sends until ctx ends, then says good-bye. It uses the first line that works. If there are several, the first must echo to
// each sender what it sends to all, as NATS does: while there are no echoes it counts as broken, and only states are sent on it.
func (x *Exchange) Run(ctx context.Context, lines ...Line) {
	states, flush := time.NewTicker(stateEvery), time.NewTimer(0)
	defer states.Stop()
	x.lines.Store(&lines)
	var answers sync.WaitGroup
	defer answers.Wait()
	answers.Go(func() { x.answerHeldRequests(ctx, lines) })
	came := make(retry.Bell, 1)
	answers.Go(func() { x.watchNewReplicas(ctx, came) })
	answers.Go(func() { x.sendLessons(ctx, lines) })
	x.send(lines, true)
	for {
		select {
		case <-ctx.Done():
			x.message(lines, "", append(messageHead(x.own), kindBye), 1, true)
			return
		case <-states.C:
			x.expire(time.Now())
			x.send(lines, true)
			if x.newReplica.Swap(false) { // by now it most likely receives what is sent to it
				came.Ring()
			}
		case e := <-x.out:
			x.send(lines, false, e)
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
func (x *Exchange) send(lines []Line, state bool, first ...entry) {
	type batch struct {
		bytes []byte
		n     int
	}
	batches, paths := map[string]*batch{}, x.allReadPaths()
	add := func(to string, n int, put func([]byte) []byte) {
		b := batches[to]
		if b == nil {
			b = &batch{bytes: messageHead(x.own)}
			batches[to] = b
		}
		b.bytes, b.n = put(b.bytes), b.n+n
		if len(b.bytes) > targetBytes {
			x.message(lines, to, b.bytes, b.n, state)
			*b = batch{bytes: messageHead(x.own)}
		}
	}
	one := func(e entry) {
		add(e.to, 1, func(b []byte) []byte {
			if e.shared != nil {
				return appendShared(b, e.shared, paths)
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
		open, whole := x.router.OpenBookings(maxOpen)
		if !whole {
			open = nil
		}
		add("", 0, func(b []byte) []byte {
			b = appendState(b, open, whole)
			if part := x.router.Part(); part.Of > 1 { // last, since an old release cannot read it
				b = appendPart(b, part)
			}
			if x.Secret.Secret != nil {
				x.mu.Lock()
				k := x.key()
				x.mu.Unlock()
				b = appendNumber(append(binary.LittleEndian.AppendUint64(append(b, kindKey), k.id), k.flags), int(k.age.Milliseconds()))
			}
			return b
		})
	}
	for to, b := range batches {
		if len(b.bytes) > headBytes {
			x.message(lines, to, b.bytes, b.n, state)
		}
	}
}

// allReadPaths reports whether all replicas can read the paths of bookings. Those of 0.1.0 cannot, nor what follows them in a message.
func (x *Exchange) allReadPaths() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.peers {
		if !p.readsPaths {
			return false
		}
	}
	return true
}

func (x *Exchange) message(lines []Line, to string, b []byte, n int, state bool) {
	what := "sent"
	if to != "" {
		what = "reports sent"
	}
	if x.sendOnFirst(lines, to, b, state) != nil {
		what = "dropped"
	}
	x.entries.WithLabelValues(what).Add(float64(n))
}

// sendOnFirst sends a message on the first of the lines that works.
func (x *Exchange) sendOnFirst(lines []Line, to string, b []byte, state bool) (err error) {
	hangs := len(lines) > 1 && time.Since(time.Unix(0, x.lastEcho.Load())) > echoTimeout
	for i, line := range lines {
		if i == 0 && hangs {
			if state {
				_ = line.Send(to, b) // to notice when it works again
			}
			continue
		}
		err = line.Send(to, b)
		if err == nil {
			return nil
		}
	}
	return err
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
	x.router.ReplicaLeft(name)
	for source := range p.streams {
		x.report(router.Outcome{Phase: router.Lost, Source: source})
	}
	x.log.Info("a replica is gone; its requests count as other senders'", zap.String("replica", name))
}

// Receive processes a message from the Line.
func (x *Exchange) Receive(message []byte) {
	from, entries, err := sender(message)
	if from == x.own {
		x.lastEcho.Store(time.Now().UnixNano())
		return
	}
	if err == nil {
		err = guard.Call(func() error {
			question, held, secret, err := x.handleEntries(from, entries)
			lines := x.lines.Load()
			if secret != 0 && lines != nil { // if sending fails, the next state asks again
				b := append(messageHead(x.own), secret)
				if secret == kindSecret {
					own := x.Secret.Bytes()
					b = append(b, own[:]...)
				}
				_ = x.sendOnFirst(*lines, from, b, false)
			}
			if question != nil && lines != nil { // if sending fails, the other replica times out
				_ = x.sendOnFirst(*lines, from, appendHolders(messageHead(x.own), question.number, x.router.Holders(question.locals)), false)
			}
			if held != nil && lines != nil {
				x.queueHeldRequest(*lines, *held)
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
func (x *Exchange) handleEntries(name string, entries []byte) (question *holdersRequest, held *heldRequest, secret byte, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.peers[name]
	if p == nil {
		if len(entries) == 0 || entries[0] == kindBye { // none: it claims its name, and its part of the index is not known yet
			return nil, nil, 0, nil
		}
		if len(x.peers) >= maxPeers {
			x.entries.WithLabelValues("too many replicas").Inc()
			return nil, nil, 0, nil
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
		shared: func(s *router.SharedBooking) { count.Inc(); x.router.ApplyShared(name, s) },
		state:  func(open []router.SharedBooking) { x.router.Reconcile(name, open) },
		reads:  func(lessons, paths bool) { p.readsLessons, p.readsPaths = lessons, paths },
		lesson: func(key uint64, l *learned.Lesson, bytes int) { x.takeLesson(p, key, l, bytes) },
		report: func(o router.Outcome) {
			if o.Phase == router.Lost || InstanceOf(o.ID) == x.own {
				o.Source = x.streamNumber(name, p, &o)
				x.entries.WithLabelValues("reports taken").Inc()
				x.report(o)
			}
		},
		bye:     func() { x.removePeer(name, p) },
		part:    func(part indexer.Part) { p.part = part },
		ask:     func(q holdersRequest) { question = &q },
		holders: func(number uint64, list []router.Holder) { x.holderQueries.end(number, name, list) },
		askHeld: func(q heldRequest) { q.from = name; held = &q },
		piece:   func(p *piece) { x.transfers.addPiece(name, p) },
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
	return question, held, secret, err
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
