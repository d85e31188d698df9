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
	eventSubjects    = "sightline.kv."
	snapshotSubjects = "sightline.ask."
	// keptEvents bounds the disk space of a stream that we make; a router that joins asks the agents for what is not in it.
	keptEvents = 256 << 20
	ensureTime = 5 * time.Second // for one attempt
)

// ensure makes the stream if there is none, and logs that. One that exists is not changed: its limits, storage and replicas
// are its operator's. maxBytes bounds the disk space of one made here; when it is full the oldest messages go. They serve
// routers that join while a worker's agent is away; otherwise routers ask the agent.
func ensure(ctx context.Context, js jetstream.JetStream, maxBytes int64, log *zap.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, ensureTime)
	defer cancel()
	_, err := js.Stream(ctx, Stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		_, err = js.CreateStream(ctx, jetstream.StreamConfig{
			Name: Stream, Subjects: []string{eventSubjects + ">"}, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
			MaxBytes: maxBytes, Storage: jetstream.FileStorage, AllowDirect: true,
		})
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process made it first, with other limits
			err = nil
		} else if err == nil && log != nil {
			log.Info("the agents' stream was not there and is made", zap.String("stream", Stream))
		}
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", Stream, err)
	}
	return nil
}

// watchStream is how often a consumer checks that its stream is still the same one.
const watchStream = 5 * time.Second

// consume calls each for the last message of every subject and all that follow, in order, until ctx ends or the stream is lost.
// It looks often whether the stream is still the same: one that is made anew begins with number 1, and an ordered consumer of
// the old one waits silently for the number that it had reached.
func consume(ctx context.Context, js jetstream.JetStream, often time.Duration, each func(jetstream.Msg)) error {
	s, err := js.Stream(ctx, Stream)
	if err != nil {
		return err
	}
	made := s.CachedInfo().Created
	c, err := js.OrderedConsumer(ctx, Stream, jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{eventSubjects + ">"}, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy})
	if err != nil {
		return err
	}
	broken := make(chan error, 1)
	consuming, err := c.Consume(each, jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
		// The consumer recovers from other errors (missed heartbeats, a reconnect) by itself.
		if errors.Is(err, jetstream.ErrConsumerNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) ||
			errors.Is(err, jetstream.ErrOrderedConsumerReset) {
			select {
			case broken <- err:
			default:
			}
		}
	}))
	if err != nil {
		return err
	}
	defer consuming.Stop()
	watch := time.NewTicker(often)
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-broken:
			return err
		case <-consuming.Closed():
			return errors.New("the consumer was closed")
		case <-watch.C:
		}
		look, cancel := context.WithTimeout(ctx, ensureTime)
		now, err := js.Stream(look, Stream)
		cancel()
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return err
		case err == nil && !now.CachedInfo().Created.Equal(made):
			return errors.New("the stream was lost and made again")
		} // any other error is the server's: the consumer recovers, or breaks
	}
}

// subjectSuffix is a worker-rank's part of a subject: the worker's name, in which characters that NATS does not take are
// written as =XX, and the rank.
func subjectSuffix(worker string, rank int) string {
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

// parseSubject reads worker and rank back from one of the stream's subjects.
func parseSubject(subject string) (worker string, rank int, valid bool) {
	rest, valid := strings.CutPrefix(subject, eventSubjects)
	name, number, two := strings.Cut(rest, ".")
	rank, err := strconv.Atoi(number)
	if !valid || !two || err != nil || rank < 0 || name == "" {
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
