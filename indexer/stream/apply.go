package stream

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/mmhash/block"
)

// apply decodes m and passes its events to the sink. Messages missing before it are taken as lost: what was reported before is in
// doubt, and the rank is partial until the publisher clears or sends a snapshot. On an error nothing was done.
func (c *content) apply(m Message) error {
	if c.started && m.Seq != c.next {
		c.forget()
	}
	endRead, err := c.o.Budget.beginRead(c.o.Worker, len(m.Payload))
	if err != nil {
		c.update(func(s *Stats) { s.DecodeErrors++; s.LastError = err.Error() })
		return err
	}
	defer endRead()
	if d, ok := c.o.Decoder.(interface{ Free() }); ok {
		defer d.Free()
	}
	var batch kvevent.Batch
	err = guard.Call(func() (err error) {
		if m.Batch != nil {
			batch = *m.Batch
			return nil
		}
		batch, err = c.o.Decoder.Decode(m.Payload)
		return err
	})
	if err != nil {
		c.panicked(err)
		c.update(func(s *Stats) { s.DecodeErrors++; s.LastError = err.Error() })
		c.noteReadable(err.Error())
		return err
	}
	whole := m.Seq == 0
	if c.started {
		whole = m.Seq == c.next
	} else {
		// Earlier messages were published before anybody listened, and cannot be replayed. An agent without a replay also starts
		// like this beside a new SGLang, whose missed message 0 only says that nothing is held. The numbers do not distinguish
		// that from an engine that has been serving.
		c.partial = !whole
	}
	if snapshot := len(batch.Events) > 0 && batch.Events[0].Kind == kvevent.Cleared; c.started && !whole && !snapshot {
		c.markDoubtful(nil)
	}
	if !c.started || !whole {
		c.first = m.Seq
	}
	c.started, c.next = true, m.Seq+1
	*c.appliedAt(m.Seq) = fingerprint{m.Seq + 1, m.checksum()}
	n := Stats{Batches: 1, Events: uint64(len(batch.Events)), Unknown: batch.Unknown, Bad: batch.Bad, Gaps: batch.Gaps,
		UnknownKeys: batch.UnknownKeys, Unresolved: batch.Unplaced}
	c.publisherPartial = c.publisherPartial || batch.Stands && batch.Partial // before its events, which may name unknown parents
	for events := batch.Events; len(events) > 0; {
		for i := range events {
			c.applyEvent(&events[i], &n)
		}
		events = nil
		if batch.More != nil {
			events = batch.More()
			n.Events += uint64(len(events))
		}
	}
	c.publisherPartial = batch.Stands && batch.Partial
	if !batch.Stands {
		c.partial = c.partial || batch.Partial
	}
	c.upperBound = c.upperBound || batch.UpperBound
	if c.o.Applied != nil {
		c.o.Applied(Position{c.next, c.appliedAt(m.Seq).sum, c.isPartial(), c.upperBound})
	}
	c.settle()
	n.OrphansDropped += c.shareOrphans()
	doubtful := c.inDoubt()
	c.o.Sink.Done(c.isPartial(), c.upperBound)
	unread := ""
	c.update(func(s *Stats) {
		if batch.Unread != nil && (n.Bad > 0 || s.Events == 0) { // a newer engine may send messages of new types alone
			unread = batch.Unread.Error()
			s.LastError = unread
		}
		if s.UnknownKeys == 0 && n.UnknownKeys > 0 {
			s.UnknownKey = fmt.Sprintf("%.40q", batch.UnknownKey)
		}
		s.add(&n)
		if m.Batch != nil {
			s.Backfilled++
		} else if n.Blocks > 0 && m.Epoch == 0 && m.Payload[0]&0xf0 == 0x90 { // an array, which begins with its time stamp
			s.Stored = [2]uint64{m.Seq, c.appliedAt(m.Seq).sum}
		}
		s.Orphans, s.Doubtful = c.orphans.reported, doubtful
		if c.upperBound && s.UpperBound == "" {
			s.UpperBound = cmp.Or(batch.UpperBoundWhy, "its events say too little of hits")
		}
		s.LastSeq, s.Epoch, s.Partial, s.Away = m.Seq, m.Epoch, c.isPartial(), batch.Away
	})
	c.noteReadable(unread)
	return nil
}

// applyEvent passes one event to the sink and counts the result.
func (c *content) applyEvent(e *kvevent.Event, n *Stats) {
	switch e.Kind {
	case kvevent.Stored:
		c.store(e, n)
	case kvevent.Copied:
		c.copy(e, n)
	case kvevent.Removed:
		c.notifyEvent(e)
		unknown := c.o.Sink.Remove(e.Tier, e.EngineHashes) - c.orphans.removed(e.Tier, e.EngineHashes)
		n.UnknownBlocks += uint64(max(0, unknown))
		if e.Tier == kvevent.GPU {
			c.cutStems(e.EngineHashes)
		}
	case kvevent.Cleared:
		c.clear()
		c.partial = false
	case kvevent.Lost:
		c.markDoubtful(e.EngineHashes)
	case kvevent.GroupStored:
		if e.Spec.Need == kvevent.NeedChunk && c.o.Chunk > 0 {
			e.Spec.Window = c.o.Chunk
		}
		c.notifyEvent(e)
		if x, slot := c.o.Sink.Held(); x != nil {
			dropped, _ := x.StoreGroup(slot, c.form.Size, e)
			n.Unresolved += uint64(dropped)
		}
	case kvevent.GroupRemoved:
		c.notifyEvent(e)
		if x, slot := c.o.Sink.Held(); x != nil {
			_, _ = x.RemoveGroup(slot, e.Group, e.EngineHashes)
		}
	}
}

// forget tells a decoder that remembers what it has reported that this is gone or in doubt.
func (c *content) forget() {
	if d, ok := c.o.Decoder.(interface{ Forget() }); ok {
		d.Forget()
	}
}

// notifyEvent passes an event to Options.OnEvent.
func (c *content) notifyEvent(e *kvevent.Event) {
	if c.o.OnEvent != nil {
		c.o.OnEvent(e)
	}
}

// store passes a stored event to the sink. Blocks of another size are ignored.
func (c *content) store(e *kvevent.Event, n *Stats) {
	if c.o.Stored != nil {
		c.panicked(guard.Call(func() error { c.o.Stored(e); return nil }))
	}
	if e.BlockSize != c.form.Size && !c.takeSize(e.Tier, e.BlockSize) {
		n.OtherBlockSize += uint64(len(e.EngineHashes))
		return
	}
	if e.Tier != kvevent.GPU && e.MediaUnknown {
		c.copy(&kvevent.Event{Kind: kvevent.Copied, Tier: e.Tier, EngineHashes: e.EngineHashes}, n)
		return
	}
	c.notifyEvent(e)
	c.doubtStored(e)
	err := c.o.Sink.Store(e)
	c.form = block.Form{Size: e.BlockSize, Lookahead: e.Lookahead} // after the sink's call, which keeps readers of PendingEvents out
	if x, slot := c.o.Sink.Held(); x != nil {
		x.SetForm(slot, c.form)
	}
	c.compareSize(e.BlockSize, len(e.EngineHashes))
	switch {
	case err == nil:
		n.Blocks += uint64(len(e.EngineHashes))
		c.attachOrphans(e.EngineHashes, n)
	case errors.Is(err, indexer.ErrUnknownParent):
		n.UnknownParents++
		n.OrphansDropped += c.orphans.add(e)
		c.markIncomplete()
	default:
		n.Refused++
		c.update(func(s *Stats) { s.LastError = err.Error() })
	}
}

// copy applies an event of blocks whose content an earlier one gave. vLLM's KV connectors announce offloaded blocks without tokens, or with
// tokens but without media and salt.
func (c *content) copy(e *kvevent.Event, n *Stats) {
	c.notifyEvent(e)
	n.Unresolved += uint64(c.o.Sink.Copy(e.Tier, e.EngineHashes))
}

// takeSize makes a block size the one of the rank, as its events have it, unless blocks of a larger one are held: then it is of parts
// of blocks, and takeSize returns false, as it does for other blocks of a lower tier. A larger one replaces what is held.
func (c *content) takeSize(tier kvevent.Tier, size int) bool {
	if c.form.Size > 0 && tier != kvevent.GPU {
		return false
	}
	if x, slot := c.o.Sink.Held(); c.form.Size > 0 && (x == nil || x.HeldBlocks(slot) > 0 || c.orphans.reported > 0) {
		if size < c.form.Size {
			return false
		}
		c.clear()
	}
	c.form.Size = size
	return true
}

// compareSize reports whether the rank's block size is the configured one. A single smaller block may be a part of one.
func (c *content) compareSize(size, blocks int) {
	want := c.o.BlockSize
	if want == 0 || size == c.comparedSize || size < want && blocks < 2 {
		return
	}
	other := size
	if size == want {
		other = 0
	}
	c.comparedSize = size
	c.update(func(s *Stats) { s.OtherSize = other })
}

// reportBounds passes the bounds to the sink and the stats when they change outside of a batch.
func (c *content) reportBounds() {
	doubtful := c.inDoubt()
	c.o.Sink.Done(c.isPartial(), c.upperBound)
	c.update(func(s *Stats) { s.Partial, s.Orphans, s.Doubtful = c.isPartial(), c.orphans.reported, doubtful })
}
