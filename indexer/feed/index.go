package feed

import (
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/event"
)

// IndexSink is one holder of an index.
type IndexSink struct {
	index  *indexer.Index
	holder indexer.Holder
}

// Join adds a holder to the index. copies: the engine reports each physical copy of a block (vLLM does; SGLang,
// TensorRT-LLM and Dynamo do not). blocks is how many it has room for, 0 if not known.
func Join(index *indexer.Index, copies bool, blocks int) *IndexSink {
	return &IndexSink{index, index.Join(indexer.HolderOptions{CountCopies: copies, BlocksHint: blocks})}
}

// Holder is the holder's number in the index, until Leave.
func (s *IndexSink) Holder() indexer.Holder { return s.holder }

// Store implements Sink.
func (s *IndexSink) Store(e *event.Event) error {
	return s.index.Store(s.holder, indexer.Tier(e.Tier), e.Parent, e.HasParent, e.Handles, e.Locals)
}

// Remove implements Sink.
func (s *IndexSink) Remove(tier event.Tier, handles []uint64) int {
	unknown, _ := s.index.Remove(s.holder, indexer.Tier(tier), handles)
	return unknown
}

// Clear implements Sink.
func (s *IndexSink) Clear() { _ = s.index.Clear(s.holder) }

// Load implements Sink.
func (s *IndexSink) Load(snapshot []byte) error { return s.index.Load(s.holder, snapshot) }

// Done implements Sink: the index knows which way what the worker told is a bound.
func (s *IndexSink) Done(partial, recurrent bool) {
	s.index.MarkPartial(s.holder, partial)
	s.index.MarkRecurrent(s.holder, recurrent)
}

// Leave implements Sink.
func (s *IndexSink) Leave() { _ = s.index.Leave(s.holder) }

// The tiers of both packages are the same numbers.
var _ = [1]struct{}{}[int(indexer.GPU)-int(event.GPU)+int(indexer.CPU)-int(event.CPU)+int(indexer.Disk)-int(event.Disk)+int(indexer.Remote)-int(event.Remote)]
