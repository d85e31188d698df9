package peers

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

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
		if len(m) > headBytes { // the first of a stream is empty
			e.heard = append(e.heard, string(m[headBytes:]))
		}
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
		t.Error("nobody took it")
	}
	await(t, "c hears what is for it", c.has("all c"))
	_ = b.Send("", append(messageHead(b.own), "bye"...))
	b.stop()
	<-b.done
	await(t, "what waited was sent", c.has("all c bye"))
	if !a.has("bye")() || !b.has("all")() {
		t.Errorf("a heard %q, b %q", a.heard, b.heard)
	}
	c.srv.Stop()
	await(t, "a reaches b alone", a.reaches(1))
	await(t, "a tells that it does not reach c", func() bool { return strings.Contains(strings.Join(a.Lost(), "\n"), c.at+": ") })
	c.listen(t, c.at)
	await(t, "a reaches c again", a.reaches(3))
	if lost := strings.Join(a.Lost(), "\n"); strings.Contains(lost, c.at) {
		t.Errorf("lost: %s", lost)
	}
}

// TestDirectIsBounded checks that a full queue refuses messages, and that a message that is too large ends its stream.
func TestDirectIsBounded(t *testing.T) {
	d := NewDirect("own", nil, nil, zap.NewNop())
	d.streams = []*outgoingStream{{name: "x", queue: make(chan []byte, directQueue)}}
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
	s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, "/"+serviceName+"/"+methodName)
	if err != nil {
		t.Fatal(err)
	}
	_ = s.SendMsg(wrapperspb.Bytes(make([]byte, maxMessageBytes+1)))
	if err := s.RecvMsg(new(wrapperspb.BytesValue)); err == nil || !strings.Contains(err.Error(), "1048577 bytes") {
		t.Errorf("%v", err)
	}
}

// voice opens a stream to e from an address of loopback, and returns what sends on it and what waits for its end.
func (e *directEnd) voice(t *testing.T, from string) (say func(m []byte), end func() error) {
	t.Helper()
	dial := func(ctx context.Context, at string) (net.Conn, error) {
		return (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}).DialContext(ctx, "tcp", at)
	}
	conn, err := grpc.NewClient("passthrough:///"+e.at, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(stop)
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, "/"+serviceName+"/"+methodName)
	if err != nil {
		t.Fatal(err)
	}
	return func(m []byte) { _ = s.SendMsg(wrapperspb.Bytes(m)) }, func() error { return s.RecvMsg(new(wrapperspb.BytesValue)) }
}

// TestNobodySpeaksForOthers checks that a stream has one replica's name, and that a name that another host has, or the listener
// itself, is refused, so that nobody who may connect ends another replica's requests or lets NATS look alive. The name's own host
// may open another stream; once its streams have ended for a while the name is free.
func TestNobodySpeaksForOthers(t *testing.T) {
	h := &hall{}
	r := h.join(t)
	e := &directEnd{Direct: NewDirect(r.own, r.Receive, r.Refused(), zap.NewNop())}
	e.listen(t, "127.0.0.1:0")
	t.Cleanup(e.srv.Stop)
	given := func(name string, n uint64) []byte {
		return appendShared(messageHead(name), &router.SharedBooking{Number: n, Worker: "w1", Rank: -1, DecoderRank: -1, Tokens: 1,
			Context: 1}, true)
	}
	refused, booked := 0, func(n int) func() bool { return func() bool { return r.router.ReplicaBookings() == n } }
	ends := func(what string, end func() error) {
		t.Helper()
		refused++
		if err := end(); status.Code(err) != codes.PermissionDenied || testutil.ToFloat64(r.Refused()) != float64(refused) {
			t.Errorf("%s: %v, %v refused", what, err, testutil.ToFloat64(r.Refused()))
		}
	}
	honest, gone := e.voice(t, "127.0.0.1")
	honest(given("HONEST22", 1))
	await(t, "its request is booked", booked(1))
	again, _ := e.voice(t, "127.0.0.1")
	again(given("HONEST22", 2))
	await(t, "that of its second stream too", booked(2))
	for what, m := range map[string][]byte{"its good-bye": append(messageHead("HONEST22"), kindBye),
		"its state": appendState(messageHead("HONEST22"), nil, true), "the listener's name": messageHead(r.own)} {
		say, end := e.voice(t, "127.0.0.2")
		say(m)
		ends(what, end)
	}
	echo := r.lastEcho.Load()
	say, end := e.voice(t, "127.0.0.2")
	say(given("OTHER222", 1))
	await(t, "a stranger has a name of its own", booked(3))
	say(messageHead("ANOTHER2"))
	ends("a second name", end)
	if r.lastEcho.Load() != echo || r.router.ReplicaBookings() < 2 {
		t.Errorf("heard as the listener's own, or %d requests", r.router.ReplicaBookings())
	}
	honest(messageHead("NEWNAME2"))
	ends("a second name of the honest", gone)
}

// TestNamesAreBounded checks that streams have at most maxPeers names at a time, and that names are forgotten after their streams.
func TestNamesAreBounded(t *testing.T) {
	d := NewDirect("own", nil, nil, zap.NewNop())
	for i := range maxPeers {
		if !d.claim(fmt.Sprint(i), "a") {
			t.Fatalf("name %d is refused", i)
		}
	}
	if d.claim("more", "b") || !d.claim("7", "a") || d.claim("7", "b") {
		t.Error("one too many, or of another host")
	}
	for range 2 {
		d.unclaim("7")
	}
	if d.claim("7", "b") || d.claim("more", "b") {
		t.Error("the name is free at once")
	}
	d.claims["7"].ended = time.Now().Add(-2 * peerTimeout)
	if !d.claim("more", "b") || d.claims["7"] != nil {
		t.Error("the name is not free later")
	}
}
