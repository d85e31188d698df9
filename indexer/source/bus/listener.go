package bus

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/zeebo/xxh3"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/guard"
)

// Listener follows all workers' subjects with one ordered consumer and hands each message to the feed of its worker-rank. Set
// the fields, then Run it once.
type Listener struct {
	NATS   *nats.Conn
	Prefix Prefix
	Stream StreamOptions // if there is none
	// Found is called in the listener's goroutine for each message (at least every 5 s) of a worker-rank that no feed
	// follows: start a feed with Source, or ignore it.
	Found func(worker string, rank int)
	// Log says when the stream is away and when it was made; may be nil.
	Log *zap.Logger

	silence, watch time.Duration // for tests; 0: agentSilence, watchStream

	mu    sync.Mutex
	feeds map[string]*stream.Feed // by subject
}

// listenRetry is the average pause between attempts.
const listenRetry = time.Second

// Run listens until ctx ends. It begins with the last message of every worker-rank, so that all are found at once. It makes
// the stream if there is none, and tries again while the server is away or the stream is lost.
func (l *Listener) Run(ctx context.Context) error {
	js, err := jetstream.New(l.NATS)
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		err := l.follow(ctx, js)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if l.Log != nil {
			l.Log.Warn("the agents' stream cannot be heard; it is tried again", zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenRetry/2 + rand.N(listenRetry)): // random, so that not all routers try at once
		}
	}
	return ctx.Err()
}

// follow listens to the stream until it breaks.
func (l *Listener) follow(ctx context.Context, js jetstream.JetStream) error {
	if err := ensure(ctx, js, l.Prefix, l.Stream, l.Log); err != nil {
		return err
	}
	return consume(ctx, js, l.Prefix, cmp.Or(l.watch, watchStream), func(m jetstream.Msg) {
		_ = guard.Call(func() error { l.deliver(m.Subject(), m.Data()); return nil }) // a message that panics is dropped
	})
}

// deliver hands one message to its feed, or reports a worker-rank that has none.
func (l *Listener) deliver(subject string, data []byte) {
	epoch, seq, err := readNumbers(data)
	if err != nil {
		return // another program's, or another release's
	}
	l.mu.Lock()
	f := l.feeds[subject]
	l.mu.Unlock()
	if f == nil {
		if worker, rank, ok := l.Prefix.parseSubject(subject); ok && l.Found != nil {
			l.Found(worker, rank)
		}
		return
	}
	f.Offer(stream.Message{Epoch: epoch, Seq: seq, Payload: data})
}

// Source is one worker-rank, for a feed with this package's Decoder.
func (l *Listener) Source(worker string, rank int) stream.Source {
	return &source{l, subjectSuffix(worker, rank)}
}

type source struct {
	l      *Listener
	suffix string
}

// Run implements feed.Source.
func (s *source) Run(ctx context.Context, f *stream.Feed) error {
	subject := s.l.Prefix.events() + s.suffix
	s.l.mu.Lock()
	if s.l.feeds == nil {
		s.l.feeds = map[string]*stream.Feed{}
	}
	if s.l.feeds[subject] != nil {
		s.l.mu.Unlock()
		return fmt.Errorf("%s is followed by another feed", subject)
	}
	s.l.feeds[subject] = f
	s.l.mu.Unlock()
	defer func() {
		s.l.mu.Lock()
		delete(s.l.feeds, subject)
		s.l.mu.Unlock()
	}()
	f.Up()
	s.watch(ctx, f)
	return ctx.Err()
}

// agentSilence is how long an agent may be silent before it is taken to be down.
const agentSilence = 3 * heartbeat

// watch takes the feed down when the agent's heartbeats stop; the next message takes it up again.
func (s *source) watch(ctx context.Context, f *stream.Feed) {
	silence := cmp.Or(s.l.silence, agentSilence)
	tick := time.NewTicker(silence / 3)
	defer tick.Stop()
	since := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			st := f.Stats()
			if st.LastMessage.After(since) {
				since = st.LastMessage
			}
			if st.Connected && time.Since(since) > silence {
				f.Down(errors.New("the agent is silent"))
			}
		}
	}
}

// Replay implements stream.Source. The agent answers with a snapshot, whatever from is. If no agent answers, the messages that
// the stream still has of its last incarnation must do.
func (s *source) Replay(ctx context.Context, from uint64, each func(stream.Message) error) error {
	b, err := s.requestSnapshot(ctx)
	if err == nil {
		epoch, seq, err := readNumbers(b)
		if err != nil {
			return err
		}
		return each(stream.Message{Epoch: epoch, Seq: seq, Payload: b})
	}
	if !errors.Is(err, nats.ErrNoResponders) {
		return fmt.Errorf("asking the agent: %w", err)
	}
	return s.replayStream(ctx, from, each)
}

// youngerWait is how long an agent's answer waits for that of a younger agent.
const youngerWait = 50 * time.Millisecond

// requestSnapshot returns the snapshot of the youngest agent that answers.
func (s *source) requestSnapshot(ctx context.Context) ([]byte, error) {
	inbox := s.l.NATS.NewRespInbox()
	sub, err := s.l.NATS.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer sub.Unsubscribe()
	if err := s.l.NATS.PublishRequest(s.l.Prefix.asks()+s.suffix, inbox, nil); err != nil {
		return nil, err
	}
	got := map[uint64][]byte{} // by epoch
	next := map[uint64]uint32{}
	var whole []byte
	var youngest uint64
	size := 0
	for {
		m, err := sub.NextMsgWithContext(ctx)
		switch {
		case err != nil && whole != nil:
			return checked(whole)
		case err != nil:
			return nil, err
		case len(m.Data) == 0 && m.Header.Get("Status") == "503":
			return nil, nats.ErrNoResponders
		case len(m.Data) < partHead:
			return nil, fmt.Errorf("a part of %d bytes", len(m.Data))
		}
		epoch := binary.LittleEndian.Uint64(m.Data)
		i, n := binary.LittleEndian.Uint32(m.Data[8:]), binary.LittleEndian.Uint32(m.Data[12:])
		if i != next[epoch] || i >= n || len(got) > 8 {
			return nil, fmt.Errorf("part %d of %d, want part %d", i, n, next[epoch])
		}
		next[epoch] = i + 1
		if size += len(m.Data) - partHead; size > maxSnapshot { // of all agents that answer
			return nil, fmt.Errorf("snapshot over %d bytes", maxSnapshot)
		}
		got[epoch] = append(got[epoch], m.Data[partHead:]...)
		if i+1 == n && epoch > youngest {
			whole, youngest = got[epoch], epoch
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, youngerWait)
			defer cancel()
		}
	}
}

// checked returns a snapshot without the checksum at its end.
func checked(whole []byte) ([]byte, error) {
	n := len(whole) - 8
	if n < 0 || xxh3.Hash(whole[:n]) != binary.LittleEndian.Uint64(whole[n:]) {
		return nil, errors.New("a snapshot that is damaged")
	}
	return whole[:n], nil
}

// replayStream reads what the stream has of a worker-rank, up to its last message now, and of that message's epoch only.
func (s *source) replayStream(ctx context.Context, from uint64, each func(stream.Message) error) error {
	js, err := jetstream.New(s.l.NATS)
	if err != nil {
		return err
	}
	jetStream, err := js.Stream(ctx, s.l.Prefix.Stream())
	if err != nil {
		return err
	}
	last, err := jetStream.GetLastMsgForSubject(ctx, s.l.Prefix.events()+s.suffix)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return errors.New("no agent answers and the stream has nothing of it")
	} else if err != nil {
		return err
	}
	lastEpoch, _, err := readNumbers(last.Data)
	if err != nil {
		return err
	}
	c, err := js.OrderedConsumer(ctx, s.l.Prefix.Stream(), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{s.l.Prefix.events() + s.suffix}, DeliverPolicy: jetstream.DeliverAllPolicy})
	if err != nil {
		return err
	}
	messages, err := c.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	defer context.AfterFunc(ctx, messages.Stop)()
	for {
		m, err := messages.Next()
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		epoch, seq, err := readNumbers(m.Data())
		if err == nil && epoch == lastEpoch && seq >= from {
			if err := each(stream.Message{Epoch: epoch, Seq: seq, Payload: m.Data()}); err != nil {
				return err
			}
		}
		if meta.Sequence.Stream >= last.Sequence {
			return nil
		}
	}
}
