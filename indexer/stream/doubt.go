package stream

// Doubt: messages were lost for good. What was reported before is mostly still held, but part of it may not be: what the lost
// messages removed, or all of it if one of them was a Clear. So it stays, in doubt (Doubt, for the router), until later events
// settle it block by block; the index tracks the doubtful blocks (indexer.Index.Doubt), at no cost for a gap. An event that
//
//	names it as a parent  shows that it is held, and all before it (engines evict from the ends of prompts)
//	stores it             shows that it was not held, and is now
//	removes it            removes it like any block
//
// If most of what events name had to be stored again, everything was gone: the rest is dropped. So is what nothing has settled
// after doubtTime, or when a resync finds no source that can replay.

import (
	"time"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

const (
	// doubtTime is how long what was reported before a gap may wait for events that settle it; by then a router does not count it
	// any more.
	doubtTime = 5 * time.Minute
	// restoredToDropAll is how many events that store doubtful blocks again show that all are gone, if they are the majority.
	restoredToDropAll = 8
)

// doubt is a rank's state since its first unsettled gap. The zero value is none.
type doubt struct {
	since        time.Time
	named, again int // events that named doubtful parents, and that stored doubtful blocks again
}

// markDoubtful is called when missing messages cannot be recovered. It puts the held blocks with these engine hashes in doubt; nil means
// all. If the sink has no index, everything is cleared.
func (c *content) markDoubtful(engineHashes []uint64) {
	x, slot := c.o.Sink.Held()
	if x != nil {
		c.notifyEvent(&kvevent.Event{Kind: kvevent.Lost})
	}
	c.update(func(s *Stats) {
		if !c.replayOwed {
			s.Unfilled++
		}
		s.OrphansDropped += uint64(c.orphans.reported)
	})
	c.orphans.clear() // the lost messages may have removed what waits
	if x == nil {
		c.clearAll()
		return
	}
	x.Doubt(slot, engineHashes)
	if c.doubt.since.IsZero() { // a later gap does not prolong the doubt
		c.doubt.since = time.Now()
		c.doubtSince.Store(c.doubt.since.UnixNano())
	}
	c.partial = true
	c.settle()
	c.reportBounds()
}

// inDoubt returns the number of doubtful blocks.
func (c *content) inDoubt() int {
	if c.doubt.since.IsZero() {
		return 0
	}
	x, slot := c.o.Sink.Held()
	return x.InDoubt(slot)
}

// doubtStored settles doubtful blocks by a stored event, before it is applied.
func (c *content) doubtStored(e *kvevent.Event) {
	d := &c.doubt
	if d.since.IsZero() {
		return
	}
	if x, slot := c.o.Sink.Held(); e.HasParent && x.Confirm(slot, e.Parent) > 0 {
		d.named++
	}
	if c.dropDoubtful(e.EngineHashes) > 0 {
		d.again++
	}
	if d.again >= restoredToDropAll && d.again > d.named {
		c.dropAllDoubtful()
	}
}

// settle ends the doubt when nothing is doubtful any more, or its time is over.
func (c *content) settle() {
	switch {
	case c.doubt.since.IsZero():
	case c.inDoubt() == 0:
		c.endDoubt()
	case time.Since(c.doubt.since) >= c.o.doubtTime:
		c.dropAllDoubtful()
	}
}

// dropAllDoubtful removes everything that is in doubt.
func (c *content) dropAllDoubtful() {
	x, slot := c.o.Sink.Held()
	n := c.dropDoubtful(x.Doubtful(slot))
	c.endDoubt()
	c.update(func(s *Stats) { s.Doubtful, s.DoubtfulDropped = 0, s.DoubtfulDropped+uint64(n) })
}

// dropDoubtful removes those of some blocks that are in doubt.
func (c *content) dropDoubtful(engineHashes []uint64) (n int) {
	x, slot := c.o.Sink.Held()
	dropped := x.DropDoubtful(slot, engineHashes)
	c.cutStems(dropped)
	return len(dropped)
}

func (c *content) endDoubt() {
	c.doubt = doubt{}
	c.doubtSince.Store(0)
}

// Doubt returns for how long the index's content of the worker has been in doubt although its events come; 0: it is not. It takes
// no lock.
func (s *shared) Doubt(now time.Time) time.Duration {
	since := s.doubtSince.Load()
	if since == 0 {
		return 0
	}
	return max(now.Sub(time.Unix(0, since)), 1)
}
