package zmq

// The live side: dial, subscribe, read until the connection breaks, dial again.

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/guard"
	"github.com/sightline-router/sightline/internal/retry"
)

// Message is one published batch. On the wire: topic | seq (8 bytes, big endian) | payload.
type Message struct {
	Seq     uint64
	Payload []byte
}

// Sub listens to one PUB socket. Set the fields, then Run it once.
type Sub struct {
	Endpoint string // tcp://host:port, or ipc:///path
	// Topic is the required prefix of the first frame; "" takes everything.
	Topic string
	// Bind listens at Endpoint, for a publisher that connects (bind.go).
	Bind bool
	// From is where the publisher may connect from, with Bind; zero: this machine (a pod's containers are one). Refused, if set,
	// is called for others.
	From    netip.Prefix
	Refused func(netip.Addr)
	// Bare takes messages without a sequence number: the last frame is the payload.
	Bare bool
	Most int // bytes of a message; 0: 16 MiB
	// Up, if set, is called after every (re)connection, before its first message: what was published in between is lost, and the
	// publisher may be another process.
	Up func()
	// Down, if set, is called when a connection breaks or cannot be made.
	Down func(error)
	// Malformed, if set, is called for each message that does not end in a sequence number of 8 bytes and a payload, with its form.
	Malformed func(form string)
	Room      fair.Hold

	pingEvery time.Duration // for tests; 0: the constant pingEvery
}

const (
	minWait = 50 * time.Millisecond
	maxWait = 2 * time.Second // a restarted worker should not serve unheard for long
)

// Run calls each for every message until ctx ends; the payload is valid until each returns. It retries connections for ever, with
// back-off from 50 ms up to 2 s. The error is ctx's, or names an endpoint that cannot be dialled.
func (s *Sub) Run(ctx context.Context, each func(Message)) error {
	once, host := s.runDialled, ""
	if s.Bind {
		once, host = s.runBound, "0.0.0.0"
	}
	network, address, err := dialable(s.Endpoint, host)
	if err != nil {
		return err
	}
	pause := retry.Backoff{First: minWait, Longest: maxWait}
	for {
		began := time.Now()
		err := guard.Call(func() error { return once(ctx, network, address, each) }) // a message that panics costs its connection
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if s.Down != nil {
			s.Down(err)
		}
		if time.Since(began) > maxWait {
			pause.Reset()
		}
		if !pause.Wait(ctx) {
			return ctx.Err()
		}
	}
}

func (s *Sub) runDialled(ctx context.Context, network, address string, each func(Message)) error {
	c, err := dial(ctx, network, address, "SUB", "PUB", "XPUB")
	if err != nil {
		return err
	}
	return s.read(ctx, c, each)
}

// read delivers one connection's messages until it breaks.
func (s *Sub) read(ctx context.Context, c *conn, each func(Message)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	defer c.Close()
	c.room, c.wait, c.most = s.Room, ctx, cmp.Or(s.Most, maxMessage)
	defer c.freeRoom()
	if err := c.subscribe(s.Topic); err != nil {
		return err
	}
	if s.Up != nil {
		s.Up()
	}
	go c.ping(ctx, cmp.Or(s.pingEvery, pingEvery))
	for {
		parts, err := c.message()
		if err != nil {
			return fmt.Errorf("%s: %w", s.Endpoint, err)
		}
		if s.Bare {
			each(Message{Payload: parts[len(parts)-1]})
			continue
		}
		m, ok := parse(parts)
		if !ok || m.Seq > maxSeq {
			if s.Malformed != nil {
				s.Malformed(formOf(parts))
			}
			continue
		}
		each(m)
	}
}

// maxSeq is more messages than a publisher sends in its life: a larger number is a little-endian one, or another frame of 8 bytes.
const maxSeq = 1 << 40

// formOf names the form of a message that is not one of events. It quotes nothing of it.
func formOf(parts [][]byte) string {
	const want = "want 3: topic, sequence number of 8 bytes, payload"
	n := len(parts)
	if n < 2 {
		return fmt.Sprintf("messages of 1 frame (%s)", want)
	}
	if got := len(parts[n-2]); got != 8 {
		return fmt.Sprintf("messages of %d frames with %d bytes before the payload (%s)", n, got, want)
	}
	return fmt.Sprintf("messages of %d frames with no big-endian sequence number before the payload (%s)", n, want)
}

// parse takes the last two frames as sequence number and payload, whatever precedes them.
func parse(parts [][]byte) (Message, bool) {
	n := len(parts)
	if n < 2 || len(parts[n-2]) != 8 {
		return Message{}, false
	}
	return Message{binary.BigEndian.Uint64(parts[n-2]), parts[n-1]}, true
}
