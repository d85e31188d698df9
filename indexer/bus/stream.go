package bus

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go/jetstream"
)

// Stream is the JetStream stream that all agents publish to.
const Stream = "SIGHTLINE_KV"

const (
	eventSubjects = "sightline.kv."
	askSubjects   = "sightline.ask."
)

// EnsureStream makes the stream, or brings its limits up to date. maxBytes bounds what the server keeps on disk; when it
// is full the oldest messages go. They serve routers that join while a worker's agent is away; while it is there they
// ask it.
func EnsureStream(ctx context.Context, js jetstream.JetStream, maxBytes int64) error {
	_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: Stream, Subjects: []string{eventSubjects + ">"}, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
		MaxBytes: maxBytes, Storage: jetstream.FileStorage, AllowDirect: true,
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", Stream, err)
	}
	return nil
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
