package stream

import (
	"testing"

	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/internal/fair"
)

// TestFeedsShareOneBudget: a worker that claims 24 ranks and floods each has three quarters of the memory for waiting messages in all, and
// another worker's messages are taken meanwhile. What a feed took is there again when it has ended.
func TestFeedsShareOneBudget(t *testing.T) {
	const ranks, size = 24, 4 << 20
	b := NewBudget()
	stop := make(chan struct{})
	blocked := func(worker string) *Feed {
		f, _ := start(t, newWorker(5, true), Options{Budget: b, Worker: fair.ClientOf(worker), Stored: func(*kvevent.Event) { <-stop }})
		f.Up()
		return f
	}
	flood := make([]byte, size)
	var all []*Feed
	for range ranks {
		f := blocked("liar")
		all = append(all, f)
		for range queueBytes / size {
			f.Offer(Message{Seq: 1, Payload: flood})
		}
	}
	if got := b.queued.Taken(); got > allQueued*3/4 {
		t.Errorf("one worker's %d ranks hold %d bytes, want %d at most", ranks, got, allQueued*3/4)
	}
	honest := blocked("honest")
	honest.Offer(Message{Seq: 1, Payload: flood})
	if n := honest.Stats().Drops; n > 0 {
		t.Errorf("%d of another worker's messages were dropped, want 0", n)
	}
	close(stop)
	for _, f := range append(all, honest) {
		f.Close()
	}
	if q, o, r, in := b.queued.Taken(), b.orphans.Taken(), b.read.Taken(), b.received.Taken(); q != 0 || o != 0 || r != 0 || in != 0 {
		t.Errorf("after all have ended %d bytes wait, %d are orphans', %d are read, %d received; want none", q, o, r, in)
	}
}

// TestOrphansShareOneBudget: blocks that wait for their parent count for their worker, whatever the rank, and the oldest of it go.
func TestOrphansShareOneBudget(t *testing.T) {
	const ranks = 10
	b := NewBudget()
	var all []*Feed
	dropped := uint64(0)
	for r := range ranks {
		f := &Feed{content: content{o: Options{Budget: b, Worker: fair.ClientOf("liar")}}}
		all = append(all, f)
		e := kvevent.Event{Kind: kvevent.Stored, Parent: 1, HasParent: true}
		for i := range maxOrphans {
			e.EngineHashes, e.Locals = append(e.EngineHashes, uint64(r<<32+i+2)), append(e.Locals, uint64(i))
		}
		f.orphans.add(&e)
		dropped += f.shareOrphans()
	}
	if got := b.orphans.Taken(); got > allOrphans*3/4 || dropped == 0 {
		t.Errorf("%d ranks hold %d bytes, %d dropped; want %d at most, and some dropped", ranks, got, dropped, allOrphans*3/4)
	}
	for _, f := range all {
		f.giveBack()
	}
	if got := b.orphans.Taken(); got != 0 {
		t.Errorf("%d bytes are held after the end, want none", got)
	}
}
