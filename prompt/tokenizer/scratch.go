package tokenizer

import (
	"slices"
	"time"
	"unsafe"

	"github.com/sightline-router/sightline/internal/poison"
)

// scratch is the memory that one Encode works in. It is pooled, so that a running program allocates nothing here; the word
// cache in it belongs to one goroutine at a time and needs no lock.
type scratch struct {
	syms     []uint32
	links    []link
	heap     candidates
	text     [3][]byte // a step reads one and writes another
	pinned   int       // one more than the buffer that holds the normalised text; 0: none
	turn     int
	in, out  words
	runes    []rune    // a text as regexp2 takes it
	form     []byte    // a part of a text, normalised
	last     [2]uint32 // the two symbols that the last merge joined
	dead     []uint64
	pairs    *[1 << pairCacheBits]cachedPair
	pairText []byte
	spaced   []byte // a word with its bars as spaces
	words    [1 << wordCacheBits]cachedWord
	done     <-chan struct{} // Options.Done
	unseen   int             // bytes of work since done was looked at
	most     int             // Options.Max

	size       int           // bytes of the text
	inPatterns time.Duration // spent in regexp2 so far
	partial    bool          // see giveUp
}

const wordCacheBits = 14

// cachedWord is what a word of up to 16 bytes, which is not one token, was cut into.
type cachedWord struct {
	lo, hi   uint64 // of its wordKey
	ids      [5]uint32
	n, count uint8
}

// maxKept bounds each buffer, in bytes, that a scratch keeps for the next text; a larger one is left to the collector.
const maxKept = 1 << 20

// shrink lets go of every buffer that is larger than maxKept.
func (s *scratch) shrink() {
	drop(&s.syms)
	drop(&s.links)
	drop(&s.heap)
	for i := range s.text {
		drop(&s.text[i])
	}
	drop(&s.in.list)
	drop(&s.out.list)
	drop(&s.runes)
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

// pool keeps scratches over garbage collections, unlike sync.Pool: each holds a warm word cache.
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

// full tells whether there are more ids than are wanted.
func (s *scratch) full(dst []uint32) bool { return s.most > 0 && len(dst) > s.most }

// lookEvery is the work, in bytes of text, after which Options.Done is looked at: about a millisecond's.
const lookEvery = 16 << 10

// stop is the panic by which an Encode whose time is over leaves its loops.
type stop struct{}

// work counts n bytes of text that are about to be worked on, and ends the Encode if its time is over.
func (s *scratch) work(n int) {
	if s.unseen += n; s.unseen >= lookEvery {
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

// giveUp ends the Encode where a pattern takes too long, or its text is too long.
func (s *scratch) giveUp() {
	s.partial = true
	panic(stop{})
}

// stopped tells whether what recover gave is the end of an Encode's time; other panics go on. It readies s for the next text.
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

// buffer gives an empty text buffer that is neither the one given before nor the pinned one, with room for n bytes: one that
// grows step by step takes several times what it comes to.
func (s *scratch) buffer(n int) []byte {
	s.turn = (s.turn + 1) % len(s.text)
	if s.turn+1 == s.pinned {
		s.turn = (s.turn + 1) % len(s.text)
	}
	return slices.Grow(s.text[s.turn][:0], n)
}

// keep remembers the buffer that came from buffer, which may have grown.
func (s *scratch) keep(b []byte) []byte {
	s.text[s.turn] = b
	return b
}
