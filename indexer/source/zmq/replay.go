package zmq

// The replay side: vLLM and SGLang keep their last batches (10 000 by default) and send them on request over a ROUTER socket.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/sightline-router/sightline/internal/fair"
)

// Limits of one replay.
const (
	maxReplayMessages = 1 << 20
	maxReplayBytes    = 4 << 30
)

// errTooLong: a replay was aborted because it was longer than any publisher's buffer.
var errTooLong = errors.New("replay is longer than allowed")

// Replay asks the publisher behind endpoint for its buffered messages from number from on, calls each for them in order, and
// returns nil when the publisher has sent the last one. The payload is valid until each returns; an error of each ends the
// replay. If the publisher is gone or silent, it ends with ctx.
//
// Forms of a reply, as a DEALER sees them: "" seq payload (vLLM to 0.25, SGLang to 0.5.21), "" topic seq payload (later). The
// last reply has an empty payload and the number 2^64-1; if there is nothing from that number on, only that one comes.
func Replay(ctx context.Context, endpoint string, from uint64, room fair.Hold, each func(Message) error) error {
	network, address, err := dialable(endpoint, "")
	if err != nil {
		return err
	}
	c, err := dial(ctx, network, address, "DEALER", "ROUTER")
	if err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	defer c.Close()
	c.room, c.wait = room, ctx
	defer c.freeRoom()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err := c.send(flagMore, nil); err != nil { // the delimiter that a REQ would send
		return fmt.Errorf("replay: %w", err)
	}
	if err := c.send(0, binary.BigEndian.AppendUint64(nil, from)); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	size := 0
	for range maxReplayMessages {
		parts, err := c.message()
		if ctx.Err() != nil {
			return fmt.Errorf("replay from %d: %w", from, ctx.Err())
		}
		if err != nil {
			return fmt.Errorf("replay from %d: %w", from, err)
		}
		m, ok := parse(parts)
		if !ok {
			return fmt.Errorf("replay from %d: a reply of %d frames without a sequence number", from, len(parts))
		}
		if len(m.Payload) == 0 || m.Seq == math.MaxUint64 {
			return nil
		}
		size += len(m.Payload)
		if size > maxReplayBytes {
			return errTooLong
		}
		if err := each(m); err != nil {
			return err
		}
	}
	return errTooLong
}
