package dynamo

import (
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/stream"
)

// TestManyRanks: every worker-rank known from discovery is received, whatever their number. Of the others a bounded number is kept
// until discovery names them; more are refused, counted and reported once.
func TestManyRanks(t *testing.T) {
	told := 0
	p := &Plane{OnFull: func() { told++ }}
	for id := range uint64(2 * maxUnclaimed) {
		p.Source(Key{Worker: id})
	}
	for id := range uint64(2 * maxUnclaimed) {
		if p.deliver(Key{Worker: id}, 1, 0, nil) == nil {
			t.Fatalf("worker %d is not heard", id)
		}
	}
	for id := range uint64(maxUnclaimed + 3) {
		if heard := p.deliver(Key{Worker: id, Rank: 1}, 1, 0, nil) != nil; heard != (id < maxUnclaimed) {
			t.Fatalf("of unknown ranks, number %d is kept: %v", id, heard)
		}
	}
	if told != 1 || p.Refused() != 3 {
		t.Errorf("told %d times, %d refused, want 1, 3", told, p.Refused())
	}
	p.Source(Key{Worker: 0, Rank: 1}) // discovery has found one
	if p.deliver(Key{Worker: 1 << 40}, 1, 0, nil) == nil {
		t.Error("there is room for one, and it is refused")
	}
}

// TestMessagesAheadAreBounded: what waits for the feeds of ranks that discovery has not found is bounded for all of them.
func TestMessagesAheadAreBounded(t *testing.T) {
	var p Plane
	payload := make([]byte, pendingBytes/2)
	for i := range uint64(100) {
		p.deliver(Key{Worker: i}, 1, 0, payload)
		p.deliver(Key{Worker: i}, 1, 1, payload)
	}
	if p.pending != allPending {
		t.Errorf("%d bytes wait, want %d", p.pending, allPending)
	}
	k := Key{Worker: 3}
	f := stream.Start(stream.Options{Source: p.Source(k), Decoder: &Decoder{Key: k},
		Sink: stream.Join(indexer.New(indexer.Options{}), indexer.SlotOptions{})})
	defer f.Close()
	for end := time.Now().Add(2 * time.Minute); f.Stats().LastMessage.IsZero() && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pending != allPending-pendingBytes {
		t.Errorf("%d bytes wait after a rank was found, want %d", p.pending, allPending-pendingBytes)
	}
}

// TestRankHeardAgain: a rank whose feed ends and restarts gets later messages, even if one came in between.
func TestRankHeardAgain(t *testing.T) {
	var p Plane
	k := Key{Worker: 7}
	source := p.Source(k)
	for life := range 3 {
		f := stream.Start(stream.Options{Source: source, Decoder: &Decoder{Key: k},
			Sink: stream.Join(indexer.New(indexer.Options{}), indexer.SlotOptions{})})
		for end := time.Now().Add(2 * time.Minute); f.Stats().LastMessage.IsZero(); time.Sleep(time.Millisecond) {
			p.deliver(k, 1, 0, []byte{0})
			if time.Now().After(end) {
				t.Fatalf("life %d: nothing is heard", life)
			}
		}
		f.Close()
		p.deliver(k, 1, 0, []byte{0})
	}
}
