package indexer

import (
	"math/rand/v2"
	"testing"
)

// TestMatch compares the marks of a line with a plain loop; the line has adjacent tags that differ by one.
func TestMatch(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100_000 {
		var l line
		for k := range l.tags {
			l.tags[k] = uint8(rng.IntN(3)) << rng.IntN(7)
		}
		l.overflow, l.depth = uint16(rng.Uint32()), uint16(rng.Uint32())
		tag := l.tags[rng.IntN(12)] ^ uint8(rng.IntN(2))
		lo, hi := l.match(tag)
		for k := range l.tags {
			mark := lo
			if k >= 8 {
				mark = hi
			}
			got, want := mark>>(8*(k%8)+7)&1 == 1, l.tags[k] == tag
			if got != want {
				t.Fatalf("tags %v, tag %d: slot %d marked %v, want %v", l.tags, tag, k, got, want)
			}
		}
		if extra := lo&^0x8080808080808080 | hi&^0x80808080; extra != 0 {
			t.Fatalf("marks %x %x: got %d, want 0", lo, hi, extra)
		}
	}
}

// TestTable fills and empties a table randomly: each reference is found exactly once, and never after its removal.
func TestTable(t *testing.T) {
	mem := newMemory(0)
	rng := rand.New(rand.NewPCG(2, 2))
	for range 3 {
		tab := table{mem: mem}
		key := func(ref uint32) uint64 {
			if ref%10 == 0 { // many with one key
				ref = ref % 100
			}
			return mix(uint64(ref)<<40, 77)
		}
		keysOf := func(refs []uint32, keys []uint64) {
			for i, r := range refs {
				keys[i] = key(r)
			}
		}
		live := map[uint32]bool{}
		for i := uint32(0); i < 80_000; i++ {
			ref := rng.Uint32N(30_000) + i/2
			if ref%10 == 0 && rng.IntN(20) > 0 {
				continue
			}
			if live[ref] {
				if !tab.remove(key(ref), ref) {
					t.Fatalf("reference %d not found", ref)
				}
				delete(live, ref)
			} else {
				live[ref] = true
				if !tab.insert(key(ref), ref, keysOf) {
					t.Fatal("no memory")
				}
			}
		}
		n := 0
		tab.each(func(s *segment) { n += s.count() })
		if n != len(live) {
			t.Fatalf("%d references in the table, %d live, want %d", n, len(live), len(live))
		}
		for ref := range live {
			if !tab.remove(key(ref), ref) || tab.remove(key(ref), ref) {
				t.Fatalf("reference %d is not there exactly once, want tab.remove(key(ref), ref), !tab.remove(key(ref), ref)", ref)
			}
		}
		tab.each(func(s *segment) {
			for i := range s {
				if s[i].overflow != 0 {
					t.Fatalf("%d entries behind an empty line, want 0", s[i].overflow)
				}
			}
		})
		tab.reset()
	}
}
