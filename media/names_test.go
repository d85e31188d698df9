package media

import (
	"slices"
	"testing"

	"github.com/sightline-router/sightline/mmhash"
	"github.com/sightline-router/sightline/mmhash/enginehash"
)

func TestNames(t *testing.T) {
	s, err := mmhash.NewStore(100, func() {})
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
	if got, err := Names(s, src, f.ID, f.Bytes, recipes[:2]...); err != nil || !slices.Equal(got, want[:2]) {
		t.Fatalf("got %q %v, want no error, slices.Equal(got, want[:2])", got, err)
	}
	// The second time no bytes are needed for cached names.
	if got, err := Names(s, File(), f.ID, f.Bytes, recipes[0], recipes[1]); err != nil || !slices.Equal(got, want[:2]) {
		t.Fatalf("got %q %v, want no error, slices.Equal(got, want[:2])", got, err)
	}
	if got, err := Names(s, src, f.ID, f.Bytes, recipes...); err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %q %v, want no error, %q", got, err, want)
	}
	// Names that are still missing are not computed from bytes that have been evicted.
	s, err = mmhash.NewStore(100, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Names(s, File(), f.ID, f.Bytes, recipes[0]); err == nil {
		t.Errorf("a name without bytes: %v; got %v, want an error", got, err)
	}
	if _, ok := s.Get(f.ID, recipes[0].Key()); ok {
		t.Error("and it is remembered")
	}
	if _, ok := s.Get(mmhash.ContentID{1}, recipes[0].Key()); ok {
		t.Error("another image has the name")
	}
}

func BenchmarkNames(b *testing.B) {
	pieces, size := body720p(false)
	s, _ := mmhash.NewStore(100, func() {})
	f, _ := Identify(DataURL(pieces))
	r := enginehash.Recipe{Before: []byte("model"), After: []byte("image")}
	b.Run("first", func(b *testing.B) {
		b.SetBytes(size)
		b.ReportAllocs()
		for b.Loop() {
			r.Before[0]++ // another name
			Names(s, DataURL(pieces), f.ID, f.Bytes, r)
		}
	})
	b.Run("known", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			Names(s, DataURL(pieces), f.ID, f.Bytes, r)
		}
	})
}
