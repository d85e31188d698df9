package bus

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"
)

// TestOperatorsLimitsStay checks that what an operator has set for the stream is not changed, whoever starts.
func TestOperatorsLimitsStay(t *testing.T) {
	s := runServer(t, t.TempDir(), -1)
	conn := connect(t, s.ClientURL())
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: EventStream,
		Subjects: []string{"sightline.kv.>"}, MaxBytes: 5 << 20,
		MaxAge: time.Hour, MaxMsgSize: 1 << 20, Compression: jetstream.S2Compression}) // a server would let others change all of these
	if err != nil {
		t.Fatal(err)
	}
	want := theirs.CachedInfo().Config
	l, err := StartLink(LinkOptions{Access: Access{URL: s.ClientURL()}, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	payloads, prompts := recording(t)
	h, _ := agent(t, conn, "w")
	h.give(payloads...)
	r := &router{t: t, index: indexer.New(indexer.Options{}), listener: &l.Listener, feeds: map[string]*stream.Feed{},
		slots: map[string]indexer.SlotID{}}
	r.follow("w")
	defer r.feeds["w"].Close()
	r.same("w", payloads, prompts)
	now, err := theirs.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := now.Config; got.MaxBytes != want.MaxBytes || got.MaxAge != want.MaxAge || got.MaxMsgSize != want.MaxMsgSize ||
		got.Compression != want.Compression {
		t.Errorf("the stream is now %+v, its operator had made it %+v, want MaxBytes %d, MaxAge %v, MaxMsgSize %d, Compression %v",
			got, want, want.MaxBytes, want.MaxAge, want.MaxMsgSize, want.Compression)
	}
}

// TestLargeMessagesAreRefused checks that messages that are larger than agents send them are refused by a stream that we create, and
// by routers where another made the stream; and that the worker's own messages are read nevertheless.
func TestLargeMessagesAreRefused(t *testing.T) {
	payloads, prompts := recording(t)
	for name, limit := range map[string]int32{"our stream": maxMessage, "another's": -1} {
		s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true, MaxPayload: 8 << 20,
			JetStream: true, StoreDir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		nc := connect(t, s.ClientURL())
		js, err := jetstream.New(nc)
		if err != nil {
			t.Fatal(err)
		}
		if limit < 0 {
			for stream, subjects := range map[string]string{EventStream: "sightline.kv.>", StateStream: "sightline.state.>"} {
				if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: stream, Subjects: []string{subjects},
					AllowDirect: true}); err != nil {
					t.Fatal(err)
				}
			}
		}
		makeStream(t, nc, 64<<20)
		r := listen(t, connect(t, s.ClientURL()))
		r.follow("w")
		h, p := agent(t, nc, "w")
		h.give(payloads[:20]...)
		r.same("w", payloads[:20], prompts)
		p.mu.Lock()
		large := p.head
		p.mu.Unlock()
		large.seq += 10
		b := append(large.append(nil), bytes.Repeat([]byte{byte(kvevent.Cleared), 0}, maxMessage/2)...)
		_, err = js.Publish(t.Context(), p.rankLine.subject(), b)
		if (err != nil) != (limit > 0) {
			t.Errorf("%s: got %v, want an error: %v", name, err, limit > 0)
		}
		if limit < 0 {
			until(t, "the large message", func() bool { return r.feeds["w"].Stats().Malformed == 1 })
		}
		h.give(payloads[20:]...)
		r.same("w", payloads, prompts)
	}
}

// TestLostStream checks that a stream that is deleted under a running agent and a running router is created again, and that
// events come again, even if the old one had reached a number that the new one will not reach for long, and if somebody else
// creates it.
func TestLostStream(t *testing.T) {
	payloads, prompts := recording(t)
	for _, by := range []string{"nobody", "an operator"} {
		t.Run("made again by "+by, func(t *testing.T) {
			t.Parallel()
			s := runServer(t, t.TempDir(), -1)
			conn := connect(t, s.ClientURL())
			r := listen(t, conn)
			h, _ := agent(t, conn, "w")
			half := len(payloads) / 2
			h.give(payloads[:half]...)
			r.follow("w")
			r.same("w", payloads[:half], prompts)
			js, err := jetstream.New(conn)
			if err != nil {
				t.Fatal(err)
			}
			if err := js.DeleteStream(t.Context(), EventStream); err != nil {
				t.Fatal(err)
			}
			if by == "an operator" {
				until(t, "there is a stream", func() bool { // the agent creates one too, and while both do the server may refuse one of them
					_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: EventStream,
						Subjects: []string{"sightline.kv.>"}, MaxBytes: 9 << 20})
					return err == nil || strings.Contains(err.Error(), "in use")
				})
			}
			h.give(payloads[half:]...)
			r.same("w", payloads, prompts)
		})
	}
}

// TestPortIsTaken checks that a port that is in use for a moment, here by an outgoing connection, is waited for, and that one
// that stays in use is named.
func TestPortIsTaken(t *testing.T) {
	t.Parallel() // it waits for a port that stays in use
	far, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	var c net.Conn
	for try := 0; c == nil; try++ { // from a port that no other connection of this machine is given
		from := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 10000 + rand.N(20000)}}
		c, err = from.Dial("tcp", far.Addr().String())
		if err != nil && try > 100 {
			t.Fatal(err)
		}
	}
	taken := c.LocalAddr().String()
	started := make(chan error, 1)
	go func() {
		e, err := storedIn(t, taken, t.TempDir()).start(zap.NewNop())
		if err == nil {
			if addr := e.Addr().String(); addr != taken {
				t.Errorf("it listens on %s, want %q", addr, taken)
			}
			e.close()
		}
		started <- err
	}()
	select {
	case err := <-started:
		t.Fatalf("started on a port that is taken: %v", err)
	case <-time.After(300 * time.Millisecond): // it has found the port in use
	}
	if tcp := c.(*net.TCPConn); tcp.SetLinger(0) != nil || tcp.Close() != nil { // at once, without TIME_WAIT
		t.Fatal("the connection did not close")
	}
	if err := <-started; err != nil {
		t.Error(err)
	}
	if _, err := StartLink(LinkOptions{Server: *storedIn(t, far.Addr().String(), t.TempDir()), Log: zap.NewNop()}); err == nil ||
		!strings.Contains(err.Error(), "address already in use") {
		t.Errorf("of a port that stays taken it says: got %v, want an error, %q in it", err, "address already in use")
	}
}

// TestWatchLeavesNothing checks that checking the stream leaves nothing running, however often it is done.
func TestWatchLeavesNothing(t *testing.T) {
	s := runServer(t, t.TempDir(), -1)
	js, err := jetstream.New(connect(t, s.ClientURL()))
	if err == nil {
		err = ensureStreams(t.Context(), js, 0, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- consume(ctx, js, time.Millisecond, func(jetstream.Msg) {}) }()
	time.Sleep(100 * time.Millisecond) // it has begun, or the next number is too low
	before := runtime.NumGoroutine()
	time.Sleep(500 * time.Millisecond)
	if n := runtime.NumGoroutine() - before; n > 40 {
		t.Errorf("%d goroutines more after half a second of looking, want at most 40", n)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
