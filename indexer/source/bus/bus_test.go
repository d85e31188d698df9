package bus

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/lab/recorded"
	"github.com/sightline-router/sightline/mmhash/block"
)

// runServer starts an embedded server with JetStream on port (-1: any), its store in dir. It waits for a port that is in use for
// a moment.
func runServer(t testing.TB, dir string, port int) *server.Server {
	t.Helper()
	s, err := storedIn(t, fmt.Sprint("127.0.0.1:", max(port, 0)), dir).start(zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close) // after the agents have left
	return s.Server
}

func connect(t testing.TB, url string) *nats.Conn {
	t.Helper()
	nc, err := nats.Connect(url, nats.Timeout(time.Minute), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

func makeStream(t testing.TB, nc *nats.Conn, maxBytes int64) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := ensureStreams(ctx, js, maxBytes, nil); err != nil {
		t.Fatal(err)
	}
}

// hand is a worker whose frames a test provides.
type hand struct {
	ready chan *stream.Feed
	f     *stream.Feed
	kept  uint64 // messages kept for replays; 0: it has none

	mu   sync.Mutex
	told [][]byte // by number
}

func (h *hand) Run(ctx context.Context, f *stream.Feed) error {
	if h.kept > 0 {
		f.Up()
	}
	h.ready <- f
	<-ctx.Done()
	return ctx.Err()
}

func (h *hand) Replay(_ context.Context, from uint64, each func(stream.Message) error) error {
	if h.kept == 0 {
		return errors.ErrUnsupported
	}
	h.mu.Lock()
	told := h.told
	h.mu.Unlock()
	n := uint64(len(told))
	for i := max(from, n-min(n, h.kept)); i < n; i++ {
		if err := each(stream.Message{Seq: i, Payload: told[i]}); err != nil {
			return err
		}
	}
	return nil
}

// give publishes payloads, to its feed if it has one.
func (h *hand) give(payloads ...[]byte) {
	for _, p := range payloads {
		h.mu.Lock()
		seq := uint64(len(h.told))
		h.told = append(h.told, p)
		h.mu.Unlock()
		if h.f != nil {
			h.f.Offer(stream.Message{Seq: seq, Payload: p})
		}
	}
}

// growing skips the resets that the recorder made between requests, so that the cache grows.
type growing struct{ vllm.Decoder }

func (g *growing) Decode(b []byte) (kvevent.Batch, error) {
	batch, err := g.Decoder.Decode(b)
	batch.Events = slices.DeleteFunc(batch.Events, func(e kvevent.Event) bool { return e.Kind == kvevent.Cleared })
	return batch, err
}

// agent is a feed whose sink publishes.
func agent(t testing.TB, nc *nats.Conn, worker string) (*hand, *Publisher) {
	t.Helper()
	h := &hand{ready: make(chan *stream.Feed, 1)}
	return h, h.agent(t, PublisherOptions{NATS: nc, Worker: worker})
}

// agent starts an agent for the worker.
func (h *hand) agent(t testing.TB, o PublisherOptions) *Publisher {
	t.Helper()
	o.CountCopies = true
	p, err := NewPublisher(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	so := stream.Options{Source: h, Decoder: &growing{}}
	p.Options(&so)
	f := stream.Start(so)
	h.f = <-h.ready
	t.Cleanup(f.Close)
	if h.kept > 0 {
		until(t, "a first replay", func() bool { return f.Stats().CaughtUp })
	}
	return p
}

// router listens to all workers; those that it follows have a feed.
type router struct {
	t        testing.TB
	index    *indexer.Index
	listener *Listener
	feeds    map[string]*stream.Feed
	slots    map[string]indexer.SlotID
	stop     context.CancelFunc
	done     chan struct{}
}

func listen(t testing.TB, nc *nats.Conn) *router {
	r := &router{t: t, index: indexer.New(indexer.Options{}), feeds: map[string]*stream.Feed{},
		slots: map[string]indexer.SlotID{}, done: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	r.stop = cancel
	r.listener = &Listener{NATS: nc, watch: 50 * time.Millisecond}
	go func() {
		defer close(r.done)
		r.listener.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
		for _, f := range r.feeds {
			f.Close()
		}
	})
	return r
}

func (r *router) follow(worker string) {
	sink := stream.Join(r.index, indexer.SlotOptions{CountCopies: true})
	r.slots[worker] = sink.Slot()
	r.feeds[worker] = stream.Start(stream.Options{Source: r.listener.Source(worker, 0), Decoder: &Decoder{}, Sink: sink,
		Idle: 10 * time.Second})
}

func until(t testing.TB, head string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s did not come", head)
		}
	}
}

// recording is one recorded worker: payloads and the prompts that they store.
func recording(t testing.TB) (payloads [][]byte, prompts [][]uint64) {
	const worker = "qwen3-vl-b16"
	set := recorded.Selection(t)
	for _, s := range set.Cases[worker] {
		for _, p := range s.Computed {
			prompts = append(prompts, block.Fixed().Locals(nil, p.Tokens, block.Form{Size: 16}, p.Spans, block.Fixed().Root("", s.Salt)))
		}
	}
	return set.Payloads(worker), prompts
}

// same waits until the router's index answers every prompt like one that was fed directly.
func (r *router) same(worker string, payloads [][]byte, prompts [][]uint64) {
	r.t.Helper()
	direct := indexer.New(indexer.Options{})
	sink := stream.Join(direct, indexer.SlotOptions{CountCopies: true})
	h := &hand{ready: make(chan *stream.Feed, 1)}
	f := stream.Start(stream.Options{Source: h, Decoder: &growing{}, Sink: sink})
	defer f.Close()
	h.f = <-h.ready
	h.give(payloads...)
	until(r.t, "the direct feed", func() bool { return f.Stats().Batches == uint64(len(payloads)) })
	difference := ""
	until(r.t, "the same index over NATS", func() bool {
		difference = ""
		for i, p := range prompts {
			var x, y indexer.Matches
			direct.Match(p, &x)
			r.index.Match(p, &y)
			if x.Longest != y.Longest {
				difference = fmt.Sprintf("prompt %d: %d blocks over NATS, %d directly", i, y.Longest, x.Longest)
				return false
			}
		}
		return direct.HeldBlocks(sink.Slot()) == r.index.HeldBlocks(r.slots[worker]) && !r.feeds[worker].Stats().Partial
	})
	if difference != "" {
		r.t.Error(difference)
	}
}

// If a worker's configuration changes, its new feed, which starts before the old one has ended, gets its messages.
func TestFeedTakesAnothersPlace(t *testing.T) {
	payloads, prompts := recording(t)
	s := runServer(t, t.TempDir(), -1)
	nc := connect(t, s.ClientURL())
	makeStream(t, nc, 64<<20)
	h, _ := agent(t, nc, "w")
	r := listen(t, connect(t, s.ClientURL()))
	h.give(payloads[:20]...)
	r.follow("w")
	r.same("w", payloads[:20], prompts)
	old := r.feeds["w"]
	r.follow("w")
	old.Close()
	h.give(payloads[20:]...)
	r.same("w", payloads, prompts)
}

// The whole path, for each time of joining: a router that runs from the start, one that joins later and asks the agent, one that
// joins after the agent has gone and reads the stream; and the server restarts under all of them.
func TestOverNATS(t *testing.T) {
	payloads, prompts := recording(t)
	half := len(payloads) / 2
	dir := t.TempDir()
	s := runServer(t, dir, -1)
	port := s.Addr().String()
	url := "nats://" + port
	nc := connect(t, url)
	makeStream(t, nc, 64<<20)

	early := listen(t, connect(t, url))
	h, _ := agent(t, connect(t, url), "10.0.0.5:8000")
	h.give(payloads[:half]...)
	early.follow("10.0.0.5:8000")
	early.same("10.0.0.5:8000", payloads[:half], prompts)

	late := listen(t, connect(t, url))
	late.follow("10.0.0.5:8000")
	late.same("10.0.0.5:8000", payloads[:half], prompts)

	s.Shutdown()
	s.WaitForShutdown()
	h.give(payloads[half:]...)
	until(t, "the agent's feed", func() bool { return h.f.Stats().Batches == uint64(len(payloads)) })
	var at int
	fmt.Sscanf(port[len("127.0.0.1:"):], "%d", &at)
	runServer(t, dir, at)
	early.same("10.0.0.5:8000", payloads, prompts)
	late.same("10.0.0.5:8000", payloads, prompts)

	h.f.Close() // the agent goes
	orphan := listen(t, connect(t, url))
	orphan.follow("10.0.0.5:8000")
	orphan.same("10.0.0.5:8000", payloads, prompts)
	for name, r := range map[string]*router{"early": early, "late": late, "orphan": orphan} {
		st := r.feeds["10.0.0.5:8000"].Stats()
		if st.DecodeErrors+st.UnknownParents+st.UnknownBlocks+st.Refused > 0 || st.Restarts > 0 {
			t.Errorf("%s: %+v; got %d, want 0, Restarts 0", name, st, st.DecodeErrors+st.UnknownParents+st.UnknownBlocks+st.Refused)
		}
	}
}

// TestBufferOverflow checks that while NATS cannot be reached an agent keeps what it would have published, up to a limit, beyond which
// routers read a snapshot.
func TestBufferOverflow(t *testing.T) {
	payloads, prompts := recording(t)
	dir := t.TempDir()
	s := runServer(t, dir, -1)
	nc := connect(t, s.ClientURL())
	makeStream(t, nc, 64<<20)
	h, p := agent(t, nc, "w")
	h.give(payloads[:10]...)
	r := listen(t, connect(t, s.ClientURL()))
	r.follow("w")
	r.same("w", payloads[:10], prompts)

	port := s.Addr().(*net.TCPAddr).Port
	s.Shutdown()
	s.WaitForShutdown()
	until(t, "NATS to be away", func() bool { return !p.Stats().Connected })
	h.give(payloads[10:40]...)
	until(t, "the batches", func() bool { return h.f.Stats().Batches == 40 })
	if st := p.Stats(); st.Pending == 0 || st.Pending > maxQueued || st.Connected {
		t.Errorf("got %+v, want Pending some, Pending at most %d, Connected false", st, maxQueued)
	}
	p.mu.Lock()
	p.events = slices.Grow(p.events, maxQueued)[:maxQueued] // as if so much had been added
	p.mu.Unlock()
	h.give(payloads[40:60]...)
	until(t, "the batches", func() bool { return h.f.Stats().Batches == 60 })
	if st := p.Stats(); st.Pending != 0 || st.Dropped != 1 {
		t.Errorf("got %+v, want Pending 0, Dropped 1", st)
	}
	runServer(t, dir, port)
	r.same("w", payloads[:60], prompts)
	h.give(payloads[60:]...)
	r.same("w", payloads, prompts)
}

// TestTwoAgents checks that of two agents for one worker routers follow the newer, and that the older one stops and reports that.
func TestTwoAgents(t *testing.T) {
	payloads, prompts := recording(t)
	s := runServer(t, t.TempDir(), -1)
	makeStream(t, connect(t, s.ClientURL()), 64<<20)
	r := listen(t, connect(t, s.ClientURL()))
	core, logged := observer.New(zap.ErrorLevel)
	one := &hand{ready: make(chan *stream.Feed, 1)}
	older := one.agent(t, PublisherOptions{NATS: connect(t, s.ClientURL()), Worker: "w", Log: zap.New(core)})
	one.give(payloads[:20]...)
	r.follow("w")
	r.same("w", payloads[:20], prompts)
	two, p := agent(t, connect(t, s.ClientURL()), "w")
	for i := range payloads {
		two.give(payloads[i])
		if i >= 20 {
			one.give(payloads[i])
		}
	}
	r.same("w", payloads, prompts)
	until(t, "the older agent's end", func() bool { return older.Stats().Refused == 1 })
	if st := older.Stats(); st.Current || logged.Len() != 1 {
		t.Errorf("%d lines, %+v, want Current false, 1", logged.Len(), st)
	}
	if st := p.Stats(); !st.Current || st.Refused > 0 || st.Seq <= older.Stats().Seq {
		t.Errorf("got %+v, want it current, never refused, and ahead of the older one", st)
	}
	late := listen(t, connect(t, s.ClientURL()))
	late.follow("w")
	late.same("w", payloads, prompts)
	if st := late.feeds["w"].Stats(); st.Epoch != p.Stats().Epoch || st.Restarts > 0 {
		t.Errorf("got %+v, want epoch %d, without a restart", st, p.Stats().Epoch)
	}
}

// TestAgentAway checks that a worker is live only while its agent is connected to the engine, and the agent is heard.
func TestAgentAway(t *testing.T) {
	payloads, prompts := recording(t)
	s := runServer(t, t.TempDir(), -1)
	makeStream(t, connect(t, s.ClientURL()), 64<<20)
	r := listen(t, connect(t, s.ClientURL()))
	r.listener.silence = 300 * time.Millisecond
	live := func(want bool) func() bool {
		return func() bool { st := r.feeds["w"].Stats(); return st.Live() == want }
	}
	conn := connect(t, s.ClientURL())
	h, p := agent(t, conn, "w")
	p.onLink(nil, true)
	h.give(payloads...)
	r.follow("w")
	r.same("w", payloads, prompts)
	until(t, "live", live(true))
	conn.Close() // the agent's machine is cut off without a good-bye
	until(t, "a silent agent noticed", live(false))
	younger, p := agent(t, connect(t, s.ClientURL()), "w")
	younger.give(payloads...)
	r.same("w", payloads, prompts)
	for range 100 {
		if live(true)() {
			t.Fatal("live while the agent does not hear the engine")
		}
		time.Sleep(time.Millisecond)
	}
	p.onLink(nil, true)
	until(t, "live again", live(true))
	p.onLink(nil, false)
	until(t, "the engine's end", live(false))
}

// TestStreamFull checks that, if a full stream has lost its oldest messages, a router that joins gets them from a snapshot: the
// agent writes one when asked, and it remains after the agent is gone. Without either the router knows only a part, and says so.
func TestStreamFull(t *testing.T) {
	payloads, prompts := recording(t)
	s := runServer(t, t.TempDir(), -1)
	makeStream(t, connect(t, s.ClientURL()), 16<<10)
	join := func() *router {
		r := listen(t, connect(t, s.ClientURL()))
		r.follow("w")
		return r
	}
	fill := func(h *hand, p *Publisher) {
		for _, b := range payloads {
			h.give(b)
			until(t, "a message of its own", func() bool {
				st := p.Stats()
				return st.Messages >= uint64(len(h.told)) && st.Pending == 0
			})
		}
	}
	gone := connect(t, s.ClientURL())
	h, p := agent(t, gone, "w")
	fill(h, p)
	gone.Close() // without a good-bye
	r := join()
	until(t, "the rest of the stream", func() bool { return r.feeds["w"].Stats().Batches > 0 })
	if st := r.feeds["w"].Stats(); !st.Partial {
		t.Errorf("not partial: %+v", st)
	}
	gone = connect(t, s.ClientURL())
	h, p = agent(t, gone, "w")
	fill(h, p)
	join().same("w", payloads, prompts)
	if st := p.Stats(); st.Snapshots == 0 || st.SnapshotErrors > 0 {
		t.Errorf("got %+v, want Snapshots some, SnapshotErrors 0", st)
	}
	gone.Close()
	join().same("w", payloads, prompts)
}

// BenchmarkJoin joins a router to a worker with 100 000 blocks: ask, snapshot, index.
func BenchmarkJoin(b *testing.B) {
	s := runServer(b, b.TempDir(), -1)
	nc := connect(b, s.ClientURL())
	makeStream(b, nc, 64<<20)
	_, p := agent(b, nc, "w")
	e := block100k()
	for i := range e {
		p.onEvent(&e[i])
		if err := p.Store(&e[i]); err != nil {
			b.Fatal(err)
		}
	}
	p.Done(false, false)
	until(b, "the stream", func() bool { return p.Stats().Pending == 0 })
	l := &Listener{NATS: connect(b, s.ClientURL())}
	b.ResetTimer()
	for b.Loop() {
		x := indexer.New(indexer.Options{})
		sink := stream.Join(x, indexer.SlotOptions{CountCopies: true})
		f := stream.Start(stream.Options{Source: l.Source("w", 0), Decoder: &Decoder{}, Sink: sink, Idle: 10 * time.Second})
		until(b, "all blocks", func() bool { return x.HeldBlocks(sink.Slot()) == 100_000 })
		f.Close()
	}
}

// BenchmarkTakeOver starts an agent after a killed one that had published 800 messages of 125 blocks after its snapshot.
func BenchmarkTakeOver(b *testing.B) {
	s := runServer(b, b.TempDir(), -1)
	makeStream(b, connect(b, s.ClientURL()), 64<<20)
	begin := func() *Publisher {
		p, err := NewPublisher(b.Context(), PublisherOptions{NATS: connect(b, s.ClientURL()), Worker: "w", Replays: true, every: time.Hour})
		if err != nil {
			b.Fatal(err)
		}
		return p
	}
	kill := func(p *Publisher) {
		p.cancel()
		p.running.Wait()
		p.o.NATS.Close()
	}
	p := begin()
	if err := p.rankLine.requestSnapshot(b.Context()); err != nil {
		b.Fatal(err)
	}
	list := block100k()
	snapshot := p.Stats().Seq
	for i := range list {
		before := p.Stats().Messages
		p.onEvent(&list[i])
		if err := p.Store(&list[i]); err != nil {
			b.Fatal(err)
		}
		p.Done(false, false)
		until(b, "the stream", func() bool { return p.Stats().Messages > before })
	}
	messages := p.Stats().Seq - snapshot
	kill(p)
	for b.Loop() {
		p = begin()
		if n := p.Stats().Blocks; n != 100_000 {
			b.Fatalf("%d blocks, want 100_000", n)
		}
		kill(p)
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(uint64(b.N)*messages), "µs/message")
}

// block100k returns 800 chains of 125 blocks.
func block100k() (events []kvevent.Event) {
	h := uint64(0)
	for range 800 {
		e := kvevent.Event{Kind: kvevent.Stored, BlockSize: 16}
		for range 125 {
			h++
			e.EngineHashes, e.Locals = append(e.EngineHashes, h*0x9E3779B97F4A7C15), append(e.Locals, h*0xC2B2AE3D27D4EB4F)
		}
		events = append(events, e)
	}
	return events
}

// BenchmarkLatency measures the time from an agent's feed to a router's changed index: a publisher's batch, JetStream on disk, an
// ordered consumer.
func BenchmarkLatency(b *testing.B) {
	payloads, _ := recording(b)
	s := runServer(b, b.TempDir(), -1)
	makeStream(b, connect(b, s.ClientURL()), 64<<20)
	h, _ := agent(b, connect(b, s.ClientURL()), "w")
	r := listen(b, connect(b, s.ClientURL()))
	h.give(payloads[0])
	r.follow("w")
	f := r.feeds["w"]
	until(b, "the first batch", func() bool { return f.Stats().Batches > 0 })
	var took []time.Duration
	for b.Loop() {
		start, before := time.Now(), f.Stats().Batches
		h.give(payloads[len(took)%len(payloads)])
		for f.Stats().Batches == before {
			time.Sleep(20 * time.Microsecond)
		}
		took = append(took, time.Since(start))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// TestAskingIsBounded checks the limit of routers that wait for a snapshot; further ones are counted, and ask again.
func TestAskingIsBounded(t *testing.T) {
	p := &Publisher{wake: make(chan struct{}, 1)}
	for range maxWaitingRouters + 3 {
		p.queueSnapshotRequest(&nats.Msg{Reply: "a router"})
	}
	if len(p.waitingRouters) != maxWaitingRouters || p.stats.Unanswered != 3 {
		t.Errorf("%d wait, %d do not, want %d, 3", len(p.waitingRouters), p.stats.Unanswered, maxWaitingRouters)
	}
}
