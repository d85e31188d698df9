package dynamo

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// connect starts a real NATS server and returns a connection to it.
func connect(t *testing.T) *nats.Conn {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the server does not start")
	}
	c, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

var scope = Scope{"dynamo", "backend", "generate"}

// TestNATSCore replays the captured NATS plane, every message on its own subject, over a real server: the index ends as from the
// messages alone. Messages of other topics, and of another endpoint, change nothing.
func TestNATSCore(t *testing.T) {
	list := load(t, "plane_nats.jsonl.gz")
	toIndex(t, list, false, func(p *Plane, done func() bool) {
		c := connect(t)
		if err := p.SubscribeNATS(c, scope); err != nil {
			t.Fatal(err)
		}
		subjects := map[string]bool{}
		for _, m := range list {
			if err := c.Publish(m.Subject, m.Payload); err != nil {
				t.Fatal(err)
			}
			subjects[m.Subject] = true
		}
		other := kvPayloads(t, list)[0]
		if err := c.Publish("namespace.dynamo.component.backend.endpoint.other.kv-events", other.Payload); err != nil {
			t.Fatal(err)
		}
		if !subjects["namespace.dynamo.component.backend.endpoint.generate.kv-events"] || len(subjects) < 2 {
			t.Errorf(`captured subjects %v, want subjects["namespace.dynamo.component.backend.endpoint.generate.kv-events"], len(subjects) >= 2`,
				subjects)
		}
		wait(t, done)
	})
}

func wait(t *testing.T, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("got no end of the wait within two minutes")
		}
	}
}

// TestFollow changes a folder: workers are reported at once and after each change, errors once, and nothing twice.
func TestFollow(t *testing.T) {
	root := filepath.Join(t.TempDir(), "kv")
	found, failed := make(chan []Worker, 8), make(chan error, 8)
	f := Follower{Root: root, Scope: scope, Plane: new(Plane), Found: func(w []Worker) {
		found <- w
	}, Failed: func(err error) { failed <- err }}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { f.Run(ctx); close(ended) }()
	next := func() []Worker {
		t.Helper()
		select {
		case w := <-found:
			return w
		case err := <-failed:
			t.Fatal(err)
		case <-time.After(2 * time.Minute):
			t.Fatal("nothing was told")
		}
		return nil
	}
	if w := next(); len(w) != 0 {
		t.Fatalf("no folder: got %v, want 0 of them", w)
	}
	var files []string
	for _, c := range load(t, "discovery.jsonl.gz") {
		if c.Case != "discovery_file_zmq.jsonl" {
			continue
		}
		at := filepath.Join(root, c.File)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at+".part", c.Value, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(at+".part", at); err != nil {
			t.Fatal(err)
		}
		files = append(files, at)
	}
	seen := next()
	for len(seen) != 2 || seen[0].Ranks != 2 || seen[1].Ranks != 2 || seen[0].BlockSize != 16 || seen[1].BlockSize != 16 { // record by record
		seen = next()
	}
	for _, at := range files {
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
	}
	for len(next()) != 0 {
	}
	if err := os.RemoveAll(filepath.Join(root, "v1", "instances")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "v1", "instances"), nil, 0o644); err != nil { // no longer a folder
		t.Fatal(err)
	}
	select {
	case <-failed:
	case <-time.After(2 * time.Minute):
		t.Fatal("a folder that cannot be read is not told of")
	}
	stop()
	<-ended
	if len(found)+len(failed) > 0 {
		t.Errorf("told twice: %d findings, %d failures; got %d, want 0", len(found), len(failed), len(found)+len(failed))
	}
}
