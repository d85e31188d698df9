package bus

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/mmhash/block"
)

// TestLink runs an embedded server, an agent that connects to it, and a router that follows the agent; then the router restarts
// on the same port and directory, and the agent is heard again.
func TestLink(t *testing.T) {
	payloads, prompts := recording(t)
	o := LinkOptions{Server: *storedIn(t, "127.0.0.1:0", t.TempDir()), Log: zap.NewNop()}
	l, err := StartLink(o)
	if err != nil {
		t.Fatal(err)
	}
	o.Listen = l.server.Addr().String()
	conn, err := Access{URL: "nats://" + o.Listen}.Connect(ConnectOptions{Name: "agent", Log: o.Log})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	h, _ := agent(t, conn, "w")
	h.give(payloads...)
	hears := func(l *Link) {
		t.Helper()
		r := &router{t: t, index: indexer.New(indexer.Options{}), listener: &l.Listener, feeds: map[string]*stream.Feed{},
			slots: map[string]indexer.SlotID{}}
		r.follow("w")
		defer r.feeds["w"].Close()
		r.same("w", payloads, prompts)
	}
	hears(l)
	l.Close()
	l, err = StartLink(o)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hears(l)
}

// TestLinkWaits checks that a server that is not there yet is waited for, and that the log says so.
func TestLinkWaits(t *testing.T) {
	t.Parallel() // it waits for an answer that does not come
	core, seen := observer.New(zap.WarnLevel)
	s := runServer(t, t.TempDir(), -1)
	addr := s.Addr().(*net.TCPAddr)
	s.Shutdown()
	s.WaitForShutdown()
	l, err := StartLink(LinkOptions{Access: Access{URL: "nats://" + addr.String()}, Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	until(t, "a warning", func() bool {
		return seen.FilterMessage("cannot read the agents' stream; retrying").Len() > 0
	})
	s = runServer(t, t.TempDir(), addr.Port)
	conn := connect(t, s.ClientURL())
	until(t, "the streams", func() bool { // both: a server that ends while it makes one leaves a goroutine behind
		js, _ := conn.JetStream()
		_, err := js.StreamInfo(EventStream)
		_, err2 := js.StreamInfo(StateStream)
		return err == nil && err2 == nil
	})
}

// oldServer answers as a nats-server of a release does, up to what a client asks of JetStream: there it is silent.
func oldServer(t *testing.T, release string) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				fmt.Fprintf(c, "INFO {\"server_id\":\"X\",\"version\":%q,\"headers\":true,\"max_payload\":1048576,\"jetstream\":true}\r\n", release)
				for lines := bufio.NewScanner(c); lines.Scan(); {
					if lines.Text() == "PING" {
						fmt.Fprint(c, "PONG\r\n")
					}
				}
			}()
		}
	}()
	return l.Addr().String()
}

// TestOldServer: router and agent each say once that a server is too old, with its release and the least one, and the page says it.
func TestOldServer(t *testing.T) {
	t.Parallel()
	const says = `nats-server "2.9.10" is too old (want 2.10.0 or newer)`
	core, seen := observer.New(zap.WarnLevel)
	access := Access{URL: "nats://" + oldServer(t, "2.9.10")}
	l, err := StartLink(LinkOptions{Access: access, Log: zap.New(core), Secret: block.NewSecret()})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	until(t, "the page's word", func() bool { return l.Away() == says })
	conn, err := access.Connect(ConnectOptions{Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for name, begin := range map[string]func(context.Context, *zap.Logger) error{
		"an agent": func(ctx context.Context, log *zap.Logger) error {
			_, err := AwaitSecret(ctx, conn, log)
			return err
		},
		"an agent with --key-file": func(ctx context.Context, log *zap.Logger) error {
			_, err := NewPublisher(ctx, PublisherOptions{NATS: conn, Worker: "w", Secret: block.NewSecret(), Log: log})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			core, seen := observer.New(zap.WarnLevel)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- begin(ctx, zap.New(core)) }()
			until(t, "a line", func() bool { return seen.Len() > 0 })
			time.Sleep(2 * time.Second) // several attempts
			cancel()
			if err := <-ended; err == nil {
				t.Error("got no error of a server that is too old, want the end of the wait")
			}
			if list := seen.All(); len(list) != 1 || list[0].ContextMap()["error"] != says {
				t.Errorf("got %v in the log, want %q once", list, says)
			}
		})
	}
	until(t, "the router's line", func() bool { return seen.FilterMessageSnippet("cannot read").Len() > 0 })
	if list := seen.FilterMessageSnippet("cannot read").All(); len(list) != 1 || list[0].ContextMap()["error"] != says {
		t.Errorf("got %v in the router's log, want %q once", list, says)
	}
}

// TestServerReleases: which releases are too old; what is no release is let through.
func TestServerReleases(t *testing.T) {
	t.Parallel()
	for release, old := range map[string]bool{"2.9.10": true, "2.9.25": true, "1.4.1": true, "2.10.0": false, "2.10.0-beta.3": false,
		"2.12.4": false, "3.0.0": false, "dev": false} {
		conn, err := Access{URL: "nats://" + oldServer(t, release)}.Connect(ConnectOptions{Log: zap.NewNop()})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		until(t, "a connection", conn.IsConnected)
		if err := CheckServer(conn); (err != nil) != old || old && !strings.Contains(err.Error(), release) {
			t.Errorf("%s: got %v, want an error that names it: %v", release, err, old)
		}
	}
}
