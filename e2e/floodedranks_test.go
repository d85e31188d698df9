package e2e

import (
	enc "encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
)

// storedEvent is vLLM's event of n blocks, as its releases before 0.24 write it: an array, tag first. Blocks are numbered from first on, by
// which their hashes and tokens differ.
type storedEvent struct {
	first, parent uint64 // 0: no parent
	n             int
	medium, kind  string
	bare          bool // without tokens
	group, size   int
}

func (s storedEvent) append(b []byte) []byte {
	number := func(v uint64) { b = enc.BigEndian.AppendUint64(append(b, 0xcf), v) }
	list := func(n int) { b = enc.BigEndian.AppendUint32(append(b, 0xdd), uint32(n)) }
	text := func(s string) { b = append(append(b, 0xa0|byte(len(s))), s...) }
	b = append(b, 0x9c)
	text("BlockStored")
	list(s.n)
	for i := range s.n {
		number(s.first + uint64(i))
	}
	if s.parent == 0 {
		b = append(b, 0xc0)
	} else {
		number(s.parent)
	}
	size := max(1, s.size)
	if s.bare {
		b = append(b, 0x90)
	} else {
		list(s.n * size)
		for i := range s.n * size {
			b = enc.BigEndian.AppendUint32(append(b, 0xce), uint32(s.first*uint64(size))+uint32(i))
		}
	}
	b = append(b, byte(size), 0xc0) // block_size, lora_id
	text(s.medium)
	b = append(b, 0xc0, 0xc0, byte(s.group)) // lora_name, extra_keys, group_idx
	if s.kind == "" {
		return append(b, 0xc0, 0xc0)
	}
	text(s.kind)
	return append(b, 64)
}

// batchOf is a payload of events.
func batchOf(events ...storedEvent) []byte {
	b := append([]byte("\x93\xcb\x41\xd9\x00\x00\x00\x00\x00\x00"), 0x90|byte(len(events)))
	for _, e := range events {
		b = e.append(b)
	}
	return append(b, 0)
}

// floods are what a rank can send without end, each to fill another part of what is kept about it: the payload with these numbers.
var floods = []struct {
	name    string
	payload func(i int, first uint64) []byte
}{
	{"blocks", func(_ int, first uint64) []byte {
		return batchOf(storedEvent{first: first, n: 4000, medium: "GPU"})
	}},
	{"orphans", func(_ int, first uint64) []byte {
		return batchOf(storedEvent{first: first, n: 4000, parent: first - 1, medium: "GPU"})
	}},
	{"offloaded blocks", func(_ int, first uint64) []byte {
		return batchOf(storedEvent{first: first, n: 4000, medium: "GPU"}, storedEvent{first: first, n: 4000, medium: "CPU", bare: true})
	}},
	{"copies", func(_ int, first uint64) []byte {
		e := storedEvent{first: first, n: 4000, medium: "GPU"}
		return batchOf(e, e)
	}},
	{"further groups", func(_ int, first uint64) []byte {
		return batchOf(storedEvent{first: first, n: 10, medium: "GPU", kind: "full_attention"},
			storedEvent{first: first, n: 4000, medium: "GPU", kind: "sliding_window", group: 1})
	}},
	{"windows alone", func(_ int, first uint64) []byte {
		return batchOf(storedEvent{first: first, n: 4000, medium: "GPU", kind: "sliding_window"})
	}},
	{"parts of blocks", func(_ int, first uint64) []byte {
		return batchOf(storedEvent{first: first, n: 2, size: 16, medium: "GPU", kind: "full_attention"},
			storedEvent{first: first + 2, n: 4000, medium: "GPU", kind: "full_attention"})
	}},
	{"large messages", func(i int, _ uint64) []byte { return largeEvents()[i%5] }},
}

var largeEvents = sync.OnceValue(hostileEvents)

// publish greets a subscriber, and sends it each payload that next returns, until it is gone or next returns none.
func publish(conn net.Conn, next func(i int) []byte) {
	defer conn.Close()
	greeting := make([]byte, 64)
	greeting[0], greeting[9], greeting[10] = 0xff, 0x7f, 3
	copy(greeting[12:], "NULL")
	_, err := conn.Write(greeting)
	if err == nil {
		_, err = io.ReadFull(conn, greeting)
	}
	ready := "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
	if err == nil {
		_, err = fmt.Fprintf(conn, "\x04%c%s", len(ready), ready)
	}
	go func() { _, _ = io.Copy(io.Discard, conn) }()
	for i := 0; err == nil; i++ {
		payload := next(i)
		if payload == nil {
			return
		}
		head := enc.BigEndian.AppendUint64([]byte("\x01\x00\x01\x08"), uint64(i))
		head = enc.BigEndian.AppendUint64(append(head, 2), uint64(len(payload)))
		buffers := net.Buffers{head, payload}
		_, err = buffers.WriteTo(conn)
	}
}

// fakeVLLM is a server that says of itself that it has so many ranks, each of which publishes what next returns for it.
func fakeVLLM(t *testing.T, model string, ranks int, next func(rank, i int) []byte) (addr string) {
	t.Helper()
	var sources []string
	for r := range ranks {
		lis := listen(t)
		t.Cleanup(func() { lis.Close() })
		go func() {
			for conn, err := lis.Accept(); err == nil; conn, err = lis.Accept() {
				go publish(conn, func(i int) []byte { return next(r, i) })
			}
		}()
		sources = append(sources, fmt.Sprintf(`"%d":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://%s"}`, r, lis.Addr()))
	}
	s := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/v1/models":
			fmt.Fprintf(rw, `{"data":[{"id":%q,"owned_by":"vllm"}]}`, model)
		case "/version":
			fmt.Fprint(rw, `{"version":"0.32.0"}`)
		case "/metrics":
			fmt.Fprint(rw, "vllm:cache_config_info{block_size=\"1\"} 1\n")
		case "/kv_event_sources":
			fmt.Fprintf(rw, "{%s}", strings.Join(sources, ","))
		case "/health":
		default:
			rw.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// TestFloodedRanks: a worker says that it has 24 ranks and floods each of them, for half a minute in a long run. The process grows by no
// more than docs/bounds.md lets one worker have, and no event of the worker beside it is lost.
func TestFloodedRanks(t *testing.T) {
	const (
		ranks     = 24
		indexMiB  = 64
		ofAWorker = 704 // MiB: stream.NewBudget
	)
	long := 8 * time.Second
	if d, err := time.ParseDuration(os.Getenv("SIGHTLINE_FLOOD")); err == nil {
		long = d
	}
	bin, err := production()
	if err != nil {
		t.Fatal(err)
	}
	for _, only := range append([]string{"all"}, strings.Fields(os.Getenv("SIGHTLINE_FLOOD_ONLY"))...) {
		t.Run(only, func(t *testing.T) {
			var flooding atomic.Bool
			var sent, told atomic.Int64
			liar := fakeVLLM(t, "m", ranks, func(rank, i int) []byte {
				for !flooding.Load() {
					time.Sleep(10 * time.Millisecond)
					if t.Context().Err() != nil {
						return nil
					}
				}
				f := floods[rank%len(floods)]
				for _, g := range floods {
					if strings.HasPrefix(g.name, only) {
						f = g
					}
				}
				p := f.payload(i, uint64(rank)<<40+uint64(i)*8000+1)
				sent.Add(int64(len(p)))
				return p
			})
			done := make(chan struct{})
			honest := fakeVLLM(t, "m", 1, func(_, i int) []byte {
				select {
				case <-done:
					return nil
				case <-time.After(20 * time.Millisecond):
				}
				e := storedEvent{first: 1<<50 + uint64(i)*4, n: 4, medium: "GPU"}
				if i > 0 {
					e.parent = e.first - 1
				}
				told.Add(1)
				return batchOf(e)
			})
			admin, file := freeAddr(t), filepath.Join(t.TempDir(), "sightline.yaml")
			text := fmt.Sprintf("listen: %s\nadmin: %s\nlog_level: error\nfixed: {probe: false}\nindex: {max_bytes: %dMiB}\n"+
				"models: [{name: m, engine: vllm, engine_version: 0.32.0, block_size: 1}]\nworkers:\n"+
				"- {name: liar, addr: %q, ranks: %d, events: {auto: true}}\n- {name: honest, addr: %q, events: {auto: true}}\n",
				freeAddr(t), admin, indexMiB, liar, ranks, honest)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			p := startProcess(t, "sightline", func() *exec.Cmd { return exec.Command(bin, "serve", "-c", file) })
			eventually(t, "Sightline serves", func() bool { _, err := lab.Get("http://" + admin + "/metrics"); return err == nil })
			state := func() (blocks, batches, live int64) {
				gjson.Parse(page(t, admin, "/workers")).ForEach(func(_, w gjson.Result) bool {
					if w.Get("name").Str == "honest" {
						blocks, batches = w.Get("blocks_held").Int(), w.Get("event_batches").Int()
					}
					if w.Get("events").Str == "live" {
						live++
					}
					return true
				})
				return blocks, batches, live
			}
			eventually(t, "the ranks are followed", func() bool { _, _, live := state(); return live == ranks+1 })
			before, most := held(p.cmd.Process.Pid, "VmRSS"), 0.0
			flooding.Store(true)
			for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
				most = max(most, held(p.cmd.Process.Pid, "VmRSS"))
			}
			flooding.Store(false)
			close(done)
			var blocks, batches int64
			eventually(t, "the honest worker's events are all there", func() bool {
				blocks, batches, _ = state()
				return batches >= told.Load()
			})
			grown := most - before
			t.Logf("%.0f MiB at first, %.0f more; %d MB sent, %d honest messages", before, grown, sent.Load()>>20, told.Load())
			if grown > ofAWorker+indexMiB {
				t.Errorf("%.0f MiB more, want %d and the index's %d at most", grown, ofAWorker, indexMiB)
			}
			if want := 4 * told.Load(); blocks != want || batches != told.Load() {
				t.Errorf("%d blocks of %d messages of the honest worker, want %d of %d", blocks, batches, want, told.Load())
			}
		})
	}
}
