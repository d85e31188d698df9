package stream

// Stems: beginnings of prompts of which a rank holds all blocks although no event reported them. A request whose stored blocks
// follow an unknown block reveals what that block is: the previous one in its prompt (package audit). All blocks before it are
// held too, under unknown engine hashes: they are stored under made ones.
//
// That is sound because engines evict from the ends of prompts: vLLM frees a request's blocks last block first and reuses the
// ones freed first, SGLang and TensorRT-LLM evict only leaves. So a block that is held has all before it, and when the last stem
// through a made block loses its end, whose removal is reported, the made block is removed. A made block may be removed
// too early, which costs hits; it never stays longer than the engine holds it.

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/indexer/kvevent"
)

// stems are those of a rank. The zero value is empty.
type stems struct {
	ends map[uint64]uint64    // engine hash of an end: the made hash before it, 0 if it begins the prompt
	made map[uint64]stemBlock // by made engine hash
}

type stemBlock struct {
	before uint64 // as in ends
	behind int    // number of made blocks and ends directly after it
}

const (
	maxStems  = 1 << 18 // made blocks and ends of a rank
	stemBytes = 60      // what one counts for
)

func (s *stems) clear(room kvevent.Room) {
	room.Give((len(s.made) + len(s.ends)) * stemBytes)
	*s = stems{}
}

// add adds a stem and returns the engine hashes of its blocks, including known ones; nil if there is no room.
func (s *stems) add(end uint64, locals []uint64, room kvevent.Room) []uint64 {
	had := len(s.made) + len(s.ends)
	if had+len(locals) > maxStems || !room.Take(len(locals)*stemBytes) {
		return nil
	}
	defer func() { room.Give((len(locals) + had - len(s.made) - len(s.ends)) * stemBytes) }()
	if s.ends == nil {
		s.ends, s.made = map[uint64]uint64{}, map[uint64]stemBlock{}
	}
	list := make([]uint64, len(locals))
	before := uint64(0)
	for i, local := range locals[:len(locals)-1] {
		var key [16]byte
		binary.LittleEndian.PutUint64(key[:], before)
		binary.LittleEndian.PutUint64(key[8:], local)
		h := xxh3.HashSeed(key[:], stemSeed)
		m, known := s.made[h]
		if !known {
			m.before = before
			s.hold(before)
		}
		s.made[h] = m
		list[i], before = h, h
	}
	s.hold(before)
	s.ends[end], list[len(list)-1] = before, end
	return list
}

// hold counts one more block after a made one.
func (s *stems) hold(h uint64) {
	if m, ok := s.made[h]; ok {
		m.behind++
		s.made[h] = m
	}
}

// stemSeed makes made engine hashes differ from engines' own, which are computed otherwise.
const stemSeed = 0x5374656d

// cut removes the stems that end in removed blocks, and returns the made blocks that are removed with them.
func (s *stems) cut(engineHashes []uint64) (gone []uint64) {
	if len(s.ends) == 0 {
		return nil
	}
	for _, end := range engineHashes {
		h, ok := s.ends[end]
		if !ok {
			continue
		}
		delete(s.ends, end)
		for {
			m, ok := s.made[h]
			if !ok {
				break
			}
			m.behind--
			if m.behind > 0 {
				s.made[h] = m
				break
			}
			delete(s.made, h)
			gone = append(gone, h)
			h = m.before
		}
	}
	return gone
}

// cutStems removes the made blocks that were only on stems which end in removed blocks.
func (c *content) cutStems(removed []uint64) {
	had := len(c.stems.ends)
	gone := c.stems.cut(removed)
	kvevent.Room(c.reserve).Give((had - len(c.stems.ends) + len(gone)) * stemBytes)
	if len(gone) > 0 {
		c.o.Sink.Remove(kvevent.GPU, gone)
	}
}

// Stem is what a request revealed: the block Parent, which events name and none has reported, is the last of Locals, the leading
// blocks of a prompt.
type Stem struct {
	Parent uint64
	Locals []uint64
}

// maxQueuedStems limits the stems that wait for the feed; of all their blocks there are at most maxStems.
const maxQueuedStems = 1024

// Learn queues a stem for the feed's goroutine, which stores it if blocks still wait for its parent. It does not block: if
// there is no place, the stem is dropped and counted, and the next request with that prompt reveals it again. s.Locals must
// not change.
func (f *Feed) Learn(s Stem) {
	f.mu.Lock()
	if len(f.queuedStems) < maxQueuedStems && f.queuedBlocks+len(s.Locals) <= maxStems {
		f.queuedStems, f.queuedBlocks = append(f.queuedStems, s), f.queuedBlocks+len(s.Locals)
	} else {
		f.stats.StemsDropped++
	}
	f.mu.Unlock()
	f.wake.Ring()
}

// takeLearned stores the queued stems.
func (f *Feed) takeLearned() {
	f.mu.Lock()
	list := f.queuedStems
	f.queuedStems, f.queuedBlocks = nil, 0
	f.mu.Unlock()
	for _, l := range list {
		f.storeStem(l)
	}
}

// storeStem stores a stem, and what waited for it.
func (c *content) storeStem(l Stem) {
	end, blocks := c.orphans.root(l.Parent, l.Locals)
	if blocks == 0 {
		return
	}
	n := Stats{}
	c.cutStems([]uint64{end}) // in case the end was known and was taken out of the index since
	list := c.stems.add(end, l.Locals[:blocks], c.reserve)
	if list == nil {
		n.StemsDropped++
	} else {
		// Known made blocks are stored again: a request may have taken some out of the index (Index.Drop).
		c.o.Sink.Remove(kvevent.GPU, list[:blocks-1])
		e := kvevent.Event{Kind: kvevent.Stored, BlockSize: c.form.Size, Lookahead: c.form.Lookahead, EngineHashes: list,
			Locals: l.Locals[:blocks]}
		if err := c.o.Sink.Store(&e); err == nil {
			n.Stems++
			c.attachOrphans(list[blocks-1:], &n)
		}
	}
	c.o.Sink.Done(c.isPartial(), c.upperBound)
	c.update(func(s *Stats) { s.add(&n); s.Orphans = c.orphans.reported })
}
