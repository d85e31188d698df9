package stream

// Doubt: messages were lost that nobody has any more. What was told before is mostly still held, and part of it may not be:
// what the lost messages removed, or all of it if one of them was a Clear. So it stays, in doubt (Doubt, for the router), until
// later events settle it block by block:
//
//	names it as a parent  it is held, and all before it (engines evict from the ends of prompts)
//	stores it             it was not held, and is now
//	removes it            it was held, and is not now
//
// When most of what events name had to be stored again, everything went: the rest is dropped. So is what nothing has settled
// after doubtTime, or when a resync finds nobody to ask. Cost: about 50 bytes a doubtful block, and its listing at the gap.

import (
	"maps"
	"slices"
	"time"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

const (
	// doubtTime is how long what was told before a gap may wait for events that settle it; a router's credit for it has ended
	// by then.
	doubtTime = 5 * time.Minute
	// maxDoubtful bounds the blocks of a rank that may be in doubt: beyond, a gap clears.
	maxDoubtful = 1 << 20
	// enoughStored is how many events that store doubtful blocks anew show that all is gone, where they are the most.
	enoughStored = 8
)

// doubt is a rank's since its first gap that is not settled. The zero value is none.
type doubt struct {
	since        time.Time
	before       map[uint64]uint64 // doubtful blocks by engine hash: the block before, 0 if there is none
	named, again int               // events that named doubtful parents, and that stored doubtful blocks again
}

// lose is called when messages are missing that cannot be had: what is held is in doubt, or cleared where the sink cannot list it.
func (f *Feed) lose() {
	if f.o.Held != nil {
		f.tell(&kvevent.Event{Kind: kvevent.Lost})
	}
	f.update(func(s *Stats) {
		if !f.replayOwed {
			s.Unfilled++
		}
		s.OrphansDropped += uint64(f.orphans.told)
	})
	f.orphans.clear() // the removal of what waits may be among what is lost
	if f.o.Held == nil {
		f.clearAll()
		return
	}
	list, err := f.o.Held()
	if err != nil || len(list) > maxDoubtful {
		f.clearAll()
		return
	}
	d := &f.doubt
	d.before = make(map[uint64]uint64, len(list))
	for _, b := range list {
		if b.Copies == [kvevent.Tiers]uint8{} {
			continue
		}
		for tier, copies := range b.Copies { // further ones may have gone, and one removal must do
			for range max(1, copies) - 1 {
				f.o.Sink.Remove(kvevent.Tier(tier), []uint64{b.EngineHash})
			}
		}
		before := uint64(0)
		if b.Parent >= 0 {
			before = list[b.Parent].EngineHash
		}
		d.before[b.EngineHash] = before
	}
	if d.since.IsZero() { // a later gap does not prolong the doubt
		d.since = time.Now()
		f.doubtSince.Store(d.since.UnixNano())
	}
	f.partial = true
	f.settle()
	f.reportBounds()
}

// doubtOnly settles all but the blocks that an agent still doubts; none: it doubts all.
func (f *Feed) doubtOnly(engineHashes []uint64) {
	if len(engineHashes) == 0 {
		return
	}
	only := make(map[uint64]uint64, len(engineHashes))
	for _, h := range engineHashes {
		if before, ok := f.doubt.before[h]; ok {
			only[h] = before
		}
	}
	f.doubt.before = only
	f.settle()
}

// Rest is what the sink does not hold of what the feed knows, as events: which blocks are in doubt, and those that wait for their
// parent. It is for a sink that keeps the feed out meanwhile, from a batch's first call to its Done.
func (f *Feed) Rest() (out []kvevent.Event) {
	if d := &f.doubt; len(d.before) > 0 {
		out = append(out, kvevent.Event{Kind: kvevent.Lost, EngineHashes: slices.Collect(maps.Keys(d.before))})
	}
	return append(out, f.orphans.events(f.o.BlockSize)...)
}

// doubtStored settles what a stored event tells of doubtful blocks, before it is applied.
func (f *Feed) doubtStored(e *kvevent.Event) {
	d := &f.doubt
	if len(d.before) == 0 {
		return
	}
	if e.HasParent {
		known := len(d.before)
		for h, ok := e.Parent, true; ok; {
			var before uint64
			if before, ok = d.before[h]; ok {
				delete(d.before, h)
				h = before
			}
		}
		if len(d.before) < known {
			d.named++
		}
	}
	known := len(d.before)
	for _, h := range e.EngineHashes {
		if _, ok := d.before[h]; ok {
			delete(d.before, h)
			f.forget([]uint64{h})
		}
	}
	if len(d.before) < known {
		d.again++
	}
	if d.again >= enoughStored && d.again > d.named {
		f.dropDoubtful()
	}
}

// doubtRemoved settles blocks that were removed.
func (f *Feed) doubtRemoved(engineHashes []uint64) {
	if len(f.doubt.before) > 0 {
		for _, h := range engineHashes {
			delete(f.doubt.before, h)
		}
	}
}

// settle ends the doubt when nothing is doubtful any more, or its time is over.
func (f *Feed) settle() {
	d := &f.doubt
	switch {
	case d.since.IsZero():
	case len(d.before) == 0:
		f.endDoubt()
	case time.Since(d.since) >= f.o.doubtTime:
		f.dropDoubtful()
	}
}

// dropDoubtful removes everything that is in doubt.
func (f *Feed) dropDoubtful() {
	list := make([]uint64, 0, len(f.doubt.before))
	for h := range f.doubt.before {
		list = append(list, h)
	}
	f.forget(list)
	f.endDoubt()
	f.update(func(s *Stats) { s.Doubtful, s.DoubtfulDropped = 0, s.DoubtfulDropped+uint64(len(list)) })
}

// forget removes all copies of blocks from the sink.
func (f *Feed) forget(engineHashes []uint64) {
	f.cutStems(engineHashes)
	for tier := range kvevent.Tier(kvevent.Tiers) {
		for copies := 0; copies <= maxCopies && f.o.Sink.Remove(tier, engineHashes) < len(engineHashes); copies++ {
		}
	}
}

// maxCopies is more than a sink counts of one block.
const maxCopies = 256

func (f *Feed) endDoubt() {
	f.doubt = doubt{}
	f.doubtSince.Store(0)
}

// Doubt is for how long what the index holds of the worker has been in doubt, though its events come; 0: it is not. It takes
// no lock.
func (f *Feed) Doubt(now time.Time) time.Duration {
	since := f.doubtSince.Load()
	if since == 0 {
		return 0
	}
	return max(now.Sub(time.Unix(0, since)), 1)
}
