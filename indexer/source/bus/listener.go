package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/guard"
)

// Listener follows all workers' subjects with one ordered consumer and passes each message to the feed of its rank. Set the
// fields, then Run it once.
type Listener struct {
	NATS   *nats.Conn
	Prefix Prefix
	Stream StreamOptions // used to create the stream
	// Log says when the stream is away and when it was created; may be nil.
	Log *zap.Logger

	silence, watch time.Duration // for tests; 0: agentSilence, watchStream

	foreign atomic.Bool // an unreadable message was logged
	mu      sync.Mutex
	feeds   map[string]*followedFeed // by the subject's suffix
}

// listenRetry is the average pause between attempts.
const listenRetry = time.Second

// Run listens until ctx ends. It begins with the last message of every rank, so that all are found at once. It creates the stream
// if there is none, and retries while the server is away or the stream is lost.
func (l *Listener) Run(ctx context.Context) error {
	js, err := jetstream.New(l.NATS)
	if err != nil {
		return err
	}
	beats, err := l.NATS.Subscribe(l.Prefix.beats()+"*.*", func(m *nats.Msg) {
		if f := l.follower(strings.TrimPrefix(m.Subject, l.Prefix.beats())); f != nil {
			f.lastHeartbeat.Store(time.Now().UnixNano())
		}
	})
	if err == nil {
		err = beats.SetPendingLimits(beatsWaiting, beatBytes)
	}
	if err != nil {
		return err
	}
	defer func() { _ = beats.Unsubscribe() }()
	for ctx.Err() == nil {
		err := l.follow(ctx, js)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if l.Log != nil {
			l.Log.Warn("cannot read the agents' stream; retrying", zap.Error(err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(listenRetry/2 + rand.N(listenRetry)): // jitter, so that routers do not all try at once
		}
	}
	return ctx.Err()
}

// follow listens to the stream until it breaks.
func (l *Listener) follow(ctx context.Context, js jetstream.JetStream) error {
	if err := ensureStreams(ctx, js, l.Prefix, l.Stream, l.Log); err != nil {
		return err
	}
	return consume(ctx, js, l.Prefix, cmp.Or(l.watch, watchStream), func(m jetstream.Msg) {
		_ = guard.Call(func() error { l.deliver(m); return nil }) // a message that panics is dropped
	})
}

// deliver passes one message to its feed; a rank without a feed is ignored.
func (l *Listener) deliver(m jetstream.Msg) {
	subject, data := m.Subject(), m.Data()
	h, err := readMessage(data)
	if err == nil && isForwarded(m.Headers(), 0) {
		err = errForwarded
	}
	f := l.follower(strings.TrimPrefix(subject, l.Prefix.events()))
	if err != nil { // from another program or another release
		if l.Log != nil && !l.foreign.Swap(true) {
			l.Log.Warn("a message of the agents' stream cannot be read; logged once", zap.String("subject", subject), zap.Error(err))
		}
		if f != nil {
			f.Malformed(err.Error())
		}
		return
	}
	if f != nil {
		f.Offer(stream.Message{Epoch: h.epoch, Seq: h.seq, Payload: data})
	}
}

// follower returns the feed of a rank; nil if none follows it.
func (l *Listener) follower(suffix string) *followedFeed {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.feeds[suffix]
}

// followedFeed is a feed, with the time of its agent's last heartbeat.
type followedFeed struct {
	*stream.Feed
	lastHeartbeat atomic.Int64  // Unix ns
	ended         chan struct{} // closed when Run returns
}

// Source returns the Source of one worker's rank, for a feed with this package's Decoder.
func (l *Listener) Source(worker string, rank int) stream.Source {
	return &source{l, subjectSuffix(worker, rank)}
}

type source struct {
	l      *Listener
	suffix string
}

// Run implements stream.Source.
func (s *source) Run(ctx context.Context, f *stream.Feed) error {
	w := &followedFeed{Feed: f, ended: make(chan struct{})}
	for before := s.l.register(s.suffix, w); before != nil; before = s.l.register(s.suffix, w) { // a reload starts the new feed before the old one has ended
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-before.ended:
		}
	}
	defer func() {
		s.l.mu.Lock()
		delete(s.l.feeds, s.suffix)
		s.l.mu.Unlock()
		close(w.ended)
	}()
	f.Up()
	s.watch(ctx, w)
	return ctx.Err()
}

// register registers the feed of a worker-rank, or returns the one that is registered.
func (l *Listener) register(suffix string, w *followedFeed) (before *followedFeed) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.feeds == nil {
		l.feeds = map[string]*followedFeed{}
	}
	if before = l.feeds[suffix]; before == nil {
		l.feeds[suffix] = w
	}
	return before
}

// agentSilence is how long an agent may be silent before it is considered down.
const agentSilence = 3 * heartbeat

// watch takes the feed down when nothing has come from the agent for too long, and up again when it is heard.
func (s *source) watch(ctx context.Context, f *followedFeed) {
	silence := cmp.Or(s.l.silence, agentSilence)
	tick := time.NewTicker(silence / 3)
	defer tick.Stop()
	began := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		st := f.Stats()
		heard := max(began.UnixNano(), f.lastHeartbeat.Load(), st.LastMessage.UnixNano())
		switch silent := time.Since(time.Unix(0, heard)) > silence; {
		case silent && st.Connected:
			f.Down(errors.New("nothing has come from the agent for too long"))
		case !silent && !st.Connected:
			f.Up()
		}
	}
}

// Replay implements stream.Source.
func (s *source) Replay(ctx context.Context, from uint64, each func(stream.Message) error) error {
	line, err := newRankLine(s.l.NATS, s.l.Prefix, s.suffix)
	if err != nil {
		return err
	}
	err = line.messages(ctx, from, false, each)
	if !errors.Is(err, errIncomplete) && !errors.Is(err, errEmpty) {
		return err
	}
	if err := ensureStreams(ctx, line.js, s.l.Prefix, s.l.Stream, s.l.Log); err != nil { // the stream of snapshots may have been deleted
		return err
	}
	noAgent := line.requestSnapshot(ctx)
	err = line.messages(ctx, from, noAgent != nil, each)
	if err != nil && noAgent != nil {
		err = fmt.Errorf("%w (%w)", err, noAgent)
	}
	return err
}
