package stream

import "time"

// Stats is what a feed has seen since it started.
type Stats struct {
	Batches, Events, Blocks uint64 // applied; Blocks: stored, copies included

	Unknown, Bad uint64 // events of unknown type; events that could not be read. The rest of their batch was used

	Gaps       uint64 // messages, or events by the engine's own numbers, were missing
	Restarts   uint64 // the publisher started anew
	Duplicates uint64 // messages seen twice
	Drops      uint64 // messages that found the queue full
	Stale      uint64 // messages of a publisher that a newer one has replaced
	Replays    uint64 // answered

	Malformed      uint64 // no messages at all
	Panics         uint64 // stopped, in the source, the decoder or what Stored calls
	DecodeErrors   uint64 // messages that could not be read
	ReplayErrors   uint64
	UnknownParents uint64 // stored events behind a block that is not held
	UnknownBlocks  uint64 // removals of blocks that are not held
	Refused        uint64 // stored events that the index would not have for another reason
	Unresolved     uint64 // blocks told by engine hash alone whose content is not known
	OtherBlockSize uint64 // blocks of another size than BlockSize; left out

	// Partial: the worker may hold more than it was seen to store; what the index says is a lower bound.
	Partial bool

	OtherSize   int // the last other one that events carried; 0: none did
	Epoch       uint64
	LastSeq     uint64
	Connected   bool
	CaughtUp    bool      // since it was connected last, all that the publisher could be asked for has been taken
	Away        bool      // the publisher itself has lost its engine
	LastMessage time.Time // received
	LastError   string
}

// Live tells whether the worker's events come as they happen, with nothing owed from before.
func (s *Stats) Live() bool { return s.Connected && s.CaughtUp && !s.Away }

// Age is how long the worker's events have not been live: while it grows, what the index says of the worker is of that
// long ago. 0: they are. It takes no lock.
func (f *Feed) Age(now time.Time) time.Duration {
	since := f.staleSince.Load()
	if since == 0 {
		return 0
	}
	return max(now.Sub(time.Unix(0, since)), 1)
}

// updateStale notes when the stream stopped being live. The caller holds mu and has changed stats.
func (f *Feed) updateStale() {
	switch live := f.stats.Live(); {
	case live:
		f.staleSince.Store(0)
	case f.staleSince.Load() == 0:
		f.staleSince.Store(time.Now().UnixNano())
	}
}

// Stats returns a copy.
func (f *Feed) Stats() Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

func (f *Feed) update(change func(*Stats)) {
	f.mu.Lock()
	change(&f.stats)
	f.updateStale()
	f.mu.Unlock()
}
