package registry

import (
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sightline-router/sightline/indexer/stream"
)

// TestTroubleIsTold checks that the same message under two names, and missing events, are each a log line and a gauge, and that a
// change within a minute is not logged again.
func TestTroubleIsTold(t *testing.T) {
	b := newBench(t, noAudit)
	core, logged := observer.New(zap.InfoLevel)
	b.o.Log = zap.New(core)
	es := []*publisher{{feeds: map[int]*stream.Feed{}}, {feeds: map[int]*stream.Feed{}}}
	for i, name := range []string{"a", "b"} {
		if err := b.Add(0, spec(es[i], name, []string{"10.0.0.1:8000", "10.0.0.2:8000"}[i])); err != nil {
			t.Fatal(err)
		}
		b.wait("the feed", func() bool { return es[i].running() == 1 })
		es[i].feeds[0].Up()
	}
	now := time.Now()
	told := b.logChanges(nil, now)
	if logged.Len() > 0 {
		t.Fatal(logged.All())
	}
	const stamped = 0x93 // as an array of three begins
	for _, e := range es {
		e.tell(0, 0, stamped)
	}
	b.wait("the blocks", func() bool { return len(Shared(b.Slots())) == 2 })
	if n := count(t, b.reg, "sightline_event_socket_shared", "rank", "0"); n != 2 {
		t.Errorf("the gauge says %v", n)
	}
	for range 3 {
		told = b.logChanges(told, now)
	}
	if n := logged.FilterMessageSnippet("two workers publish the same events").Len(); n != 2 || logged.Len() != 2 {
		t.Errorf("%v", logged.All())
	}
	es[0].tell(0, 1, stamped+1)
	b.wait("another message", func() bool { return len(Shared(b.Slots())) == 0 })
	es[1].feeds[0].Down(nil)
	now = now.Add(time.Minute + deadAfter)
	told = b.logChanges(told, now)
	b.logChanges(told, now.Add(time.Second))
	if n := logged.FilterMessageSnippet("events stopped").FilterField(zap.String("worker", "b")).Len(); n != 1 {
		t.Errorf("%v", logged.All())
	}
}
