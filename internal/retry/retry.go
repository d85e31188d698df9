// Package retry waits: between the attempts of something that failed, and between the rounds of periodic work.
package retry

import (
	"context"
	"iter"
	"math/rand/v2"
	"time"
)

// Sleep waits for d. It returns false if ctx ends before.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Every yields the time at each beat of period, until ctx ends. A round that takes longer than a period delays the next one.
func Every(ctx context.Context, period time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		for Sleep(ctx, UntilBeat(time.Now(), period, 0)) {
			if !yield(time.Now()) {
				return
			}
		}
	}
}

// UntilBeat returns how long after now the next beat is, half a period to one and a half: beats are multiples of period on the wall
// clock, plus phase. What a process does periodically happens on common beats, since to wake up an idle process costs more CPU time
// than most of what it then does.
func UntilBeat(now time.Time, period, phase time.Duration) time.Duration {
	return now.Add(-phase).Round(period).Add(period + phase).Sub(now)
}

// Bell wakes a periodic loop that sleeps while there is nothing to do: make(Bell, 1).
type Bell chan struct{}

// Ring has the loop go round once more.
func (b Bell) Ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// Every yields at a beat of period after it was rung, until ctx ends.
func (b Bell) Every(ctx context.Context, period time.Duration) iter.Seq[struct{}] {
	return func(yield func(struct{}) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case <-b:
			}
			if !Sleep(ctx, UntilBeat(time.Now(), period, 0)) || !yield(struct{}{}) {
				return
			}
		}
	}
}

// Backoff is the pause before the next attempt: First, then twice as long each time up to Longest. Not safe for concurrent use.
type Backoff struct {
	First, Longest time.Duration // Longest may be 0: First each time
	next           time.Duration
}

// Wait waits for the pause, give or take a half, so that those that failed together do not try again together. It returns false if
// ctx ends before.
func (b *Backoff) Wait(ctx context.Context) bool {
	pause := max(b.next, b.First)
	b.next = min(2*pause, max(b.First, b.Longest))
	return Sleep(ctx, pause/2+rand.N(pause))
}

// Reset makes the next pause the first one again.
func (b *Backoff) Reset() { b.next = 0 }
