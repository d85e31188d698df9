package router

import (
	"encoding/binary"
	"errors"

	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/router/learned"
)

// Replicas tell each other what requests taught, so that a conversation is known to all, and one that starts asks another one for all of
// it. Paths and blocks mean something only under the secret that they were made with, which each message names.
//
//	Options.ShareLearned ─▶ another replica ─▶ ApplyLearned
//	LearnedSnapshot ─▶ another replica ─▶ TakeLearned

// share returns a function that tells other replicas of a lesson; nil: there are none.
func (l *learning) share(tell func(uint64, *learned.Lesson)) func(*learned.Lesson) {
	if tell == nil {
		return nil
	}
	return func(lesson *learned.Lesson) { tell(l.secret.Key().ID, lesson) }
}

// has reports whether all that is remembered is of the secret's key of this ID.
func (l *learning) has(key uint64) bool {
	if l == nil {
		return false
	}
	l.paths() // forgets what was learned under a secret that was replaced
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.key == key
}

// ApplyLearned remembers what another replica's request taught, and returns false if that was under another secret.
func (r *Replicas) ApplyLearned(key uint64, l *learned.Lesson) bool {
	if !r.learning.has(key) {
		return false
	}
	r.learning.memory.Teach(l)
	if l.Taught.Tokens > 0 {
		r.learning.sizes.Learn(l.Class, &l.Path, l.Taught.Tokens)
	}
	return true
}

// LearnedSnapshot returns what is remembered of requests, for another replica's TakeLearned; nil: nothing is learned.
func (r *Replicas) LearnedSnapshot(most int) []byte {
	l := r.learning
	if l == nil {
		return nil
	}
	key := l.secret.Key().ID
	if !l.has(key) {
		return nil
	}
	return append(binary.LittleEndian.AppendUint64(nil, key), l.memory.Snapshot(most-8)...)
}

// TakeLearned asks for another replica's LearnedSnapshot and remembers it, and what was learned since the start or since the secret was
// replaced behind it, unless a snapshot was taken already or too much was learned. It returns the snapshot's size; 0: there is none.
func (r *Replicas) TakeLearned(ask func() ([]byte, error)) (bytes int, err error) {
	l := r.learning
	if l == nil {
		return 0, nil
	}
	l.paths()
	if !l.memory.Await() {
		return 0, nil
	}
	b, err := ask()
	if err != nil || len(b) < 8 {
		return 0, err
	}
	key, other := binary.LittleEndian.Uint64(b), errors.New("what another replica remembers was learned under another secret")
	if !l.has(key) {
		return 0, other
	}
	b = b[8:]
	if len(b) > 0 {
		err = guard.Call(func() error { return l.memory.Load(b) })
	}
	if err != nil {
		return 0, err
	}
	if !l.has(key) { // it was replaced meanwhile: the next replica is asked
		l.memory.Clear()
		return 0, other
	}
	return len(b), nil
}
