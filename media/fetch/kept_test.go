package fetch

import (
	"testing"

	"github.com/sightline-router/sightline/mmhash"
)

// Only as many of the least recently used images are evicted as must be. Adding an image again takes no more room, and one that is
// larger than the cache evicts nothing.
func TestKept(t *testing.T) {
	gone := 0
	k := newByteCache(3*weight(make([]byte, 100)), func() { gone++ })
	id := func(n byte) (id mmhash.ContentID) { id[0] = n; return id }
	for _, n := range []byte{1, 2, 3, 3} {
		k.add(id(n), make([]byte, 100))
	}
	k.get(id(1))
	k.add(id(4), make([]byte, 10))
	k.add(id(5), make([]byte, 1000))
	for n, want := range []bool{false, true, false, true, true, false} {
		if _, ok := k.get(id(byte(n))); ok != want {
			t.Errorf("image %d is kept: %v", n, ok)
		}
	}
	if gone != 2 { // the second, and the fifth
		t.Errorf("%d went", gone)
	}
}
