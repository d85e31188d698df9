// Package sockets bounds how many connections a listener holds, makes connections cheaper (Direct), and tells failures of this process
// (no file descriptor, no memory for a socket) from failures of whom it talks to.
package sockets

import (
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// RaiseLimit is what mends what Exhausted reports.
const RaiseLimit = "this process may open no more files or connections; raise its limit, ulimit -n"

// Exhausted reports whether err is this process's or this machine's own limit: no file descriptor or no memory for a socket. It says
// nothing about the other side.
func Exhausted(err error) bool {
	own := []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM}
	if slices.ContainsFunc(own, func(one error) bool { return errors.Is(err, one) }) {
		return true
	}
	var lookup *net.DNSError // has the cause only as text
	return errors.As(err, &lookup) && strings.Contains(lookup.Err, syscall.EMFILE.Error())
}

// Share returns how many connections a listener may hold: most, or fewer if the process may open few files: one in part of them, but
// at least 16.
func Share(part, most int) int {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err == nil && files.Cur/uint64(part) < uint64(most) {
		most = max(16, int(files.Cur)/part)
	}
	return most
}

// Listener is a net.Listener that holds at most a number of connections. Beyond it a new connection is accepted and another one is
// closed, so that idle ones lock no client out: of the address with the most connections the one that has been silent longest,
// and one that was given to Keep only if all were.
type Listener struct {
	net.Listener
	most   int
	closed func() // is called for each connection that was closed to make room

	mu   sync.Mutex
	open map[*conn]string // with the address that it came from
	from map[string]int   // connections by address
}

// Limit returns a Listener over lis. closed may be nil.
func Limit(lis net.Listener, most int, closed func()) *Listener {
	return &Listener{Listener: lis, most: most, closed: closed, open: make(map[*conn]string), from: make(map[string]int)}
}

// conn is a connection that knows when bytes last went over it.
type conn struct {
	net.Conn
	l    *Listener
	last atomic.Int64 // unix nanoseconds
	kept atomic.Bool
}

// Keep marks a connection that a Listener has accepted as one to be closed last.
func Keep(c net.Conn) {
	if c, ok := c.(*conn); ok {
		c.kept.Store(true)
	}
}

// Accept implements net.Listener. If the process has no descriptor left, it closes a connection that is not marked; the error is
// temporary, and net/http and gRPC try again.
func (l *Listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		if Exhausted(err) {
			l.makeRoom(false)
		}
		return nil, err
	}
	c := &conn{Conn: Direct(nc), l: l}
	c.last.Store(time.Now().UnixNano())
	host, _, err := net.SplitHostPort(nc.RemoteAddr().String())
	if err != nil {
		host = "" // a unix socket
	}
	if l.held() >= l.most {
		l.makeRoom(true)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[c] = host
	l.from[host]++
	return c, nil
}

// held returns how many connections are open.
func (l *Listener) held() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.open)
}

// makeRoom closes one connection; one that is marked only if asked to.
func (l *Listener) makeRoom(marked bool) {
	l.mu.Lock()
	var worst *conn
	for c := range l.open {
		if worst == nil || l.sooner(c, worst) {
			worst = c
		}
	}
	l.mu.Unlock()
	if worst == nil || worst.kept.Load() && !marked {
		return
	}
	worst.Close()
	if l.closed != nil {
		l.closed()
	}
}

// sooner reports whether a is to be closed rather than b.
func (l *Listener) sooner(a, b *conn) bool {
	if a.kept.Load() != b.kept.Load() {
		return b.kept.Load()
	}
	x, y := l.from[l.open[a]], l.from[l.open[b]]
	if x != y {
		return x > y
	}
	return a.last.Load() < b.last.Load()
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.last.Store(time.Now().UnixNano())
	}
	return n, err
}

func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.last.Store(time.Now().UnixNano())
	}
	return n, err
}

func (c *conn) Close() error {
	err := c.Conn.Close()
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if host, ok := c.l.open[c]; ok {
		delete(c.l.open, c)
		c.l.from[host]--
		if c.l.from[host] == 0 {
			delete(c.l.from, host)
		}
	}
	return err
}
