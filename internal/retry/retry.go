// Package retry waits between the attempts of something that failed.
package retry

import (
	"context"
	"math/rand/v2"
	"time"
)

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
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause/2 + rand.N(pause)):
		return true
	}
}

// Reset makes the next pause the first one again.
func (b *Backoff) Reset() { b.next = 0 }
