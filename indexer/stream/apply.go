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
func (f *Feed) apply(m Message) error {
	if f.started && m.Seq != f.next {
		f.forget()
	}
	endRead, err := f.o.Budget.beginRead(f.o.Worker, len(m.Payload))
	if err != nil {
		f.update(func(s *Stats) { s.DecodeErrors++; s.LastError = err.Error() })
		return err
	}
	defer endRead()
	if d, ok := f.o.Decoder.(interface{ Free() }); ok {
		defer d.Free()
	}
	var batch kvevent.Batch
	err = guard.Call(func() (err error) {
		if m.Batch != nil {
			batch = *m.Batch
			return nil
		}
		batch, err = f.o.Decoder.Decode(m.Payload)
		return err
	})
	if err != nil {
		f.panicked(err)
		f.update(func(s *Stats) { s.DecodeErrors++; s.LastError = err.Error() })
		f.noteReadable(err.Error())
		return err
	}
	whole := m.Seq == 0
	if f.started {
		whole = m.Seq == f.next
	} else {
		// Earlier messages were published before anybody listened, and cannot be replayed. An agent without a replay also starts
		// like this beside a new SGLang, whose missed message 0 only says that nothing is held. The numbers do not distinguish
		// that from an engine that has been serving.
		f.partial = !whole
	}
	if snapshot := len(batch.Events) > 0 && batch.Events[0].Kind == kvevent.Cleared; f.started && !whole && !snapshot {
		f.markDoubtful(nil)
	}
	if !f.started || !whole {
		f.first = m.Seq
	}
	f.started, f.next = true, m.Seq+1
	*f.appliedAt(m.Seq) = fingerprint{m.Seq + 1, m.checksum()}
	n := Stats{Batches: 1, Events: uint64(len(batch.Events)), Unknown: batch.Unknown, Bad: batch.Bad, Gaps: batch.Gaps,
		UnknownKeys: batch.UnknownKeys, Unresolved: batch.Unplaced}
	f.publisherPartial = f.publisherPartial || batch.Stands && batch.Partial // before its events, which may name unknown parents
	for events := batch.Events; len(events) > 0; {
		for i := range events {
			f.applyEvent(&events[i], &n)
		}
		events = nil
		if batch.More != nil {
			events = batch.More()
			n.Events += uint64(len(events))
		}
	}
	f.publisherPartial = batch.Stands && batch.Partial
	if !batch.Stands {
		f.partial = f.partial || batch.Partial
	}
	f.upperBound = f.upperBound || batch.UpperBound
	if f.o.Applied != nil {
		f.o.Applied(Position{f.next, f.appliedAt(m.Seq).sum, f.isPartial(), f.upperBound})
	}
	f.settle()
	n.OrphansDropped += f.shareOrphans()
	doubtful := f.inDoubt()
	f.o.Sink.Done(f.isPartial(), f.upperBound)
	first, unread := "", ""
	f.update(func(s *Stats) {
		if batch.Unread != nil && (n.Bad > 0 || s.Events == 0) { // a newer engine may send messages of new types alone
			unread = batch.Unread.Error()
			s.LastError = unread
		}
		if s.UnknownKeys == 0 && n.UnknownKeys > 0 {
			first = fmt.Sprintf("%.40q", batch.UnknownKey)
			s.UnknownKey = first
		}
		s.add(&n)
		if m.Batch != nil {
			s.Backfilled++
		} else if n.Blocks > 0 && m.Epoch == 0 && m.Payload[0]&0xf0 == 0x90 { // an array, which begins with its time stamp
			s.Stored = [2]uint64{m.Seq, f.appliedAt(m.Seq).sum}
		}
		s.Orphans, s.Doubtful = f.orphans.reported, doubtful
		if f.upperBound && s.UpperBound == "" {
			s.UpperBound = cmp.Or(batch.UpperBoundWhy, "its events do not say all that a hit needs")
		}
		s.LastSeq, s.Epoch, s.Partial, s.Away = m.Seq, m.Epoch, f.isPartial(), batch.Away
	})
	f.noteReadable(unread)
	if first != "" && f.o.UnknownKey != nil {
		f.o.UnknownKey(first)
	}
	return nil
}

// applyEvent passes one event to the sink and counts the result.
func (f *Feed) applyEvent(e *kvevent.Event, n *Stats) {
	switch e.Kind {
	case kvevent.Stored:
		f.store(e, n)
	case kvevent.Copied:
		f.copy(e, n)
	case kvevent.Removed:
		f.notifyEvent(e)
		unknown := f.o.Sink.Remove(e.Tier, e.EngineHashes) - f.orphans.removed(e.Tier, e.EngineHashes)
		n.UnknownBlocks += uint64(max(0, unknown))
		if e.Tier == kvevent.GPU {
			f.cutStems(e.EngineHashes)
		}
	case kvevent.Cleared:
		f.clear()
		f.partial = false
	case kvevent.Lost:
		f.markDoubtful(e.EngineHashes)
	case kvevent.GroupStored:
		if e.Spec.Need == kvevent.NeedChunk && f.o.Chunk > 0 {
			e.Spec.Window = f.o.Chunk
		}
		f.notifyEvent(e)
		if x, slot := f.o.Sink.Held(); x != nil {
			dropped, _ := x.StoreGroup(slot, f.form.Size, e)
			n.Unresolved += uint64(dropped)
		}
	case kvevent.GroupRemoved:
		f.notifyEvent(e)
		if x, slot := f.o.Sink.Held(); x != nil {
			_, _ = x.RemoveGroup(slot, e.Group, e.EngineHashes)
		}
	}
}

// forget tells a decoder that remembers what it has reported that this is gone or in doubt.
func (f *Feed) forget() {
	if d, ok := f.o.Decoder.(interface{ Forget() }); ok {
		d.Forget()
	}
}

// notifyEvent passes an event to Options.OnEvent.
func (f *Feed) notifyEvent(e *kvevent.Event) {
	if f.o.OnEvent != nil {
		f.o.OnEvent(e)
	}
}

// store passes a stored event to the sink. Blocks of another size are ignored.
func (f *Feed) store(e *kvevent.Event, n *Stats) {
	if f.o.Stored != nil {
		f.panicked(guard.Call(func() error { f.o.Stored(e); return nil }))
	}
	if e.BlockSize != f.form.Size && !f.takeSize(e.Tier, e.BlockSize) {
		n.OtherBlockSize += uint64(len(e.EngineHashes))
		return
	}
	if e.Tier != kvevent.GPU && e.MediaUnknown {
		f.copy(&kvevent.Event{Kind: kvevent.Copied, Tier: e.Tier, EngineHashes: e.EngineHashes}, n)
		return
	}
	f.notifyEvent(e)
	f.doubtStored(e)
	err := f.o.Sink.Store(e)
	f.form = block.Form{Size: e.BlockSize, Lookahead: e.Lookahead} // after the sink's call, which keeps readers of PendingEvents out
	if x, slot := f.o.Sink.Held(); x != nil {
		x.SetForm(slot, f.form)
	}
	f.compareSize(e.BlockSize, len(e.EngineHashes))
	switch {
	case err == nil:
		n.Blocks += uint64(len(e.EngineHashes))
		f.attachOrphans(e.EngineHashes, n)
	case errors.Is(err, indexer.ErrUnknownParent):
		n.UnknownParents++
		n.OrphansDropped += f.orphans.add(e)
		f.markIncomplete()
	default:
		n.Refused++
		f.update(func(s *Stats) { s.LastError = err.Error() })
	}
}

// copy applies an event of blocks whose content an earlier one gave. vLLM's KV connectors announce offloaded blocks without tokens, or with
// tokens but without media and salt.
func (f *Feed) copy(e *kvevent.Event, n *Stats) {
	f.notifyEvent(e)
	n.Unresolved += uint64(f.o.Sink.Copy(e.Tier, e.EngineHashes))
}

// takeSize makes a block size the one of the rank, as its events have it, unless blocks of a larger one are held: then it is of parts
// of blocks, and takeSize returns false, as it does for other blocks of a lower tier. A larger one replaces what is held.
func (f *Feed) takeSize(tier kvevent.Tier, size int) bool {
	if f.form.Size > 0 && tier != kvevent.GPU {
		return false
	}
	if x, slot := f.o.Sink.Held(); f.form.Size > 0 && (x == nil || x.HeldBlocks(slot) > 0 || f.orphans.reported > 0) {
		if size < f.form.Size {
			return false
		}
		f.clear()
	}
	f.form.Size = size
	return true
}

// compareSize reports whether the rank's block size is the configured one. A single smaller block may be a part of one.
func (f *Feed) compareSize(size, blocks int) {
	want := f.o.BlockSize
	if want == 0 || size == f.comparedSize || size < want && blocks < 2 {
		return
	}
	other := size
	if size == want {
		other = 0
	}
	f.comparedSize = size
	f.update(func(s *Stats) { s.OtherSize = other })
	if other != 0 && f.o.OnOtherBlockSize != nil {
		f.o.OnOtherBlockSize(size)
	}
}

// reportBounds passes the bounds to the sink and the stats when they change outside of a batch.
func (f *Feed) reportBounds() {
	doubtful := f.inDoubt()
	f.o.Sink.Done(f.isPartial(), f.upperBound)
	f.update(func(s *Stats) { s.Partial, s.Orphans, s.Doubtful = f.isPartial(), f.orphans.reported, doubtful })
}
