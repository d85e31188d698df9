package peers

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sightline-router/sightline/internal/retry"
)

// A replica that joins a worker late, when the worker cannot replay everything any more, asks the other replicas for all that the
// worker holds. An answer comes in pieces, in order, since messages are limited in size. This package does not interpret its
// content.
//
//	RequestHeld ─ askHeld: worker, rank ─▶ Receive ─▶ queue ─▶ answerHeldRequests: Exchange.Held ─ piece, piece … ─▶ Receive ─▶ RequestHeld
const (
	MostHeld         = 32 << 20 // bytes of an answer: about 1.5 million blocks
	maxHeldTransfers = 2        // answers received at once
	maxHeldQueued    = 4        // questions of others that wait, as many for reports; further ones are answered with "not held"
	pieceBytes       = targetBytes
	pieceTime        = time.Second           // without a piece for this long the answer is given up
	answerTime       = 5 * time.Second       // and if it has not come to its end by then
	askTime          = 2 * answerTime        // for asking all replicas
	piecePause       = time.Millisecond      // between two pieces, so that messages for decisions go first
	discoveryTime    = 3 * time.Second       // after the start, during which other replicas may not be known yet
	discoveryPoll    = 50 * time.Millisecond // interval of checking for other replicas until then
)

var errHeldLate = errors.New("another replica's answer was cut off")

// ErrTooLarge: what is held does not fit into an answer.
var ErrTooLarge = errors.New("more than 32 MiB are held")

// heldTransfers tracks the answers that are being received, by question.
type heldTransfers struct {
	mu      sync.Mutex
	last    uint64
	pending map[uint64]*heldTransfer
}

// heldTransfer is what has been received of one answer.
type heldTransfer struct {
	from     string
	most     int // bytes
	received []byte
	arrived  chan bool // a piece has come; false: it was the last
}

// heldRequest is another replica's question.
type heldRequest struct {
	from   string
	number uint64
	worker string
	rank   int
}

// piece is a part of an answer. total is 0 if the replica does not have the answer.
type piece struct {
	number    uint64
	at, total int
	bytes     []byte
}

// RequestHeld asks the other replicas for all that they hold for a worker's rank (-1: the worker has no ranks), one after another in
// random order, so that one that never finishes is not always the first. The result has the form of Exchange.Held; nil if no replica
// has it. The error says that an answer was incomplete or ctx ended.
func (x *Exchange) RequestHeld(ctx context.Context, worker string, rank int) (held []byte, err error) {
	what := "nobody"
	defer func() { x.countHandover(worker, what) }()
	select {
	case x.transferSlots <- struct{}{}:
		defer func() { <-x.transferSlots }()
	case <-ctx.Done():
		what = "late"
		return nil, ctx.Err()
	}
	for len(x.sameSecret()) == 0 && time.Since(x.startedAt) < discoveryTime {
		if !retry.Sleep(ctx, discoveryPoll) {
			return nil, ctx.Err()
		}
	}
	line := x.line.Load()
	if line == nil {
		return nil, nil
	}
	ctx, stop := context.WithTimeout(ctx, askTime)
	defer stop()
	for _, to := range x.sameSecret() {
		if ctx.Err() != nil {
			break
		}
		held, err = x.requestHeldFrom(ctx, *line, heldRequest{from: to, worker: worker, rank: rank}, MostHeld)
		if err != nil {
			what = "late"
		} else if held != nil {
			what = "taken"
			return held, nil
		}
	}
	return nil, err
}

// mostReport limits another replica's report, in bytes.
const mostReport = 256 << 10

// OfReport begins the worker's name in a question for a report.
const OfReport = "\x00report "

// RequestReports asks all other replicas at once for their reports of some range, as text, until ctx ends. There is one for each; nil: it
// did not answer.
func (x *Exchange) RequestReports(ctx context.Context, of string) [][]byte {
	x.mu.Lock()
	names := slices.Collect(maps.Keys(x.peers))
	x.mu.Unlock()
	line, list := x.line.Load(), make([][]byte, len(names))
	if line == nil || len(OfReport)+len(of) > maxText {
		return list
	}
	var all sync.WaitGroup
	for i, to := range names {
		all.Go(func() {
			list[i], _ = x.requestHeldFrom(ctx, *line, heldRequest{from: to, worker: OfReport + of, rank: -1}, mostReport)
		})
	}
	all.Wait()
	return list
}

// watchNewReplicas calls OnNewReplica for each signal on came, until ctx ends.
func (x *Exchange) watchNewReplicas(ctx context.Context, came <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-came:
			if x.OnNewReplica != nil {
				x.OnNewReplica(ctx)
			}
		}
	}
}

// sameSecret returns the replicas whose hashes have the same key, in random order.
func (x *Exchange) sameSecret() (names []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name, p := range x.peers {
		if x.Secret.Secret == nil || p.key == x.Secret.Key().ID {
			names = append(names, name)
		}
	}
	rand.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names
}

// requestHeldFrom asks one replica.
func (x *Exchange) requestHeldFrom(ctx context.Context, line Line, q heldRequest, most int) ([]byte, error) {
	g, one := &x.transfers, &heldTransfer{from: q.from, most: most, arrived: make(chan bool, 1)}
	g.mu.Lock()
	g.last++
	q.number = g.last
	g.pending[q.number] = one
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		delete(g.pending, q.number)
		g.mu.Unlock()
	}()
	if line.Send(q.from, appendHeldRequest(messageHead(x.own), &q)) != nil {
		return nil, nil
	}
	late := time.After(answerTime)
	for {
		select {
		case more := <-one.arrived:
			if !more {
				return one.received, nil
			}
		case <-time.After(pieceTime):
			return nil, errHeldLate
		case <-late:
			return nil, errHeldLate
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// addPiece adds a piece to its answer. A piece that does not fit is ignored, so the answer times out.
func (g *heldTransfers) addPiece(from string, p *piece) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.pending[p.number]
	if one == nil || one.from != from || p.at != len(one.received) || p.total > one.most || p.at+len(p.bytes) > p.total ||
		len(p.bytes) == 0 && p.total > 0 {
		return
	}
	one.received = append(one.received, p.bytes...)
	more := len(one.received) < p.total
	if !more {
		delete(g.pending, p.number) // got is read now and must not change
	}
	select {
	case <-one.arrived: // drop the signal of the previous piece, not yet received
	default:
	}
	one.arrived <- more // does not block: nothing else sends on it
}

// ofLearned begins the outcome's label if what requests taught is transferred, which belongs to no worker.
const ofLearned = "learned "

// countHandover counts a transfer by its outcome.
func (x *Exchange) countHandover(worker, what string) {
	if strings.HasPrefix(worker, OfReport) {
		return
	}
	if worker == "" {
		what = ofLearned + what
	}
	x.handovers.WithLabelValues(what).Inc()
}

// queueHeldRequest queues another replica's question. Those for reports wait apart, so that neither kind delays the other.
func (x *Exchange) queueHeldRequest(line Line, q heldRequest) {
	queue := x.heldRequests
	if strings.HasPrefix(q.worker, OfReport) {
		queue = x.reportsAsked
	}
	select {
	case queue <- q:
	default:
		x.countHandover(q.worker, "busy")
		_ = line.Send(q.from, appendPiece(messageHead(x.own), &piece{number: q.number}))
	}
}

// answerHeldRequests answers the questions of a queue until ctx ends.
func (x *Exchange) answerHeldRequests(ctx context.Context, line Line, queue <-chan heldRequest) {
	for {
		select {
		case <-ctx.Done():
			return
		case q := <-queue:
			var held []byte
			var err error
			if x.Held != nil {
				held, err = x.Held(ctx, q.worker, q.rank)
			}
			what := "told"
			if errors.Is(err, ErrTooLarge) || len(held) > MostHeld {
				what, held = "too large", nil
			} else if held == nil {
				what = "not held"
			}
			x.countHandover(q.worker, what)
			x.sendHeld(ctx, line, &q, held)
		}
	}
}

// sendHeld sends an answer. A piece that the line refuses is sent again for as long as the other replica waits.
func (x *Exchange) sendHeld(ctx context.Context, line Line, q *heldRequest, held []byte) {
	for at, failed := 0, time.Duration(0); ctx.Err() == nil; {
		end := min(at+pieceBytes, len(held))
		err := line.Send(q.from, appendPiece(messageHead(x.own), &piece{q.number, at, len(held), held[at:end]}))
		if err == nil {
			at, failed = end, 0
			if at == len(held) {
				return
			}
		} else {
			failed += piecePause
			if failed > pieceTime {
				return
			}
		}
		time.Sleep(piecePause)
	}
}
