package serve

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/tinylib/msgp/msgp"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/registry"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/workers/fleet"
)

// TestDynamoDeployment follows a deployment's workers: found in the folder, heard over the plane, reached through a front end;
// gone when their record is. The plane's server requires a password.
func TestDynamoDeployment(t *testing.T) {
	ns, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, Username: "router", Password: "word", NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	ns.Start()
	defer ns.Shutdown()
	if !ns.ReadyForConnections(20 * time.Second) {
		t.Fatal("the NATS server does not start, want ns.ReadyForConnections(20 * time.Second)")
	}
	root := t.TempDir()
	record := func(bucket, name, text string) {
		t.Helper()
		at := filepath.Join(root, "v1", bucket, "dynamo%2Fbackend%2Fgenerate%2F"+name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at+".part", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(at+".part", at); err != nil {
			t.Fatal(err)
		}
	}
	record("mdc", "7", `{"instance_id":7,"card_json":{"display_name":"m","kv_cache_block_size":16,"runtime_config":{"data_parallel_start_rank":4,"data_parallel_size":2}}}`)
	record("instances", "7", `{"instance_id":7,"transport":{"tcp":"127.0.0.1:40001/generate"}}`)
	password := filepath.Join(t.TempDir(), "password")
	write(t, password, []byte("router:word\n"))
	cfg, err := config.Parse(fmt.Appendf(nil, `
models: [{name: m, dir: models/m, block_hash: dynamo, media_names: injected}]
dynamo: {nats: {url: %q, auth: %q}, discovery: %q, frontends: ["127.0.0.1:40002", "127.0.0.1:40003"]}`,
		"nats://"+ns.Addr().String(), password, root))
	if err != nil {
		t.Fatal(err)
	}
	ix, fl := indexer.New(indexer.Options{}), fleet.New(nil)
	s, err := startSources(t.Context(), served(cfg), registry.Options{Index: ix, Fleet: fl, Log: zap.NewNop(),
		Metrics: prometheus.NewRegistry(), Changed: func([]*fleet.Worker) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	wait := func(what string, cond func() bool) {
		t.Helper()
		for end := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("got no end of the wait, want %s", what)
			}
		}
	}
	wait("worker 7", func() bool { return len(fl.Workers()) == 1 })
	w := fl.Workers()[0]
	if w.Name != "dynamo-7" || w.Instance != "7" || w.Addr != "127.0.0.1:40002" || len(w.Frontends) != 2 ||
		len(w.Slots) != 2 || w.Slots[1].Rank != 5 {
		t.Errorf(`%+v, want w.Name == "dynamo-7", w.Instance == "7", w.Addr == "127.0.0.1:40002", len(w.Frontends) == 2, `+
			`len(w.Slots) == 2, w.Slots[1].Rank == 5`, w)
	}
	nc, err := nats.Connect(ns.ClientURL(), nats.UserInfo("router", "word"))
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	wait("an event", func() bool { // what is published while nobody listens is lost: repeat until it is heard
		event := packed(map[string]any{"worker_id": 7, "event": map[string]any{"event_id": 1, "dp_rank": 5,
			"data": map[string]any{"stored": map[string]any{"parent_hash": nil,
				"blocks": []any{map[string]any{"block_hash": 5, "tokens_hash": 6}}}}}})
		envelope := packed(map[string]any{"topic": "kv-events", "publisher_id": 3, "sequence": 0, "published_at": 1, "payload": event})
		if err := nc.Publish("namespace.dynamo.component.backend.endpoint.generate.kv-events", envelope); err != nil {
			t.Fatal(err)
		}
		return ix.HeldBlocks(w.Slots[1].ID) == 1
	})
	if n := ix.HeldBlocks(w.Slots[0].ID); n != 0 {
		t.Errorf("the other rank has %d of its blocks, want 0", n)
	}
	if rows := s.rows(ix); len(rows) != 2 || rows[1].Blocks != 1 || rows[1].Events != "live" {
		t.Errorf("got %+v, want 2 of them, [1].Blocks 1, [1].Events %q", rows, "live")
	}
	record("instances", "8", `{"instance_id":8,"transport":{"tcp":"127.0.0.1:40004/generate"}}`)
	wait("worker 8", func() bool { return len(fl.Workers()) == 2 })
	if err := os.Remove(filepath.Join(root, "v1", "instances", "dynamo%2Fbackend%2Fgenerate%2F7")); err != nil {
		t.Fatal(err)
	}
	wait("worker 7 gone", func() bool { return len(fl.Workers()) == 1 && fl.Workers()[0].Name == "dynamo-8" })
	wait("its blocks gone", func() bool { return ix.HeldBlocks(w.Slots[1].ID) == 0 })
}

// packed encodes a value as MessagePack.
func packed(v any) []byte {
	b, err := msgp.AppendIntf(nil, v)
	if err != nil {
		panic(err)
	}
	return b
}
