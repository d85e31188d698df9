// Package trace generates the event and lookup traces A, B and P on which this index and Dynamo's are measured. They are
// arithmetic: any program can generate the same trace, and a checksum over the first thousand answers shows that it did.
//
//	A  64 sequences of 512 blocks, 8 workers; worker w holds the first 64·(w+1) blocks of each
//	B  100 000 sequences of 128 blocks, 16 workers; one holds all, a second one a part: 19.2 M held blocks
//	L  as B, with 260 000 sequences and 64 workers: 50 M held blocks; not in Dynamo's tool
//	P  as B, with the first 32 blocks shared by each 100 sequences
//
// Events carry at most 16 blocks. One lookup in ten asks for a sequence that nobody holds.
package trace

import (
	"encoding/binary"
	"fmt"

	"github.com/zeebo/xxh3"
)

// Shape is a trace.
type Shape struct {
	Name    string
	N       uint64 // sequences
	Len     uint64 // blocks of a sequence
	Workers uint64
	shared  uint64 // blocks shared at the front
	group   uint64 // by that number of sequences
	stairs  bool   // A's holders
}

// PerEvent is the most blocks of one event.
const PerEvent = 16

// Named gives a trace by its letter, with n sequences (0: the reported number).
func Named(name string, n uint64) (Shape, error) {
	s := Shape{Name: name, N: 100_000, Len: 128, Workers: 16, group: 1}
	switch name {
	case "A":
		s.N, s.Len, s.Workers, s.stairs = 64, 512, 8, true
	case "B":
	case "L":
		s.N, s.Workers = 260_000, 64
	case "P":
		s.shared, s.group = 32, 100
	default:
		return s, fmt.Errorf("no trace %q (want A, B, P or L)", name)
	}
	if n > 0 {
		s.N = n
	}
	return s, nil
}

// Mix is one step of splitmix64.
func Mix(x uint64) uint64 {
	z := x + 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

func keyed(stream, a, b uint64) uint64 { return Mix(Mix(Mix(stream)^a) ^ b) }

// Locals appends the local hashes of a sequence.
func (s *Shape) Locals(dst []uint64, i uint64) []uint64 {
	for j := range s.Len {
		if j < s.shared {
			dst = append(dst, keyed(7, i/s.group, j))
		} else {
			dst = append(dst, keyed(1, i, j))
		}
	}
	return dst
}

// EngineHashes appends the engine's hashes of a sequence: the chain rule of Dynamo 1.6.
func EngineHashes(dst, locals []uint64) []uint64 {
	var buf [16]byte
	prev := uint64(0)
	for i, l := range locals {
		h := l
		if i > 0 {
			binary.LittleEndian.PutUint64(buf[:8], prev)
			binary.LittleEndian.PutUint64(buf[8:], l)
			h = xxh3.HashSeed(buf[:], 1337)
		}
		dst = append(dst, h)
		prev = h
	}
	return dst
}

// Event is blocks from to to of a sequence, stored or removed by a worker.
type Event struct {
	Worker   uint64
	From, To uint64
}

// Stored appends the stored events of a sequence, from the front, one holder after the other.
func (s *Shape) Stored(dst []Event, i uint64) []Event {
	s.holders(i, func(w, depth uint64) {
		for at := uint64(0); at < depth; at += PerEvent {
			dst = append(dst, Event{w, at, min(at+PerEvent, depth)})
		}
	})
	return dst
}

// Removed appends the removed events of a sequence, the deepest blocks first; what is shared stays.
func (s *Shape) Removed(dst []Event, i uint64) []Event {
	s.holders(i, func(w, depth uint64) {
		for hi := depth; hi > s.shared; {
			lo := s.shared
			if hi > PerEvent {
				lo = max(lo, hi-PerEvent)
			}
			dst = append(dst, Event{w, lo, hi})
			hi = lo
		}
	})
	return dst
}

func (s *Shape) holders(i uint64, f func(worker, depth uint64)) {
	if s.stairs {
		for w := range s.Workers {
			f(w, (w+1)*s.Len/s.Workers)
		}
		return
	}
	one := keyed(2, i, 0) % s.Workers
	f(one, s.Len)
	if depth := keyed(4, i, 0) % (s.Len + 1); depth > 0 {
		f((one+1+keyed(3, i, 0)%(s.Workers-1))%s.Workers, depth)
	}
}

// Query is the sequence that lookup q asks for.
func (s *Shape) Query(q uint64) uint64 {
	i := keyed(5, q, 0) % s.N
	if keyed(6, q, 0)%10 == 0 {
		i += s.N
	}
	return i
}

// Checksum folds the answers of lookups: for each, the workers in order with their leading blocks.
func Checksum(c, worker, blocks uint64) uint64 { return Mix(c ^ worker<<32 ^ blocks) }

// Sums are the checksums over lookups 0 to 999, by letter and number of sequences.
var Sums = map[string]uint64{
	"A 64": 0x2fe13e313b711ebc, "B 100000": 0xdf5a85b548142465, "P 100000": 0x9c2a458e810a02aa,
	"B 5000": 0x56bb343f932aa93f, "P 5000": 0xfa30ec3c7f85bd59,
}
