package stream

import (
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
)

// IndexSink is a Sink for a slot of an index.
type IndexSink struct {
	index *indexer.Index
	slot  indexer.SlotID
}

// Join adds a slot to the index.
func Join(index *indexer.Index, o indexer.SlotOptions) *IndexSink {
	return &IndexSink{index, index.Join(o)}
}

// Reserve counts memory that is kept about what the slot holds; see indexer.Index.Reserve.
func (s *IndexSink) Reserve(n int64) bool { return s.index.Reserve(s.slot, n) }

// Slot returns the slot's number in the index, valid until Leave.
func (s *IndexSink) Slot() indexer.SlotID { return s.slot }

// Held implements Sink.
func (s *IndexSink) Held() (*indexer.Index, indexer.SlotID) { return s.index, s.slot }

// Store implements Sink.
func (s *IndexSink) Store(e *kvevent.Event) error {
	return s.index.Store(s.slot, e.Tier, e.Parent, e.HasParent, e.EngineHashes, e.Locals)
}

// Copy implements Sink.
func (s *IndexSink) Copy(tier kvevent.Tier, engineHashes []uint64) int {
	unknown, _ := s.index.Copy(s.slot, tier, engineHashes)
	return unknown
}

// Remove implements Sink.
func (s *IndexSink) Remove(tier kvevent.Tier, engineHashes []uint64) int {
	unknown, _ := s.index.Remove(s.slot, tier, engineHashes)
	return unknown
}

// Clear implements Sink.
func (s *IndexSink) Clear() { _ = s.index.Clear(s.slot) }

// Done implements Sink: it marks the slot as a lower bound (partial) or an upper bound (upperBound).
func (s *IndexSink) Done(partial, upperBound bool) {
	s.index.Mark(s.slot, partial, upperBound)
}

// Leave implements Sink.
func (s *IndexSink) Leave() { _ = s.index.Leave(s.slot) }
