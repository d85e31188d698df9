package tokenizer

import (
	"slices"
	"unsafe"

	"github.com/sightline-router/sightline/internal/poison"
)

// scratch is the working memory of one Encode. It is pooled, so that a warm process allocates nothing here. Its word cache belongs
// to one goroutine at a time and needs no lock.
type scratch struct {
	syms     []uint32
	links    []link
	heap     candidates
	text     [3][]byte // each step reads one and writes another
	pinned   int       // index plus one of the buffer that holds the normalized text; 0: none
	turn     int
	in, out  words
	form     []byte    // a part of a text, normalized
	last     [2]uint32 // the two symbols joined by the last merge
	dead     []uint64
	pairs    *[1 << pairCacheBits]cachedPair
	pairText []byte
	spaced   []byte // a word with its ▁ replaced by spaces
	words    [1 << wordCacheBits]cachedWord
	done     <-chan struct{} // Options.Done
	unseen   int             // bytes of work since done was last checked
	most     int             // Options.Max

	partial bool // set by giveUp
}

const wordCacheBits = 14

// cachedWord is the result for a word of up to 16 bytes that is not one token.
type cachedWord struct {
	lo, hi   uint64 // of its wordKey
	ids      [5]uint32
	n, count uint8
}

// maxKept bounds each buffer, in bytes, that a scratch keeps for the next text; larger ones are garbage collected.
const maxKept = 1 << 20

// shrink drops every buffer that is larger than maxKept.
func (s *scratch) shrink() {
	drop(&s.syms)
	drop(&s.links)
	drop(&s.heap)
	for i := range s.text {
		drop(&s.text[i])
	}
	drop(&s.in.list)
	drop(&s.out.list)
	drop(&s.form)
	drop(&s.dead)
	drop(&s.pairText)
	drop(&s.spaced)
}

func drop[S ~[]E, E any](buffer *S) {
	var e E
	if cap(*buffer)*int(unsafe.Sizeof(e)) > maxKept {
		*buffer = nil
	}
}

// pool keeps scratches across garbage collections, unlike sync.Pool, because each holds a warm word cache.
type pool chan *scratch

func (p pool) get() *scratch {
	select {
	case s := <-p:
		return s
	default:
		return new(scratch)
	}
}

func (p pool) put(s *scratch) {
	s.shrink()
	for i := range s.text {
		poison.Fill(s.text[i][:cap(s.text[i])])
	}
	select {
	case p <- s:
	default:
	}
}

// full reports whether there are more ids than wanted.
func (s *scratch) full(dst []uint32) bool { return s.most > 0 && len(dst) > s.most }

// lookEvery is the work, in bytes of text, between two checks of Options.Done: about a millisecond.
const lookEvery = 16 << 10

// stop is the panic value by which an Encode whose time is over leaves its loops.
type stop struct{}

// work accounts for n bytes of text about to be processed, and ends the Encode if its time is over.
func (s *scratch) work(n int) {
	s.unseen += n
	if s.unseen >= lookEvery {
		s.look()
	}
}

func (s *scratch) look() {
	s.unseen = 0
	select {
	case <-s.done:
		panic(stop{})
	default:
	}
}

// giveUp ends the Encode at a text that cannot be normalized here.
func (s *scratch) giveUp() {
	s.partial = true
	panic(stop{})
}

// stopped reports whether p, the result of recover, is the end of an Encode's time. It re-panics with anything else, and resets s
// for the next text.
func (s *scratch) stopped(p any) bool {
	s.done = nil
	if p == nil {
		return false
	}
	s.pinned, s.in.b, s.out.b = 0, nil, nil
	if p != (stop{}) {
		panic(p)
	}
	return true
}

// buffer returns an empty text buffer with room for n bytes, different from the one returned before and the pinned one. Growing a
// buffer step by step would allocate several times its final size.
func (s *scratch) buffer(n int) []byte {
	s.turn = (s.turn + 1) % len(s.text)
	if s.turn+1 == s.pinned {
		s.turn = (s.turn + 1) % len(s.text)
	}
	return slices.Grow(s.text[s.turn][:0], n)
}

// keep stores back the buffer returned by buffer, which may have grown.
func (s *scratch) keep(b []byte) []byte {
	s.text[s.turn] = b
	return b
}
