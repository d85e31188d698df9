package retry

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Backoff{First: 100 * time.Millisecond, Longest: time.Second}
		for i, want := range []time.Duration{100, 200, 400, 800, 1000, 1000, 100, 200} {
			want *= time.Millisecond
			if i == 6 {
				b.Reset()
			}
			begin := time.Now()
			if !b.Wait(t.Context()) {
				t.Fatal("the context has not ended")
			}
			if took := time.Since(begin); took < want/2 || took >= want*3/2 {
				t.Errorf("pause %d: %v, want %v, give or take a half", i, took, want)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if b.Wait(ctx) {
			t.Error("the pause went on after its context")
		}
		same := Backoff{First: time.Second}
		for range 3 {
			begin := time.Now()
			same.Wait(t.Context())
			if time.Since(begin) >= 3*time.Second/2 {
				t.Error("a pause without Longest has grown")
			}
		}
	})
}

// TestEvery: rounds come once a period until the context ends or the loop is left.
func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		began, rounds := time.Now(), 0
		for now := range Every(ctx, time.Second) {
			rounds++
			if want := time.Duration(rounds) * time.Second; now.Sub(began) != want {
				t.Errorf("round %d after %v, want %v", rounds, now.Sub(began), want)
			}
			if rounds == 3 {
				cancel()
			}
		}
		if rounds != 3 {
			t.Errorf("%d rounds, want 3: none after the context's end", rounds)
		}
		if Sleep(ctx, time.Second) {
			t.Error("slept although the context has ended")
		}
		for range Every(t.Context(), time.Second) {
			break // and no ticker is left behind, which synctest would report
		}
	})
}

// TestBell: a loop goes round only when it was rung, and ends with ctx.
func TestBell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		bell, rounds := make(Bell, 1), 0
		ended := make(chan struct{})
		go func() {
			for range bell.Every(ctx, time.Second) {
				rounds++
				if rounds == 1 {
					bell.Ring()
				}
			}
			close(ended)
		}()
		time.Sleep(time.Hour)
		if rounds != 0 {
			t.Errorf("%d rounds without a ring, want 0", rounds)
		}
		bell.Ring()
		bell.Ring()
		time.Sleep(time.Hour)
		if rounds != 3 && rounds != 2 { // the second ring may find the first taken
			t.Errorf("%d rounds", rounds)
		}
		cancel()
		<-ended
	})
}

// TestBeat: loops of the same period come round together, whenever each began and however long a round takes.
func TestBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var rounds sync.Map
		var all sync.WaitGroup
		for i := range 4 {
			time.Sleep(time.Duration(i) * 170 * time.Millisecond)
			all.Go(func() {
				for now := range Every(ctx, time.Second) {
					rounds.Store(now, true)
					time.Sleep(time.Duration(i) * 100 * time.Millisecond)
				}
			})
		}
		all.Wait()
		n := 0
		rounds.Range(func(any, any) bool { n++; return true })
		if n < 8 || n > 10 {
			t.Errorf("four loops of a second came round at %d moments in ten seconds, want at least 8, at most 10", n)
		}
		now := time.Now()
		for range 100 {
			now = now.Add(37 * time.Millisecond)
			if wait := UntilBeat(now, time.Second, 300*time.Millisecond); wait <= time.Second/2 || wait > 3*time.Second/2 ||
				now.Add(wait).Add(-300*time.Millisecond).Round(time.Second) != now.Add(wait).Add(-300*time.Millisecond).Round(0) {
				t.Errorf("from %v to its beat: %v", now, wait)
			}
		}
	})
}
