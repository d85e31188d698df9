package peers

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	remote "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sightline-router/sightline/internal/retry"
	"github.com/sightline-router/sightline/internal/secure"
)

// Direct is the Line: each replica opens a stream to every other replica's listener and sends its messages on it in order. Host
// names among the addresses are resolved periodically, and every IP address is dialled. A replica that reaches itself closes that
// stream.
//
//	Run ─▶ an address ── stream, whose header has the other's name ─▶ our name and a token ─▶ queue of Send
//	Register ─▶ a stream's name and token ─▶ isOpened: asked of that name, which we dialled ─▶ messages ─▶ take
//
// Whoever reaches the listener can open a stream there and claim any name. So a stream is heard only once the replica of that name
// has confirmed, over a connection that this replica dialled, that it opened the stream: it alone knows the stream's token. A
// stream speaks for that one name. Replicas may share a certificate, and an address may be translated, so neither says who it is.
type Direct struct {
	own     string
	take    func([]byte)
	refused prometheus.Counter // streams that no dialled replica opened
	log     *zap.Logger

	ended   chan struct{} // closed when messages of others are no longer taken
	waiting chan struct{} // places of streams that wait until the replica that they name is dialled
	said    atomic.Bool   // a refused stream was logged

	mu      sync.Mutex
	streams []*outgoingStream // the oldest first
	lost    map[string]string // why there is no stream, by the address
}

// outgoingStream is a stream to another replica.
type outgoingStream struct {
	name  string // name of the other replica
	token string // only the other replica is told it
	queue chan []byte
	ask   func(ctx context.Context, token string) bool // whether the other replica opened the stream with this token to us
}

const (
	directQueue     = 256             // messages that wait for a stream; further ones are dropped
	resolveInterval = 2 * time.Second // interval of resolving the addresses
	maxDialled      = maxPeers
	maxWaiting      = 64              // streams that wait until the replica that they name is dialled
	dialledTime     = 2 * time.Second // the longest such wait; the other replica opens the stream again
	askOpenedTime   = 2 * time.Second
	goodbyeTime     = time.Second / 5
	pingEvery       = 10 * time.Second // a connection that does not answer a ping is dead
)

var (
	errNoStream = errors.New("no stream to that replica")
	errSlow     = errors.New("a replica reads its messages too slowly")
	errOthers   = status.Error(codes.PermissionDenied, "a message in the name of another replica")
	errStranger = status.Error(codes.PermissionDenied, "no replica that is dialled from here opened this stream (want the same "+
		"envoy.sightlines or replicas.addresses in all replicas, and one release)")
)

// NewDirect returns the Direct of the replica named own. take gets the messages of others, in order for each sender; it must not
// keep them. refused counts streams that were not opened by a replica to which this one has a stream.
func NewDirect(own string, take func(message []byte), refused prometheus.Counter, log *zap.Logger) *Direct {
	return &Direct{own: own, take: take, refused: refused, log: log, ended: make(chan struct{}),
		waiting: make(chan struct{}, maxWaiting), lost: make(map[string]string)}
}

const (
	serviceName = "sightline.peers.v2.Line"
	methodName  = "Tell"
	askMethod   = "Opened" // a stream too: the listener asks for tokens of those
	nameHeader  = "sightline-replica"
)

// Register registers the service for other replicas' streams at a listener.
func (d *Direct) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{ServiceName: serviceName, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{
		{StreamName: methodName, ClientStreams: true, Handler: d.serveStream},
		{StreamName: askMethod, ClientStreams: true, Handler: d.serveQuestion}}}, d)
}

// serveStream serves one incoming stream.
func (d *Direct) serveStream(_ any, s grpc.ServerStream) error {
	if err := s.SendHeader(metadata.Pairs(nameHeader, d.own)); err != nil {
		return err
	}
	heard := make(chan error, 1)
	go func() { heard <- d.receiveAll(s) }()
	select {
	case err := <-heard:
		return err
	case <-d.ended: // returning ends the stream, and with it the goroutine
		return nil
	}
}

// serveQuestion tells a replica whether we opened a stream to it with a token.
func (d *Direct) serveQuestion(_ any, s grpc.ServerStream) error {
	from, token, err := receive(s)
	if err != nil {
		return err
	}
	d.mu.Lock()
	opened := slices.ContainsFunc(d.streams, func(o *outgoingStream) bool { return o.name == from && o.token == string(token) })
	d.mu.Unlock()
	if !opened {
		return errStranger
	}
	return s.SendMsg(new(wrapperspb.BytesValue))
}

// receive receives a message that names its sender, with what follows the head.
func receive(s grpc.ServerStream) (from string, rest []byte, err error) {
	var m wrapperspb.BytesValue
	if err := s.RecvMsg(&m); err != nil {
		return "", nil, err
	}
	from, rest, err = sender(m.Value)
	if err != nil {
		err = status.Error(codes.InvalidArgument, err.Error())
	}
	return from, rest, err
}

func (d *Direct) receiveAll(s grpc.ServerStream) error {
	name, token, err := receive(s)
	if err != nil {
		return err
	}
	if !d.isOpened(s.Context(), name, string(token)) {
		d.refuse(s.Context(), name)
		return errStranger
	}
	for {
		var m wrapperspb.BytesValue
		if err := s.RecvMsg(&m); err != nil {
			return err
		}
		if len(m.Value) > maxMessageBytes {
			return status.Errorf(codes.InvalidArgument, "a message of %d bytes (want %d at most)", len(m.Value), maxMessageBytes)
		}
		if from, _, err := sender(m.Value); err == nil && from != name { // unreadable ones are counted by take
			d.refuse(s.Context(), from)
			return errOthers
		}
		d.take(m.Value)
	}
}

// refuse counts a stream that is not heard, or no longer.
func (d *Direct) refuse(ctx context.Context, name string) {
	d.refused.Inc()
	if !d.said.Swap(true) {
		host := ""
		if p, ok := remote.FromContext(ctx); ok {
			host = p.Addr.String()
		}
		d.log.Warn("a stream in a replica's name is refused, since no replica at an address of envoy.sightlines or replicas.addresses "+
			"opened it; this is said once", zap.String("host", host), zap.String("replica", name))
	}
}

// isOpened asks the replica of that name whether it opened the stream with this token to us. If it is not dialled yet, as when both
// start, isOpened waits for that.
func (d *Direct) isOpened(ctx context.Context, name, token string) bool {
	o := d.dialled(name)
	if o == nil {
		select {
		case d.waiting <- struct{}{}:
			defer func() { <-d.waiting }()
		default:
			return false
		}
		for end := time.Now().Add(dialledTime); o == nil && time.Now().Before(end); o = d.dialled(name) {
			if !retry.Sleep(ctx, dialledTime/100) {
				return false
			}
		}
	}
	if o == nil {
		return false
	}
	ctx, stop := context.WithTimeout(ctx, askOpenedTime)
	defer stop()
	return o.ask(ctx, token)
}

// dialled returns a stream to the named replica; nil: there is none.
func (d *Direct) dialled(name string) *outgoingStream {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, o := range d.streams {
		if o.name == name {
			return o
		}
	}
	return nil
}

// EndStreams ends the incoming streams, for which a stopping listener waits. Call it once.
func (d *Direct) EndStreams() { close(d.ended) }

// Send implements Line. It queues the message itself, not a copy. A replica that has two addresses gets all on its oldest stream, in
// order.
func (d *Direct) Send(to string, message []byte) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	told := make(map[string]bool)
	for _, o := range d.streams {
		if to != "" && o.name != to || told[o.name] {
			continue
		}
		told[o.name] = true
		select {
		case o.queue <- message:
		default:
			err = errSlow
		}
	}
	if len(told) == 0 {
		return errNoStream
	}
	return err
}

// Run keeps a stream to each address (host:port or unix:/path) until ctx ends, with the TLS settings and key of as.
func (d *Direct) Run(ctx context.Context, addresses []string, as *secure.Client) {
	var all sync.WaitGroup
	defer all.Wait()
	dialled := make(map[string]context.CancelFunc)
	for {
		now := d.resolve(ctx, addresses)
		for _, at := range now {
			if dialled[at] == nil && len(dialled) < maxDialled {
				one, stop := context.WithCancel(ctx)
				dialled[at] = stop
				all.Go(func() { d.keepStream(one, at, as) })
			}
		}
		for at, stop := range dialled {
			if now != nil && !slices.Contains(now, at) {
				stop()
				delete(dialled, at)
			}
		}
		if !retry.Sleep(ctx, resolveInterval) {
			for _, stop := range dialled {
				stop()
			}
			return
		}
	}
}

// resolve returns all IP addresses behind the addresses; nil if a name does not resolve, in which case no stream is given up.
func (d *Direct) resolve(ctx context.Context, addresses []string) (found []string) {
	whole := true
	for _, at := range addresses {
		host, port, err := net.SplitHostPort(at)
		if err != nil || net.ParseIP(host) != nil {
			found = append(found, at)
			continue
		}
		ips, err := net.DefaultResolver.LookupHost(ctx, host)
		whole = whole && err == nil
		for _, ip := range ips {
			found = append(found, net.JoinHostPort(ip, port))
		}
	}
	if !whole {
		return nil
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// keepStream holds a stream to an address and reopens it whenever it breaks.
func (d *Direct) keepStream(ctx context.Context, at string, as *secure.Client) {
	defer d.setLost(at, "")
	said, pause := "", retry.Backoff{First: 750 * time.Millisecond}
	for ctx.Err() == nil {
		err := d.session(ctx, at, as)
		if err == nil {
			return // the address is this replica's own
		}
		what := status.Convert(err).Message()
		d.setLost(at, what)
		if what != said && ctx.Err() == nil {
			said = what
			d.log.Warn("cannot open a stream to another replica; retrying", zap.String("at", at), zap.String("why", what))
		}
		pause.Wait(ctx)
	}
}

func (d *Direct) setLost(at, why string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lost[at] = why
	if why == "" {
		delete(d.lost, at)
	}
}

// Lost returns the addresses of replicas to which there is no stream, in their order, each with the reason.
func (d *Direct) Lost() (list []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, at := range slices.Sorted(maps.Keys(d.lost)) {
		list = append(list, at+": "+d.lost[at])
	}
	return list
}

// session runs one stream from its start to its end; nil: the other end is this replica.
func (d *Direct) session(ctx context.Context, at string, as *secure.Client) error {
	live, stop := context.WithCancel(context.WithoutCancel(ctx)) // a little longer, for the good-bye
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(goodbyeTime, stop) })()
	creds := insecure.NewCredentials()
	if c := as.TLS(); c != nil {
		creds = credentials.NewTLS(c)
	}
	target := at
	if !strings.HasPrefix(at, "unix:") {
		target = "passthrough:///" + at
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingEvery / 2}),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(maxMessageBytes+64)))
	if err != nil {
		return err
	}
	defer conn.Close()
	open := func(ctx context.Context, method string) (grpc.ClientStream, error) {
		if key := as.APIKey(); key != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+key)
		}
		return conn.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true}, "/"+serviceName+"/"+method)
	}
	s, err := open(live, methodName)
	if err != nil {
		return err
	}
	header, err := s.Header()
	if err != nil {
		return err
	}
	name := strings.Join(header.Get(nameHeader), "")
	switch name {
	case "":
		err := s.RecvMsg(new(wrapperspb.BytesValue))
		if code := status.Code(err); code == codes.Unauthenticated || code == codes.PermissionDenied {
			return err
		}
		return fmt.Errorf("no replica of this release listens there: %w", err)
	case d.own:
		return nil
	}
	o := &outgoingStream{name: name, token: rand.Text(), queue: make(chan []byte, directQueue)}
	o.ask = func(ctx context.Context, token string) bool {
		s, err := open(ctx, askMethod)
		if err != nil || s.SendMsg(wrapperspb.Bytes(append(messageHead(d.own), token...))) != nil {
			return false
		}
		return s.RecvMsg(new(wrapperspb.BytesValue)) == nil
	}
	o.queue <- append(messageHead(d.own), o.token...)
	d.mu.Lock()
	d.streams = append(d.streams, o)
	delete(d.lost, at)
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.streams = slices.DeleteFunc(d.streams, func(other *outgoingStream) bool { return other == o })
	}()
	ended := make(chan error, 1)
	go func() { ended <- s.RecvMsg(new(wrapperspb.BytesValue)) }()
	for {
		select {
		case m := <-o.queue:
			if err := s.SendMsg(wrapperspb.Bytes(m)); err != nil {
				return errors.Join(err, <-ended)
			}
		case <-ctx.Done():
			for len(o.queue) > 0 && s.SendMsg(wrapperspb.Bytes(<-o.queue)) == nil {
			}
			return errors.Join(s.CloseSend(), <-ended)
		case err := <-ended:
			return errors.Join(errors.New("it ended"), err)
		}
	}
}
