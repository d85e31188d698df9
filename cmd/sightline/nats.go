package main

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

	"github.com/sightline-router/sightline/indexer/bus"
	"github.com/sightline-router/sightline/internal/config"
)

const (
	natsStart = 10 * time.Second
	// keptEvents bounds the agents' stream on disk; a router that joins asks agents for the rest.
	keptEvents = 256 << 20
)

// natsLink is the way by which agents' events come here: an embedded server, or a connection to another.
type natsLink struct {
	server   *server.Server // nil: another process's
	conn     *nats.Conn
	listener *bus.Listener
	stop     context.CancelFunc
	done     chan struct{}
}

// startNATS connects as configured; nil if no NATS is used.
func startNATS(cfg config.Config, log *zap.Logger) (*natsLink, error) {
	if cfg.NATS.URL == "" && cfg.NATS.Listen == "" {
		return nil, nil
	}
	l := &natsLink{done: make(chan struct{})}
	var err error
	if cfg.NATS.Listen != "" {
		if l.server, err = embeddedNATS(cfg); err != nil {
			return nil, err
		}
		l.conn, err = nats.Connect("", nats.InProcessServer(l.server), nats.Name("sightline"))
	} else {
		l.conn, err = connectNATS(cfg.NATS.URL, "sightline", log)
	}
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	if err := ensureStream(l.conn); err != nil {
		log.Warn("the agents' stream is not there yet; tried again in the background", zap.Error(err))
	}
	l.listener = &bus.Listener{NATS: l.conn}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go func() {
		defer close(l.done)
		_ = l.listener.Run(ctx) // ends with ctx only
	}()
	return l, nil
}

func embeddedNATS(cfg config.Config) (*server.Server, error) {
	host, p, err := net.SplitHostPort(cfg.NATS.Listen)
	if err != nil {
		return nil, fmt.Errorf("nats.listen: %w", err)
	}
	port, err := strconv.Atoi(p)
	if err != nil {
		return nil, fmt.Errorf("nats.listen: %q: no port", cfg.NATS.Listen)
	}
	s, err := server.NewServer(&server.Options{ServerName: "sightline", Host: host, Port: port, JetStream: true, StoreDir: stateDir(cfg),
		JetStreamMaxMemory: 64 << 20, JetStreamMaxStore: 2 * keptEvents, NoSigs: true, NoLog: true, MaxPayload: 8 << 20})
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	go s.Start()
	if !s.ReadyForConnections(natsStart) {
		s.Shutdown()
		return nil, fmt.Errorf("nats: the embedded server did not start on %s within %v (is the port taken?)", cfg.NATS.Listen, natsStart)
	}
	return s, nil
}

// connectNATS connects for good: it goes on trying while the server is away.
func connectNATS(url, name string, log *zap.Logger) (*nats.Conn, error) {
	return nats.Connect(url, nats.Name(name), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(250*time.Millisecond),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) { log.Warn("NATS is away", zap.Error(err)) }),
		nats.ReconnectHandler(func(*nats.Conn) { log.Info("NATS is back") }))
}

func ensureStream(c *nats.Conn) error {
	js, err := jetstream.New(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return bus.EnsureStream(ctx, js, keptEvents)
}

func (l *natsLink) close() {
	if l == nil {
		return
	}
	l.stop()
	<-l.done
	l.conn.Close()
	if l.server != nil {
		l.server.Shutdown()
		l.server.WaitForShutdown()
	}
}
