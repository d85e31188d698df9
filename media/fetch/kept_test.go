package fetch

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"net/http"
	"testing"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/mmhash"
)

// Only as many of the least recently used images are evicted as must be. Adding an image again takes no more room, and one that is
// larger than the cache evicts nothing.
func TestKept(t *testing.T) {
	gone := 0
	k := newShared[mmhash.ContentID, []byte](3*weight(make([]byte, 100)), func() { gone++ })
	id := func(n byte) (id mmhash.ContentID) { id[0] = n; return id }
	add := func(n byte, b []byte) { k.add(0, 1, id(n), b, weight(b)) }
	for _, n := range []byte{1, 2, 3, 3} {
		add(n, make([]byte, 100))
	}
	k.get(id(1))
	add(4, make([]byte, 10))
	add(5, make([]byte, 1000))
	for n, want := range []bool{false, true, false, true, true, false} {
		if _, ok := k.get(id(byte(n))); ok != want {
			t.Errorf("image %d is kept: %v, want %v", n, ok, want)
		}
	}
	if gone != 2 { // the second, and the fifth
		t.Errorf("%d went, want 2", gone)
	}
}

// Whoever brings more than others evicts entries of their own: a client with many hosts, a host that is named by many clients, and a
// client that shares the others' host, also by bringing what others brought. What goes is forgotten whole.
func TestKeptIsShared(t *testing.T) {
	const victims, most, flood = 10, 100, 5000
	for name, by := range map[string]func(i int) (client, host fair.Client, key int){
		"one client, many hosts":     func(i int) (fair.Client, fair.Client, int) { return 99, fair.Client(1000 + i), 1000 + i },
		"one host, many clients":     func(i int) (fair.Client, fair.Client, int) { return fair.Client(100000 + i), 99, 1000 + i },
		"one host, clients unknown":  func(i int) (fair.Client, fair.Client, int) { return 0, 99, 1000 + i },
		"the others' host":           func(i int) (fair.Client, fair.Client, int) { return 99, 1, 1000 + i },
		"the others' entries, again": func(i int) (fair.Client, fair.Client, int) { return 99, 99, 1000 + i*(i%2) + i%victims - 1000*(1-i%2) },
	} {
		s := newShared[int, int](most, func() {})
		for i := range victims {
			s.add(fair.Client(10+i), 1, i, i, 3)
		}
		for i := range flood {
			client, host, key := by(i)
			s.add(client, host, key, key, 3)
		}
		for i := range victims {
			if _, ok := s.get(i); !ok {
				t.Errorf("%s: entry %d of %d was evicted by another's", name, i, victims)
			}
		}
		if s.used > most || len(s.entries) > most/3 || len(s.holders) > 2*len(s.entries) || len(s.most) != len(s.holders) {
			t.Errorf("%s: %d of %d used by %d entries of %d holders; got %d, want at most %d, at most %d, at most %d, %d",
				name, s.used, most, len(s.entries), len(s.holders), len(s.most), most, most/3, 2*len(s.entries), len(s.holders))
		}
	}
}

// A host whose small gzip answers become large images pushes nobody else's image out of the memory that all share.
func TestBombsEvictTheirOwn(t *testing.T) {
	const victims, large = 12, 4 << 20
	good, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		image(append(append(append([]byte(nil), red...), r.URL.Path...), make([]byte, 100<<10)...), "Cache-Control", "max-age=600")(w, r)
	})
	bomb, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		var own bytes.Buffer
		z := gzip.NewWriter(&own)
		_, _ = z.Write(append(append(append([]byte(nil), red...), r.URL.Path...), make([]byte, large)...))
		_ = z.Close()
		w.Header().Set("Content-Encoding", "gzip")
		image(own.Bytes(), "Cache-Control", "max-age=600")(w, r)
	})
	for what, client := range map[string]fair.Client{"another client": 2, "the victims' own client name, unknown": 0} {
		gone := 0
		f := open(t, Config{Allow: loopback, Budget: 20e9, NoRoom: func(string) { gone++ }})
		var ids []mmhash.ContentID
		for i := range victims {
			facts, err := f.Get(t.Context(), client/2, fmt.Sprintf("%s/%d", good, i))
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, facts.ID)
		}
		for i := range 20 {
			if _, err := f.Get(t.Context(), client, fmt.Sprintf("http://localhost%s/%d", bomb[len("http://127.0.0.1"):], i)); err != nil {
				t.Fatal(err)
			}
		}
		lost := 0
		for _, id := range ids {
			if _, ok := f.Bytes(id); !ok {
				lost++
			}
		}
		if lost > 0 || gone == 0 {
			t.Errorf("%s: %d of %d images are gone, want none; %d evicted, want some", what, lost, victims, gone)
		}
	}
}
