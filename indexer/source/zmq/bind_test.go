package zmq

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

// TestBind checks that a publisher that connects is heard, that one that connects again replaces it, and that strangers change
// nothing.
func TestBind(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := free.Addr().String()
	free.Close()
	var downs atomic.Int32
	got := collect(t, &Sub{Endpoint: "tcp://" + addr, Bind: true, Down: func(error) { downs.Add(1) }})
	connect := func() peer {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			c, err := net.Dial("tcp", addr)
			if err == nil {
				t.Cleanup(func() { c.Close() })
				p := greet(c, "PUB")
				if _, body, err := p.read(); err != nil || body != "\x09SUBSCRIBE" {
					t.Fatalf("subscription %q, %v, want no error, %q", body, err, "\x09SUBSCRIBE")
				}
				return p
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	first := connect()
	first.message("", string(be(0)), "first")
	expect(t, got, "0 first")
	stranger, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	stranger.Write([]byte("GET / HTTP/1.1\r\n\r\n0123456789012345678901234567890123456789012345678901234567890123456789"))
	stranger.Read(make([]byte, 1<<10))
	stranger.Close()
	first.message("", string(be(1)), "still")
	expect(t, got, "1 still")
	second := connect()
	second.message("", string(be(0)), "anew")
	expect(t, got, "0 anew")
	if _, _, err := first.read(); err == nil {
		t.Errorf("the older connection is still open: got %v, want an error", err)
	}
	if downs.Load() == 0 {
		t.Errorf("nobody was told of the older one's end: got %d, want some", downs.Load())
	}
}

// TestBare receives messages without numbers, as load is published.
func TestBare(t *testing.T) {
	endpoint := listen(t, "PUB", func(p peer) {
		p.read()
		p.message(`{"num_waiting_reqs": 3}`)
		p.read()
	})
	expect(t, collect(t, &Sub{Endpoint: endpoint, Bare: true}), `0 {"num_waiting_reqs": 3}`)
}

// TestBindFrom checks that a publisher from elsewhere does not displace the worker's, and that a wildcard accepts both families,
// if the machine has both.
func TestBindFrom(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := free.Addr().(*net.TCPAddr).Port
	free.Close()
	refused := make(chan netip.Addr, 1)
	got := collect(t, &Sub{Endpoint: fmt.Sprint("tcp://*:", port), Bind: true, From: netip.MustParsePrefix("127.0.0.1/32"),
		Refused: func(a netip.Addr) { refused <- a }})
	from := func(local, to string) net.Conn {
		t.Helper()
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(local)}}
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			c, err := d.Dial("tcp", net.JoinHostPort(to, fmt.Sprint(port)))
			if err == nil {
				t.Cleanup(func() { c.Close() })
				return c
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	worker := greet(from("127.0.0.1", "127.0.0.1"), "PUB")
	worker.read()
	worker.message("", string(be(0)), "first")
	expect(t, got, "0 first")
	strangers := map[string]string{"127.0.0.2": "127.0.0.1"}
	if six, err := net.Listen("tcp", "[::1]:0"); err == nil {
		six.Close()
		strangers["::1"] = "::1"
	}
	for stranger, to := range strangers {
		c := from(stranger, to)
		if n, err := c.Read(make([]byte, 1)); err == nil {
			t.Errorf("%s got %d bytes of an answer", stranger, n)
		}
		if a := <-refused; a.String() != stranger {
			t.Errorf("refused %v, want %s", a, stranger)
		}
	}
	worker.message("", string(be(1)), "still")
	expect(t, got, "1 still")
}

// TestBindAllows checks that without a network only this machine may connect: by loopback, or from the address that it dials.
func TestBindAllows(t *testing.T) {
	for _, c := range []struct {
		from, peer, local string
		want              bool
	}{
		{"", "127.0.0.1:9", "127.0.0.1:5557", true},
		{"", "[::ffff:127.0.0.1]:9", "[::]:5557", true},
		{"", "[::1]:9", "[::1]:5557", true},
		{"", "10.0.0.5:9", "10.0.0.5:5557", true},
		{"", "10.0.0.6:9", "10.0.0.5:5557", false},
		{"", "[fd00::6]:9", "[fd00::5]:5557", false},
		{"10.0.0.0/24", "10.0.0.6:9", "10.0.0.5:5557", true},
		{"10.0.0.0/24", "127.0.0.1:9", "127.0.0.1:5557", false},
	} {
		s := Sub{}
		if c.from != "" {
			s.From = netip.MustParsePrefix(c.from)
		}
		if _, got := s.allowed(ends{peer: c.peer, local: c.local}); got != c.want {
			t.Errorf("%+v: got %v, want %v", c, got, c.want)
		}
	}
}

// ends is a connection that only has two addresses.
type ends struct {
	net.Conn
	peer, local string
}

func (e ends) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(e.peer)) }
func (e ends) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(e.local)) }
