package trtllm

import (
	"github.com/sightline-router/sightline/indexer/kvevent"
)

// The V2 block manager writes an item into the token ids before it hashes them: the item's first token becomes its digest, a string
// of 64 hex digits, and its i-th token vocab_size + i. Prompts here hold vocab_size + 1 in every place, as V1 events do, so that
// value is restored. vocab_size is learned: it is one less than the token after a digest.
//
// mm_keys were empty at first (before pull request 18810, September 2026). Then the digests are the names, and a block passes the
// name of the item that ends in it or after it on to its children: an item may be interrupted by text.

// itemState holds what V2 events need.
type itemState struct {
	digests  []digestToken     // digests among the tokens of the current event
	marker   uint32            // vocab_size + 1; 0: V1, or not yet known
	lastItem map[uint64]uint64 // block → the last item that began in it or before it
}

type digestToken struct {
	token int // index into Decoder.tokens
	name  string
}

// maxItems bounds the blocks that have an item before them.
const maxItems = 1 << 20

// digestToken records a digest that takes a token's place.
func (d *Decoder) digestToken(name string) {
	d.items.digests = append(d.items.digests, digestToken{len(d.a.Tokens), name})
	d.a.Tokens = append(d.a.Tokens, 0)
}

// learnMarker learns vocab_size from a digest: the two item tokens after it differ by one.
func (m *itemState) learnMarker(tokens []uint32) {
	for i, s := range m.digests {
		behind := s.token + 2
		if behind >= len(tokens) || i+1 < len(m.digests) && m.digests[i+1].token <= behind {
			continue
		}
		if tokens[behind-1] > 0 && tokens[behind] == tokens[behind-1]+1 {
			m.marker = tokens[behind-1]
			return
		}
	}
}

// restoreIDs restores the prompt's ids and names blocks without keys. It returns how many of the blocks can be used.
func (d *Decoder) restoreIDs(blocks []storedBlock, parent uint64, hasParent bool) int {
	m := &d.items
	if m.marker == 0 {
		if len(m.digests) == 0 {
			return len(blocks)
		}
		m.learnMarker(d.a.Tokens)
	}
	digests := m.digests
	var open uint64
	openName := ""
	if hasParent {
		open = m.lastItem[parent]
	}
	for i := range blocks {
		b := &blocks[i]
		derive, named := b.names == 0, false
		if derive {
			b.name = len(d.s.names)
		}
		for p := b.token; p < b.token+b.tokens; p++ {
			switch {
			case len(digests) > 0 && digests[0].token == p:
				open, openName, named = d.hash.Name(inEvents(digests[0].name)), digests[0].name, false
				digests = digests[1:]
			case m.marker != 0 && d.a.Tokens[p] >= m.marker:
			default: // text; an item may continue after it
				continue
			}
			if m.marker == 0 || open == 0 && derive { // the item is too short to learn from, or its beginning was missed
				return i
			}
			d.a.Tokens[p] = m.marker
			if derive && !named {
				named = true
				d.s.names = append(d.s.names, open)
				b.names++
				if d.Keep && openName != "" {
					d.a.Media = append(d.a.Media, kvevent.MediaRef{Block: i, Offset: p - b.token, Paired: p > b.token, Name: []byte(openName)})
				}
			}
		}
		b.keyed = true
		if open != 0 && (m.lastItem[b.engineHash] != 0 || len(m.lastItem) < maxItems && d.room.Take(rememberedBytes)) {
			if m.lastItem == nil {
				m.lastItem = make(map[uint64]uint64)
			}
			m.lastItem[b.engineHash] = open
		}
	}
	return len(blocks)
}
