package fair

import (
	"math/rand/v2"
	"testing"
)

type number struct {
	n uint32
	Kept
}

// TestMemory compares a memory with a map while entries come and go.
func TestMemory(t *testing.T) {
	m, r, want := NewMemory[number](5000), rand.New(rand.NewPCG(1, 2)), map[uint64]uint32{}
	for i := range 200_000 {
		hash := 1 + r.Uint64N(3000)
		if i > 100_000 {
			hash *= 0x9E3779B97F4A7C15
		}
		at := m.Find(hash)
		if n, known := want[hash]; (at != nil) != known || known && at.n != n {
			t.Fatalf("%d is %v, want %d", hash, at, n)
		}
		if at != nil && i%2 == 0 {
			at.n, want[hash] = uint32(i), uint32(i)
		} else if at == nil {
			m.Put(Client(i), hash, number{n: uint32(i)})
			want[hash] = uint32(i)
		}
		if len(want) == 4000 { // half of them go, as if the memory were smaller
			m.most = 2000
			m.Fit()
			m.most = 5000
			for hash := range want {
				if m.Find(hash) == nil {
					delete(want, hash)
				}
			}
		}
		if m.Len() != len(want) {
			t.Fatalf("%d values, want %d", m.Len(), len(want))
		}
	}
	m.Put(1, 0, number{})
	if m.Find(0) != nil {
		t.Error("0 has a value")
	}
	m.Clear()
	if m.Len() != 0 || m.Find(1) != nil {
		t.Errorf("%d values are left, want m.Len() == 0, m.Find(1) == nil", m.Len())
	}
}

// TestMemoryIsShared checks that a client with ever new values pushes out none of one that has less, and that values which are used
// outlive others.
func TestMemoryIsShared(t *testing.T) {
	m := NewMemory[number](1000)
	for i := range uint64(400) {
		m.Put(1, 1+i, number{})
	}
	for i := range uint64(50_000) {
		m.Put(2, 1000+i, number{})
		m.Find(1000 + i/1000*1000).Use() // one of a thousand is used all the time
		m.Fit()
	}
	for i := range uint64(400) {
		if m.Find(1+i) == nil {
			t.Fatalf("the other client's value %d of 400 is forgotten", i)
		}
	}
	if m.Len() != 1000 || m.Find(1000) != nil || m.Find(1000+49_000) == nil {
		t.Errorf("%d values, the first one there: %v, the last one in use: %v", m.Len(), m.Find(1000) != nil, m.Find(50_000) != nil)
	}
}
