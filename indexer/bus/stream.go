package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

// Stream is the JetStream stream that all agents publish to.
const Stream = "SIGHTLINE_KV"

const (
	eventSubjects = "sightline.kv."
	askSubjects   = "sightline.ask."
	// keptEvents bounds a stream that we make, on disk; a router that joins asks agents for the rest.
	keptEvents = 256 << 20
	ensureTime = 5 * time.Second // for one attempt
)

// EnsureStream makes the stream where there is none. One that is there stays as it is: its limits, storage and replicas are
// its operator's. maxBytes bounds what the server keeps on disk of one made here; when it is full the oldest messages go. They
// serve routers that join while a worker's agent is away; while it is there they ask it.
func EnsureStream(ctx context.Context, js jetstream.JetStream, maxBytes int64) error {
	_, err := ensure(ctx, js, maxBytes, nil)
	return err
}

// ensure is EnsureStream, says in the log that the stream was made, and gives what tells this stream from one made later
// under its name.
func ensure(ctx context.Context, js jetstream.JetStream, maxBytes int64, log *zap.Logger) (made time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, ensureTime)
	defer cancel()
	s, err := js.Stream(ctx, Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: Stream, Subjects: []string{eventSubjects + ">"}, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
			MaxBytes: maxBytes, Storage: jetstream.FileStorage, AllowDirect: true,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another was faster, and has other limits
			s, err = js.Stream(ctx, Stream)
		} else if err == nil && log != nil {
			log.Info("the agents' stream was not there and is made", zap.String("stream", Stream))
		}
	}
	if err != nil {
		return made, fmt.Errorf("stream %s: %w", Stream, err)
	}
	return s.CachedInfo().Created, nil
}

// place is a worker-rank's part of a subject: the worker's name, with what NATS does not take written as =XX, and the
// rank.
func place(worker string, rank int) string {
	var b strings.Builder
	for i := range len(worker) {
		switch c := worker[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String() + "." + strconv.Itoa(max(rank, 0))
}

// placed reads a subject of the stream back.
func placed(subject string) (worker string, rank int, ok bool) {
	rest, ok := strings.CutPrefix(subject, eventSubjects)
	name, number, two := strings.Cut(rest, ".")
	rank, err := strconv.Atoi(number)
	if !ok || !two || err != nil || rank < 0 || name == "" {
		return "", 0, false
	}
	var b strings.Builder
	for i := 0; i < len(name); i++ {
		if name[i] != '=' {
			b.WriteByte(name[i])
			continue
		}
		if i+2 >= len(name) {
			return "", 0, false
		}
		c, err := strconv.ParseUint(name[i+1:i+3], 16, 8)
		if err != nil {
			return "", 0, false
		}
		b.WriteByte(byte(c))
		i += 2
	}
	return b.String(), rank, true
}
