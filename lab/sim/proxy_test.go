package sim

import (
	"bufio"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy is a bad wire to one of a worker's sockets: it knows where ZMTP's messages begin and end, and on their way to the
// peer it does to them what its faults say, until it is healed.
type proxy struct {
	net.Listener
	faults
	target atomic.Pointer[string] // host:port; dialled anew for each connection
	healed atomic.Bool

	mu   sync.Mutex
	rng  *rand.Rand
	done faults // how often
	cuts int    // connections that may still break: each makes the peer wait longer before it comes again
	wg   sync.WaitGroup
	open map[net.Conn]bool
}

// faults are chances, one in so many messages; 0 is never.
type faults struct {
	lose, double, swap int
	halve              int // the payload ends in its middle
	cut                int // the connection ends in the message's middle
	delay              int // a millisecond passes
}

func startProxy(t *testing.T, seed uint64, f faults) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Listener: l, faults: f, rng: rand.New(rand.NewPCG(seed, 7)), cuts: 3, open: map[net.Conn]bool{}}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.wg.Go(func() { p.connect(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.mu.Lock()
		for c := range p.open {
			_ = c.Close()
		}
		p.open = nil
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *proxy) endpoint() string { return "tcp://" + p.Addr().String() }

// connect joins a peer and the worker.
func (p *proxy) connect(peer net.Conn) {
	defer peer.Close()
	worker, err := net.Dial("tcp", *p.target.Load())
	if err != nil {
		return
	}
	defer worker.Close()
	p.mu.Lock()
	if p.open == nil {
		p.mu.Unlock()
		return
	}
	p.open[peer], p.open[worker] = true, true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.open, peer)
		delete(p.open, worker)
		p.mu.Unlock()
	}()
	p.wg.Go(func() {
		_, _ = io.Copy(worker, peer)
		_ = worker.Close()
	})
	in := bufio.NewReader(worker)
	if _, err := io.CopyN(peer, in, 64); err != nil { // the greeting
		return
	}
	var held []byte // a message that the next one overtakes
	for {
		msg, frame, body, err := zmtpRead(in)
		if err != nil {
			return
		}
		if msg[0]&flagCommand == 0 && !p.healed.Load() {
			msg = p.spoil(peer, msg, frame, body)
			if msg == nil {
				return
			}
			if held == nil && p.chance(p.swap, &p.done.swap) {
				held = msg
				continue
			}
		}
		if _, err := peer.Write(append(msg, held...)); err != nil {
			return
		}
		held = nil
	}
}

// spoil gives what becomes of a message; nil: the connection ends.
func (p *proxy) spoil(peer net.Conn, msg []byte, frame, body int) []byte {
	switch {
	case p.chance(p.lose, &p.done.lose):
		return msg[:0]
	case p.chance(p.double, &p.done.double):
		return append(msg, msg...)
	case p.chance(p.halve, &p.done.halve):
		half := msg[body : body+(len(msg)-body)/2]
		msg = append(msg[:frame:frame], msg[frame]|flagLong)
		return append(binary.BigEndian.AppendUint64(msg, uint64(len(half))), half...)
	case p.cuts > 0 && p.chance(p.cut, &p.done.cut):
		p.cuts--
		_, _ = peer.Write(msg[:len(msg)/2])
		return nil
	case p.chance(p.delay, &p.done.delay):
		time.Sleep(time.Millisecond)
	}
	return msg
}

func (p *proxy) chance(oneIn int, count *int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if oneIn == 0 || p.rng.IntN(oneIn) > 0 {
		return false
	}
	*count++
	return true
}

// zmtpRead reads a command or a whole message, and tells where its last frame and that one's body begin.
func zmtpRead(in *bufio.Reader) (msg []byte, frame, body int, err error) {
	for {
		flags, err := in.ReadByte()
		if err != nil {
			return nil, 0, 0, err
		}
		var size [8]byte
		digits := size[7:]
		if flags&flagLong != 0 {
			digits = size[:]
		}
		if _, err := io.ReadFull(in, digits); err != nil {
			return nil, 0, 0, err
		}
		frame = len(msg)
		msg = append(append(msg, flags), digits...)
		body = len(msg)
		msg = append(msg, make([]byte, binary.BigEndian.Uint64(size[:]))...)
		if _, err := io.ReadFull(in, msg[body:]); err != nil {
			return nil, 0, 0, err
		}
		if flags&flagMore == 0 {
			return msg, frame, body, nil
		}
	}
}
