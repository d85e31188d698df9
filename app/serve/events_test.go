package serve

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/tinylib/msgp/msgp"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/app/config"
	"github.com/sightline-router/sightline/app/findings"
	"github.com/sightline-router/sightline/app/registry"
	"github.com/sightline-router/sightline/engine"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/workers/fleet"
)

// served returns a configuration whose models are not loaded.
func served(cfg config.Config) *running {
	r := &running{Server: &Server{log: zap.NewNop(), media: &engine.Media{}}}
	r.now.Store(&state{cfg: cfg})
	return r
}

// told is toldTo without the counters.
func told(t *testing.T, engine string, batches ...map[string]any) findings.Worker {
	w, _ := toldTo(t, engine, batches...)
	return w
}

// toldTo returns what the admin page shows of a worker of an engine that publishes these batches of events, each event a map, on
// a ZeroMQ socket without replay, and what sightline_events_total counts.
func toldTo(t *testing.T, engine string, batches ...map[string]any) (_ findings.Worker, counters map[string]float64) {
	t.Helper()
	return toldWith(t, engine+", block_size: 4", batches...)
}

// toldWith does so for a model with these keys.
func toldWith(t *testing.T, keys string, batches ...map[string]any) (_ findings.Worker, counters map[string]float64) {
	t.Helper()
	metrics := prometheus.NewRegistry()
	pub := zmq4.NewPub(t.Context())
	defer pub.Close()
	if err := pub.Listen("tcp://127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(fmt.Appendf(nil, `
models: [{name: m, dir: models/m, engine: %s}]
workers: [{name: w, addr: "127.0.0.1:1", events: {zmq: "tcp://%s"}}]`, keys, pub.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	ix := indexer.New(indexer.Options{})
	s, err := startSources(t.Context(), served(cfg), registry.Options{Index: ix, Fleet: fleet.New(nil),
		Log: zap.NewNop(), Metrics: metrics, Changed: func([]*fleet.Worker) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	for seq, event := range batches {
		payload, err := msgp.AppendIntf(nil, []any{1.5, []any{event}, 0})
		if err != nil {
			t.Fatal(err)
		}
		m := zmq4.NewMsgFrom([]byte("kv"), binary.BigEndian.AppendUint64(nil, uint64(seq)), payload)
		for end := time.Now().Add(2 * time.Minute); s.rows(ix)[0].Batches <= uint64(seq); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("batch %d was not applied: %+v, want it in time", seq, s.rows(ix)[0])
			}
			_ = pub.Send(m) // what is sent before the subscription is lost; a repeated number counts once
		}
	}
	families, err := metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counters = map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "sightline_events_total" { // its labels: rank, what, worker
				counters[m.Label[1].GetValue()] = m.GetCounter().GetValue()
			}
		}
	}
	return s.rows(ix)[0], counters
}

func storedEvent(kind string) map[string]any {
	e := map[string]any{"type": "BlockStored", "block_hashes": []any{uint64(71)}, "parent_block_hash": nil,
		"token_ids": []any{1, 2, 3, 4}, "block_size": 4}
	if kind != "" {
		e["group_idx"], e["kv_cache_spec_kind"], e["extra_keys"] = 0, kind, []any{nil}
	}
	return e
}

// TestCopiesByEngine checks that SGLang reports a block again that it has already (a node of its tree split, a page loaded back),
// and its removal once, whereas vLLM reports every physical copy.
func TestCopiesByEngine(t *testing.T) {
	removed := map[string]any{"type": "BlockRemoved", "block_hashes": []any{uint64(71)}}
	for engine, want := range map[string]int{"vllm": 1, "sglang": 0, "trtllm": 0} {
		if w := told(t, engine, storedEvent(""), storedEvent(""), removed); w.Blocks != want {
			t.Errorf("%s: %d blocks are held after stored, stored, removed, want %d", engine, w.Blocks, want)
		}
	}
}

// TestGroupKinds checks every kind of KV group of vLLM 0.23 to 0.33: those whose blocks are a prompt's whole prefix count.
func TestGroupKinds(t *testing.T) {
	for kind, want := range map[string]int{"full_attention": 1, "mla_attention": 1, "sink_full_attention": 1,
		"sliding_window": 0, "sliding_window_mla": 0, "mamba": 0, "chunked_local_attention": 0, "encoder_only_attention": 0,
		"cross_attention": 0, "unknown": 0} {
		for _, engine := range []string{"vllm", "trtllm"} {
			want := want
			if engine == "vllm" && kind == "mamba" {
				want = 2 // indexed by the prompts that events tell: the prompt's block, and the state after it (engine/vllm/chains.go)
			}
			if w := told(t, engine, storedEvent(kind)); w.Blocks != want {
				t.Errorf("%s, %s: %d blocks are held, want %d", engine, kind, w.Blocks, want)
			}
		}
	}
}

// TestUnknownKeysAreTold checks that keys that a decoder does not know are counted, and that the first of them is
// named, truncated, and none of their values.
func TestUnknownKeysAreTold(t *testing.T) {
	more := storedEvent("")
	more["hash_version_"+strings.Repeat("x", 1000)] = "a secret"
	for _, engine := range []string{"vllm", "sglang", "trtllm"} {
		w, counters := toldTo(t, engine, storedEvent(""), more, more)
		if want := `"hash_version_` + strings.Repeat("x", 27) + `"`; w.Blocks == 0 || counters["batches"] != 3 ||
			counters["unknown_keys"] != 2 || w.UnknownKey != want {
			t.Errorf("%s: %+v, %v, want 2 unknown keys, the first %s", engine, w, counters, want)
		}
	}
}

// TestBlockSizeFromEvents: a model whose layers with windows have smaller blocks than those that see all tokens (Gemma 4), told from its
// first event on, which is of a part of a block. Its block size is the larger, whatever is configured; nothing is counted as of another
// size or as unknown, and its row says so if another was configured.
func TestBlockSizeFromEvents(t *testing.T) {
	stored := func(group, size int, kind string, hashes ...any) map[string]any {
		tokens := make([]any, max(1, len(hashes))*size)
		for i := range tokens {
			tokens[i] = i
		}
		e := map[string]any{"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": nil, "token_ids": tokens, "block_size": size,
			"group_idx": group, "kv_cache_spec_kind": kind, "extra_keys": make([]any, len(hashes))}
		if kind == "sliding_window" {
			e["kv_cache_spec_sliding_window"] = 8
		}
		return e
	}
	removed := func(group int, hashes ...any) map[string]any {
		return map[string]any{"type": "BlockRemoved", "block_hashes": hashes, "group_idx": group}
	}
	events := []map[string]any{
		stored(1, 4, "full_attention", uint64(1)), stored(0, 4, "sliding_window", uint64(1)), // a prompt shorter than a block
		stored(1, 8, "full_attention", uint64(2), uint64(4)), stored(0, 4, "sliding_window", uint64(1), uint64(2), uint64(3), uint64(4)),
		stored(1, 4, "full_attention", uint64(5)), // a tail
		removed(1, uint64(1)), removed(1, uint64(5)), removed(0, uint64(3)),
	}
	for keys, want := range map[string]int{"vllm": 0, "vllm, block_size: 8": 0, "vllm, block_size: 16": 8} {
		w, counters := toldWith(t, keys, events...)
		if w.BlockSize != 8 || w.Blocks != 2 || w.OtherSize != want || counters["other_block_size"]+counters["unknown_blocks"]+
			counters["unknown_parents"] > 0 {
			t.Errorf("%s: %+v, %v; got %v, want BlockSize 8, Blocks 2, OtherSize %d, 0",
				keys, w, counters, counters["other_block_size"]+counters["unknown_blocks"]+counters["unknown_parents"], want)
		}
	}
}
