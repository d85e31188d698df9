package bus

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/mmhash/block"
)

// Listener follows all workers' subjects with one ordered consumer and passes each message to the feed of its rank. Set the
// fields, then Run it once.
type Listener struct {
	NATS *nats.Conn
	// Secret, unless nil, is what agents hash blocks with: that of the other routers there, or ours if we are the first. Replaced is
	// called when it was another one. With FixedSecret neither happens: agents get it from a file.
	Secret      *block.Secret
	FixedSecret bool
	Replaced    func()
	// Log says when the stream is away and when it was created; may be nil.
	Log *zap.Logger

	silence, watch time.Duration // for tests; 0: agentSilence, watchStream

	foreign atomic.Bool // an unreadable message was logged
	mu      sync.Mutex
	feeds   map[string]*followedFeed // by the subject's suffix

	snapshots *fair.Room // bytes of those that are read; nil: none was
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
	beats, err := l.NATS.Subscribe(beatSubjects+"*.*", func(m *nats.Msg) {
		if f := l.follower(strings.TrimPrefix(m.Subject, beatSubjects)); f != nil {
			f.takeHeartbeat(m)
		}
	})
	if err == nil {
		err = beats.SetPendingLimits(beatsWaiting, beatBytes)
	}
	if err != nil {
		return err
	}
	defer func() { _ = beats.Unsubscribe() }()
	pause := retry.Backoff{First: listenRetry}
	for told := ""; ctx.Err() == nil; {
		began := time.Now()
		err := l.follow(ctx, js)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if worked := time.Since(began) > 2*ensureTime; l.Log != nil && (worked || err.Error() != told) { // once until it has worked
			told = err.Error()
			l.Log.Warn("cannot read the agents' stream; retrying", zap.Error(err))
		}
		pause.Wait(ctx)
	}
	return ctx.Err()
}

// follow listens to the stream until it breaks.
func (l *Listener) follow(ctx context.Context, js jetstream.JetStream) error {
	if err := CheckServer(l.NATS); err != nil {
		return err
	}
	if err := ensureStreams(ctx, js, 0, l.Log); err != nil {
		return err
	}
	if l.Secret != nil && !l.FixedSecret {
		secret, err := shareSecret(ctx, js, l.Secret)
		if err != nil {
			return err
		}
		if l.Secret.Set(secret) && l.Replaced != nil {
			l.Replaced()
		}
	}
	return consume(ctx, js, cmp.Or(l.watch, watchStream), func(m jetstream.Msg) {
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
	f := l.follower(strings.TrimPrefix(subject, eventSubjects))
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
		f.sawLine(&h)
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

	mu    sync.Mutex
	line  head   // of the line's newest message that was seen
	beats uint64 // number of its agent's last heartbeat
}

// sawLine records the agent that publishes the line.
func (f *followedFeed) sawLine(h *head) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h.epoch < f.line.epoch || h.epoch == f.line.epoch && h.seq < f.line.seq {
		return
	}
	if h.agent != f.line.agent {
		f.beats = 0
	}
	f.line = *h
}

// takeHeartbeat counts a heartbeat if it is of the line's agent, and newer than its last one. Whoever may read a stream can have the
// server send a message of his own to any subject, or an answer about the stream; but he does not know another agent's number.
func (f *followedFeed) takeHeartbeat(m *nats.Msg) {
	agent, number, ok := readBeat(m.Data)
	f.mu.Lock()
	defer f.mu.Unlock()
	if ok && len(m.Header) == 0 && agent == f.line.agent && agent != 0 && number > f.beats {
		f.beats = number
		f.lastHeartbeat.Store(time.Now().UnixNano())
	}
}

// A heartbeat: 'H' version | agent u64, as in the line's messages | number u64, rising.
const beatMagic = 'H'

func appendBeat(b []byte, agent, number uint64) []byte {
	return appendWords(append(b, beatMagic, version), []uint64{agent, number})
}

func readBeat(b []byte) (agent, number uint64, ok bool) {
	if len(b) != 2+2*8 || b[0] != beatMagic || b[1] != version {
		return 0, 0, false
	}
	return binary.LittleEndian.Uint64(b[2:]), binary.LittleEndian.Uint64(b[10:]), true
}

// Source returns the Source of one worker's rank, for a feed with this package's Decoder.
func (l *Listener) Source(worker string, rank int) stream.Source {
	return &source{l, subjectSuffix(worker, rank), fair.ClientOf(worker)}
}

type source struct {
	l      *Listener
	suffix string
	worker fair.Client
}

// Run implements stream.Source.
func (s *source) Run(ctx context.Context, f *stream.Feed) error {
	w := &followedFeed{Feed: f, ended: make(chan struct{})}
	// a reload starts the new feed before the old one has ended
	for before := s.l.register(s.suffix, w); before != nil; before = s.l.register(s.suffix, w) {
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
	before = l.feeds[suffix]
	if before == nil {
		l.feeds[suffix] = w
	}
	return before
}

// ErrSilent is why a feed is down whose agent is not heard.
var ErrSilent = errors.New("nothing has come from the agent for too long")

// agentSilence is how long an agent may be silent before it is considered down.
const agentSilence = 3 * heartbeat

// watch takes the feed down when nothing has come from the agent for too long, and up again when it is heard.
func (s *source) watch(ctx context.Context, f *followedFeed) {
	silence := cmp.Or(s.l.silence, agentSilence)
	began := time.Now()
	for now := range retry.Every(ctx, silence/3) {
		st := f.Stats()
		heard := max(began.UnixNano(), f.lastHeartbeat.Load(), st.LastMessage.UnixNano())
		switch silent := now.Sub(time.Unix(0, heard)) > silence; {
		case silent && st.Connected:
			f.Down(ErrSilent)
		case !silent && !st.Connected:
			f.Up()
		}
	}
}

// Replay implements stream.Source.
func (s *source) Replay(ctx context.Context, from uint64, each func(stream.Message) error) error {
	line, err := newRankLine(s.l.NATS, s.suffix)
	if err != nil {
		return err
	}
	s.l.mu.Lock()
	if s.l.snapshots == nil {
		s.l.snapshots = fair.Shared(allSnapshots, 1<<14)
	}
	line.room, line.worker = s.l.snapshots, s.worker
	s.l.mu.Unlock()
	take := each
	each = func(m stream.Message) error {
		if h, err := readHead(m.Payload); err == nil {
			if f := s.l.follower(s.suffix); f != nil {
				f.sawLine(&h)
			}
		}
		return take(m)
	}
	err = line.messages(ctx, from, false, each)
	if !errors.Is(err, errIncomplete) && !errors.Is(err, errEmpty) {
		return err
	}
	if err := ensureStreams(ctx, line.js, 0, s.l.Log); err != nil { // the stream of snapshots may have been deleted
		return err
	}
	noAgent := line.requestSnapshot(ctx)
	err = line.messages(ctx, from, noAgent != nil, each)
	if err != nil && noAgent != nil {
		err = fmt.Errorf("%w (%w)", err, noAgent)
	}
	return err
}
