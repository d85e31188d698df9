package dynamo

import (
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/stream"
)

// follow starts a worker-rank's feed on a plane.
func follow(t *testing.T, p *Plane, k Key) *stream.Feed {
	t.Helper()
	f := stream.Start(stream.Options{Source: p.Source(k), Decoder: &Decoder{Key: k, BlockSize: 16},
		Sink: stream.Join(indexer.New(indexer.Options{}), indexer.SlotOptions{})})
	t.Cleanup(f.Close)
	return f
}

// TestPublisherDies: when a publisher of the ZMQ plane dies, its worker-rank's stream goes down, and no other.
func TestPublisherDies(t *testing.T) {
	list := load(t, "plane_nats.jsonl.gz")
	envelope := func() (k Key, frame []byte) {
		for _, m := range list {
			if e, err := readEnvelope(m.Payload); err == nil && e.ofEvents() {
				if k, ok, _ := peek(e.Payload); ok {
					head := []byte{frameVersion, byte(len(m.Payload) >> 24), byte(len(m.Payload) >> 16), byte(len(m.Payload) >> 8), byte(len(m.Payload))}
					return k, append(head, m.Payload...)
				}
			}
		}
		t.Fatal("no event among the captured messages")
		return k, nil
	}
	k, frame := envelope()
	p := new(Plane)
	mine, other := follow(t, p, k), follow(t, p, Key{k.Worker + 1, 0})
	pub := zmq4.NewPub(t.Context())
	if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	ctx := t.Context()
	go func() { defer close(ended); _ = p.DialZMQ(ctx, "tcp://"+pub.Addr().String()) }()
	wait(t, func() bool {
		_ = pub.Send(zmq4.NewMsgFrom([]byte(topic), make([]byte, 8), make([]byte, 8), frame))
		s := mine.Stats()
		return s.LastMessage.Unix() > 0 && mine.Age(time.Now()) == 0 && other.Age(time.Now()) == 0
	})
	pub.Close()
	wait(t, func() bool { return mine.Age(time.Now()) > 0 })
	if age := other.Age(time.Now()); age != 0 {
		t.Errorf("another worker's stream is away for %v, want 0", age)
	}
}

// TestNATSIsAway: while NATS is down no worker's stream is live.
func TestNATSIsAway(t *testing.T) {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	defer s.Shutdown()
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not start")
	}
	c, err := nats.Connect(s.ClientURL(), nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p := new(Plane)
	f := follow(t, p, Key{7, 0})
	if err := p.SubscribeNATS(c, scope); err != nil {
		t.Fatal(err)
	}
	live := func() bool { return f.Age(time.Now()) == 0 }
	wait(t, live)
	s.Shutdown()
	wait(t, func() bool { return !live() })
}
