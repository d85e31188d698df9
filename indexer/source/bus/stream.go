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

// Prefix names what belongs to one deployment on a NATS server: its subjects begin so, and its streams are named after it. The zero
// value is DefaultPrefix.
type Prefix string

// DefaultPrefix has the stream SIGHTLINE_KV.
const DefaultPrefix Prefix = "sightline"

// Check is nil for a name that is one part of a subject, and of which no two make one stream's name.
func (p Prefix) Check() error {
	if len(p) > 32 || strings.Trim(string(p), "abcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		return fmt.Errorf("%q is no prefix (want up to 32 of a-z, 0-9, - and _)", string(p))
	}
	return nil
}

// Stream is the JetStream stream that all agents publish to.
func (p Prefix) Stream() string { return strings.ToUpper(string(cmp.Or(p, DefaultPrefix))) + "_KV" }

// State is the JetStream stream of what workers hold: snapshots, by worker-rank.
func (p Prefix) State() string { return strings.ToUpper(string(cmp.Or(p, DefaultPrefix))) + "_STATE" }

// events, states, asks, beats, inboxes and peers are the beginnings of subjects: of batches, of snapshots, of requests for one, of
// heartbeats, of answers, of what routers tell each other.
func (p Prefix) events() string  { return string(cmp.Or(p, DefaultPrefix)) + ".kv." }
func (p Prefix) asks() string    { return string(cmp.Or(p, DefaultPrefix)) + ".ask." }
func (p Prefix) states() string  { return string(cmp.Or(p, DefaultPrefix)) + ".state." }
func (p Prefix) beats() string   { return string(cmp.Or(p, DefaultPrefix)) + ".beat." }
func (p Prefix) inboxes() string { return string(cmp.Or(p, DefaultPrefix)) + ".inbox." }
func (p Prefix) peers() string   { return string(cmp.Or(p, DefaultPrefix)) + ".peer." }

// RouterInbox and AgentInbox are ConnectOptions.Inbox of the routers, and of a worker's agent.
func (p Prefix) RouterInbox() string             { return p.inboxes() + "router" }
func (p Prefix) AgentInbox(worker string) string { return p.inboxes() + "agent." + token(worker) }

// StreamOptions are a stream's settings when it is made. The zero value is one replica on disk, uncompressed, of 256 MiB.
type StreamOptions struct {
	Replicas int // 0: 1
	Memory   bool
	MaxBytes int64         // at which the oldest messages go; 0: keptEvents
	MaxAge   time.Duration // 0: any
	Compress bool
}

// keptEvents bounds the disk space of a stream that we make; what came before a snapshot is not needed any more.
const keptEvents = 256 << 20

const ensureTime = 5 * time.Second // for one attempt

// ensure makes the streams if there are none, and logs that. One that exists is not changed: its limits, storage and replicas
// are its operator's. The events are what came after the snapshots.
func ensure(ctx context.Context, js jetstream.JetStream, p Prefix, o StreamOptions, log *zap.Logger) error {
	ctx, cancel := context.WithTimeout(ctx, ensureTime)
	defer cancel()
	events := jetstream.StreamConfig{Name: p.Stream(), Subjects: []string{p.events() + ">"}, MaxBytes: cmp.Or(o.MaxBytes, keptEvents), MaxAge: o.MaxAge}
	states := jetstream.StreamConfig{Name: p.State(), Subjects: []string{p.states() + ">"}, MaxMsgsPerSubject: 1}
	for _, c := range []jetstream.StreamConfig{events, states} {
		c.Retention, c.Discard, c.AllowDirect, c.Replicas = jetstream.LimitsPolicy, jetstream.DiscardOld, true, max(o.Replicas, 1)
		if o.Memory {
			c.Storage = jetstream.MemoryStorage
		}
		if o.Compress {
			c.Compression = jetstream.S2Compression
		}
		_, err := js.Stream(ctx, c.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			_, err = js.CreateStream(ctx, c)
			if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another process made it first, with other limits
				err = nil
			} else if err == nil && log != nil {
				log.Info("the agents' stream was not there and is made", zap.String("stream", c.Name))
			}
		}
		if err != nil {
			return fmt.Errorf("stream %s: %w", c.Name, err)
		}
	}
	return nil
}

// watchStream is how often a consumer checks that its stream is still the same one.
const watchStream = 5 * time.Second

// consume calls each for the last message of every subject and all that follow, in order, until ctx ends or the stream is lost.
// It looks often whether the stream is still the same: one that is made anew begins with number 1, and an ordered consumer of
// the old one waits silently for the number that it had reached.
func consume(ctx context.Context, js jetstream.JetStream, p Prefix, often time.Duration, each func(jetstream.Msg)) error {
	s, err := js.Stream(ctx, p.Stream())
	if err != nil {
		return err
	}
	made := s.CachedInfo().Created
	c, err := js.OrderedConsumer(ctx, p.Stream(), jetstream.OrderedConsumerConfig{
		FilterSubjects: []string{p.events() + ">"}, DeliverPolicy: jetstream.DeliverLastPerSubjectPolicy})
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
	closed := consuming.Closed() // once: each call is a goroutine that lasts as long as the consumer
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
		now, err := js.Stream(look, p.Stream())
		cancel()
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
			return err
		case err == nil && !now.CachedInfo().Created.Equal(made):
			return errors.New("the stream was lost and made again")
		} // any other error is the server's: the consumer recovers, or breaks
	}
}

// subjectSuffix is a worker-rank's part of a subject.
func subjectSuffix(worker string, rank int) string {
	return token(worker) + "." + strconv.Itoa(max(rank, 0))
}

// token is a worker's name as a part of a subject: characters that NATS does not take are written as =XX.
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

// parseSubject reads worker and rank back from one of the stream's subjects.
func (p Prefix) parseSubject(subject string) (worker string, rank int, valid bool) {
	rest, valid := strings.CutPrefix(subject, p.events())
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
