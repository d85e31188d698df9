package peers

import (
	"context"
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

// Direct is a Line without NATS, or while NATS cannot be reached: each replica opens a stream to every other replica's listener and sends
// its messages on it in order. Host names among the addresses are resolved periodically, and every IP address is dialled. A
// replica that reaches itself closes that stream.
//
//	Run ─▶ an address ── stream, whose header has the other's name ─▶ queue of Send
//	Register ─▶ messages of others ─▶ take
//
// The listener decides who may send: Direct uses its certificates and tokens as well. A stream speaks for one replica, which its
// first message names, and a replica's name belongs to the host whose stream said it first, as long as that has one (claim). So
// no client that may connect can speak for a replica on another host. Replicas may share a certificate, so it says nothing of the name.
type Direct struct {
	own     string
	take    func([]byte)
	refused prometheus.Counter // messages in another replica's name
	log     *zap.Logger

	ended chan struct{} // closed when messages of others are no longer taken
	said  atomic.Bool   // a refused message was logged

	mu      sync.Mutex
	streams []*outgoingStream // the oldest first
	claims  map[string]*claim // by the name of another replica
	lost    map[string]string // why there is no stream, by the address
}

// outgoingStream is a stream to another replica.
type outgoingStream struct {
	name  string // name of the other replica
	queue chan []byte
}

// claim says which host speaks for a replica. It lasts a little longer than the host's streams, which may be opened again.
type claim struct {
	host    string // IP address; "": a unix socket
	streams int
	ended   time.Time // when the last stream did
}

const (
	directQueue     = 256             // messages that wait for a stream; further ones are dropped
	resolveInterval = 2 * time.Second // interval of resolving the addresses
	maxDialled      = maxPeers
	goodbyeTime     = time.Second / 5
	pingEvery       = 10 * time.Second // a connection that does not answer a ping is dead
)

var (
	errNoStream = errors.New("no stream to that replica")
	errSlow     = errors.New("a replica reads its messages too slowly")
	errOthers   = status.Error(codes.PermissionDenied, "a message in the name of another replica")
)

// NewDirect returns the Direct of the replica named own. take gets the messages of others, in order for each sender; it must not
// keep them. refused counts messages in the name of a replica that is not their sender.
func NewDirect(own string, take func(message []byte), refused prometheus.Counter, log *zap.Logger) *Direct {
	return &Direct{own: own, take: take, refused: refused, log: log, ended: make(chan struct{}), claims: make(map[string]*claim),
		lost: make(map[string]string)}
}

const (
	serviceName = "sightline.peers.v1.Line"
	methodName  = "Tell"
	nameHeader  = "sightline-replica"
)

// Register registers the service for other replicas' streams at a listener.
func (d *Direct) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{ServiceName: serviceName, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: methodName, ClientStreams: true, Handler: d.serveStream}}}, d)
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

func (d *Direct) receiveAll(s grpc.ServerStream) error {
	host, name := hostOf(s.Context()), ""
	defer func() { d.unclaim(name) }()
	for {
		var m wrapperspb.BytesValue
		if err := s.RecvMsg(&m); err != nil {
			return err
		}
		if len(m.Value) > maxMessageBytes {
			return status.Errorf(codes.InvalidArgument, "a message of %d bytes (want %d at most)", len(m.Value), maxMessageBytes)
		}
		if from, _, err := sender(m.Value); err == nil && from != name { // unreadable ones are counted by take
			if name != "" || !d.claim(from, host) {
				d.refused.Inc()
				if !d.said.Swap(true) {
					d.log.Warn("a message in another replica's name is refused, and its stream ended; this is said once",
						zap.String("host", host), zap.String("replica", from))
				}
				return errOthers
			}
			name = from
		}
		d.take(m.Value)
	}
}

// hostOf returns the IP address from which a stream comes.
func hostOf(ctx context.Context) string {
	p, ok := remote.FromContext(ctx)
	if !ok {
		return ""
	}
	host, _, _ := net.SplitHostPort(p.Addr.String())
	return host
}

// claim reports whether a stream from this host may speak for the named replica. The caller must call unclaim when it ends.
func (d *Direct) claim(name, host string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	maps.DeleteFunc(d.claims, func(_ string, c *claim) bool { return c.streams == 0 && time.Since(c.ended) > peerTimeout })
	c := d.claims[name]
	if name == d.own || c != nil && c.host != host || c == nil && len(d.claims) >= maxPeers {
		return false
	}
	if c == nil {
		c = &claim{host: host}
		d.claims[name] = c
	}
	c.streams++
	return true
}

func (d *Direct) unclaim(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.claims[name]; c != nil {
		c.streams--
		c.ended = time.Now()
	}
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
	if key := as.APIKey(); key != "" {
		live = metadata.AppendToOutgoingContext(live, "authorization", "Bearer "+key)
	}
	s, err := conn.NewStream(live, &grpc.StreamDesc{ClientStreams: true}, "/"+serviceName+"/"+methodName)
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
	o := &outgoingStream{name: name, queue: make(chan []byte, directQueue)}
	d.mu.Lock()
	if !slices.ContainsFunc(d.streams, func(other *outgoingStream) bool { return other.name == name }) {
		o.queue <- messageHead(d.own) // claims our name there, also while other lines carry the messages; one host may claim it
	}
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
