package mmhash

import (
	"slices"
	"sync/atomic"
	"testing"

	"github.com/sightline-router/sightline/mmhash/enginehash"
)

func TestStore(t *testing.T) {
	s, err := NewStore(100, func() {})
	if err != nil {
		t.Fatal(err)
	}
	src := DataURL([][]byte{[]byte("data:;base64,"), []byte(tinyPNG)})
	f, err := Identify(src)
	if err != nil {
		t.Fatal(err)
	}
	file, err := src.Decode(f.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	recipes := []enginehash.Recipe{{Before: []byte("model")}, {Algorithm: enginehash.SHA256, After: []byte("model")}, {}}
	want := []string{recipes[0].Of(file), recipes[1].Of(file), "f531b9e47004fccda30d996ca0bf046cd4f94241ab04843cb055cbc72bec0810"}
	if got, err := s.Names(src, f.ID, f.Bytes, recipes[:2]...); err != nil || !slices.Equal(got, want[:2]) {
		t.Fatal(got, err)
	}
	// The second time no bytes are needed for cached names.
	if got, err := s.Names(File(), f.ID, f.Bytes, recipes[0], recipes[1]); err != nil || !slices.Equal(got, want[:2]) {
		t.Fatal(got, err)
	}
	if got, err := s.Names(src, f.ID, f.Bytes, recipes...); err != nil || !slices.Equal(got, want) {
		t.Fatal(got, err)
	}
	// Names that are still missing are not computed from bytes that have been evicted.
	s.names.Purge()
	if got, err := s.Names(File(), f.ID, f.Bytes, recipes[0]); err == nil {
		t.Errorf("a name without bytes: %v", got)
	}
	if _, ok := s.Get(f.ID, recipes[0].Key()); ok {
		t.Error("and it is remembered")
	}
	if _, ok := s.Get(ContentID{1}, recipes[0].Key()); ok {
		t.Error("another image has the name")
	}
}

// TestStoreIsBounded: beyond the bound one name is evicted for each new one, and counted.
func TestStoreIsBounded(t *testing.T) {
	var full atomic.Int64
	s, err := NewStore(100, func() { full.Add(1) })
	if err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		s.Put(ContentID{byte(i), byte(i >> 8)}, [32]byte{}, "name")
	}
	if n := s.names.Len(); n > 100 || full.Load() != int64(1000-n) {
		t.Errorf("%d names kept, %d went", n, full.Load())
	}
}

func BenchmarkNames(b *testing.B) {
	pieces, size := body720p(false)
	s, _ := NewStore(100, func() {})
	f, _ := Identify(DataURL(pieces))
	r := enginehash.Recipe{Before: []byte("model"), After: []byte("image")}
	b.Run("first", func(b *testing.B) {
		b.SetBytes(size)
		b.ReportAllocs()
		for i := byte(0); b.Loop(); i++ {
			s.names.Purge()
			s.Names(DataURL(pieces), f.ID, f.Bytes, r)
		}
	})
	b.Run("known", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Names(DataURL(pieces), f.ID, f.Bytes, r)
		}
	})
}
