package router

import (
	"sync"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/sightline-router/sightline/workers/fleet"
)

// sightings record which slots recently encoded a medium. A slot's encoder cache should still have it until the slot has been given
// as many tokens of other media as the cache has room for. The last eight slots of each medium are kept, by pointer and not by
// slot ID, which is reused after a worker leaves. About 260 bytes a medium; beyond maxSeen the least recently used are evicted,
// and with them slots that have left.
type sightings struct {
	mu       sync.Mutex
	media    *simplelru.LRU[uint64, seenBy]
	onNoRoom func(what string)
}

// seenBy has the newest first; unused entries have no slot.
type seenBy [8]sighting

type sighting struct {
	slot *fleet.Slot
	at   uint64 // tokens that slot had encoded by then
}

const (
	maxSeen      = 1 << 17
	encoderCache = 8192 // tokens: vLLM's default, max_num_batched_tokens
)

func newSightings(full func(what string)) *sightings {
	media, _ := simplelru.NewLRU[uint64, seenBy](maxSeen, nil) // fails only for a size below 1
	return &sightings{media: media, onNoRoom: full}
}

// slotsOf returns the slots that saw a medium.
func (s *sightings) slotsOf(name uint64) seenBy {
	s.mu.Lock()
	defer s.mu.Unlock()
	slots, _ := s.media.Peek(name) // add makes it recent
	return slots
}

// add records that a slot encodes a medium of this number of tokens, or finds it in its cache: then it returns false.
func (s *sightings) add(name uint64, slot *fleet.Slot, tokens int) (isNew bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, _ := s.media.Get(name)
	isNew = !seen.holds(slot)
	if !isNew {
		tokens = 0
	}
	put := sighting{slot, slot.AddEncoded(tokens)}
	for i := range seen {
		put, seen[i] = seen[i], put
		if put.slot == slot || put.slot == nil {
			break
		}
	}
	if s.media.Add(name, seen) {
		s.onNoRoom("images seen")
	}
	return isNew
}

// withdraw records that a slot has not encoded a medium after all.
func (s *sightings) withdraw(name uint64, slot *fleet.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen, _ := s.media.Peek(name)
	for i := range seen {
		if seen[i].slot == slot {
			copy(seen[i:], seen[i+1:])
			seen[len(seen)-1] = sighting{}
			s.media.Add(name, seen)
			return
		}
	}
}

// holds reports whether a slot's encoder cache should have the medium.
func (b *seenBy) holds(slot *fleet.Slot) bool {
	for i := range b {
		if b[i].slot == slot {
			return slot.AddEncoded(0)-b[i].at < encoderCache
		}
	}
	return false
}

// saw records that a slot encodes an image, or has it in its encoder cache: then it returns false.
func (s *sightings) saw(slot *fleet.Slot, m SharedMedium) (isNew bool) {
	isNew = s.add(m.Key, slot, m.Tokens)
	if m.Alias != 0 {
		s.add(m.Alias, slot, 0)
	}
	return isNew
}

// unsee withdraws what saw recorded, for a request that the slot refused or never had.
func (s *sightings) unsee(slot *fleet.Slot, media []SharedMedium) {
	for _, m := range media {
		s.withdraw(m.Key, slot)
		if m.Alias != 0 {
			s.withdraw(m.Alias, slot)
		}
	}
}
