// Package zmq listens to the ZeroMQ sockets on which vLLM and SGLang publish KV events: a SUB socket that dials a worker's PUB,
// and a DEALER that asks the worker's ROUTER for a replay of missed messages.
//
// It implements only ZMTP 3.1 (rfc.zeromq.org/spec/37) with the NULL mechanism. The pure Go library (go-zeromq/zmq4 v0.17.0) is
// not suitable: it delivers PINGs as messages and answers them without their context, cannot send one (so half-open connections
// go unnoticed), allocates any length that a peer claims, and 11 times a message.
//
// Cost: two goroutines a connection; a message's frames are valid until the next one, and nothing is allocated. Errors name the
// endpoint and what was expected; Sub.Run retries for ever, Replay returns them.
package zmq

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sightline-router/sightline/internal/fair"
	"github.com/sightline-router/sightline/internal/retry"
)

// maxMessage limits one message, all frames together. vLLM's largest batches are a few MB.
const maxMessage = 16 << 20

const (
	maxFrames = 16

	flagMore    = 1
	flagLong    = 2
	flagCommand = 4

	// readBytes is the size of a connection's read buffer: a message of 64 blocks with their tokens. A thousand connections have
	// one each, for as long as they live.
	readBytes = 8 << 10

	// keptBytes is what a connection keeps of its memory for messages; for larger ones it waits for room.
	keptBytes = 64 << 10
	// maxReady limits what a peer says of itself.
	maxReady = 4 << 10

	handshakeTime = 5 * time.Second
	// pingEvery is how often a silent peer gets a PING; after three times that the connection is closed, if the peer's ZMTP has
	// PINGs (3.1: libzmq 4.3).
	pingEvery = 5 * time.Second
)

// conn is one ZMTP connection after the handshake. One goroutine reads; any may write.
type conn struct {
	net.Conn
	r        *bufio.Reader
	minor    byte         // x of the peer's ZMTP 3.x
	lastRead atomic.Int64 // unix nanoseconds

	write sync.Mutex
	head  [9]byte  // of the frame being read
	buf   []byte   // the frames of the message being read
	parts [][]byte // the frames, slices of buf

	most int             // bytes of a message
	room fair.Hold       // for messages of more than keptBytes
	wait context.Context // until when room is waited for
}

// takeRoom waits until there is room for a message of n bytes.
func (c *conn) takeRoom(n int) error {
	if n > keptBytes && !c.room.Grow(c.wait, int64(n)) {
		return errors.New("too many large messages are being read")
	}
	return nil
}

// freeRoom gives back what the last message took.
func (c *conn) freeRoom() {
	if cap(c.buf) > keptBytes {
		c.buf = nil
	}
	c.room.Free()
}

// dial connects a socket of the given type ("SUB", "DEALER") to a peer of one of peerTypes.
func dial(ctx context.Context, network, address, socket string, peerTypes ...string) (*conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}
	nc, err := d.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return open(ctx, nc, socket, peerTypes...)
}

// open performs the handshake on a new connection, dialled or accepted, within ctx.
func open(ctx context.Context, nc net.Conn, socket string, peerTypes ...string) (*conn, error) {
	stop := context.AfterFunc(ctx, func() { nc.Close() })
	c := &conn{Conn: nc, most: maxReady}
	c.r = bufio.NewReaderSize(readTimes{nc, &c.lastRead}, readBytes)
	if err := c.handshake(socket, peerTypes); err != nil {
		nc.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("no ZMTP handshake within %s (is it a ZeroMQ port?)", handshakeTime)
		}
		return nil, fmt.Errorf("%s: %w", nc.RemoteAddr(), err)
	}
	if !stop() {
		nc.Close()
		return nil, ctx.Err()
	}
	return c, nil
}

// readTimes records when bytes were last received.
type readTimes struct {
	io.Reader
	at *atomic.Int64
}

// Read implements io.Reader.
func (r readTimes) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.at.Store(time.Now().UnixNano())
	return n, err
}

func (c *conn) handshake(socket string, peerTypes []string) error {
	greeting := [64]byte{0: 0xff, 9: 0x7f, 10: 3, 11: 1}
	copy(greeting[12:], "NULL")
	if _, err := c.Write(greeting[:]); err != nil {
		return err
	}
	var peer [64]byte
	if _, err := io.ReadFull(c.r, peer[:11]); err != nil {
		return err
	}
	if peer[0] != 0xff || peer[9]&1 == 0 || peer[10] < 3 {
		return errors.New("peer does not speak ZMTP 3")
	}
	if _, err := io.ReadFull(c.r, peer[11:]); err != nil {
		return err
	}
	if mechanism := peer[12:32]; string(mechanism[:5]) != "NULL\x00" {
		return fmt.Errorf("peer wants the security mechanism %.20q, only NULL is spoken", mechanism)
	}
	c.minor = peer[11]
	if peer[10] > 3 {
		c.minor = 1
	}
	ready := []byte("\x05READY\x0bSocket-Type")
	ready = binary.BigEndian.AppendUint32(ready, uint32(len(socket)))
	ready = append(ready, socket...)
	if socket == "DEALER" {
		// Empty, as libzmq sends it. A name of our own would leave a reconnecting DEALER without answers while the
		// ROUTER still knows the old connection by it.
		ready = append(ready, "\x08Identity\x00\x00\x00\x00"...)
	}
	if err := c.send(flagCommand, ready); err != nil {
		return err
	}
	flags, body, err := c.frame(nil)
	if err != nil {
		return err
	}
	if flags&flagCommand == 0 {
		return errors.New("peer sent a message before READY")
	}
	kind, err := socketType(body)
	if err != nil {
		return err
	}
	if slices.Contains(peerTypes, kind) {
		c.most = maxMessage
		return nil
	}
	return fmt.Errorf("peer is a %s socket, want %s (wrong port?)", kind, peerTypes[0])
}

// socketType reads a READY command: name, then properties of (length, name, length, value).
func socketType(body []byte) (string, error) {
	name, rest, ok := command(body)
	switch {
	case ok && name == "ERROR":
		return "", fmt.Errorf("peer refused the connection: %.100q", rest)
	case !ok || name != "READY":
		return "", fmt.Errorf("want the command READY, got %.20q", name)
	}
	for len(rest) > 0 {
		n := int(rest[0])
		if len(rest) < 1+n+4 {
			break
		}
		key, value := string(rest[1:1+n]), rest[1+n:]
		size := binary.BigEndian.Uint32(value)
		if uint64(size) > uint64(len(value)-4) {
			break
		}
		if key == "Socket-Type" {
			return string(value[4 : 4+size]), nil
		}
		rest = value[4+size:]
	}
	return "", errors.New("READY names no socket type")
}

func command(body []byte) (name string, rest []byte, ok bool) {
	if len(body) == 0 {
		return "", nil, false
	}
	end := 1 + int(body[0])
	if len(body) < end {
		return "", nil, false
	}
	return string(body[1:end]), body[end:], true
}

// frame reads one frame and appends its body to buf.
func (c *conn) frame(buf []byte) (flags byte, out []byte, err error) {
	head := &c.head
	if _, err := io.ReadFull(c.r, head[:2]); err != nil {
		return 0, buf, err
	}
	flags = head[0]
	if flags&^(flagMore|flagLong|flagCommand) != 0 {
		return 0, buf, fmt.Errorf("frame with flags %#x", flags)
	}
	size := uint64(head[1])
	if flags&flagLong != 0 {
		if _, err := io.ReadFull(c.r, head[2:]); err != nil {
			return 0, buf, err
		}
		size = binary.BigEndian.Uint64(head[1:])
	}
	if size > uint64(c.most-len(buf)) {
		return 0, buf, fmt.Errorf("message over %d bytes", c.most)
	}
	if err := c.takeRoom(len(buf) + int(size)); err != nil {
		return 0, buf, err
	}
	for left := int(size); left > 0; { // grow as bytes come: a false length allocates no memory
		step := min(left, 1<<20)
		at := len(buf)
		if cap(buf)-at < step {
			grown := make([]byte, at, max(at+step, min(2*cap(buf), at+left)))
			copy(grown, buf)
			buf = grown
		}
		buf = buf[:at+step]
		if _, err := io.ReadFull(c.r, buf[at:]); err != nil {
			return 0, buf, err
		}
		left -= step
	}
	return flags, buf, nil
}

// message reads one message's frames, valid until the next call. It answers commands in between.
func (c *conn) message() ([][]byte, error) {
	c.freeRoom()
	c.buf = c.buf[:0]
	var ends [maxFrames]int
	for n := 0; ; {
		start := len(c.buf)
		flags, buf, err := c.frame(c.buf)
		c.buf = buf
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			if err := c.handleCommand(buf[start:]); err != nil {
				return nil, err
			}
			c.buf = buf[:start]
			continue
		}
		if n == maxFrames {
			return nil, fmt.Errorf("message of more than %d frames", maxFrames)
		}
		ends[n] = len(buf)
		n++
		if flags&flagMore != 0 {
			continue
		}
		c.parts = c.parts[:0]
		start = 0
		for _, end := range ends[:n] {
			c.parts = append(c.parts, buf[start:end])
			start = end
		}
		return c.parts, nil
	}
}

// handleCommand handles a command: a PING (time to live, context) is answered by a PONG with the same context, others need nothing.
func (c *conn) handleCommand(body []byte) error {
	name, rest, ok := command(body)
	if !ok {
		return errors.New("malformed command")
	}
	switch name {
	case "PING":
		if len(rest) < 2 || len(rest) > 2+16 {
			return errors.New("malformed PING")
		}
		return c.send(flagCommand, append([]byte("\x04PONG"), rest[2:]...))
	case "ERROR":
		return fmt.Errorf("peer closes: %.100q", rest)
	}
	return nil
}

// ping sends PINGs to a silent peer and closes the connection if nothing comes back. Peers with ZMTP 3.0 have no PING; there TCP
// keep-alive has to suffice.
func (c *conn) ping(ctx context.Context, every time.Duration) {
	if c.minor == 0 {
		return
	}
	for now := range retry.Every(ctx, every) {
		silent := now.Sub(time.Unix(0, c.lastRead.Load()))
		if silent > 3*every {
			c.Close()
			return
		}
		if silent > every/2 {
			_ = c.send(flagCommand, []byte("\x04PING\x00\x00")) // if the connection is broken, the reader sees it
		}
	}
}

// subscribe asks for messages whose first frame begins with prefix.
func (c *conn) subscribe(prefix string) error {
	if c.minor == 0 {
		return c.send(0, append([]byte{1}, prefix...))
	}
	return c.send(flagCommand, append([]byte("\x09SUBSCRIBE"), prefix...))
}

// send writes one frame.
func (c *conn) send(flags byte, body []byte) error {
	frame := make([]byte, 0, 9+len(body))
	if len(body) > 255 {
		frame = append(frame, flags|flagLong)
		frame = binary.BigEndian.AppendUint64(frame, uint64(len(body)))
	} else {
		frame = append(frame, flags, byte(len(body)))
	}
	c.write.Lock()
	defer c.write.Unlock()
	_ = c.SetWriteDeadline(time.Now().Add(handshakeTime))
	_, err := c.Write(append(frame, body...))
	return err
}
