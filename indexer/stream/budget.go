package stream

import (
	"context"
	"errors"

	"github.com/sightline-router/sightline/internal/fair"
)

// Budget is the memory for what workers send, shared by the feeds of all their ranks: the worker says how many it has. No worker can
// take all of it. Safe for concurrent use.
type Budget struct {
	queued  *fair.Room // bytes of messages that wait for their feed
	orphans *fair.Room // bytes of blocks that wait for their parent
	read    *fair.Room // bytes of large messages that are decoded and applied, in turns
}

const (
	allQueued  = 256 << 20
	allOrphans = 128 << 20
	allRead    = 256 << 20

	messageBytes = 128      // what a message counts for besides its payload
	orphanBytes  = 80       // what a block counts for
	largeMessage = 64 << 10 // smaller ones are read without a turn
	readWaiting  = 1 << 14  // feeds that wait for a turn
	readTimes    = 8        // what a message counts for while it is read, as a multiple of its payload
)

var errNoTurn = errors.New("too many large messages wait to be read")

// NewBudget returns a Budget of 640 MiB in all.
func NewBudget() *Budget {
	return &Budget{queued: fair.Shared(allQueued, 0), orphans: fair.Shared(allOrphans, 0), read: fair.New(allRead, readWaiting)}
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
func (f *Feed) shareOrphans() (dropped uint64) {
	for f.o.Budget != nil {
		more := int64(f.orphans.reported)*orphanBytes - f.orphanBytes
		switch {
		case more <= 0:
			f.o.Budget.orphans.Give(f.o.Worker, -more)
		case !f.o.Budget.orphans.TryTake(f.o.Worker, more):
			dropped += uint64(len(f.orphans.cut(f.orphans.oldest)))
			continue
		}
		f.orphanBytes += more
		break
	}
	return dropped
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
