package peers

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router"
	"github.com/sightline-router/sightline/router/learned"
)

// lessonOf is what a made-up request of some steps taught.
func lessonOf(steps int) *learned.Lesson {
	l := &learned.Lesson{Class: 5, Taught: learned.Taught{Chain: []uint64{uint64(steps), 2, 1 << 63}, Prompt: 2, Tokens: 40}}
	for i := range steps {
		l.Path.Steps = append(l.Path.Steps, learned.Step{Number: [2]uint64{uint64(steps), 1<<63 | uint64(i)}, Bytes: int32(i),
			Answer: i == 1, Media: i == 2})
	}
	return l
}

func (r *replica) lessons(what string) int {
	return int(testutil.ToFloat64(r.entries.WithLabelValues(what)))
}

// What a request taught reaches the replicas that have the same secret and can read it; one that comes later asks for all of it.
func TestLessonsTravel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		broadcast := 0
		h := &hall{secret: block.NewSecret(), also: func(to string, m []byte) {
			if len(m) > headBytes && m[headBytes] == kindLesson && to == "" {
				mu.Lock()
				defer mu.Unlock()
				broadcast++
			}
		}}
		a, b := h.join(t), h.join(t)
		shared := h.secret
		h.secret = block.NewSecret()
		foreign := h.join(t)
		h.secret = shared
		eventually(t, "they hear each other", known(2, a, b, foreign))
		key := shared.Key().ID
		teach := func(steps int) {
			if l := lessonOf(steps); a.router.Replicas().ApplyLearned(key, l) {
				a.ShareLearned(key, l)
			}
		}
		knows := func(r *replica) []byte { return r.router.Replicas().LearnedSnapshot(MostHeld) }
		empty := 8 // the key
		teach(3)
		eventually(t, "it is told", func() bool { return bytes.Equal(knows(b), knows(a)) && len(knows(a)) > empty })
		eventually(t, "one with another secret refuses it", func() bool { return foreign.lessons(lessonsRefused) == 1 })
		if len(knows(foreign)) != empty || b.lessons(lessonsTaken) != 1 || a.lessons(lessonsSent) != 1 || broadcast == 0 {
			t.Errorf("another secret: got %d bytes; %d taken, %d sent, %d messages to all, want %d, 1, 1, some",
				len(knows(foreign)), b.lessons(lessonsTaken), a.lessons(lessonsSent), broadcast, empty)
		}
		foreign.ShareLearned(foreign.Exchange.Secret.Key().ID, lessonOf(4))
		eventually(t, "nor is what it teaches taken", func() bool { return a.lessons(lessonsRefused) == 1 && b.lessons(lessonsRefused) == 1 })

		teach(5)
		eventually(t, "that is told too", func() bool { return bytes.Equal(knows(b), knows(a)) })

		late := h.join(t)
		for _, none := range [][]byte{nil, binary.LittleEndian.AppendUint64(nil, key)} { // of nobody, of one that knows nothing
			if n, err := late.router.Replicas().TakeLearned(func() ([]byte, error) { return none, nil }); n != 0 || err != nil {
				t.Errorf("asked for nothing: got %d bytes, %v, want 0, no error", n, err)
			}
		}
		before, during := lessonOf(9), lessonOf(7)
		for _, r := range []*replica{late, a} { // taught before it could ask another one
			r.router.Replicas().ApplyLearned(key, before)
		}
		eventually(t, "it hears them", known(3, late))
		eventually(t, "it knows their keys", func() bool { return len(late.sameSecret()) == 2 })
		n, err := late.router.Replicas().TakeLearned(func() ([]byte, error) {
			late.router.Replicas().ApplyLearned(key, during)
			return late.RequestLearned(t.Context())
		})
		a.router.Replicas().ApplyLearned(key, during)
		if err != nil || n == 0 || !bytes.Equal(knows(late), knows(a)) {
			t.Errorf("a late replica got %d bytes, %v", n, err)
		}
		again := func() ([]byte, error) { t.Error("got a second request, want none"); return nil, nil }
		if n, err := late.router.Replicas().TakeLearned(again); n != 0 || err != nil {
			t.Errorf("got %d %v, want 0, no error", n, err)
		}
		other := h.join(t)
		if n, err := other.router.Replicas().TakeLearned(func() ([]byte, error) { return knows(foreign), nil }); n != 0 || err == nil {
			t.Errorf("%d bytes of another secret were taken: %v, want 0, an error", n, err)
		}
		if n, err := other.router.Replicas().TakeLearned(func() ([]byte, error) { return append(knows(a), 9, 9, 9), nil }); n != 0 || err == nil {
			t.Errorf("%d bytes of a snapshot that is none were taken: %v, want 0, an error", n, err)
		}
		if len(knows(other)) != empty {
			t.Errorf("got %d remembered of them, want %d as before", len(knows(other)), empty)
		}
	})
}

// A request of which nothing is known follows another one that begins alike and that another replica has just sent;
// what cannot be a path is refused.
func TestPathsTravel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{secret: block.NewSecret()}
		a, b := h.join(t), h.join(t)
		eventually(t, "they hear each other", known(1, a, b))
		ask := func(r *replica, begin, question int) router.Decision {
			return r.router.Decide(t.Context(), &router.Request{ID: r.own + Instance(), Path: "/v1/chat/completions", Body: [][]byte{
				fmt.Appendf(nil, `{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":"Number %d?"}]}`,
					strings.Repeat(fmt.Sprintf("This is beginning %d. ", begin), 200), question)}})
		}
		pairs := func(what string, n int) (followed int) {
			t.Helper()
			for i := range n {
				taken, begin := b.lessons("taken"), 100*len(what)+i
				first := ask(a, begin, 1)
				eventually(t, what+": the booking is told", func() bool { return b.lessons("taken") > taken })
				if second := ask(b, begin, 2); second.Reason == router.Predicted && second.Targets[0].Worker == first.Targets[0].Worker {
					followed++
				}
			}
			return followed
		}
		if n := pairs("two replicas", 10); n != 10 {
			t.Errorf("%d of 10 follow the first to its worker, want 10", n)
		}
		unread := b.lessons("unread")
		long := &router.SharedBooking{Number: 1, Worker: "w1", Rank: -1, DecoderRank: -1, Path: make([]uint64, learned.MaxSteps)}
		bookings := b.router.Replicas().Bookings()
		b.Receive(appendShared(messageHead("HOSTILE1"), long))
		if n := b.router.Replicas().Bookings(); n != bookings+1 || b.lessons("unread") != unread {
			t.Errorf(`the longest path: got %d bookings more, want n == bookings+1, b.lessons("unread") == unread`, n-bookings)
		}
		m := appendLocals(append(messageHead("HOSTILE2"), kindPath), make([]uint64, learned.MaxSteps+1))
		b.Receive(appendShared(m, long))
		if n := b.router.Replicas().Bookings(); n != bookings+1 || b.lessons("unread") != unread+1 {
			t.Errorf(`a path that is too long: %d bookings more, %d unread, want n == bookings+1, b.lessons("unread") == unread+1`,
				n-bookings-1, b.lessons("unread")-unread)
		}
	})
}

// Lessons are bounded where they are sent and where they are taken.
func TestLessonsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hall{secret: block.NewSecret()}
		a, b := h.join(t), h.join(t)
		eventually(t, "they hear each other", known(1, a, b))
		key := h.secret.Key().ID
		large := lessonOf(learned.MaxSteps)
		large.Taught.Chain = slices.Repeat([]uint64{1}, learned.MaxBlocks)
		size := len(appendLesson(nil, key, large))
		if size > maxMessageBytes-targetBytes-headBytes {
			t.Errorf("a lesson of %d bytes does not fit into a message, want at most %d", size, maxMessageBytes-targetBytes-headBytes)
		}
		h.away.Store(true) // soon they do not know each other any more, and keep nothing for each other
		const all = 2 * maxLessonsQueued
		for range all {
			a.ShareLearned(key, lessonOf(2))
		}
		for range all {
			a.ShareLearned(key, large)
		}
		if n := a.lessonBytes.Load(); n > maxLessonBytes || a.lessons(lessonsDropped) == 0 {
			t.Errorf("%d bytes wait, %d lessons were dropped, want at most %d, some", n, a.lessons(lessonsDropped), maxLessonBytes)
		}
		eventually(t, "the others are dropped too", func() bool { return a.lessonBytes.Load() == 0 })
		h.away.Store(false)
		message := appendLesson(messageHead(a.own), key, large)
		before := b.lessons(lessonsTaken)
		for range lessonsPerPeer/size + 1 { // all within one second
			b.Receive(message)
		}
		if n := b.lessons(lessonsTaken) - before; n == 0 || n*size > lessonsPerPeer || b.lessons(lessonsRefused) == 0 {
			t.Errorf("got %d lessons of %d bytes taken and %d refused within a second, want at most %d bytes, and the rest refused",
				n, size, b.lessons(lessonsRefused), lessonsPerPeer)
		}
	})
}

// What cannot be a lesson is refused, with the rest of its message.
func TestLessonsAreChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, change := range map[string]func(*learned.Lesson){
			"more of the prompt than there is": func(l *learned.Lesson) { l.Taught.Prompt = 4 },
			"a prompt without an end":          func(l *learned.Lesson) { l.Taught.Tokens = learned.MaxTokens + 1 },
			"too many steps":                   func(l *learned.Lesson) { *l = *lessonOf(learned.MaxSteps + 1) },
			"too many blocks":                  func(l *learned.Lesson) { l.Taught.Chain = make([]uint64, learned.MaxBlocks+1) },
		} {
			h := &hall{secret: block.NewSecret()}
			r, l := h.join(t), lessonOf(3)
			change(l)
			r.Receive(appendLesson(append(messageHead("AAAAAAAA"), kindState, flagWhole, 0), h.secret.Key().ID, l))
			if n := r.lessons("unread"); n != 1 || r.lessons(lessonsTaken) != 0 || len(r.router.Replicas().LearnedSnapshot(MostHeld)) != 8 {
				t.Errorf("%s: %d unread, %d taken, want n == 1, r.lessons(lessonsTaken) == 0, len(r.router.Replicas().LearnedSnapshot(MostHeld)) == 8",
					name, n, r.lessons(lessonsTaken))
			}
		}
	})
}
