package fleet

import (
	"testing"
	"time"

	"github.com/sightline-router/sightline/engine/rules"
)

// TestOvertakenRequestsKeepTheirWork: at a worker that serves by when requests are due, a document that others overtake still waits, and
// so does what a request that is being computed has overtaken.
func TestOvertakenRequestsKeepTheirWork(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	s.Worker.SetServing(rules.LowFirst)
	const document, chats, chat = 32_000, 12, 160
	now := stored{}
	f.Book("first", s, Work{Tokens: 1600, Context: 1600, Locals: promptOf(1, 100), Due: 10})
	f.Book("document", s, Work{Tokens: document, Context: document, Locals: promptOf(2, 2000), Due: 16_000})
	for i := range chats {
		f.Book(string(rune('a'+i)), s, Work{Tokens: chat, Context: chat, Locals: promptOf(uint64(3+i), 10), Due: 100 + int64(i)})
	}
	now[1] = 100
	s.Progress(now.held, c.t)
	if got, want := s.Load(c.t).Backlog, float64(document+chats*chat); got != want {
		t.Errorf("after what came first: got %v tokens queued, want %v", got, want)
	}
	for i := range chats {
		now[uint64(3+i)] = 10
		s.Progress(now.held, c.t)
		if got, want := s.Load(c.t).Backlog, float64(document+(chats-1-i)*chat); got != want {
			t.Errorf("after %d chats: got %v tokens queued, want %v", i+1, got, want)
		}
	}
	c.t = c.t.Add(time.Millisecond) // the document's step begins, and a chat comes meanwhile
	f.Book("late", s, Work{Tokens: chat, Context: chat, Locals: promptOf(90, 10), Due: 200})
	now[2] = 2000
	s.Progress(now.held, c.t)
	if got := s.Load(c.t).Backlog; got != chat {
		t.Errorf("after the document: got %v tokens queued, want those of the chat that came while it was computed, %v", got, chat)
	}
}

// TestLostEventInOrder: what was due before a request that is done is done too, if it had come when that one began. How long the latter
// waited is told, of the former that is not known.
func TestLostEventInOrder(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	f, s := heard(c)
	s.Worker.SetServing(rules.LowFirst)
	f.Book("document", s, Work{Tokens: 1600, Context: 1600, Locals: promptOf(1, 100), Due: 800})
	f.Book("chat", s, Work{Tokens: 160, Context: 160, Locals: promptOf(2, 10), Due: 100})
	c.t = c.t.Add(time.Second)
	s.Progress(stored{}.held, c.t) // of others
	c.t = c.t.Add(time.Second)
	s.Progress(stored{1: 100}.held, c.t)
	if got := s.Load(c.t).Backlog; got != 0 {
		t.Errorf("got %v tokens queued, want none", got)
	}
	if document, chat := f.open["document"][0].Release(c.t), f.open["chat"][0].Release(c.t); document != time.Second || chat != 0 {
		t.Errorf("got %v, %v waited, want 1s of the document and of the chat 0", document, chat)
	}
}

// TestOrderIsObserved: a worker that does not say in which order it serves shows it by what it computes first of two that have waited for
// long.
func TestOrderIsObserved(t *testing.T) {
	const wait = waitsAWhile + time.Millisecond
	for _, c := range []struct {
		name         string
		first, later Work          // of two, the one that comes first and the one that comes after it
		apart        time.Duration // by which
		waited       time.Duration // how long both have waited when a step begins
		computed     uint64        // in it
		want         rules.Serving
	}{
		{"the later one is due sooner, and first", Work{Due: 900}, Work{Due: 100}, wait, 0, 2, rules.LowFirst},
		{"it came shortly after", Work{Due: 900}, Work{Due: 100}, waitsAWhile / 2, wait, 2, rules.Unsaid},
		{"the later one is due sooner, and not first", Work{Due: 900}, Work{Due: 100}, time.Millisecond, wait, 1, rules.AsTheyCome},
		{"it had hardly come", Work{Due: 900}, Work{Due: 100}, wait, 0, 1, rules.Unsaid},
		{"both orders are one", Work{Due: 100}, Work{Due: 900}, wait, wait, 1, rules.Unsaid},
		{"no order was told", Work{}, Work{}, wait, wait, 2, rules.Unsaid},
		{"the first one fetches an image", Work{Due: 900, Media: true}, Work{Due: 100}, wait, 0, 2, rules.Unsaid},
		{"the first one comes from a lower tier", Work{Due: 900, Fetch: 160}, Work{Due: 100}, wait, 0, 2, rules.Unsaid},
	} {
		k := &clock{time.Unix(1000, 0)}
		f, s := heard(k)
		for range orderSeen {
			if s.Observed() != rules.Unsaid {
				t.Errorf("%s: got %v from less than %d times", c.name, s.Observed(), orderSeen)
			}
			for i, w := range []Work{c.first, c.later} {
				w.Tokens, w.Context, w.Locals = 1600, 1600, promptOf(uint64(i+1), 100)
				f.Book(string(rune('a'+i)), s, w)
				if i == 0 {
					k.t = k.t.Add(c.apart)
				}
			}
			k.t = k.t.Add(c.waited)
			s.Progress(stored{}.held, k.t) // a step of others ends
			k.t = k.t.Add(100 * time.Millisecond)
			s.Progress(stored{c.computed: 100}.held, k.t)
			s.Progress(stored{1: 100, 2: 100}.held, k.t)
			f.End("a")
			f.End("b")
		}
		if got := s.Observed(); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}
