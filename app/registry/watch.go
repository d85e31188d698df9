package registry

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/retry"
)

const (
	watchEvery  = time.Second
	deadAfter   = 5 * time.Second // how long a worker's events have not arrived as they happen
	logInterval = time.Minute     // shortest time between two lines about a worker
)

// loggedTrouble is what was logged about a feed.
type loggedTrouble struct {
	dead, shared, unreadable bool
	since                    time.Time // time of the last line
}

// Watch logs events that do not come, and events that come under two workers' names, until ctx ends.
func (s *Set) Watch(ctx context.Context) {
	told := map[*stream.Feed]loggedTrouble{}
	for now := range retry.Every(ctx, watchEvery) {
		told = s.logChanges(told, now)
	}
}

// logChanges logs what has changed since the state told, and returns the new one.
func (s *Set) logChanges(told map[*stream.Feed]loggedTrouble, now time.Time) map[*stream.Feed]loggedTrouble {
	list := s.Slots()
	others, all := Shared(list), make(map[*stream.Feed]loggedTrouble, len(list))
	for _, f := range list {
		if f.Feed == nil || !f.Ready {
			continue
		}
		was := told[f.Feed]
		st := f.Feed.Stats()
		age, never := f.Feed.Age(now), st.Batches == 0 && !st.Connected
		if never && st.LastError == "" {
			age -= deadAfter // its first attempt goes on
		}
		is := loggedTrouble{age >= deadAfter && st.Unreadable == "", others[f.Feed] != "", st.Unreadable != "", was.since}
		changed := is != was
		if at := []zap.Field{zap.String("worker", f.Worker.Name), zap.Int("rank", max(f.Rank, 0))}; changed && now.Sub(was.since) >= logInterval {
			is.since = now
			switch {
			case is.unreadable && !was.unreadable:
				s.o.Log.Warn("a worker's KV events cannot be read, so nothing is known of what it holds; is its engine of a supported release, "+
					"and is this its socket?", append(at, zap.String("received", st.Unreadable))...)
			case was.unreadable && !is.unreadable && !is.dead:
				s.o.Log.Info("a worker's KV events can be read again", at...)
			case is.shared && !was.shared:
				s.o.Log.Error("two workers publish the same events; correct events.zmq", append(at, zap.String("other", others[f.Feed]))...)
			case is.dead && !was.dead && never:
				s.o.Log.Warn("no connection to a worker's KV events: nothing is known of what it holds",
					append(at, zap.String("error", st.LastError))...)
			case is.dead && !was.dead:
				s.o.Log.Warn("a worker's KV events stopped; its known blocks count for less over time",
					append(at, zap.String("error", st.LastError))...)
			case was.dead && !is.dead:
				s.o.Log.Info("a worker's KV events resumed", at...)
			}
		} else if changed {
			is = was // logged later
		}
		all[f.Feed] = is
	}
	return all
}

// Shared finds feeds whose last stored blocks came by the same message, including its time stamp: their sockets are one
// publisher's. It returns the other worker's name for each.
func Shared(list []Slot) map[*stream.Feed]string {
	first, out := map[[2]uint64]Slot{}, map[*stream.Feed]string{}
	for _, f := range list {
		if f.Feed == nil {
			continue
		}
		key := f.Feed.Stats().Stored
		other, twice := first[key]
		first[key] = f
		if twice && key != [2]uint64{} {
			out[f.Feed], out[other.Feed] = other.Worker.Name, f.Worker.Name
		}
	}
	return out
}
