package bus

// A line is the sequence of messages of one worker's rank, as routers read it when they join and an agent when it starts: the
// newest snapshot, tagged with the stream's number of the message after which it was taken, and the stream's messages after that.
// Reading it needs no running agent, so a router may join while one is being replaced. If the stream has lost messages after the
// snapshot (it is bounded, and shared by all workers), or there is no snapshot, a running agent is asked to write one.
//
// Snapshots are in a stream of their own, which keeps the last message of each subject: parts, and a tag, which is written last.
// An Object Store would serve as well, except for write access: its users need the right to purge all of it, and a server's
// permissions cannot distinguish its names.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/zeebo/xxh3"

	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/fair"
)

const (
	maxSnapshot  = 256 << 20
	allSnapshots = 512 << 20 // that are read at a time
	partBytes    = 512 << 10
	maxParts     = 4096
	// Bytes fetched ahead after a snapshot; the library's own limit is 500 messages, of up to a megabyte each.
	maxAhead = 8 << 20
)

// rankLine is the line of one worker's rank.
type rankLine struct {
	conn   *nats.Conn
	js     jetstream.JetStream
	suffix string
	room   *fair.Room // for snapshots; nil: without a bound
	worker fair.Client
}

func newRankLine(conn *nats.Conn, suffix string) (*rankLine, error) {
	js, err := jetstream.New(conn)
	return &rankLine{conn: conn, js: js, suffix: suffix}, err
}

func (l *rankLine) subject() string { return eventSubjects + l.suffix }

// snapshotTag describes a snapshot.
type snapshotTag struct {
	Epoch, Seq uint64 // of the last message that it includes
	Number     uint64 // that message's number in the stream
	Made       int64  // when the stream was created, by the server's clock: another stream has other numbers
	Life       string // of the engine (PublisherOptions.ProcessID)

	Half, Parts int    // where its parts are: two snapshots alternate
	Sum         uint64 // XXH3-64
}

// streamEnd is the stream's current last message of the line.
type streamEnd struct {
	made    int64
	stream  jetstream.Stream
	message *jetstream.RawStreamMsg // nil: none
	head
	unreadable error // from another release or another program
}

func (l *rankLine) end(ctx context.Context) (e streamEnd, err error) {
	e.stream, err = l.js.Stream(ctx, EventStream)
	if err != nil {
		return e, err
	}
	e.made = e.stream.CachedInfo().Created.UnixNano()
	e.message, err = e.stream.GetLastMsgForSubject(ctx, l.subject())
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		e.message, err = nil, nil
	}
	if e.message != nil {
		e.head, e.unreadable = readMessage(e.message.Data)
		if isForwarded(e.message.Header, 1) {
			e.unreadable = errForwarded
			marks := e.message.Header[jetstream.SequenceHeader] // the server's own is the last
			e.message.Sequence, err = strconv.ParseUint(marks[len(marks)-1], 10, 64)
			if err != nil {
				return e, err
			}
		}
	}
	return e, err
}

var errNoReadPermission = errors.New("NATS permits reading only the last message of one worker: these are the " +
	"credentials of that worker's agent, not the router's (docs/agents.md)")

// mayReadByNumber checks with a request that has no answer. The server reports a refusal before it answers the following ping.
func (l *rankLine) mayReadByNumber(ctx context.Context) error {
	subject := "$JS.API.DIRECT.GET." + EventStream
	if err := l.conn.Publish(subject, nil); err != nil {
		return err
	}
	if err := l.conn.FlushWithContext(ctx); err != nil {
		return err
	}
	if err := l.conn.LastError(); errors.Is(err, nats.ErrPermissionViolation) && strings.Contains(err.Error(), `"`+subject+`"`) {
		return errNoReadPermission
	}
	return nil
}

// tag reads the newest snapshot's tag; it is zero if there is none or it cannot be read.
func (l *rankLine) tag(ctx context.Context) (t snapshotTag, err error) {
	b, err := l.state(ctx, "tag")
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound), errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, errForwarded):
		return snapshotTag{}, nil
	case err != nil:
		return snapshotTag{}, err
	}
	if json.Unmarshal(b, &t) != nil || t.Parts < 0 || t.Parts > maxParts {
		return snapshotTag{}, nil
	}
	return t, nil
}

// state reads one message of a snapshot.
func (l *rankLine) state(ctx context.Context, name string) ([]byte, error) {
	s, err := l.js.Stream(ctx, StateStream)
	if err != nil {
		return nil, err
	}
	m, err := s.GetLastMsgForSubject(ctx, stateSubjects+l.suffix+"."+name)
	if err != nil {
		return nil, err
	}
	if isForwarded(m.Header, 1) {
		return nil, errForwarded
	}
	if len(m.Data) > partBytes {
		return nil, fmt.Errorf("a part of a snapshot of %d bytes, want %d at most", len(m.Data), partBytes)
	}
	return m.Data, nil
}

var errForwarded = errors.New("a message that the NATS server republished on a client's request")

// isForwarded detects a message that a client read from a stream and had sent to a subject to which it may not
// publish: a server does not check permissions for that, and marks the answer (nats-server 2.15). marks is how many marks a
// message has anyway.
func isForwarded(h nats.Header, marks int) bool { return len(h[jetstream.StreamHeader]) > marks }

func (t *snapshotTag) part(i int) string { return fmt.Sprintf("%d.%d", t.Half, i) }

// snapshot reads a tag's snapshot, if it has at most most bytes.
func (l *rankLine) snapshot(ctx context.Context, t snapshotTag, most int) (message []byte, err error) {
	for i := range t.Parts {
		b, err := l.state(ctx, t.part(i))
		if err != nil {
			return nil, fmt.Errorf("part %d of the snapshot: %w", i, err)
		}
		if len(message)+len(b) > most {
			return nil, fmt.Errorf("a snapshot of more than %d bytes", most)
		}
		if i == 0 {
			message = make([]byte, 0, min(t.Parts*len(b), most))
		}
		message = append(message, b...)
	}
	if xxh3.Hash(message) != t.Sum {
		return nil, errors.New("a snapshot that is damaged, or was replaced meanwhile")
	}
	return message, nil
}

// save replaces the snapshot. The previous one stays whole until the new one's tag is written.
func (l *rankLine) save(ctx context.Context, t snapshotTag, message []byte) error {
	before, err := l.tag(ctx)
	if err != nil {
		return err
	}
	put := func(name string, b []byte) error {
		_, err := l.js.Publish(ctx, stateSubjects+l.suffix+"."+name, b)
		return err
	}
	size := min(partBytes, int(l.conn.MaxPayload())-headBytes)
	t.Half, t.Sum = 1-before.Half&1, xxh3.Hash(message)
	for b := range slices.Chunk(message, max(size, 1)) {
		if err := put(t.part(t.Parts), b); err != nil {
			return err
		}
		t.Parts++
		if t.Parts > maxParts {
			return fmt.Errorf("a snapshot of %d bytes is too large", len(message))
		}
	}
	text, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return put("tag", text)
}

var (
	errEmpty      = errors.New("the stream has no message of the worker")
	errIncomplete = errors.New("the stream has lost messages after the snapshot, or has no readable snapshot")
)

// messages calls each for the newest snapshot and all messages after it, up to the stream's end at the time of the call. It may
// omit those before number from. errIncomplete: messages are missing, before the first call of each or in between. With some, it
// delivers what there is.
func (l *rankLine) messages(ctx context.Context, from uint64, some bool, each func(stream.Message) error) error {
	e, err := l.end(ctx)
	switch {
	case err != nil:
		return err
	case e.message == nil:
		return errEmpty
	case e.unreadable != nil:
		return e.unreadable
	}
	if from > 0 && from == e.seq { // nothing is missing
		return each(stream.Message{Epoch: e.epoch, Seq: e.seq, Payload: e.message.Data})
	}
	t, err := l.tag(ctx)
	if err != nil {
		return err
	}
	next := uint64(0)
	begin := func() error { return nil }
	if t.Made == e.made && t.Epoch == e.epoch && t.Seq <= e.seq {
		next = t.Seq + 1
		if from <= t.Seq {
			begin = func() error {
				need := min(int64(t.Parts)*partBytes, maxSnapshot)
				if l.room != nil && !l.room.Take(ctx, l.worker, need, need) {
					return errors.New("too many snapshots are being read")
				}
				if l.room != nil {
					defer l.room.Give(l.worker, need)
				}
				b, err := l.snapshot(ctx, t, maxSnapshot)
				if err != nil { // parts were replaced, or deleted by the stream's limits; a running agent has all of it
					return fmt.Errorf("%w: %w", errIncomplete, err)
				}
				return each(stream.Message{Epoch: e.epoch, Seq: t.Seq, Payload: b})
			}
		}
		if next > e.seq {
			return begin()
		}
	} else {
		t = snapshotTag{}
	}
	c, err := l.js.OrderedConsumer(ctx, EventStream, jetstream.OrderedConsumerConfig{FilterSubjects: []string{l.subject()},
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: t.Number + 1})
	if err != nil {
		return err
	}
	list, err := c.Messages(jetstream.PullMaxBytes(maxAhead))
	if err != nil {
		return err
	}
	defer list.Stop()
	defer context.AfterFunc(ctx, list.Stop)()
	for first := true; ; {
		m, err := list.Next()
		if err != nil {
			return err
		}
		meta, err := m.Metadata()
		if err != nil {
			return err
		}
		if h, err := readMessage(m.Data()); err == nil && !isForwarded(m.Headers(), 0) && h.epoch == e.epoch {
			if h.seq < next || h.seq != next && !some {
				return errIncomplete
			}
			if first {
				first = false
				if err := begin(); err != nil {
					return err
				}
			}
			next = h.seq + 1
			if h.seq >= from {
				if err := each(stream.Message{Epoch: e.epoch, Seq: h.seq, Payload: m.Data()}); err != nil {
					return err
				}
			}
		}
		if meta.Sequence.Stream >= e.message.Sequence {
			return nil
		}
	}
}

// requestSnapshot makes the agent write a snapshot, and returns when it is there. nats.ErrNoResponders: there is no agent.
func (l *rankLine) requestSnapshot(ctx context.Context) error {
	m, err := l.conn.RequestWithContext(ctx, askSubjects+l.suffix, nil)
	if err == nil && len(m.Data) > 0 {
		err = fmt.Errorf("the agent wrote no snapshot: %.200s", strings.ToValidUTF8(string(m.Data), "?"))
	}
	return err
}
