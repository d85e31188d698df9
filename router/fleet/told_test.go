package fleet

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
)

// Requests that others sent come on top of ours, and ours count once.
func TestToldLoad(t *testing.T) {
	now := time.Now()
	f := New(func() time.Time { return now })
	w := NewWorker("w", netip.MustParseAddrPort("10.0.0.1:80"), "m", 0, func(int) indexer.SlotID { return 0 })
	f.Set([]*Worker{w})
	s := w.Slots[0]
	tell := func(message string) {
		t.Helper()
		told, err := ParseTold([]byte(message))
		if err != nil {
			t.Fatal(err)
		}
		s.Tell(told)
	}
	want := func(inflight int, usage float64) {
		t.Helper()
		if l := s.Load(now); l.Inflight != inflight || l.Usage != usage {
			t.Errorf("%+v, want %d in flight, usage %v", l, inflight, usage)
		}
	}
	f.Book("a", Booking{Slot: s})
	f.Book("b", Booking{Slot: s})
	want(2, 0)
	tell(`{"num_waiting_reqs": 5, "kv_cache_usage": 0.25}`)
	want(5, 0.25)
	f.Book("c", Booking{Slot: s}) // until it is told of again
	want(6, 0.25)
	tell(`{"num_waiting_reqs": 1, "kv_cache_usage": 1}`)
	want(3, 1)
	s.Tell(Told{})
	want(3, 0)
}

func FuzzParseTold(f *testing.F) {
	f.Add([]byte(`{"num_waiting_reqs": 5, "kv_cache_usage": 0.25}`))
	for _, bad := range []string{``, `[]`, `{}`, `{"num_waiting_reqs": -1, "kv_cache_usage": 0}`, `{"num_waiting_reqs": 1, "kv_cache_usage": 1e9}`, `{"num_waiting_reqs": 1}`} {
		if got, err := ParseTold([]byte(bad)); err == nil {
			f.Errorf("%s: %+v", bad, got)
		}
		f.Add([]byte(bad))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := ParseTold(b); err == nil && (got.Waiting < 0 || !(got.Usage >= 0 && got.Usage <= 1)) {
			t.Errorf("%q: %+v", b, got)
		}
	})
}
