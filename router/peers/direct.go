package peers

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sightline-router/sightline/internal/secure"
)

// Direct is the Line without NATS, or while that is away: a stream from each replica to each other's own listener, on which its
// messages go one after another. Names among the addresses are looked up again and again, and all that they lead to is dialled; a
// replica that finds itself leaves that stream.
//
//	Run ─▶ an address ── stream, in whose header the other one says its name ─▶ queue of Send
//	Register ─▶ what others send ─▶ take
//
// Who may send is the listener's to see to: its certificates and tokens are asked for here too.
type Direct struct {
	own  string
	take func([]byte)
	log  *zap.Logger

	ended chan struct{} // what others send is not taken any more

	mu   sync.Mutex
	open map[string]*outgoing // by address, as it was dialled
}

// outgoing is a stream to another replica.
type outgoing struct {
	name string // the other one's
	out  chan []byte
}

const (
	directQueue = 256             // messages that wait for a stream; what finds no room is dropped
	lookUp      = 2 * time.Second // between two looks at the addresses
	mostDialled = mostPeers
	goodBye     = time.Second / 5
	pingEvery   = 10 * time.Second // a connection that answers none is dead
)

var (
	errNobody = errors.New("no stream to that replica")
	errSlow   = errors.New("a replica takes its messages too slowly")
)

// NewDirect makes the end of the replica of a name; take gets what others send, one message after another of each, and keeps none
// of it.
func NewDirect(own string, take func(message []byte), log *zap.Logger) *Direct {
	return &Direct{own: own, take: take, log: log, ended: make(chan struct{}), open: make(map[string]*outgoing)}
}

const (
	service    = "sightline.peers.v1.Line"
	method     = "Tell"
	nameHeader = "sightline-replica"
)

// Register has a listener take other replicas' streams.
func (d *Direct) Register(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: method, ClientStreams: true, Handler: d.hear}}}, d)
}

// hear takes one stream.
func (d *Direct) hear(_ any, s grpc.ServerStream) error {
	if err := s.SendHeader(metadata.Pairs(nameHeader, d.own)); err != nil {
		return err
	}
	heard := make(chan error, 1)
	go func() { heard <- d.all(s) }()
	select {
	case err := <-heard:
		return err
	case <-d.ended: // returning ends the stream, and with it the goroutine
		return nil
	}
}

func (d *Direct) all(s grpc.ServerStream) error {
	for {
		var m wrapperspb.BytesValue
		if err := s.RecvMsg(&m); err != nil {
			return err
		}
		if len(m.Value) > mostBytes {
			return status.Errorf(codes.InvalidArgument, "a message of %d bytes (want %d at most)", len(m.Value), mostBytes)
		}
		d.take(m.Value)
	}
}

// End ends the streams of the others, which a listener waits for when it stops. Call it once.
func (d *Direct) End() { close(d.ended) }

// Send implements Line. The message is not kept.
func (d *Direct) Send(to string, message []byte) (err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	told := make(map[string]bool) // one replica may be behind two addresses
	for _, o := range d.open {
		if to != "" && o.name != to || told[o.name] {
			continue
		}
		told[o.name] = true
		select {
		case o.out <- message:
		default:
			err = errSlow
		}
	}
	if len(told) == 0 {
		return errNobody
	}
	return err
}

// Run keeps a stream to each address (host:port or unix:/path) until ctx ends. as says how they are spoken to.
func (d *Direct) Run(ctx context.Context, addresses []string, as *secure.Client) {
	var all sync.WaitGroup
	defer all.Wait()
	dialled := make(map[string]context.CancelFunc)
	tick := time.NewTicker(lookUp)
	defer tick.Stop()
	for {
		now := d.lookUp(ctx, addresses)
		for _, at := range now {
			if dialled[at] == nil && len(dialled) < mostDialled {
				one, stop := context.WithCancel(ctx)
				dialled[at] = stop
				all.Go(func() { d.keep(one, at, as) })
			}
		}
		for at, stop := range dialled {
			if now != nil && !slices.Contains(now, at) {
				stop()
				delete(dialled, at)
			}
		}
		select {
		case <-ctx.Done():
			for _, stop := range dialled {
				stop()
			}
			return
		case <-tick.C:
		}
	}
}

// lookUp gives all that the addresses lead to; nil where a name does not resolve: then nothing is given up.
func (d *Direct) lookUp(ctx context.Context, addresses []string) (found []string) {
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

// keep has a stream to an address, again whenever it has broken.
func (d *Direct) keep(ctx context.Context, at string, as *secure.Client) {
	said := ""
	for ctx.Err() == nil {
		err := d.session(ctx, at, as)
		if err == nil {
			return // it is this one
		}
		if what := status.Convert(err).Message(); what != said && ctx.Err() == nil {
			said = what
			d.log.Info("no stream to another replica; it is tried again", zap.String("at", at), zap.String("why", what))
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Second/2 + rand.N(time.Second/2)):
		}
	}
}

// session is one stream, from the first message to its end; nil: the other end is this replica.
func (d *Direct) session(ctx context.Context, at string, as *secure.Client) error {
	live, stop := context.WithCancel(context.WithoutCancel(ctx)) // a little longer, for the good-bye
	defer stop()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(goodBye, stop) })()
	creds := insecure.NewCredentials()
	if c := as.TLS(); c != nil {
		creds = credentials.NewTLS(c)
	}
	target := at
	if !strings.HasPrefix(at, "unix:") {
		target = "passthrough:///" + at
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds), grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: pingEvery / 2}),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(mostBytes+64)))
	if err != nil {
		return err
	}
	defer conn.Close()
	if key := as.APIKey(); key != "" {
		live = metadata.AppendToOutgoingContext(live, "authorization", "Bearer "+key)
	}
	s, err := conn.NewStream(live, &grpc.StreamDesc{ClientStreams: true}, "/"+service+"/"+method)
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
		return errors.Join(errors.New("no replica of this release listens there"), s.RecvMsg(new(wrapperspb.BytesValue)))
	case d.own:
		return nil
	}
	o := &outgoing{name: name, out: make(chan []byte, directQueue)}
	d.mu.Lock()
	d.open[at] = o
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		delete(d.open, at)
		d.mu.Unlock()
	}()
	ended := make(chan error, 1)
	go func() { ended <- s.RecvMsg(new(wrapperspb.BytesValue)) }()
	for {
		select {
		case m := <-o.out:
			if err := s.SendMsg(wrapperspb.Bytes(m)); err != nil {
				return errors.Join(err, <-ended)
			}
		case <-ctx.Done():
			for len(o.out) > 0 && s.SendMsg(wrapperspb.Bytes(<-o.out)) == nil {
			}
			return errors.Join(s.CloseSend(), <-ended)
		case err := <-ended:
			return errors.Join(errors.New("it ended"), err)
		}
	}
}
