package sockets

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestLimit: beyond the bound a new connection is served and the one that has been silent longest is closed; one that is marked stays.
func TestLimit(t *testing.T) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	const most = 4
	closed := 0
	l := Limit(lis, most, func() { closed++ })
	defer l.Close()
	var clients, servers []net.Conn
	connect := func() {
		t.Helper()
		c, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		clients, servers = append(clients, c), append(servers, s)
	}
	for range most {
		connect()
	}
	Keep(servers[0])
	if _, err := clients[1].Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := servers[1].Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		connect()
	}
	for i, gone := range []bool{false, false, true, true, false, false} {
		_ = clients[i].SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := clients[i].Read(make([]byte, 1))
		if ended := !errors.Is(err, os.ErrDeadlineExceeded); ended != gone {
			t.Errorf("connection %d: %v, want closed %t", i, err, gone)
		}
	}
	if l.held() != most || closed != 2 {
		t.Errorf("%d are open and %d were closed, want %d and 2", l.held(), closed, most)
	}
	for _, s := range servers {
		s.Close()
		s.Close()
	}
	if l.held() != 0 || len(l.from) != 0 {
		t.Errorf("%d are counted afterwards, %v, want 0, 0 of them", l.held(), l.from)
	}
}

// TestSpeaksHTTP: an HTTP server over a full Listener answers everybody who asks.
func TestSpeaksHTTP(t *testing.T) {
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	srv.Listener = Limit(srv.Listener, 8, nil)
	srv.Start()
	defer srv.Close()
	for range 100 {
		c, err := net.Dial("tcp", srv.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	for range 20 {
		resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}).Get(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
}

func TestExhausted(t *testing.T) {
	for err, own := range map[error]bool{
		fmt.Errorf("dial: %w", &net.OpError{Op: "dial", Err: os.NewSyscallError("socket", syscall.EMFILE)}): true,
		&os.PathError{Op: "open", Err: syscall.ENFILE}:                                                      true,
		&net.DNSError{Err: "dial udp 10.0.0.2:53: socket: too many open files"}:                             true,
		&net.DNSError{Err: "no such host", IsNotFound: true}:                                                false,
		&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}:                  false,
		&net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.EADDRNOTAVAIL)}:                 false,
		errors.New("too many open files"):                                                                   false,
	} {
		if Exhausted(err) != own {
			t.Errorf("%v: %t, want %t", err, !own, own)
		}
	}
	if n := Share(2, 20); n != 20 {
		t.Errorf("a share of %d, want 20", n)
	}
	if n := Share(1<<30, 1<<30); n != 16 {
		t.Errorf("a share of %d, want 16", n)
	}
}
