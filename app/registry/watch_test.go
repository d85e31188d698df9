package registry

import (
	"testing"

	"github.com/sightline-router/sightline/indexer/stream"
)

// TestShared: the same message under two names is seen at both, and in the gauge, until another one comes.
func TestShared(t *testing.T) {
	b := newBench(t, noAudit)
	es := []*publisher{{feeds: map[int]*stream.Feed{}}, {feeds: map[int]*stream.Feed{}}}
	for i, name := range []string{"a", "b"} {
		if err := b.Add(0, spec(es[i], name, []string{"10.0.0.1:8000", "10.0.0.2:8000"}[i])); err != nil {
			t.Fatal(err)
		}
		b.wait("the feed", func() bool { return es[i].running() == 1 })
		es[i].feeds[0].Up()
	}
	if n := len(Shared(b.Slots())); n > 0 {
		t.Fatalf("before any message %d share a socket, want 0", n)
	}
	const stamped = 0x93 // as an array of three begins
	for _, e := range es {
		e.tell(0, 0, stamped)
	}
	b.wait("the blocks", func() bool { return len(Shared(b.Slots())) == 2 })
	if n := count(t, b.reg, "sightline_event_socket_shared", "rank", "0"); n != 2 {
		t.Errorf("the gauge says %v, want 2", n)
	}
	es[0].tell(0, 1, stamped+1)
	b.wait("another message", func() bool { return len(Shared(b.Slots())) == 0 })
}
