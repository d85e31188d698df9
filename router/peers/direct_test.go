package peers

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// directEnd is a replica's Direct with a listener of its own.
type directEnd struct {
	*Direct
	at   string
	lis  net.Listener
	srv  *grpc.Server
	stop context.CancelFunc
	done chan struct{}

	mu    sync.Mutex
	heard []string
}

func (e *directEnd) has(want string) func() bool {
	return func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return strings.Join(e.heard, " ") == want
	}
}

func (e *directEnd) listen(t *testing.T, at string) {
	t.Helper()
	lis, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	e.at, e.lis, e.srv = lis.Addr().String(), lis, grpc.NewServer()
	e.Register(e.srv)
	go func() { _ = e.srv.Serve(lis) }()
}

func newDirectEnd(t *testing.T) *directEnd {
	e := &directEnd{done: make(chan struct{})}
	e.Direct = NewDirect(Instance(), func(m []byte) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.heard = append(e.heard, string(m))
	}, zap.NewNop())
	e.listen(t, "127.0.0.1:0")
	return e
}

func (e *directEnd) run(t *testing.T, at ...string) {
	ctx, stop := context.WithCancel(t.Context())
	e.stop = stop
	go func() {
		defer close(e.done)
		e.Run(ctx, at, nil)
	}()
	t.Cleanup(func() {
		stop()
		<-e.done
		e.End()
		e.srv.GracefulStop() // returns, since End has ended the streams
	})
}

func (e *directEnd) reaches(n int) func() bool {
	return func() bool {
		e.Direct.mu.Lock()
		defer e.Direct.mu.Unlock()
		return len(e.open) == n
	}
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: ", what)
		}
	}
}

// TestDirect runs three replicas with the same addresses: each receives what is for all, once, even if it has two addresses, and
// one receives what is for it alone. A replica that ends sends what waits; one that returns is found.
func TestDirect(t *testing.T) {
	a, b, c := newDirectEnd(t), newDirectEnd(t), newDirectEnd(t)
	_, port, _ := net.SplitHostPort(c.at)
	all := []string{a.at, "localhost" + b.at[strings.LastIndexByte(b.at, ':'):], c.at, "[::ffff:127.0.0.1]:" + port}
	for _, e := range []*directEnd{a, b, c} {
		e.run(t, all...)
	}
	await(t, "a reaches both, one of them twice, and not itself", a.reaches(3))
	await(t, "c reaches both, and itself at neither address", c.reaches(2))
	if err := a.Send("", []byte("all")); err != nil {
		t.Fatal(err)
	}
	await(t, "b hears it", b.has("all"))
	await(t, "c hears it once", c.has("all"))
	if err := a.Send(c.own, []byte("c")); err != nil {
		t.Fatal(err)
	}
	if err := a.Send("nobody", []byte("?")); err == nil {
		t.Error("nobody took it")
	}
	await(t, "c hears what is for it", c.has("all c"))
	_ = b.Send("", []byte("bye"))
	b.stop()
	<-b.done
	await(t, "what waited was sent", c.has("all c bye"))
	if !a.has("bye")() || !b.has("all")() {
		t.Errorf("a heard %q, b %q", a.heard, b.heard)
	}
	c.srv.Stop()
	await(t, "a reaches b alone", a.reaches(1))
	c.listen(t, c.at)
	await(t, "a reaches c again", a.reaches(3))
}

// TestDirectIsBounded checks that a full queue refuses messages, and that a message that is too large ends its stream.
func TestDirectIsBounded(t *testing.T) {
	d := NewDirect("own", nil, zap.NewNop())
	d.open["x"] = &outgoing{name: "x", out: make(chan []byte, directQueue)}
	for i := range directQueue + 1 {
		if err := d.Send("", []byte("m")); (err != nil) != (i == directQueue) {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	e := newDirectEnd(t)
	defer e.srv.Stop()
	conn, err := grpc.NewClient(e.at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, "/"+service+"/"+method)
	if err != nil {
		t.Fatal(err)
	}
	_ = s.SendMsg(wrapperspb.Bytes(make([]byte, mostBytes+1)))
	if err := s.RecvMsg(new(wrapperspb.BytesValue)); err == nil || !strings.Contains(err.Error(), "1048577 bytes") {
		t.Errorf("%v", err)
	}
}
