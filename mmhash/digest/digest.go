// Package digest computes BLAKE3-256 of a stream, with the help of idle cores.
//
//	Room ─ filled by a decoder ─▶ Fill ─┬─▶ a helper, if one has time ─┐
//	                                    └─▶ the caller ────────────────┴─▶ chaining values ─▶ Sum256
//
// BLAKE3 is a binary tree over chunks of 1 KiB. A group of 16 chunks that begins at a multiple of 16 is a subtree, which can be
// hashed independently, in any order, with one step of AVX-512. So the caller decodes and hands full rooms to helpers; rooms that
// no helper takes at once it hashes itself. Helper goroutines end when there is nothing to do; none stays behind.
//
// Measured against a plain BLAKE3 for AVX2 (github.com/zeebo/blake3, which computes the small digests), identity of a picture of
// 2.8 MB from base64 (BenchmarkIdentify of package media): processor time 0.77x on one core with AVX-512; 0.9x with a helper.
// Without AVX-512 both libraries are equally fast.
package digest

import (
	"math/bits"
	"runtime"
	"sync/atomic"

	"lukechampine.com/blake3/guts"
)

const (
	group = guts.MaxSIMD * guts.ChunkSize
	// RoomSize is the capacity of one Fill in bytes: a multiple of the group size and of base64's quantum.
	RoomSize = 3 * group

	maxHelpers = 3
	keptGroups = 4096 // values whose memory is kept for the next stream: 64 MB of data
)

// value is a subtree's chaining value.
type value = [8]uint32

// room is a piece of the stream, with the chaining values of its groups.
type room struct {
	bytes    [RoomSize]byte
	first    int // index of its first group
	values   [RoomSize / group]value
	panicked any // of a helper; re-raised in the stream's goroutine
}

func (r *room) hash() {
	for i := range r.values {
		r.values[i] = guts.ChainingValue(node((*[group]byte)(r.bytes[i*group:]), group, r.first+i))
	}
}

// help is hash, called by a helper. It saves a panic for the stream's goroutine.
func (r *room) help() {
	defer func() { r.panicked = recover() }()
	r.hash()
}

// node hashes n bytes of group at.
func node(b *[group]byte, n, at int) guts.Node {
	return guts.CompressBuffer(b, n, &guts.IV, uint64(at)*guts.MaxSIMD, 0)
}

// Hasher computes one stream's digest. Not safe for concurrent use.
type Hasher struct {
	values []value   // of the groups so far
	alone  guts.Node // of the first group: if it is the only one, it is the root
	part   [group]byte
	n      int // bytes in part

	room    *room
	rooms   int // allocated so far
	free    []*room
	out     int // handed to helpers and not returned
	work    chan *room
	done    chan *room // has capacity for all rooms
	helpers atomic.Int32
	most    int32
	help    func()
}

// New returns a Hasher, which can hash many streams one after the other. It uses at most three cores besides its caller's.
func New() *Hasher {
	most := min(runtime.GOMAXPROCS(0)-1, maxHelpers)
	h := &Hasher{room: new(room), rooms: 1, most: int32(most), work: make(chan *room, most), done: make(chan *room, 2*most+1)}
	h.help = func() {
		defer h.helpers.Add(-1)
		for {
			select {
			case r := <-h.work:
				r.help()
				h.done <- r
			default:
				return
			}
		}
	}
	return h
}

// Reset begins another stream.
func (h *Hasher) Reset() {
	h.settle()
	if h.values = h.values[:0]; cap(h.values) > keptGroups {
		h.values = nil
	}
	h.n = 0
}

// Room returns the buffer for the stream's next bytes, to be passed to Fill. It is valid until then.
func (h *Hasher) Room() []byte { return h.room.bytes[:] }

// Fill adds the first n bytes of Room to the stream.
func (h *Hasher) Fill(n int) {
	if n < RoomSize || h.n > 0 || len(h.values) == 0 || h.most == 0 {
		h.Write(h.room.bytes[:n])
		return
	}
	h.room.first = len(h.values)
	h.values = append(h.values, make([]value, len(h.room.values))...)
	select {
	case h.work <- h.room:
		h.out++
		if h.helpers.Add(1) > h.most {
			h.helpers.Add(-1)
		} else {
			go h.help()
		}
		h.room = h.another()
	default:
		h.room.hash()
		h.keep(h.room)
	}
}

// another returns a free room. There is one more than can be queued or in work, so one always comes back once all are allocated.
func (h *Hasher) another() *room {
	for len(h.done) > 0 {
		h.back(<-h.done)
	}
	if n := len(h.free); n > 0 {
		r := h.free[n-1]
		h.free = h.free[:n-1]
		return r
	}
	if h.rooms < cap(h.done) {
		h.rooms++
		return new(room)
	}
	r := <-h.done
	h.out--
	h.keep(r)
	return r
}

func (h *Hasher) keep(r *room) {
	if r.panicked != nil {
		panic(r.panicked)
	}
	copy(h.values[r.first:], r.values[:])
}

func (h *Hasher) back(r *room) {
	h.out--
	h.keep(r)
	h.free = append(h.free, r)
}

// settle hashes the rooms that no helper has begun and waits for the others.
func (h *Hasher) settle() {
	for h.out > 0 {
		select {
		case r := <-h.work:
			r.hash()
			h.back(r)
		case r := <-h.done:
			h.back(r)
		}
	}
}

// Write adds bytes from anywhere, on the caller's core. It never fails.
func (h *Hasher) Write(p []byte) (int, error) {
	size := len(p)
	for len(p) > 0 {
		if h.n == 0 && len(p) >= group {
			h.add((*[group]byte)(p), group)
			p = p[group:]
			continue
		}
		k := copy(h.part[h.n:], p)
		p = p[k:]
		if h.n += k; h.n == group {
			h.add(&h.part, group)
			h.n = 0
		}
	}
	return size, nil
}

func (h *Hasher) add(b *[group]byte, n int) {
	v := node(b, n, len(h.values))
	if len(h.values) == 0 {
		h.alone = v
	}
	h.values = append(h.values, guts.ChainingValue(v))
}

// Sum256 ends the stream. Only Reset may follow.
func (h *Hasher) Sum256() [32]byte {
	h.settle()
	if h.n > 0 || len(h.values) == 0 {
		h.add(&h.part, h.n)
	}
	root := h.alone
	if len(h.values) > 1 {
		root = parent(h.values)
	}
	root.Flags |= guts.FlagRoot
	words := guts.WordsToBytes(guts.CompressNode(root))
	return [32]byte(words[:32])
}

// parent joins two or more subtrees: the left side is the largest power of two that leaves something to the right.
func parent(values []value) guts.Node {
	left := 1 << (bits.Len(uint(len(values)-1)) - 1)
	return guts.ParentNode(joined(values[:left]), joined(values[left:]), &guts.IV, 0)
}

func joined(values []value) value {
	if len(values) == 1 {
		return values[0]
	}
	return guts.ChainingValue(parent(values))
}
