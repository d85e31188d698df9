package dynamo

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/stream"
)

// TestPlaneToIndex plays the captured traffic of all workers on one plane: each worker-rank's feed ends with exactly the blocks of
// a simple simulation of its own events, whether the feed started before the first message or after some.
func TestPlaneToIndex(t *testing.T) {
	for _, name := range []string{"plane_zmq.jsonl.gz", "plane_nats.jsonl.gz"} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " late ", late), func(t *testing.T) { planeToIndex(t, load(t, name), late) })
		}
	}
}

func planeToIndex(t *testing.T, list []captured, late bool) {
	toIndex(t, list, late, func(p *Plane, _ func() bool) {
		for _, c := range list {
			b := c.Payload
			if len(c.Frames) > 0 {
				b, _ = unframe(c.Frames[len(c.Frames)-1])
			}
			p.receive("", b)
		}
	})
}

// toIndex plays captured traffic by tell and compares each worker-rank's blocks with a simple simulation of its events. done
// reports whether every message has arrived. late: feeds start after all messages.
func toIndex(t *testing.T, list []captured, late bool, tell func(p *Plane, done func() bool)) {
	t.Helper()
	ix := indexer.New(indexer.Options{})
	p, held, events := new(Plane), map[Key]map[uint64]bool{}, map[Key]uint64{}
	for _, e := range kvPayloads(t, list) {
		k, _, _ := peek(e.Payload)
		if held[k] == nil {
			held[k] = map[uint64]bool{}
		}
		d := Decoder{Key: k}
		b, err := d.Decode(e.Payload)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range b.Events {
			events[k]++
			for _, h := range ev.EngineHashes {
				held[k][h] = true
				if ev.Kind == kvevent.Removed {
					delete(held[k], h)
				}
			}
		}
	}
	var mu sync.Mutex
	slots, feeds := map[Key]indexer.SlotID{}, map[Key]*stream.Feed{}
	start := func(k Key) {
		mu.Lock()
		defer mu.Unlock()
		sink := stream.Join(ix, indexer.SlotOptions{})
		slots[k] = sink.Slot()
		feeds[k] = stream.Start(stream.Options{Source: p.Source(k), Decoder: &Decoder{Key: k, BlockSize: 16}, Sink: sink, BlockSize: 16})
		t.Cleanup(feeds[k].Close)
	}
	starts := func() {
		for k := range held {
			start(k)
		}
	}
	if !late {
		starts()
	}
	done := func() bool {
		mu.Lock()
		defer mu.Unlock()
		for k := range held {
			if feeds[k] == nil || feeds[k].Stats().Events < events[k] {
				return false
			}
		}
		return true
	}
	tell(p, done)
	if late {
		starts()
	}
	wait(t, done)
	for k, f := range feeds {
		if s := f.Stats(); s.Partial || s.Gaps+s.UnknownParents+s.UnknownBlocks+s.OtherBlockSize > 0 || ix.HeldBlocks(slots[k]) != len(held[k]) {
			t.Errorf("%v: holds %d, want %d; %+v", k, ix.HeldBlocks(slots[k]), len(held[k]), s)
		}
	}
}

// TestPlaneGap: a lost message cannot be replayed: earlier blocks are in doubt, and the worker-rank continues as partial. Another
// publisher is a new incarnation.
func TestPlaneGap(t *testing.T) {
	ix := indexer.New(indexer.Options{})
	p, sink := new(Plane), stream.Join(ix, indexer.SlotOptions{})
	k := Key{1<<64 - 1, 3}
	f := stream.Start(stream.Options{Source: p.Source(k), Decoder: &Decoder{Key: k, BlockSize: 16}, Sink: sink})
	defer f.Close()
	root := strings.Replace(stored, `"parent_hash":11`, `"parent_hash":null`, 1)
	other := strings.Replace(root, `"block_hash":18446744073709551615`, `"block_hash":5`, 1)
	wait := func(batches uint64) stream.Stats {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); f.Stats().Batches < batches; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("got %+v, want %d batches", f.Stats(), batches)
			}
		}
		return f.Stats()
	}
	p.deliver(k, 9, 0, pack(t, root))
	if s := wait(1); s.Partial || ix.HeldBlocks(sink.Slot()) != 1 {
		t.Errorf("got %+v, want !s.Partial, ix.HeldBlocks(sink.Slot()) == 1", s)
	}
	p.deliver(k, 9, 2, pack(t, other))
	if s := wait(2); !s.Partial || s.Gaps != 1 || s.Doubtful != 1 || ix.HeldBlocks(sink.Slot()) != 2 {
		t.Errorf("after a gap: got %+v, %d held, want Partial true, Gaps 1, Doubtful 1, 2", s, ix.HeldBlocks(sink.Slot()))
	}
	p.deliver(k, 10, 0, pack(t, root))
	if s := wait(3); s.Partial || s.Restarts != 1 {
		t.Errorf("another publisher: got %+v, want Partial false, Restarts 1", s)
	}
}

// TestDiscover reads the folders of captured deployments: workers, ranks and publishers are found; other endpoints and dead records
// are not.
func TestDiscover(t *testing.T) {
	s := Scope{"dynamo", "backend", "generate"}
	now := time.Now()
	for name, want := range map[string]struct{ workers, ranks, endpoints int }{
		"discovery_file_zmq.jsonl": {2, 2, 4}, "discovery_file_nats.jsonl": {2, 1, 0},
	} {
		root := t.TempDir()
		for _, c := range load(t, "discovery.jsonl.gz") {
			if c.Case != name {
				continue
			}
			at := filepath.Join(root, c.File)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, c.Value, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		d, err := discover(root, s, now)
		if err != nil || len(d.Workers) != want.workers || len(d.Endpoints) != want.endpoints {
			t.Fatalf("%s: %v %+v; got %d, %d, want no error, %d, %d", name, err, d, len(d.Workers), len(d.Endpoints), want.workers, want.endpoints)
		}
		for _, w := range d.Workers {
			if w.Ranks != want.ranks || w.BlockSize != 16 || w.Host != "127.0.0.1" || w.ID == 0 {
				t.Errorf("%s: got %+v, want Ranks %d, BlockSize 16, Host %q, ID some", name, w, want.ranks, "127.0.0.1")
			}
		}
		if d, err := discover(root, Scope{"dynamo", "backend", "gen"}, now); err != nil || len(d.Workers)+len(d.Endpoints) > 0 {
			t.Errorf("%s: another endpoint has %+v %v; got %d, want no error, 0", name, d, err, len(d.Workers)+len(d.Endpoints))
		}
		if d, err := discover(root, s, now.Add(time.Hour)); err != nil || len(d.Workers)+len(d.Endpoints) > 0 {
			t.Errorf("%s: dead records count: %+v %v; got %d, want no error, 0", name, d, err, len(d.Workers)+len(d.Endpoints))
		}
		if err := os.WriteFile(filepath.Join(root, "v1/instances/dynamo%2Fbackend%2Fgenerate%2Fbad"), []byte(`{"instance_id":`),
			0o644); err != nil {
			t.Fatal(err)
		}
		if d, err := discover(root, s, now); err != nil || len(d.Workers) != want.workers {
			t.Errorf("%s: with a record half written: %+v %v; got %d, want no error, %d", name, d, err, len(d.Workers), want.workers)
		}
	}
	if d, err := discover(filepath.Join(t.TempDir(), "none"), s, now); err != nil || len(d.Workers) > 0 {
		t.Errorf("no folder: %+v %v; got %d, want no error, 0", d, err, len(d.Workers))
	}
}

// TestDiscoverRanks: a worker on a second node has ranks of its own alone, and no others are chosen.
func TestDiscoverRanks(t *testing.T) {
	for _, c := range []struct {
		card, sources string
		first, ranks  int
	}{
		{`{"data_parallel_start_rank":8,"data_parallel_size":8}`, "9", 8, 8},
		{`{"data_parallel_start_rank":3,"data_parallel_size":1}`, "3", 3, 1},
		{`{"data_parallel_size":2}`, "1", 0, 2},
		{`{}`, "2", 0, 3},
		{`{"data_parallel_start_rank":-4,"data_parallel_size":-1}`, "0", 0, 1},
	} {
		root := t.TempDir()
		for file, text := range map[string]string{
			"instances/dynamo%2Fbackend%2Fgenerate%2F7": `{"instance_id":7,"transport":{"tcp":"127.0.0.1:1/x"}}`,
			"mdc/dynamo%2Fbackend%2Fgenerate%2F7":       `{"instance_id":7,"card_json":{"kv_cache_block_size":16,"runtime_config":` + c.card + `}}`,
			"event_sources/" + url.PathEscape(Scope{"dynamo", "backend", "generate"}.events()) + "7%2F" + c.sources: `{"metadata":{"worker":{"worker_id":7,"dp_rank":` + c.sources + `}}}`,
		} {
			at := filepath.Join(root, "v1", file)
			if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		d, err := discover(root, Scope{"dynamo", "backend", "generate"}, time.Now())
		if err != nil || len(d.Workers) != 1 || d.Workers[0].FirstRank != c.first || d.Workers[0].Ranks != c.ranks {
			t.Errorf("%s: %v, %+v; want %d ranks from %d on", c.card, err, d.Workers, c.ranks, c.first)
		}
	}
}

func TestSubjectNames(t *testing.T) {
	if got := segment("a.b/c-d_e"); got != "a%2Eb%2Fc-d_e" {
		t.Errorf("segment %q, want %q", got, "a%2Eb%2Fc-d_e")
	}
}
