package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

// The JetStream streams: of all agents' events, of snapshots by rank, and the one whose metadata have the secret of the block hashes.
// A NATS server, or an account of it, has one deployment.
const (
	EventStream  = "SIGHTLINE_KV"
	StateStream  = "SIGHTLINE_STATE"
	secretStream = "SIGHTLINE_KEY"
)

// The beginnings of subjects, of batches, snapshots, requests for a snapshot and heartbeats, and the secret's subject.
const (
	eventSubjects = "sightline.kv."
	stateSubjects = "sightline.state."
	askSubjects   = "sightline.ask."
	beatSubjects  = "sightline.beat."
	secretSubject = "sightline.key"
)

// RouterInbox is ConnectOptions.Inbox of the routers.
const RouterInbox = "sightline.inbox.router"

// AgentInbox returns ConnectOptions.Inbox of a worker's agent.
func AgentInbox(worker string) string { return "sightline.inbox.agent." + token(worker) }

// keptEvents limits the disk space of a stream that we create; messages before a snapshot are no longer needed.
const keptEvents = 256 << 20

const ensureTime = 5 * time.Second // for one attempt

// ensureStreams creates the streams if they do not exist, and logs that. maxBytes bounds the events; 0: keptEvents. An existing stream is
// not changed: its limits, storage and replicas are its operator's. The stream of events has what came after the snapshots.
func ensureStreams(ctx context.Context, js jetstream.JetStream, maxBytes int64, log *zap.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, ensureTime)
	defer cancel()
	events := jetstream.StreamConfig{Name: EventStream, Subjects: []string{eventSubjects + ">"},
		MaxBytes: cmp.Or(maxBytes, keptEvents)}
	states := jetstream.StreamConfig{Name: StateStream, Subjects: []string{stateSubjects + ">"}, MaxMsgsPerSubject: 1}
	for _, c := range []jetstream.StreamConfig{events, states} {
		c.MaxMsgSize = maxMessage
		c.Retention, c.Discard, c.AllowDirect, c.Replicas = jetstream.LimitsPolicy, jetstream.DiscardOld, true, 1
		_, err := js.Stream(ctx, c.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			_, err = js.CreateStream(ctx, c)
			if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process created it first, with other limits
				err = nil
			} else if err == nil && log != nil {
				log.Info("created the agents' stream", zap.String("stream", c.Name))
			}
		}
		if err != nil {
			return fmt.Errorf("stream %s: %w", c.Name, err)
		}
	}
	return nil
}

// What may wait in NATS' client, in messages and bytes, for each subscription. Beyond it, heartbeats are dropped, which the
// next ones repair, and events stay at the server. A message of few bytes takes half a kilobyte of memory.
const (
	beatsWaiting = 1 << 13
	beatBytes    = 1 << 20
	eventBytes   = 4 << 20 // at least three of the largest messages: the client asks again when half of it is used
)

// watchStream is how often a consumer checks that its stream is still the same one.
const watchStream = 5 * time.Second

// consume calls each for the last message of every subject and all that follow, in order, until ctx ends or the stream is lost.
// It checks regularly whether the stream is still the same: a recreated one begins with number 1, and an ordered consumer of the
// old one would wait silently for the number that it had reached.
func consume(ctx context.Context, js jetstream.JetStream, often time.Duration, each func(jetstream.Msg)) error {
	s, err := js.Stream(ctx, EventStream)
	if err != nil {
		return err
	}
	made, largest := s.CachedInfo().Created, int(js.Conn().MaxPayload())
	if most := int(s.CachedInfo().Config.MaxMsgSize); most > 0 {
		largest = min(largest, most)
	}
	c, err := js.OrderedConsumer(ctx, EventStream, jetstream.OrderedConsumerConfig{
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
	}), jetstream.PullMaxBytes(max(eventBytes, 3*largest)))
	if err != nil {
		return err
	}
	defer consuming.Stop()
	closed := consuming.Closed() // called once: each call starts a goroutine that lives as long as the consumer
	watch := time.NewTicker(often)
	defer watch.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-broken:
			return err
		case <-closed:
			return errors.New("the consumer was closed")
		case <-watch.C:
		}
		look, cancel := context.WithTimeout(ctx, ensureTime)
		now, err := js.Stream(look, EventStream)
		cancel()
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return err
		case err == nil && !now.CachedInfo().Created.Equal(made):
			return errors.New("the stream was lost and made again")
		} // any other error is the server's: the consumer recovers, or breaks
	}
}

// subjectSuffix returns the subject tokens of a worker's rank.
func subjectSuffix(worker string, rank int) string {
	return token(worker) + "." + strconv.Itoa(max(rank, 0))
}

// token returns a worker's name as a token of a subject: characters that NATS does not allow are written as =XX.
func token(worker string) string {
	var b strings.Builder
	for i := range len(worker) {
		switch c := worker[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String()
}
