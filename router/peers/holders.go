package peers

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sightline-router/sightline/router"
)

// holdersTimeout limits a question to the replica of another part. An answer takes half a millisecond and saves seconds of prefill. A
// replica that does not answer is soon considered gone (peerTimeout); until then each question to it costs this.
const holdersTimeout = 25 * time.Millisecond

// holderQueries are the unanswered ones, by number.
type holderQueries struct {
	mu      sync.Mutex
	last    uint64
	pending map[uint64]holderQuery
}

type holderQuery struct {
	to     string
	answer chan []router.Holder
}

func (q *holderQueries) add(to string) (number uint64, answer <-chan []router.Holder) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last++
	if q.pending == nil {
		q.pending = make(map[uint64]holderQuery)
	}
	c := make(chan []router.Holder, 1)
	q.pending[q.last] = holderQuery{to, c}
	return q.last, c
}

// end removes a question. If from is the replica that was asked, the answer is passed to the asker.
func (q *holderQueries) end(number uint64, from string, answer []router.Holder) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if one, ok := q.pending[number]; ok && (from == "" || from == one.to) {
		delete(q.pending, number)
		if from != "" {
			one.answer <- answer
		}
	}
}

// AskHolders implements router.Options.AskHolders.
func (x *Exchange) AskHolders(ctx context.Context, locals []uint64) (holders []router.Holder, ok bool) {
	what := "nobody"
	defer func() { x.questions.WithLabelValues(what).Inc() }()
	lines := x.lines.Load()
	if lines == nil {
		return nil, false
	}
	for _, to := range x.holdersOf(locals[0]) {
		number, answer := x.holderQueries.add(to)
		defer x.holderQueries.end(number, "", nil)
		if x.sendOnFirst(*lines, to, appendAsk(messageHead(x.own), number, locals), false) != nil {
			continue
		}
		end, stop := context.WithTimeout(ctx, holdersTimeout)
		defer stop()
		select {
		case holders = <-answer:
			what = "answered"
			return holders, true
		case <-end.Done():
			what = "late"
			return nil, false
		}
	}
	return nil, false
}

// holdersOf returns the replicas that hold the part of a prompt's first block, in random order.
func (x *Exchange) holdersOf(first uint64) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	of := maps.Clone(x.peers)
	maps.DeleteFunc(of, func(_ string, p *peer) bool { return p.part.Of < 2 || !p.part.Holds(first) })
	return slices.Collect(maps.Keys(of))
}
