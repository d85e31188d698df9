package peers

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sightline-router/sightline/router"
)

// patience is how long a question to a replica of another part may take. An answer is there in half a millisecond, and what it spares
// is seconds of prefill; who does not answer is soon gone (silent), and until then its questions cost this.
const patience = 25 * time.Millisecond

// questions are those on their way, by number.
type questions struct {
	mu   sync.Mutex
	last uint64
	open map[uint64]question
}

type question struct {
	to     string
	answer chan []router.Holder
}

func (q *questions) ask(to string) (number uint64, answer <-chan []router.Holder) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.last++
	if q.open == nil {
		q.open = make(map[uint64]question)
	}
	c := make(chan []router.Holder, 1)
	q.open[q.last] = question{to, c}
	return q.last, c
}

// end takes a question away. Its answer, if it is one, goes to who asked.
func (q *questions) end(number uint64, from string, answer []router.Holder) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if one, ok := q.open[number]; ok && (from == "" || from == one.to) {
		delete(q.open, number)
		if from != "" {
			one.answer <- answer
		}
	}
}

// AskHolders is router.Options.AskHolders.
func (x *Exchange) AskHolders(ctx context.Context, locals []uint64) (holders []router.Holder, ok bool) {
	what := "nobody"
	defer func() { x.questions.WithLabelValues(what).Inc() }()
	lines := x.lines.Load()
	if lines == nil {
		return nil, false
	}
	for _, to := range x.holdersOf(locals[0]) {
		number, answer := x.asked.ask(to)
		defer x.asked.end(number, "", nil)
		if x.say(*lines, to, appendAsk(head(x.own), number, locals), false) != nil {
			continue
		}
		end, stop := context.WithTimeout(ctx, patience)
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

// holdersOf are the replicas of the part that a prompt's first block is in, in no order.
func (x *Exchange) holdersOf(first uint64) []string {
	x.mu.Lock()
	defer x.mu.Unlock()
	of := maps.Clone(x.peers)
	maps.DeleteFunc(of, func(_ string, p *peer) bool { return p.part.Of < 2 || !p.part.Holds(first) })
	return slices.Collect(maps.Keys(of))
}
