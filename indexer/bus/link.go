package bus

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

const (
	serverStart = 10 * time.Second
	ensureTime  = 5 * time.Second // for one attempt
	ensureAgain = time.Second
	// keptEvents bounds the agents' stream on disk; a router that joins asks agents for the rest.
	keptEvents = 256 << 20
)

// LinkOptions say where NATS is: URL, or an embedded server at Listen.
type LinkOptions struct {
	URL    string // such as nats://10.0.0.4:4222
	Listen string // host:port
	Dir    string // where the embedded server keeps its streams
	Log    *zap.Logger
}

// Link is a router's way to the agents: a connection, the stream, and one Listener for all workers. Close it.
type Link struct {
	Listener

	server *server.Server // nil: another process's
	stop   context.CancelFunc
	done   chan struct{}
}

// StartLink connects, and listens in the background from when the stream is there.
func StartLink(o LinkOptions) (*Link, error) {
	l := &Link{done: make(chan struct{})}
	var err error
	if o.Listen != "" {
		if l.server, err = embedded(o.Listen, o.Dir); err != nil {
			return nil, err
		}
		l.NATS, err = nats.Connect("", nats.InProcessServer(l.server), nats.Name("sightline"))
	} else {
		l.NATS, err = Connect(o.URL, "sightline", o.Log)
	}
	if err != nil {
		if l.server != nil {
			l.server.Shutdown()
		}
		return nil, fmt.Errorf("nats: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go func() {
		defer close(l.done)
		if Ready(ctx, l.NATS, o.Log) == nil {
			_ = l.Run(ctx) // ends with ctx only
		}
	}()
	return l, nil
}

// Close ends it all. A nil Link does nothing.
func (l *Link) Close() {
	if l == nil {
		return
	}
	l.stop()
	<-l.done
	l.NATS.Close()
	if l.server != nil {
		l.server.Shutdown()
		l.server.WaitForShutdown()
	}
}

func embedded(listen, dir string) (*server.Server, error) {
	host, p, err := net.SplitHostPort(listen)
	if err != nil {
		return nil, fmt.Errorf("nats.listen: %w", err)
	}
	port, err := strconv.Atoi(p)
	if err != nil {
		return nil, fmt.Errorf("nats.listen: %q: no port", listen)
	}
	s, err := server.NewServer(&server.Options{ServerName: "sightline", Host: host, Port: port, JetStream: true, StoreDir: dir,
		JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 2 * keptEvents, NoSigs: true, NoLog: true, MaxPayload: 8 << 20})
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	go s.Start()
	if !s.ReadyForConnections(serverStart) {
		s.Shutdown()
		return nil, fmt.Errorf("nats: the embedded server did not start on %s within %v (is the port taken?)", listen, serverStart)
	}
	return s, nil
}

// Connect connects for good: it goes on trying while the server is away.
func Connect(url, name string, log *zap.Logger) (*nats.Conn, error) {
	return nats.Connect(url, nats.Name(name), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { log.Warn("NATS is away", zap.Error(err)) }),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("NATS is back") }))
}

// Ready returns once the stream is there, which it makes; before, nothing can be published or heard. The error is ctx's.
func Ready(ctx context.Context, c *nats.Conn, log *zap.Logger) error {
	for {
		err := makeStream(ctx, c)
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		log.Warn("the agents' stream cannot be made yet", zap.Error(err))
		select {
		case <-ctx.Done():
		case <-time.After(ensureAgain):
		}
	}
}

func makeStream(ctx context.Context, c *nats.Conn) error {
	js, err := jetstream.New(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, ensureTime)
	defer cancel()
	return EnsureStream(ctx, js, keptEvents)
}
