//go:build linux && !race

package sockets

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// TestDirect: a connection that is read and written past Go's scheduler behaves like any other: more than the socket holds, deadlines, the
// other side's end, and a close while a read waits.
func TestDirect(t *testing.T) {
	for network, addr := range map[string]string{"tcp": "127.0.0.1:0", "unix": t.TempDir() + "/s"} {
		lis, err := net.Listen(network, addr)
		if err != nil {
			t.Fatal(err)
		}
		defer lis.Close()
		client, err := net.Dial(lis.Addr().Network(), lis.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		c := accept(t, lis)
		if _, is := c.(*directConn); !is {
			t.Fatalf("%s: a %T, want is", addr, c)
		}
		sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
		for range 2 {
			echoed := make(chan error, 1)
			go func() {
				got := make([]byte, len(sent))
				_, err := io.ReadFull(c, got)
				if err == nil {
					_, err = c.Write(got)
				}
				echoed <- err
			}()
			if _, err := client.Write(sent); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(sent))
			time.Sleep(5 * time.Millisecond) // the socket fills up
			if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, sent) {
				t.Fatalf("%s: other bytes came back, or %v, want no error, bytes.Equal(got, sent)", addr, err)
			}
			if err := <-echoed; err != nil {
				t.Fatal(err)
			}
		}
		one := make([]byte, 1)
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
		if n, err := c.Read(one); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: got %d, %v at the deadline, want 0, %v", addr, n, err, os.ErrDeadlineExceeded)
		}
		_ = c.SetReadDeadline(time.Time{})
		client.Close()
		if n, err := c.Read(one); n != 0 || err != io.EOF {
			t.Errorf("%s: got %d, %v at the other side's end, want 0, %v", addr, n, err, io.EOF)
		}
		for err == nil { // the first write after the end may succeed
			_, err = c.Write(sent)
		}
		var failed *net.OpError
		if !errors.As(err, &failed) || failed.Op != "write" {
			t.Errorf(`%s: %v after the other side's end, want errors.As(err, &failed), failed.Op == "write"`, addr, err)
		}
		closeWhileReading(t, lis)
	}
}

func closeWhileReading(t *testing.T, lis net.Listener) {
	client, err := net.Dial(lis.Addr().Network(), lis.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	c := accept(t, lis)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		ended <- err
	}()
	time.Sleep(5 * time.Millisecond)
	c.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a read during which the connection was closed: got %v, want %v", err, net.ErrClosed)
	}
}

func accept(t *testing.T, lis net.Listener) net.Conn {
	c, err := lis.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return Direct(c)
}
