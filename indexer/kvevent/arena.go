package kvevent

// Arena is a decoder's memory: the slices of one batch's events are cut from it, so that decoding allocates nothing once it has
// grown. The zero value is ready to use.
type Arena struct {
	Events       []Event
	EngineHashes []uint64
	Locals       []uint64
	Tokens       []uint32
	Media        []MediaRef
}

// Reset empties the arena for the next batch.
func (a *Arena) Reset() {
	a.Events, a.Media, a.Tokens = Reuse(a.Events), Reuse(a.Media), Reuse(a.Tokens)
	a.EngineHashes, a.Locals = Reuse(a.EngineHashes), Reuse(a.Locals)
}

// Rollback drops what was appended since before was copied from a, so that an event that cannot be read leaves nothing.
func (a *Arena) Rollback(before Arena) {
	a.Events, a.Media, a.Tokens = a.Events[:len(before.Events)], a.Media[:len(before.Media)], a.Tokens[:len(before.Tokens)]
	a.EngineHashes, a.Locals = a.EngineHashes[:len(before.EngineHashes)], a.Locals[:len(before.Locals)]
}

// Tail returns s[first:] with no spare capacity, so that appending to s later does not change it.
func Tail[T any](s []T, first int) []T { return s[first:len(s):len(s)] }

// Reuse returns an empty slice with the same memory; nil if a huge batch has grown it beyond a million elements.
func Reuse[T any](s []T) []T {
	if cap(s) > 1<<20 {
		return nil
	}
	return s[:0]
}
