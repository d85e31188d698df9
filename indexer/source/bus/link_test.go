package bus

import (
	"net"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/stream"
)

// TestLink runs an embedded server, an agent that connects to it, and a router that follows the agent; then the router restarts
// on the same port and directory, and the agent is heard again.
func TestLink(t *testing.T) {
	payloads, prompts := recording(t)
	o := LinkOptions{Server: Server{Listen: "127.0.0.1:0", Dir: t.TempDir()}, Log: zap.NewNop()}
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
		_, err := js.StreamInfo(DefaultPrefix.Stream())
		_, err2 := js.StreamInfo(DefaultPrefix.State())
		return err == nil && err2 == nil
	})
}
