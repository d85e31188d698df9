package router

import (
	"testing"
	"time"
)

func chainOf(seed uint64, n int) (c []uint64) {
	for i := range n {
		seed = seed*6364136223846793005 + 1442695040888963407 + uint64(i)
		c = append(c, seed)
	}
	return c
}

func TestPredictions(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPredictions(10 * time.Second)
	a := chainOf(1, 20)
	p.add(3, a, 4, now)
	if n := p.leading(3, a, 4, now); n != 20 {
		t.Errorf("leading %d, want all 20", n)
	}
	if n := p.leading(3, a, 0, now); n != 0 {
		t.Errorf("leading %d although block 0 is not held", n)
	}
	if n := p.leading(2, a, 4, now); n != 4 {
		t.Errorf("another slot has %d", n)
	}
	if n := p.leading(3, a, 4, now.Add(11*time.Second)); n != 4 {
		t.Errorf("%d after the end", n)
	}
	p.add(3, a, 10, now.Add(5*time.Second)) // used again: lives longer
	p.add(3, chainOf(9, 1), 0, now.Add(12*time.Second))
	if n := p.leading(3, a, 10, now.Add(12*time.Second)); n != 20 {
		t.Errorf("a renewed prediction ended: %d", n)
	}
	p.drop(3, a, 15)
	if n := p.leading(3, a, 10, now.Add(6*time.Second)); n != 15 {
		t.Errorf("after drop %d, want 15", n)
	}
}

// However much is predicted, memory is bounded, and what ended early is counted.
func TestPredictionsBounded(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPredictions(time.Hour)
	c := make([]uint64, 1000)
	for i := range 200 {
		for j := range c {
			c[j] = uint64(i*1000+j) << 6 // one shard
		}
		p.add(0, c, 0, now)
	}
	if n := len(p.shard[0].until); n > predEntries {
		t.Errorf("%d entries", n)
	}
	if p.dropped.Load() == 0 {
		t.Error("nothing counted as dropped")
	}
	if n := p.leading(0, c, 0, now); n != 1000 {
		t.Errorf("the newest was dropped: %d", n)
	}
}

// A prompt that is asked for again and again, or taken back and asked for, is kept once, and to its end.
func TestPredictionsRenewed(t *testing.T) {
	now := time.Unix(1000, 0)
	p := newPredictions(10 * time.Second)
	c := chainOf(1, 500)
	kept := func() (n int) {
		for _, b := range p.of(c).batches {
			n += len(b.keys)
		}
		return n
	}
	for i := range 100 {
		now = now.Add(time.Second)
		p.add(3, c, 0, now)
		if i%7 == 0 {
			p.drop(3, c, 100)
		} else if n := p.leading(3, c, 0, now.Add(9*time.Second)); n != 500 {
			t.Fatalf("%d blocks nine seconds after use %d", n, i)
		}
		if n := kept(); n != 500 {
			t.Fatalf("%d keys kept for 500 blocks", n)
		}
	}
	p.add(3, []uint64{c[0] + predShards}, 0, now.Add(11*time.Second))
	p.add(3, []uint64{c[0] + predShards}, 0, now.Add(22*time.Second))
	if n := kept(); n != 1 {
		t.Errorf("%d keys kept of a prompt that ended", n)
	}
	long := chainOf(7, predEntries+10)
	if p.add(3, long, 0, now); len(p.of(long).until) != predEntries || p.leading(3, long, 0, now) != predEntries {
		t.Errorf("%d entries of a prompt longer than a shard", len(p.of(long).until))
	}
}

func TestSightings(t *testing.T) {
	s := newSightings()
	for _, slot := range []uint32{0, 1, 2, 3, 4, 1} {
		s.add(77, slot)
	}
	if got, want := s.by(77), [4]uint32{2, 5, 4, 3}; got != want {
		t.Errorf("slots %v, want %v (newest first, plus one)", got, want)
	}
	if holds(s.by(77), 0) || !holds(s.by(77), 1) || holds(s.by(78), 0) {
		t.Error("holds")
	}
	for i := range uint64(seenMedia + 10) {
		s.add(i*seenShards, 1)
	}
	if n := len(s.shard[0].at); n > seenMedia {
		t.Errorf("%d media", n)
	}
}
