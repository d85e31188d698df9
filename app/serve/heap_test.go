package serve

import (
	"runtime"
	"testing"
	"time"
)

func TestGCPercent(t *testing.T) {
	const mb = 1 << 20
	start := time.Now()
	for _, c := range []struct {
		name                 string
		usual, live, scanned uint64 // MB
		after                time.Duration
		want                 int
	}{
		{"nothing", 0, 0, 0, 0, 100},
		{"little", 40, 40, 40, 0, 100},
		{"much, and usual", 300, 300, 100, 0, 20},
		{"very much", 2100, 2100, 100, 0, 5},
		{"a little more than usual", 100, 110, 60, 0, 50},
		{"much more than usual: 16 MB", 25, 160, 60, 0, 10},
		{"with many pointers: an eighth of them", 25, 260, 240, 0, 10},
		{"for less than the time after which it is usual", 25, 160, 60, usualTime - time.Second, 10},
		{"for longer", 25, 160, 60, 2 * usualTime, 40},
	} {
		var p pace
		p.percent(c.usual*mb, 0, start)
		got := 0
		for at := time.Duration(0); at <= c.after; at += time.Minute {
			got = p.percent(c.live*mb, c.scanned*mb, start.Add(at))
		}
		if got != c.want {
			t.Errorf("%s: %d percent, want %d", c.name, got, c.want)
		}
	}
}

func TestCollectionsAreTold(t *testing.T) {
	collected := make(chan struct{}, 1)
	notifyCollections(t.Context(), collected)
	for range 3 {
		runtime.GC()
		select {
		case <-collected:
		case <-time.After(time.Minute):
			t.Fatal("got no word of a collection in a minute, want one")
		}
	}
}
