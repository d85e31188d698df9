package sim

// ZMTP as a worker speaks it: sockets that listen, take many peers, and never let a slow one hold up the engine. The
// handshake is go-zeromq's. Its PUB and ROUTER sockets are not used: they do not answer a peer's heartbeats (PING), stop
// reading a subscriber after ten of them, and send to all subscribers from one queue; libzmq, which vLLM uses, does
// none of that.

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/go-zeromq/zmq4/security/null"
)

const (
	flagMore    = 1
	flagLong    = 2
	flagCommand = 4
	// maxFrame bounds what a peer may send: a topic, eight bytes of sequence number, a heartbeat.
	maxFrame         = 4096
	handshakeTimeout = 5 * time.Second
)

var errFrameTooLong = errors.New("ZMTP frame too long")

// peer is one connection of a listening socket.
type peer struct {
	conn net.Conn
	in   *bufio.Reader

	mu     sync.Mutex
	topics map[string]bool
}

// listener accepts peers of one socket type and serves each in its own goroutine.
type listener struct {
	net.Listener
	typ   zmq4.SocketType
	serve func(*peer)

	mu    sync.Mutex
	peers map[*peer]bool
	wg    sync.WaitGroup
}

func listen(addr string, typ zmq4.SocketType) (*listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &listener{Listener: l, typ: typ, peers: map[*peer]bool{}}, nil
}

// port is the bound TCP port.
func (l *listener) port() int { return l.Addr().(*net.TCPAddr).Port }

// listenRun binds n consecutive ports.
func listenRun(addr string, n int, typ zmq4.SocketType) ([]*listener, error) {
	var bound []*listener
	for i := range n {
		if i > 0 {
			host, _, _ := net.SplitHostPort(addr)
			addr = net.JoinHostPort(host, strconv.Itoa(bound[i-1].port()+1))
		}
		l, err := listen(addr, typ)
		if err != nil {
			closeAll(bound)
			return nil, err
		}
		bound = append(bound, l)
	}
	return bound, nil
}

func closeAll(ls []*listener) {
	for _, l := range ls {
		_ = l.Close()
	}
}

// run accepts until the listener is closed.
func (l *listener) run(serve func(*peer)) {
	l.serve = serve
	l.wg.Add(1)
	go func() {
		defer l.wg.Done()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p := &peer{conn: conn, in: bufio.NewReader(conn), topics: map[string]bool{}}
			l.mu.Lock()
			l.peers[p] = true
			l.wg.Add(1)
			l.mu.Unlock()
			go l.handle(p)
		}
	}()
}

func (l *listener) handle(p *peer) {
	defer l.wg.Done()
	defer p.conn.Close()
	defer func() {
		l.mu.Lock()
		delete(l.peers, p)
		l.mu.Unlock()
	}()
	_ = p.conn.SetDeadline(time.Now().Add(handshakeTimeout))
	if _, err := zmq4.Open(p.conn, null.Security(), l.typ, nil, true, nil); err != nil {
		return
	}
	_ = p.conn.SetDeadline(time.Time{})
	l.serve(p)
}

// stop closes the socket and every connection, and waits for their goroutines.
func (l *listener) stop() {
	_ = l.Close()
	l.mu.Lock()
	for p := range l.peers {
		_ = p.conn.Close()
	}
	l.mu.Unlock()
	l.wg.Wait()
}

// receive gives the next message. It answers heartbeats and keeps the subscriptions by itself.
func (p *peer) receive() ([][]byte, error) {
	var frames [][]byte
	for {
		flags, body, err := p.frame()
		if err != nil {
			return nil, err
		}
		if flags&flagCommand != 0 {
			p.command(body)
			continue
		}
		if len(frames) == 8 {
			return nil, errFrameTooLong
		}
		frames = append(frames, body)
		if flags&flagMore != 0 {
			continue
		}
		if len(frames) == 1 && len(body) > 0 && body[0] <= 1 { // ZMTP 3.0's form of a subscription
			p.subscribe(string(body[1:]), body[0] == 1)
		}
		return frames, nil
	}
}

func (p *peer) frame() (flags byte, body []byte, err error) {
	flags, err = p.in.ReadByte()
	if err != nil {
		return 0, nil, err
	}
	var size uint64
	if flags&flagLong != 0 {
		var b [8]byte
		_, err = io.ReadFull(p.in, b[:])
		if err != nil {
			return 0, nil, err
		}
		size = binary.BigEndian.Uint64(b[:])
	} else {
		b, err := p.in.ReadByte()
		if err != nil {
			return 0, nil, err
		}
		size = uint64(b)
	}
	if size > maxFrame {
		return 0, nil, errFrameTooLong
	}
	body = make([]byte, size)
	_, err = io.ReadFull(p.in, body)
	return flags, body, err
}

// command obeys a ZMTP 3.1 command: a length-prefixed name and its body.
func (p *peer) command(body []byte) {
	if len(body) == 0 || len(body) < 1+int(body[0]) {
		return
	}
	end := 1 + int(body[0]) // as an int: a name may have 255 bytes
	name, rest := string(body[1:end]), body[end:]
	switch name {
	case "PING": // two bytes of TTL, then a context that goes back
		if len(rest) >= 2 {
			pong := append([]byte("\x04PONG"), rest[2:min(len(rest), 18)]...)
			_, _ = p.conn.Write(append([]byte{flagCommand, byte(len(pong))}, pong...))
		}
	case "SUBSCRIBE":
		p.subscribe(string(rest), true)
	case "CANCEL":
		p.subscribe(string(rest), false)
	}
}

func (p *peer) subscribe(topic string, on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !on {
		delete(p.topics, topic)
	} else if len(p.topics) < 1024 {
		p.topics[topic] = true
	}
}

func (p *peer) wants(topic string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for t := range p.topics {
		if strings.HasPrefix(topic, t) {
			return true
		}
	}
	return false
}

// zmtpMessage gives the bytes of one multipart message, to be written by one Write.
func zmtpMessage(frames ...[]byte) []byte {
	n := 0
	for _, f := range frames {
		n += 9 + len(f)
	}
	b := make([]byte, 0, n)
	for i, f := range frames {
		flags := byte(0)
		if i < len(frames)-1 {
			flags = flagMore
		}
		if len(f) < 256 {
			b = append(b, flags, byte(len(f)))
		} else {
			b = binary.BigEndian.AppendUint64(append(b, flags|flagLong), uint64(len(f)))
		}
		b = append(b, f...)
	}
	return b
}
