package stream

import (
	"context"
	"errors"

	"github.com/sightline-router/sightline/internal/fair"
)

// Budget is the memory for what workers send, shared by the feeds of all their ranks: the worker says how many it has. No worker can
// take all of it. Safe for concurrent use.
type Budget struct {
	received *fair.Room // bytes of large messages that are received
	queued   *fair.Room // bytes of messages that wait for their feed
	orphans  *fair.Room // bytes of blocks that wait for their parent
	read     *fair.Room // bytes of large messages that are decoded and applied, in turns
}

const (
	allReceived = 64 << 20
	allQueued   = 256 << 20
	allOrphans  = 128 << 20
	allRead     = 256 << 20

	messageBytes = 128      // what a message counts for besides its payload
	orphanBytes  = 80       // what a block counts for
	largeMessage = 64 << 10 // smaller ones are read without a turn
	readWaiting  = 1 << 14  // feeds that wait for a turn
	readTimes    = 16       // what a message counts for while it is read, as a multiple of its payload
)

var errNoTurn = errors.New("too many large messages wait to be read")

// NewBudget returns a Budget of 704 MiB in all.
func NewBudget() *Budget {
	return &Budget{received: fair.Shared(allReceived, readWaiting), queued: fair.Shared(allQueued, 0),
		orphans: fair.Shared(allOrphans, 0), read: fair.New(allRead, readWaiting)}
}

// Received is the room for large messages that are received of a worker.
func (b *Budget) Received(worker fair.Client) fair.Hold {
	if b == nil {
		return fair.Hold{}
	}
	return fair.Hold{Room: b.received, For: worker}
}

// beginRead waits for the turn of a message of this size, and returns what ends it.
func (b *Budget) beginRead(c fair.Client, size int) (end func(), err error) {
	if b == nil || size < largeMessage {
		return func() {}, nil
	}
	need := min(int64(size)*readTimes, allRead)
	if !b.read.Take(context.Background(), c, need, need) {
		return nil, errNoTurn
	}
	return func() { b.read.Give(c, need) }, nil
}

// shareOrphans accounts for the blocks that wait for their parent, and drops the oldest for which there is no room.
func (c *content) shareOrphans() (dropped uint64) {
	for c.o.Budget != nil {
		more := int64(c.orphans.reported)*orphanBytes - c.orphanBytes
		switch {
		case more <= 0:
			c.o.Budget.orphans.Give(c.o.Worker, -more)
		case !c.o.Budget.orphans.TryTake(c.o.Worker, more):
			dropped += uint64(len(c.orphans.cut(c.orphans.oldest)))
			continue
		}
		c.orphanBytes += more
		break
	}
	return dropped
}

// reserve is the room for what is kept about blocks that the sink holds: memory of the index, shared by workers. An agent's is its own.
func (c *content) reserve(n int64) bool {
	s, ok := c.o.Sink.(interface{ Reserve(n int64) bool })
	return !ok || s.Reserve(n)
}

// giveBack returns what the feed has of the budget. Nothing may run any more.
func (f *Feed) giveBack() {
	f.orphans.clear()
	f.shareOrphans()
	for _, m := range f.queue.items {
		if m != nil {
			f.queue.give(len(m.Payload))
		}
	}
	if f.queue.last != nil {
		f.queue.give(len(f.queue.last))
	}
	f.queue = queue{}
}
