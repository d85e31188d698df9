package serve

import (
	"strings"
	"testing"

	"github.com/sightline-router/sightline/indexer/stream"
)

// TestNothingReported: what the audit says of a worker that reported nothing follows its stream: an unread form, no connection, no
// event at all, events that store nothing, and events that came before.
func TestNothingReported(t *testing.T) {
	up := stream.Stats{Connected: true, CaughtUp: true}
	with := func(change func(*stream.Stats)) stream.Stats { st := up; change(&st); return st }
	for _, c := range []struct {
		st   stream.Stats
		want string
	}{
		{with(func(s *stream.Stats) { s.Unreadable, s.Malformed = "messages of 1 frame", 3 }), "cannot be read: messages of 1 frame"},
		{stream.Stats{LastError: "connection refused"}, "not connected: connection refused"},
		{with(func(s *stream.Stats) { s.Away = true }), "not connected"},
		{with(func(s *stream.Stats) { s.Mute, s.Batches = true, 4 }), "does not answer any more"},
		{up, "never sent an event: are its KV events on, is this its socket?"},
		{with(func(s *stream.Stats) { s.Batches = 4 }), "store no block that counts: is its prefix cache on"},
		{with(func(s *stream.Stats) { s.Batches, s.Blocks = 4, 9 }), "has reported blocks before"},
	} {
		if got := nothingReported(&c.st); !strings.Contains(got, c.want) || c.want != "never sent" && c.st.Batches > 0 &&
			strings.Contains(got, "its socket?") {
			t.Errorf("%+v: %q, want %q", c.st, got, c.want)
		}
	}
}
