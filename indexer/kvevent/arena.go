package kvevent

import (
	"sync"
	"unsafe"
)

// Arena is a decoder's memory: the slices of one batch's events are cut from it. All decoders share what they have freed, so decoding
// allocates nothing once that has grown, and a decoder holds nothing between messages. The zero value is ready to use.
type Arena struct {
	Events, Others []Event // Others: those that come last in the batch
	EngineHashes   []uint64
	Locals         []uint64
	Wide           []uint64 // scratch
	Tokens         []uint32
	Media          []MediaRef

	box *Arena // where it was while it was free
}

// free are the arenas that no decoder uses, of 1 MiB at most.
var free = sync.Pool{New: func() any { return new(Arena) }}

const mostFree = 1 << 20

// Reset empties the arena for the next batch.
func (a *Arena) Reset() {
	if a.box == nil {
		box := free.Get().(*Arena)
		*a = *box
		a.box = box
	}
	a.Events, a.Others, a.Media, a.Tokens = a.Events[:0], a.Others[:0], a.Media[:0], a.Tokens[:0]
	a.EngineHashes, a.Locals, a.Wide = a.EngineHashes[:0], a.Locals[:0], a.Wide[:0]
}

// Free is called when the batch is not needed any more.
func (a *Arena) Free() {
	size := uintptr(cap(a.Events)+cap(a.Others))*unsafe.Sizeof(Event{}) + uintptr(cap(a.Media))*unsafe.Sizeof(MediaRef{}) +
		uintptr(cap(a.Tokens)*4+(cap(a.EngineHashes)+cap(a.Locals)+cap(a.Wide))*8)
	if a.box != nil && size <= mostFree {
		clear(a.Events) // they point into the payload
		clear(a.Media)
		*a.box = *a
		a.box.box = nil
		free.Put(a.box)
	}
	*a = Arena{}
}

// Rollback drops what was appended since before was copied from a, so that an event that cannot be read leaves nothing.
func (a *Arena) Rollback(before Arena) {
	a.Events, a.Media, a.Tokens = a.Events[:len(before.Events)], a.Media[:len(before.Media)], a.Tokens[:len(before.Tokens)]
	a.EngineHashes, a.Locals = a.EngineHashes[:len(before.EngineHashes)], a.Locals[:len(before.Locals)]
}

// Tail returns s[first:] with no spare capacity, so that appending to s later does not change it.
func Tail[T any](s []T, first int) []T { return s[first:len(s):len(s)] }

// Room says whether there is memory for n more bytes of what is remembered of earlier messages, and counts them; a negative n gives bytes
// back. nil: there is.
type Room func(n int64) bool

// Take reports whether there is room for n bytes, and counts them if so.
func (r Room) Take(n int) bool { return r == nil || r(int64(n)) }

// Give gives n bytes back.
func (r Room) Give(n int) {
	if r != nil {
		r(int64(-n))
	}
}
