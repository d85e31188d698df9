package stream

import (
	"errors"

	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/internal/guard"
)

// apply decodes m and passes its events to the sink. Messages missing before it are taken as lost: everything is cleared
// first, and the rank is partial until the publisher clears or sends a snapshot. On an error nothing was done.
func (f *Feed) apply(m Message) error {
	var batch kvevent.Batch
	err := guard.Call(func() (err error) { batch, err = f.o.Decoder.Decode(m.Payload); return err })
	if err != nil {
		f.panicked(err)
		f.update(func(s *Stats) { s.DecodeErrors++; s.LastError = err.Error() })
		return err
	}
	whole := m.Seq == 0
	if f.started {
		whole = m.Seq == f.next
	} else {
		f.partial = !whole
	}
	if f.started && !whole {
		f.clearAll()
	}
	f.started, f.next = true, m.Seq+1
	*f.appliedAt(m.Seq) = fingerprint{m.Seq + 1, xxh3.Hash(m.Payload)}

	blocks, unknownParents, unknownBlocks, otherSize, unresolved := 0, 0, 0, 0, 0
	size := f.o.BlockSize
	for i := range batch.Events {
		e := &batch.Events[i]
		switch e.Kind {
		case kvevent.Stored:
			if f.o.Stored != nil {
				f.panicked(guard.Call(func() error { f.o.Stored(e); return nil }))
			}
			if size == 0 {
				size, f.o.BlockSize = e.BlockSize, e.BlockSize
			}
			if e.BlockSize != size {
				otherSize += len(e.EngineHashes)
				f.otherSize(e.BlockSize)
				continue
			}
			if e.Tier != kvevent.GPU && e.MediaUnknown {
				unresolved += f.storeCopies(e)
				continue
			}
			if err := f.o.Sink.Store(e); err == nil {
				f.offload.stored(e)
				blocks += len(e.EngineHashes)
			} else if errors.Is(err, indexer.ErrUnknownParent) {
				unknownParents++
			} else {
				f.update(func(s *Stats) { s.Refused++; s.LastError = err.Error() })
			}
		case kvevent.Copied:
			unresolved += f.storeCopies(e)
		case kvevent.Removed:
			unknownBlocks += f.o.Sink.Remove(e.Tier, e.EngineHashes)
			f.offload.removed(e)
		case kvevent.Cleared:
			f.o.Sink.Clear()
			f.offload.clear()
			f.partial = false
		}
	}
	if batch.Partial {
		f.partial = true
	}
	f.recurrent = f.recurrent || batch.Recurrent
	f.o.Sink.Done(f.partial, f.recurrent)
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &f.stats
	s.Batches++
	s.Events += uint64(len(batch.Events))
	s.Blocks += uint64(blocks)
	s.Unknown += batch.Unknown
	s.Bad += batch.Bad
	s.Gaps += batch.Gaps
	s.UnknownParents += uint64(unknownParents)
	s.UnknownBlocks += uint64(unknownBlocks)
	s.OtherBlockSize += uint64(otherSize)
	s.Unresolved += uint64(unresolved)
	s.LastSeq, s.Epoch, s.Partial, s.Away = m.Seq, m.Epoch, f.partial, batch.Away
	f.updateStale()
	return nil
}

// otherSize records a block size that this rank should not have, and reports it once to Options.OtherSize.
func (f *Feed) otherSize(tokens int) {
	changed := false
	f.update(func(s *Stats) { changed, s.OtherSize = s.OtherSize != tokens, tokens })
	if changed && f.o.OtherSize != nil {
		f.o.OtherSize(tokens)
	}
}

// reportBounds passes partial and recurrent to the sink and the stats when they change outside a batch.
func (f *Feed) reportBounds() {
	f.o.Sink.Done(f.partial, f.recurrent)
	f.update(func(s *Stats) { s.Partial = f.partial })
}
