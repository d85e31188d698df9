package zmq

import (
	"net"
	"sync/atomic"
	"testing"
	"time"
)

// A publisher that connects is heard; one that connects again takes its place, and strangers change nothing.
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
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			c, err := net.Dial("tcp", addr)
			if err == nil {
				t.Cleanup(func() { c.Close() })
				p := greet(c, "PUB")
				if _, body, err := p.read(); err != nil || body != "\x09SUBSCRIBE" {
					t.Fatalf("subscription %q, %v", body, err)
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
		t.Error("the older connection is still open")
	}
	if downs.Load() == 0 {
		t.Error("nobody was told of the older one's end")
	}
}

// Messages without numbers, as load is told.
func TestBare(t *testing.T) {
	endpoint := listen(t, "PUB", func(p peer) {
		p.read()
		p.message(`{"num_waiting_reqs": 3}`)
		p.read()
	})
	expect(t, collect(t, &Sub{Endpoint: endpoint, Bare: true}), `0 {"num_waiting_reqs": 3}`)
}
