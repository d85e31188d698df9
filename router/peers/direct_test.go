package peers

import (
	"bytes"
	"context"
	"encoding/binary"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sightline-router/sightline/mmhash/block"
	"github.com/sightline-router/sightline/router"
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
		e.heard = append(e.heard, string(m[headBytes:]))
	}, prometheus.NewCounter(prometheus.CounterOpts{}), zap.NewNop())
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
		e.EndStreams()
		e.srv.GracefulStop() // returns, since EndStreams has ended the streams
	})
}

func (e *directEnd) reaches(n int) func() bool {
	return func() bool {
		e.Direct.mu.Lock()
		defer e.Direct.mu.Unlock()
		return len(e.streams) == n
	}
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("got nothing in a minute, want %s", what)
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
	say := func(to, text string) error { return a.Send(to, append(messageHead(a.own), text...)) }
	if err := say("", "all"); err != nil {
		t.Fatal(err)
	}
	await(t, "b hears it", b.has("all"))
	await(t, "c hears it once", c.has("all"))
	if err := say(c.own, "c"); err != nil {
		t.Fatal(err)
	}
	if err := say("nobody", "?"); err == nil {
		t.Errorf("nobody took it: got %v, want an error", err)
	}
	await(t, "c hears what is for it", c.has("all c"))
	_ = b.Send("", append(messageHead(b.own), "bye"...))
	b.stop()
	<-b.done
	await(t, "what waited was sent", c.has("all c bye"))
	if !a.has("bye")() || !b.has("all")() {
		t.Errorf(`a heard %q, b %q, want a.has("bye")(), b.has("all")()`, a.heard, b.heard)
	}
	c.srv.Stop()
	await(t, "a reaches b alone", a.reaches(1))
	await(t, "a tells that it does not reach c", func() bool { return strings.Contains(strings.Join(a.Lost(), "\n"), c.at+": ") })
	c.listen(t, c.at)
	await(t, "a reaches c again", a.reaches(3))
	if lost := strings.Join(a.Lost(), "\n"); strings.Contains(lost, c.at) {
		t.Errorf("lost: got %s, want no %q in it", lost, c.at)
	}
}

// TestDirectIsBounded checks that a full queue refuses messages, and that a message that is too large ends its stream.
func TestDirectIsBounded(t *testing.T) {
	d := NewDirect("own", nil, nil, zap.NewNop())
	d.streams = []*outgoingStream{{name: "x", queue: make(chan []byte, directQueue)}}
	for i := range directQueue + 1 {
		if err := d.Send("", []byte("m")); (err != nil) != (i == directQueue) {
			t.Fatalf("message %d: got %v, want an error of the last one alone", i, err)
		}
	}
	e := newDirectEnd(t)
	t.Cleanup(e.srv.Stop)
	say, end := e.voice(t)
	say(make([]byte, maxMessageBytes+1))
	if err := end(); err == nil || !strings.Contains(err.Error(), "1048577 bytes") {
		t.Errorf("got %v, want its bytes", err)
	}
}

// voice opens a stream to e as whoever may connect, and returns what sends on it and what waits for its end.
func (e *directEnd) voice(t *testing.T) (say func(m []byte), end func() error) {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+e.at, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(stop)
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, "/"+serviceName+"/"+methodName)
	if err != nil {
		t.Fatal(err)
	}
	return func(m []byte) { _ = s.SendMsg(wrapperspb.Bytes(m)) }, func() error { return s.RecvMsg(new(wrapperspb.BytesValue)) }
}

// TestOnlyDialledReplicasAreHeard: two replicas that dial each other share a random secret. A third process that reaches a listener,
// from the same host, is heard under no name: not with a token of its own, not with that of a stream that it was sent, not with one
// message more of a replica's name, and nothing that it claims replaces the secret, books a request or ends one.
func TestOnlyDialledReplicasAreHeard(t *testing.T) {
	h := &hall{} // only builds replicas: they talk over streams
	h.away.Store(true)
	h.prepare = func(r *replica) { r.Exchange.Secret = Secret{Secret: block.NewSecret()} }
	var ends []*directEnd
	var all []*replica
	known := block.NewSecret().Bytes() // the third process's, in all that it claims
	var claimed atomic.Int32
	for range 2 {
		r := h.join(t)
		r.stop()
		<-r.done
		hear := func(m []byte) {
			if bytes.Contains(m, known[:]) {
				claimed.Add(1)
			}
			r.Receive(m)
		}
		e := &directEnd{Direct: NewDirect(r.own, hear, r.Refused(), zap.NewNop()), done: make(chan struct{})}
		e.listen(t, "127.0.0.1:0")
		ends, all = append(ends, e), append(all, r)
	}
	for i, e := range ends {
		e.run(t, ends[0].at, ends[1].at)
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); all[i].Run(ctx, e) }()
		t.Cleanup(func() { stop(); <-done })
	}
	a, b := all[0], all[1]
	id := func(r *replica) uint64 { return r.Exchange.Secret.Key().ID }
	eventually(t, "they share one secret", func() bool { return id(a) == id(b) && a.peerCount.Load() == 1 && b.peerCount.Load() == 1 })
	before := id(a)
	a.decide(1, 800)
	eventually(t, "b knows a's request", func() bool { return b.router.Replicas().Bookings() == 1 })

	ends[0].Direct.mu.Lock()
	token := ends[0].streams[0].token // a sent it to b alone
	ends[0].Direct.mu.Unlock()
	claims := func(name string) []byte {
		m := appendState(messageHead(name), nil, true) // ends the requests of the name
		m = append(binary.LittleEndian.AppendUint64(append(m, kindKey), 1), flagFixed, 0)
		m = append(append(m, kindSecret), known[:]...)
		return appendShared(m, &router.SharedBooking{Number: 9, Worker: "w1", Rank: -1, DecoderRank: -1, Tokens: 1 << 20, Context: 1})
	}
	for what, c := range map[string]struct{ hello, then string }{
		"a name of its own":                        {"STRANGER" + "its own token", "STRANGER"},
		"a replica's name":                         {a.own + "a token", a.own},
		"a replica's name without a token":         {a.own, a.own},
		"the listener's name":                      {b.own + "a token", b.own},
		"a token that a gave to b, another's name": {"STRANGER" + token, "STRANGER"},
	} {
		refused := testutil.ToFloat64(b.Refused())
		say, end := ends[1].voice(t)
		say(append([]byte{magic, version}, c.hello...))
		say(claims(c.then))
		if err := end(); status.Code(err) != codes.PermissionDenied || testutil.ToFloat64(b.Refused()) != refused+1 {
			t.Errorf("%s: the stream ended with %v, %v counted; want PermissionDenied, counted once", what, err,
				testutil.ToFloat64(b.Refused())-refused)
		}
	}
	if id(a) != before || id(b) != before || claimed.Load() != 0 {
		t.Errorf("secrets %x and %x, want %x; %d claims were heard, want none", id(a), id(b), before, claimed.Load())
	}
	eventually(t, "b knows a alone, and its request", func() bool {
		return b.router.Replicas().Bookings() == 1 && b.peerCount.Load() == 1
	})
	// A question about a token is answered to the name that was sent it, and to no other.
	for name, want := range map[string]codes.Code{b.own: codes.OK, "STRANGER": codes.PermissionDenied, a.own: codes.PermissionDenied} {
		conn, err := grpc.NewClient("passthrough:///"+ends[0].at, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, "/"+serviceName+"/"+askMethod)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.SendMsg(wrapperspb.Bytes(append(messageHead(name), token...)))
		if got := status.Code(s.RecvMsg(new(wrapperspb.BytesValue))); got != want {
			t.Errorf("%s asks about a's stream to b: %v, want %v", name, got, want)
		}
	}
}

// TestAStreamHasOneName: a replica that is heard speaks for itself alone.
func TestAStreamHasOneName(t *testing.T) {
	a, b := newDirectEnd(t), newDirectEnd(t)
	a.run(t, a.at, b.at)
	b.run(t, a.at, b.at)
	await(t, "they reach each other", func() bool { return a.reaches(1)() && b.reaches(1)() })
	_ = a.Send("", append(messageHead(a.own), "one"...))
	await(t, "b hears a", b.has("one"))
	_ = a.Send("", append(messageHead("ANOTHER2"), "two"...))
	await(t, "it is refused", func() bool { return testutil.ToFloat64(b.refused) == 1 })
	await(t, "a opens another stream", func() bool {
		_ = a.Send("", append(messageHead(a.own), "three"...))
		return b.has("one")() == false
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if strings.Contains(strings.Join(b.heard, " "), "two") {
		t.Errorf("heard %q, want nothing in another's name", b.heard)
	}
}

// TestWaitingStreamsAreBounded: streams in names that are not dialled wait for it, at most maxWaiting at a time.
func TestWaitingStreamsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDirect("own", nil, prometheus.NewCounter(prometheus.CounterOpts{}), zap.NewNop())
		for range maxWaiting {
			d.waiting <- struct{}{}
		}
		for _, want := range []time.Duration{0, dialledTime} {
			began := time.Now()
			if opened := d.isOpened(t.Context(), "STRANGER", "token"); opened || time.Since(began) != want {
				t.Errorf("with %d waiting: got %v after %v, want false after %v", len(d.waiting), opened, time.Since(began), want)
			}
			<-d.waiting
		}
	})
	e := newDirectEnd(t)
	t.Cleanup(e.srv.Stop)
	for range maxWaiting {
		e.waiting <- struct{}{}
	}
	say, end := e.voice(t)
	say(append(messageHead("STRANGER"), "token"...))
	if err := end(); status.Code(err) != codes.PermissionDenied {
		t.Errorf("one too many: got %v, want PermissionDenied", err)
	}
}
