package stream

import (
	"bytes"
	"context"
	"encoding/binary"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	zmq4 "github.com/go-zeromq/zmq4"

	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/lab/recorded"
	"github.com/sightline-router/sightline/mmhash/block"
)

// publisher has PUB and ROUTER sockets as vLLM does.
type publisher struct {
	pub, router zmq4.Socket
	mu          sync.Mutex
	sent        [][]byte
	asked       chan uint64
}

func publish(t testing.TB) *publisher {
	ctx, cancel := context.WithCancel(context.Background())
	p := &publisher{pub: zmq4.NewPub(ctx), router: zmq4.NewRouter(ctx), asked: make(chan uint64, 100)}
	for _, s := range []zmq4.Socket{p.pub, p.router} {
		if err := s.Listen("tcp://127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { cancel(); p.pub.Close(); p.router.Close() })
	return p
}

// serve answers one replay with what was sent.
func (p *publisher) serve(t testing.TB) {
	m, err := p.router.Recv()
	if err != nil {
		t.Error(err)
		return
	}
	from := binary.BigEndian.Uint64(m.Frames[len(m.Frames)-1])
	p.mu.Lock()
	sent := p.sent
	p.mu.Unlock()
	for i := from; i < uint64(len(sent)); i++ {
		p.router.Send(zmq4.NewMsgFrom(m.Frames[0], nil, []byte("kv@w"), binary.BigEndian.AppendUint64(nil, i), sent[i]))
	}
	p.router.Send(zmq4.NewMsgFrom(m.Frames[0], nil, nil, bytes.Repeat([]byte{0xff}, 8), nil))
	p.asked <- from
}

func (p *publisher) send(payload []byte) {
	p.mu.Lock()
	p.sent = append(p.sent, payload)
	seq := uint64(len(p.sent) - 1)
	p.mu.Unlock()
	p.pub.Send(zmq4.NewMsgFrom([]byte("kv@w"), binary.BigEndian.AppendUint64(nil, seq), payload))
}

// TestOverZMQ joins a running worker over real sockets: replay for what was before, live messages after, a gap in between, and
// nothing left running.
func TestOverZMQ(t *testing.T) {
	set := recorded.Selection(t)
	step, payloads := set.Cases["qwen2.5-vl-b16"], set.Payloads("qwen2.5-vl-b16")
	p := publish(t)
	for _, b := range payloads[:20] {
		p.send(b)
	}
	before := runtime.NumGoroutine()
	index := indexer.New(indexer.Options{})
	sink := Join(index, indexer.SlotOptions{CountCopies: true})
	f := Start(Options{Decoder: &vllm.Decoder{}, Sink: sink, Idle: 50 * time.Millisecond, Source: ZMQ{
		Endpoint: "tcp://" + p.pub.Addr().String(), ReplayEndpoint: "tcp://" + p.router.Addr().String()}})
	p.serve(t)
	if from := <-p.asked; from != 0 {
		t.Errorf("asked from %d, want 0", from)
	}
	applied(t, f, "the replay", func(s Stats) bool { return s.Batches == 20 && !s.Partial })
	stop := make(chan struct{})
	served := make(chan struct{})
	go func() { // further replays, requested by the feed when it is idle or misses something
		defer close(served)
		for {
			select {
			case <-stop:
				return
			default:
				p.serve(t)
			}
		}
	}()
	// The subscription is on its way while the first of these are sent; the replay brings what it misses.
	p.send(payloads[20])
	applied(t, f, "a message missed or live", func(s Stats) bool { return s.LastSeq == 20 })
	for _, b := range payloads[21:] {
		p.send(b)
		last := uint64(len(p.sent) - 1)
		applied(t, f, "a live message", func(s Stats) bool { return s.LastSeq == last })
	}
	last := step[len(step)-1]
	var m indexer.Matches
	index.Match(block.Fixed().Locals(nil, last.Computed[0].Tokens, block.Form{Size: 16}, last.Computed[0].Spans,
		block.Fixed().Root("", last.Salt)), &m)
	if want := len(last.Computed[0].Tokens) / 16; m.Longest != want {
		t.Errorf("the last prompt has %d blocks in the index, want %d", m.Longest, want)
	}
	if s := f.Stats(); s.Restarts+s.DecodeErrors+s.UnknownParents > 0 || !s.Connected {
		t.Errorf("%+v: got %d, want 0, Connected true", s, s.Restarts+s.DecodeErrors+s.UnknownParents)
	}
	close(stop)
	<-served
	f.Close()
	for end := time.Now().Add(2 * time.Minute); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%d goroutines before, %d after\n%s", before, runtime.NumGoroutine(), buf[:runtime.Stack(buf, true)])
		}
	}
}

// BenchmarkLatency measures the time from a publisher's send to a changed index, over loopback: a batch of one block.
func BenchmarkLatency(b *testing.B) {
	p := publish(b)
	index := indexer.New(indexer.Options{})
	sink := Join(index, indexer.SlotOptions{CountCopies: true})
	f := Start(Options{Decoder: &vllm.Decoder{}, Sink: sink, Source: ZMQ{Endpoint: "tcp://" + p.pub.Addr().String()}})
	defer f.Close()
	w := newWorker(1, false)
	for f.Stats().Batches == 0 { // until the subscription has arrived
		p.send(w.step().Payload)
		time.Sleep(time.Millisecond)
	}
	var took []time.Duration
	for b.Loop() {
		payload := w.step().Payload
		start, before := time.Now(), f.Stats().Batches
		p.send(payload)
		for f.Stats().Batches == before {
			time.Sleep(20 * time.Microsecond)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}
