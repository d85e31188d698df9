package dynamo

import (
	"strings"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

// TestUnreadablePlane: messages of the plane of which not even the worker can be read are counted, and the first is told with where
// it came from; other topics and messages without events are neither.
func TestUnreadablePlane(t *testing.T) {
	var from, why []string
	p := &Plane{OnUnreadable: func(f string, err error) { from, why = append(from, f), append(why, err.Error()) }}
	envelope := func(topic string, payload any) []byte {
		b, err := msgp.AppendIntf(nil, map[string]any{"topic": topic, "publisher_id": uint64(7), "sequence": uint64(1), "payload": payload})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for i, c := range []struct {
		b    []byte
		want uint64
	}{
		{envelope("other", []byte("x")), 0},
		{envelope(topic, []byte{0x90}), 0}, // no events
		{[]byte("{}"), 1},
		{envelope(topic, []byte{0x91, 0x01}), 2},
		{envelope(topic, []byte("text")), 3},
	} {
		p.receive("tcp://10.0.0.1:1", c.b)
		if p.Unreadable() != c.want {
			t.Errorf("message %d: %d unreadable, want %d", i, p.Unreadable(), c.want)
		}
	}
	if len(from) != 1 || from[0] != "tcp://10.0.0.1:1" || !strings.Contains(why[0], "envelope") {
		t.Errorf(`got %q, %q, want len(from) == 1, from[0] == "tcp://10.0.0.1:1", strings.Contains(why[0], "envelope")`, from, why)
	}
}
