package stream

import "time"

// Stats has a feed's counters since it started, and its current state.
type Stats struct {
	Batches, Events, Blocks uint64 // applied; Blocks counts stored blocks, including further copies

	Unknown, Bad uint64 // events of an unknown type, and events that could not be read; the rest of their batch was applied

	// Events with a key, or an element at an array's end, that the decoder does not know; they were applied without it.
	UnknownKeys uint64

	Gaps       uint64 // times that messages, or events by the engine's own numbers, were missing
	Unfilled   uint64 // the part of Gaps that could not be filled: what was known is in doubt, or gone
	Restarts   uint64 // new incarnations of the publisher
	Duplicates uint64 // repeated messages
	Drops      uint64 // messages dropped because the queue was full
	Stale      uint64 // messages of an older epoch than the one followed
	Replays    uint64 // replays that were answered
	Backfilled uint64 // the part of Replays that began with what another router holds

	Malformed      uint64 // received data that is not a message
	Strangers      uint64 // connections from elsewhere than the worker
	Panics         uint64 // panics in the source, the decoder or Options.Stored; each costs a connection or a message
	DecodeErrors   uint64 // messages that could not be read
	ReplayErrors   uint64 // replays that failed
	UnknownParents uint64 // stored events whose parent is not held
	UnknownBlocks  uint64 // removed blocks that were not held

	OrphansAttached uint64 // blocks whose parent was not held when they were reported, and is now
	OrphansDropped  uint64 // such blocks that were dropped for lack of room
	DoubtfulDropped uint64 // blocks reported before an unfilled gap that no later event has confirmed
	Stems           uint64 // parents of orphans that requests have revealed
	StemsDropped    uint64 // such parents that did not fit

	Refused        uint64 // stored events that the sink refused for another reason
	Unresolved     uint64 // blocks named by engine hash alone whose content is not known
	OtherBlockSize uint64 // blocks of a smaller size than those held; ignored

	// Partial: the worker may hold more than its events said; the index's matches are a lower bound.
	Partial bool

	UpperBound  string    // why hits need more than the events say (kvevent.Batch.UpperBound); "": they do not
	Orphans     int       // blocks that wait for their parent
	Doubtful    int       // blocks reported before an unfilled gap and not since
	UnknownKey  string    // the first of UnknownKeys, quoted and cut after 40 characters
	Stored      [2]uint64 // number and XXH3-64 of the last message with the engine's stamp that stored blocks; zero: none
	OtherSize   int       // the block size of events, if it is not Options.BlockSize; 0: it is, or none is configured
	Epoch       uint64
	LastSeq     uint64
	Connected   bool
	CaughtUp    bool      // everything available from the publisher since the last connection was applied
	Unreadable  string    // why none of the last messages could be read: their form, or the decoder's error; "": they can be
	Mute        bool      // nothing was received for about Options.Idle, and the publisher did not answer a replay
	Away        bool      // the publisher (an agent) has no connection to its engine
	LastMessage time.Time // when the last message was received
	LastError   string
	Lost        error `json:"-"` // why the source lost its connection last, or has none; nil: it has one
}

// add adds the counters that one batch changes.
func (s *Stats) add(n *Stats) {
	s.Batches += n.Batches
	s.Events += n.Events
	s.Blocks += n.Blocks
	s.Unknown += n.Unknown
	s.Bad += n.Bad
	s.UnknownKeys += n.UnknownKeys
	s.Gaps += n.Gaps
	s.UnknownParents += n.UnknownParents
	s.UnknownBlocks += n.UnknownBlocks
	s.OtherBlockSize += n.OtherBlockSize
	s.Unresolved += n.Unresolved
	s.Refused += n.Refused
	s.OrphansAttached += n.OrphansAttached
	s.OrphansDropped += n.OrphansDropped
	s.Stems += n.Stems
	s.StemsDropped += n.StemsDropped
}

// Counters returns the counters by their names in metrics.
func (s *Stats) Counters() map[string]uint64 {
	return map[string]uint64{
		"batches": s.Batches, "events": s.Events, "blocks": s.Blocks, "unknown": s.Unknown, "unreadable": s.Bad,
		"unknown_keys": s.UnknownKeys, "gaps": s.Gaps, "restarts": s.Restarts,
		"duplicates": s.Duplicates, "dropped": s.Drops, "stale": s.Stale, "replays": s.Replays, "backfilled": s.Backfilled,
		"decode_errors": s.DecodeErrors, "malformed": s.Malformed, "strangers": s.Strangers, "panics": s.Panics,
		"replay_errors": s.ReplayErrors, "unknown_parents": s.UnknownParents, "unknown_blocks": s.UnknownBlocks,
		"refused": s.Refused, "unresolved": s.Unresolved, "other_block_size": s.OtherBlockSize,
		"orphans_attached": s.OrphansAttached, "orphans_dropped": s.OrphansDropped, "parents_shown": s.Stems, "parents_dropped": s.StemsDropped,
		"gaps_unfilled": s.Unfilled, "doubtful_dropped": s.DoubtfulDropped,
	}
}

// Live reports whether the worker's events arrive as they happen, with nothing missing from before.
func (s *Stats) Live() bool {
	return s.Connected && s.CaughtUp && !s.Away && !s.Mute && s.Unreadable == ""
}

// Age returns for how long the worker's events have not been live; 0 if they are. The index's content of the worker is that old.
// Age takes no lock.
func (s *shared) Age(now time.Time) time.Duration {
	since := s.staleSince.Load()
	if since == 0 {
		return 0
	}
	return max(now.Sub(time.Unix(0, since)), 1)
}

// updateStale records when the stream stopped being live. The caller holds mu and has changed stats.
func (s *shared) updateStale() {
	switch live := s.stats.Live(); {
	case live:
		s.staleSince.Store(0)
	case s.staleSince.Load() == 0:
		s.staleSince.Store(time.Now().UnixNano())
	}
}

// Stats returns a copy.
func (s *shared) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// update changes the stats under their lock.
func (s *shared) update(change func(*Stats)) {
	s.mu.Lock()
	change(&s.stats)
	s.updateStale()
	s.mu.Unlock()
}
