// Package peers lets replicas share their decisions: bookings go to all others, and Envoy's reports on another replica's request
// go to the replica that decided it.
//
//	router ─ Share ─▶ Exchange ── at once, then at most every 2 ms ─▶ Line (NATS, or Direct) ─▶ the others' Exchange ─▶ Follow
//	access log ─ Forward ─▶ ┘     all that is open, every 500 ms ────▶                                       └▶ Reconcile, observe
//
// Nothing blocks: an entry that does not fit is dropped and counted, and the next state corrects it, as it informs replicas that
// join late. A replica from which nothing came for 1.25 s is considered gone, and its bookings end. Messages are untrusted input:
// bounded, and believed only about the sender's own data. The Line decides who may send (NATS' permissions; the listener's
// certificates and tokens).
//
//	wire.go    the message format
//	direct.go  the Line without NATS, or while it is away: a gRPC stream to each replica
//	holders.go questions during a decision to a replica that holds another part of the index
//	held.go    questions for all that a worker holds, if the worker cannot replay it any more
package peers

import (
	"context"
	"crypto/rand"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/router"
)

const (
	waiting    = 8192                    // entries that wait to be sent
	pause      = 2 * time.Millisecond    // between two messages; with 10 ms, two replicas answer 7 % later (sightline sim)
	stateEvery = 500 * time.Millisecond  // a state is a heartbeat too
	deaf       = 750 * time.Millisecond  // a state not echoed within this was lost; shorter than silent
	silent     = 1250 * time.Millisecond // then a replica is gone; noticed within 2 s, since it is checked with each state
	mostPeers  = 256
	mostStream = 1024 // Envoy's log streams at one replica that others track

	anothersName = "another's name"
)

// Line carries messages between replicas.
type Line interface {
	// Send sends to a replica, or to all for "", without waiting for them.
	Send(to string, message []byte) error
}

// Instance returns a new random name for this process as a replica. It begins the ids of its decisions.
func Instance() string { return rand.Text()[:instance] }

// InstanceOf returns the replica that made a decision's id; "": it is not such an id.
func InstanceOf(id string) string {
	if len(id) <= instance {
		return ""
	}
	return id[:instance]
}

// Exchange is one replica's side of the sharing.
type Exchange struct {
	own  string
	log  *zap.Logger
	out  chan entry
	seed maphash.Seed

	router *router.Router
	report func(router.Outcome)

	mu    sync.Mutex
	peers map[string]*peer
	known atomic.Int32 // len(peers)
	echo  atomic.Int64 // when the first Line last returned a message sent to all, in Unix nanoseconds

	lines atomic.Pointer[[]Line] // nil: Run has not begun
	asked questions

	// Held, if set before Run, returns all that is held for a worker's rank (-1: the worker has no ranks), for another replica;
	// nil: not known. It should end early with ErrTooLarge if that is more than MostHeld bytes.
	Held func(ctx context.Context, worker string, rank int) ([]byte, error)
	// Came, if set before Run, is called after another replica was first heard, in a goroutine of its own: AskHeld may find it now.
	Came     func(ctx context.Context)
	came     atomic.Bool // a replica was first heard since the last state was sent
	began    time.Time
	asks     chan heldQuestion // other replicas' questions that wait to be answered
	gathers  chan struct{}     // limits the answers received at once
	gathered gathering

	entries, questions, handovers *prometheus.CounterVec
	unlisted                      atomic.Bool // an unreadable message was logged
}

type peer struct {
	heard   time.Time
	part    indexer.Part        // part of the index that it says it holds
	streams map[uint64]struct{} // Envoy's access log streams there, by our number for them
}

// entry is one thing to send: a booking to all, or a report to the replica that decided.
type entry struct {
	shared *router.Shared
	to     string
	report router.Outcome
}

// New returns the Exchange of the replica named own. Nothing is sent until Run.
func New(own string, log *zap.Logger, metrics prometheus.Registerer) *Exchange {
	x := &Exchange{own: own, log: log, out: make(chan entry, waiting), seed: maphash.MakeSeed(), peers: make(map[string]*peer), began: time.Now(),
		asks: make(chan heldQuestion, heldWait), gathers: make(chan struct{}, heldAtOnce), gathered: gathering{open: make(map[uint64]*pieces)},
		handovers: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sightline", Name: "peer_handovers_total",
			Help: "Transfers between replicas of all that a worker holds, when its own replay no longer has it. Requested here: taken, nobody (has it), late; requested by another: told, not held (not completely), too large (32 MiB at most), busy."}, []string{"what"}),
		entries: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sightline", Name: "peer_entries_total",
			Help: "Entries exchanged with other replicas by outcome: sent, dropped (no room, or no connection; the next list corrects it), taken, unread (unreadable messages), too many replicas (messages of those beyond 256), another's name (refused on a stream); reports sent to the replica that decided, reports taken."}, []string{"what"}),
		questions: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "sightline", Name: "part_questions_total",
			Help: "Queries for the holders of a prompt in another part of the index, by outcome: answered, late (decided without), nobody (no replica of that part can be reached)."}, []string{"what"})}
	for _, what := range []string{"sent", "dropped", "taken", "unread", "too many replicas", anothersName, "reports sent", "reports taken"} {
		x.entries.WithLabelValues(what)
	}
	for _, what := range []string{"answered", "late", "nobody"} {
		x.questions.WithLabelValues(what)
	}
	for _, what := range []string{"taken", "nobody", "late", "told", "not held", "too large", "busy"} {
		x.handovers.WithLabelValues(what)
	}
	gauge := func(name, help string, get func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "sightline", Name: name, Help: help}, get)
	}
	metrics.MustRegister(x.entries, x.questions, x.handovers,
		gauge("peers", "Other replicas that this one shares with.", func() float64 { return float64(x.known.Load()) }),
		gauge("peer_age_seconds", "Time since the last message of the replica that has been silent longest; beyond 1.25 s it counts as gone.", func() float64 { _, ago := x.Heard(); return ago.Seconds() }),
		gauge("peer_requests", "Other replicas' requests that count here as in flight.", func() float64 {
			if x.router == nil {
				return 0
			}
			return float64(x.router.Theirs())
		}))
	return x
}

// Heard returns the number of other replicas, and how long ago the least recently heard one was heard.
func (x *Exchange) Heard() (others int, ago time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, p := range x.peers {
		ago = max(ago, time.Since(p.heard))
	}
	return len(x.peers), ago
}

// Refused returns the counter of messages that a line refused because they were in another replica's name.
func (x *Exchange) Refused() prometheus.Counter { return x.entries.WithLabelValues(anothersName) }

// Share implements router.Options.Share.
func (x *Exchange) Share(s *router.Shared) {
	if x.known.Load() > 0 { // replicas that join later get the state
		x.put(entry{shared: s})
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
	x.put(entry{to: to, report: o})
	return true
}

func (x *Exchange) put(e entry) {
	select {
	case x.out <- e:
	default:
		x.entries.WithLabelValues("dropped").Inc()
	}
}

// Start sets the receivers of the others' messages: the router, and report for Envoy's reports on its requests. Call it before
// Take and Run.
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
	answers.Go(func() { x.tellHeld(ctx, lines) })
	came := make(chan struct{}, 1)
	answers.Go(func() { x.tellCame(ctx, came) })
	x.send(lines, true)
	for {
		select {
		case <-ctx.Done():
			x.message(lines, "", append(head(x.own), kindBye), 1, true)
			return
		case <-states.C:
			x.expire(time.Now())
			x.send(lines, true)
			if x.came.Swap(false) { // by now it most likely receives what is sent to it
				select {
				case came <- struct{}{}:
				default:
				}
			}
		case e := <-x.out:
			x.send(lines, false, e)
			flush.Reset(pause)
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
	batches := map[string]*batch{}
	add := func(to string, n int, put func([]byte) []byte) {
		b := batches[to]
		if b == nil {
			b = &batch{bytes: head(x.own)}
			batches[to] = b
		}
		if b.bytes, b.n = put(b.bytes), b.n+n; len(b.bytes) > roomy {
			x.message(lines, to, b.bytes, b.n, state)
			*b = batch{bytes: head(x.own)}
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
		open, whole := x.router.Open(mostOpen)
		if !whole {
			open = nil
		}
		add("", 0, func(b []byte) []byte {
			b = appendState(b, open, whole)
			if part := x.router.Part(); part.Of > 1 { // last, since an old release cannot read it
				b = appendPart(b, part)
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

func (x *Exchange) message(lines []Line, to string, b []byte, n int, state bool) {
	what := "sent"
	if to != "" {
		what = "reports sent"
	}
	if x.say(lines, to, b, state) != nil {
		what = "dropped"
	}
	x.entries.WithLabelValues(what).Add(float64(n))
}

// say sends a message on the first of the lines that works.
func (x *Exchange) say(lines []Line, to string, b []byte, state bool) (err error) {
	hangs := len(lines) > 1 && time.Since(time.Unix(0, x.echo.Load())) > deaf
	for i, line := range lines {
		if i == 0 && hangs {
			if state {
				_ = line.Send(to, b) // to notice when it works again
			}
			continue
		}
		if err = line.Send(to, b); err == nil {
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
		if now.Sub(p.heard) > silent {
			x.leave(name, p)
		}
	}
}

// leave forgets a replica: its bookings end, and Envoy's log streams to it may have ended too.
func (x *Exchange) leave(name string, p *peer) {
	delete(x.peers, name)
	x.known.Store(int32(len(x.peers)))
	x.router.Leave(name)
	for source := range p.streams {
		x.report(router.Outcome{Phase: router.Lost, Source: source})
	}
	x.log.Info("a replica is gone; its requests no longer count as in flight", zap.String("replica", name))
}

// Take processes a message from the Line.
func (x *Exchange) Take(message []byte) {
	from, entries, err := sender(message)
	if from == x.own {
		x.echo.Store(time.Now().UnixNano())
		return
	}
	if err == nil {
		err = guard.Call(func() error {
			question, held, err := x.from(from, entries)
			lines := x.lines.Load()
			if question != nil && lines != nil { // if sending fails, the other replica times out
				_ = x.say(*lines, from, appendHolders(head(x.own), question.number, x.router.Holders(question.locals)), false)
			}
			if held != nil && lines != nil {
				x.wonders(*lines, *held)
			}
			return err
		})
	}
	if err != nil {
		x.entries.WithLabelValues("unread").Inc()
		if !x.unlisted.Swap(true) {
			x.log.Warn("another replica's message cannot be read; logged once", zap.Error(err))
		}
	}
}

// from processes a replica's entries. A question is a message of its own; of several in one message the last is answered.
func (x *Exchange) from(name string, entries []byte) (question *asked, held *heldQuestion, err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.peers[name]
	if p == nil {
		if len(entries) > 0 && entries[0] == kindBye {
			return nil, nil, nil
		}
		if len(x.peers) >= mostPeers {
			x.entries.WithLabelValues("too many replicas").Inc()
			return nil, nil, nil
		}
		p = &peer{streams: make(map[uint64]struct{})}
		x.peers[name] = p
		x.known.Store(int32(len(x.peers)))
		x.came.Store(true)
		x.log.Info("found another replica", zap.String("replica", name))
	}
	p.heard = time.Now()
	count := x.entries.WithLabelValues("taken")
	err = each(entries, &taken{
		shared: func(s *router.Shared) { count.Inc(); x.router.Follow(name, s) },
		state:  func(open []router.Shared) { x.router.Reconcile(name, open) },
		report: func(o router.Outcome) {
			if o.Phase == router.Lost || InstanceOf(o.ID) == x.own {
				o.Source = x.stream(name, p, &o)
				x.entries.WithLabelValues("reports taken").Inc()
				x.report(o)
			}
		},
		bye:     func() { x.leave(name, p) },
		part:    func(part indexer.Part) { p.part = part },
		ask:     func(q asked) { question = &q },
		holders: func(number uint64, list []router.Holder) { x.asked.end(number, name, list) },
		askHeld: func(q heldQuestion) { q.from = name; held = &q },
		piece:   func(p *piece) { x.gathered.take(name, p) },
	})
	return question, held, err
}

// stream returns our number for another replica's log stream; 0: there are too many.
func (x *Exchange) stream(name string, p *peer, o *router.Outcome) uint64 {
	h := maphash.Comparable(x.seed, [2]any{name, o.Source}) | 1<<63 // our own streams count from 1
	if o.Phase == router.Lost {
		delete(p.streams, h)
		return h
	}
	if _, known := p.streams[h]; !known && len(p.streams) >= mostStream {
		return 0
	}
	p.streams[h] = struct{}{}
	return h
}
