package bus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

// serverStart bounds the start of an embedded server. Its port may be taken for a moment, such as by an outgoing connection if
// it lies in the system's ephemeral range.
const serverStart = 10 * time.Second

// LinkOptions say where NATS is: at URL, or an embedded server at Listen.
type LinkOptions struct {
	URL    string // such as nats://10.0.0.4:4222
	Listen string // host:port; port 0 takes a free one (see Link.Addr)
	Dir    string // where the embedded server keeps its streams
	Log    *zap.Logger
}

// Link is a router's connection to the agents: NATS, the stream, and one Listener for all workers. Close it.
type Link struct {
	Listener

	server *server.Server // nil if NATS is another process
	stop   context.CancelFunc
	done   chan struct{}
}

// StartLink connects and listens in the background.
func StartLink(o LinkOptions) (*Link, error) {
	l := &Link{done: make(chan struct{}), Listener: Listener{Log: o.Log}}
	var err error
	if o.Listen != "" {
		if l.server, err = embedded(o); err != nil {
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
		_ = l.Run(ctx) // returns only when ctx ends
	}()
	return l, nil
}

// Close ends everything. A nil Link does nothing.
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

// embedded starts a server. While its port is taken it tries again, up to serverStart.
func embedded(o LinkOptions) (*server.Server, error) {
	host, p, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, fmt.Errorf("nats.listen: %w", err)
	}
	port, err := strconv.Atoi(p)
	if err != nil || port < 0 {
		return nil, fmt.Errorf("nats.listen: %q: no port", o.Listen)
	}
	if port == 0 {
		port = server.RANDOM_PORT
	}
	for end := time.Now().Add(serverStart); ; {
		s, err := server.NewServer(&server.Options{ServerName: "sightline", Host: host, Port: port, JetStream: true, StoreDir: o.Dir,
			JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 2 * keptEvents, NoSigs: true, NoLog: true, MaxPayload: 8 << 20})
		if err != nil {
			return nil, fmt.Errorf("nats: %w", err)
		}
		log := serverLog{o.Log, make(chan string, 1)}
		s.SetLogger(log, false, false)
		go s.Start()
		why := ""
		for why == "" {
			if s.ReadyForConnections(pollReady) {
				return s, nil
			}
			select {
			case why = <-log.fatal:
			default:
				if time.Now().After(end) {
					why = "not ready in time"
				}
			}
		}
		s.Shutdown()
		s.WaitForShutdown()
		if !strings.Contains(why, syscall.EADDRINUSE.Error()) || time.Now().After(end) {
			return nil, fmt.Errorf("nats: the embedded server did not start on %s within %v: %s", o.Listen, serverStart, why)
		}
		time.Sleep(pollReady/2 + rand.N(pollReady))
	}
}

const pollReady = 50 * time.Millisecond

// serverLog passes an embedded server's warnings and errors to our log, and the reason why it cannot start to embedded.
type serverLog struct {
	log   *zap.Logger
	fatal chan string
}

func (l serverLog) Noticef(string, ...any) {}
func (l serverLog) Debugf(string, ...any)  {}
func (l serverLog) Tracef(string, ...any)  {}
func (l serverLog) Warnf(format string, v ...any) {
	l.log.Warn("NATS server: " + fmt.Sprintf(format, v...))
}
func (l serverLog) Errorf(format string, v ...any) {
	l.log.Error("NATS server: " + fmt.Sprintf(format, v...))
}
func (l serverLog) Fatalf(format string, v ...any) {
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default:
	}
}

// Connect connects for good: it keeps trying while the server is away, each client at its own random times.
func Connect(url, name string, log *zap.Logger) (*nats.Conn, error) {
	return nats.Connect(url, nats.Name(name), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1),
		nats.ReconnectWait(250*time.Millisecond), nats.ReconnectJitter(time.Second, time.Second),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { log.Warn("NATS is away", zap.Error(err)) }),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("NATS is back") }))
}
