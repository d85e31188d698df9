//go:build linux && (amd64 || arm64) && !race

package sockets

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
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

// TestDirectStress: streams of random pieces arrive whole and in order, both ways at once, while other connections are closed and run into
// deadlines in the middle, and memory is collected all the time. SIGHTLINE_STRESS=1h runs it for that long.
func TestDirectStress(t *testing.T) {
	lasts, err := time.ParseDuration(os.Getenv("SIGHTLINE_STRESS"))
	if err != nil {
		lasts = time.Second
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer lis.Close()
	end, seeds := time.Now().Add(lasts), atomic.Uint64{}
	var all sync.WaitGroup
	var streams, moved, disturbed atomic.Int64
	goesOn := func() bool { // until there was some of both, on a busy machine
		return time.Now().Before(end) || (streams.Load() == 0 || disturbed.Load() <= 0) && time.Since(end) < 2*time.Minute
	}
	one := make(chan struct{}, 1) // a pair is made at a time
	pair := func() (near, far net.Conn) {
		one <- struct{}{}
		defer func() { <-one }()
		near, err := net.Dial("tcp", lis.Addr().String())
		if err != nil {
			t.Error(err)
			return nil, nil
		}
		far, err = lis.Accept()
		if err != nil {
			t.Error(err)
			return nil, nil
		}
		return Direct(near), Direct(far)
	}
	// stream sends n bytes that follow from a seed and reads as many, in pieces of random sizes; the first wrong byte ends it.
	stream := func(c net.Conn, sends, reads uint64, n int) error {
		wrong := make(chan error, 1)
		go func() {
			r, want, got := rand.New(rand.NewPCG(reads, 1)), rand.NewPCG(reads, 0), 0
			buf := make([]byte, 1<<17)
			for got < n {
				k, err := c.Read(buf[:1+r.IntN(1<<uint(r.IntN(17)))])
				for i := range k {
					if b := byte(want.Uint64()); buf[i] != b {
						wrong <- fmt.Errorf("byte %d: got %d, want %d", got+i, buf[i], b)
						return
					}
				}
				got += k
				if err != nil {
					wrong <- fmt.Errorf("after %d of %d bytes: %w", got, n, err)
					return
				}
			}
			wrong <- nil
		}()
		r, of, buf := rand.New(rand.NewPCG(sends, 1)), rand.NewPCG(sends, 0), make([]byte, 1<<17)
		for sent := 0; sent < n; {
			piece := buf[:min(n-sent, 1+r.IntN(1<<uint(r.IntN(17))))]
			for i := range piece {
				piece[i] = byte(of.Uint64())
			}
			k, err := c.Write(piece)
			sent += k
			if err != nil {
				return errors.Join(err, <-wrong)
			}
		}
		return <-wrong
	}
	for range 4 {
		all.Go(func() {
			for goesOn() {
				seed := seeds.Add(2)
				near, far := pair()
				if near == nil {
					return
				}
				n := 1 << (4 + seed%18)
				back := make(chan error, 1)
				go func() { back <- stream(far, seed+1, seed, n) }()
				err := stream(near, seed, seed+1, n)
				if err := errors.Join(err, <-back); err != nil {
					t.Errorf("seed %d: got %v, want %d bytes each way", seed, err, n)
				}
				near.Close()
				far.Close()
				streams.Add(1)
				moved.Add(int64(2 * n))
			}
		})
	}
	for range 2 { // whatever becomes of these, they end
		all.Go(func() {
			for goesOn() {
				seed := seeds.Add(2)
				near, far := pair()
				if near == nil {
					return
				}
				ended := make(chan error, 2)
				go func() { ended <- stream(far, seed+1, seed, 1<<22) }()
				go func() { ended <- stream(near, seed, seed+1, 1<<22) }()
				time.Sleep(time.Duration(seed%4000) * time.Microsecond)
				if seed%4 < 2 {
					_ = near.SetDeadline(time.Now())
				} else {
					near.Close()
				}
				if err := <-ended; err == nil {
					disturbed.Add(-1) // it was done before
				}
				near.Close()
				far.Close()
				<-ended
				disturbed.Add(1)
			}
		})
	}
	for goesOn() {
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	all.Wait()
	if streams.Load() == 0 || disturbed.Load() <= 0 {
		t.Errorf("%d streams and %d disturbed ones, want some of both", streams.Load(), disturbed.Load())
	}
	t.Logf("%d streams, %d MB, %d disturbed ones", streams.Load(), moved.Load()>>20, disturbed.Load())
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
