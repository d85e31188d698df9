package peers

import (
	"context"
	"time"

	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/router/learned"
)

// What a request taught (package learned) is sent to the replicas that have the same secret, a little at a time. A replica that starts
// asks another one for all that it remembers, as for what a worker holds (held.go); the worker has no name then.
//
//	learned.Learner ─ ShareLearned ─▶ queue ─ sendLessons, every 100 ms ─▶ the others' Receive ─▶ ApplyLearned
const (
	lessonPause       = 100 * time.Millisecond // between two sendings
	lessonsAtOnce     = 2 * targetBytes        // bytes of a sending: 5 MiB a second
	maxLessonsQueued  = 256                    // further ones are dropped
	maxLessonBytes    = 8 << 20                // of those that are queued
	lessonsPerPeer    = 8 << 20                // bytes a second that are taken of one replica, more than it sends
	memoryAskAttempts = 3                      // another replica may be busy
)

// lessonAllowance is what has been taken of one replica.
type lessonAllowance struct {
	since time.Time
	bytes int
}

// spend reports whether some more bytes may be taken.
func (a *lessonAllowance) spend(bytes int, now time.Time) bool {
	if now.Sub(a.since) >= time.Second {
		a.since, a.bytes = now, 0
	}
	a.bytes += bytes
	return a.bytes <= lessonsPerPeer
}

// ShareLearned implements router.Options.ShareLearned.
func (x *Exchange) ShareLearned(key uint64, l *learned.Lesson) {
	if x.peerCount.Load() == 0 { // replicas that join later ask for all
		return
	}
	b := appendLesson(nil, key, l)
	if x.lessonBytes.Add(int64(len(b))) <= maxLessonBytes {
		select {
		case x.lessons <- b:
			return
		default:
		}
	}
	x.lessonBytes.Add(-int64(len(b)))
	x.entries.WithLabelValues(lessonsDropped).Inc()
}

// sendLessons sends the queued lessons until ctx ends.
func (x *Exchange) sendLessons(ctx context.Context, line Line) {
	for range retry.Every(ctx, lessonPause) {
		for sent := 0; sent < lessonsAtOnce && len(x.lessons) > 0; {
			b, n := messageHead(x.own), 0
			for len(b) < targetBytes && len(x.lessons) > 0 {
				one := <-x.lessons
				b, n = append(b, one...), n+1
				x.lessonBytes.Add(-int64(len(one)))
			}
			sent += len(b)
			what := lessonsSent
			if line.Send("", b) != nil {
				what = lessonsDropped
			}
			x.entries.WithLabelValues(what).Add(float64(n))
		}
	}
}

// takeLesson takes another replica's lesson. x.mu is held.
func (x *Exchange) takeLesson(p *peer, key uint64, l *learned.Lesson, bytes int) {
	what := lessonsTaken
	if !p.lessons.spend(bytes, time.Now()) || !x.router.Replicas().ApplyLearned(key, l) {
		what = lessonsRefused
	}
	x.entries.WithLabelValues(what).Inc()
}

// RequestLearned asks the other replicas for all that they remember of requests; nil: none has it.
func (x *Exchange) RequestLearned(ctx context.Context) (b []byte, err error) {
	pause := retry.Backoff{First: time.Second}
	for try := 1; ; try++ {
		b, err = x.RequestHeld(ctx, "", -1)
		if b != nil || try == memoryAskAttempts || x.peerCount.Load() == 0 || !pause.Wait(ctx) {
			return b, err
		}
	}
}
