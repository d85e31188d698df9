package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/sightline-router/sightline/engine/sglang"
	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/internal/testkit/vllmid"
)

// What a worker really holds, through wires that lose, repeat, re-order and cut messages and connections, while it is
// started anew, its replays race what it publishes, and, over NATS, two agents hear it: at the end the index says
// exactly what the worker holds. SIGHTLINE_LONG tries many seeds (make soak).

var (
	badEvents = faults{lose: 12, double: 12, swap: 12, halve: 25, cut: 40, delay: 12}
	badReplay = faults{cut: 120, delay: 30} // what TCP carries comes whole and in order, or the connection ends
)

func TestBadWire(t *testing.T) {
	seeds := 1
	if os.Getenv("SIGHTLINE_LONG") != "" {
		seeds = 60
	}
	for _, engine := range []string{"vllm", "vllm 0.22.0", "sglang", "sglang 0.5.6", "trtllm-zmq"} {
		for seed := range uint64(seeds) {
			t.Run(fmt.Sprint(engine, "/direct/", seed), func(t *testing.T) {
				t.Parallel()
				r := startRig(t, engine, seed)
				f, h := r.listen(r.path())
				r.traffic(nil)
				r.same(h)
				if s := f.Stats(); s.Gaps+s.Duplicates == 0 || s.Restarts == 0 || s.DecodeErrors == 0 || s.Replays == 0 {
					t.Errorf("too little happened: %+v", s)
				}
			})
			t.Run(fmt.Sprint(engine, "/alone/", seed), func(t *testing.T) { // without a replay
				t.Parallel()
				r := startRig(t, engine, seed)
				z := r.path()
				z.ReplayEndpoint = ""
				f, h := r.feed(stream.Options{Source: z, Decoder: r.decoder()})
				r.traffic(nil)
				f.Resync() // what is in doubt goes
				r.neverMore(h)
				if s := f.Stats(); s.Unfilled == 0 || s.Replays > 0 {
					t.Errorf("too little happened: %+v", s)
				}
			})
			t.Run(fmt.Sprint(engine, "/agents/", seed), func(t *testing.T) {
				t.Parallel()
				r := startRig(t, engine, seed)
				conn := startJetStream(t)
				l := &bus.Listener{NATS: conn} // makes the stream
				ctx, end := context.WithCancel(t.Context())
				defer end()
				go func() { _ = l.Run(ctx) }()
				r.agent(conn)
				younger := r.agent(conn)
				_, h := r.feed(stream.Options{Source: l.Source("w", -1), Decoder: new(bus.Decoder)})
				r.traffic(func() { // the younger agent is started anew
					younger.Close()
					r.agent(conn)
				})
				r.same(h)
			})
		}
	}
}

// rig is a worker behind bad wires, and an index.
type rig struct {
	*testing.T
	cfg   Config
	w     *Worker
	rng   *rand.Rand
	wires []*proxy
	index *indexer.Index
}

func startRig(t *testing.T, engine string, seed uint64) *rig {
	name, version, _ := strings.Cut(engine, " ")
	r := &rig{T: t, rng: rand.New(rand.NewPCG(seed, 3)), index: indexer.New(indexer.Options{}),
		cfg: Config{Engine: Engine(name), Version: version, Model: "test-vl", Prompt: wordPrompt, BlockSize: 4, Blocks: 48, Time: TimeModel{Decode: 100 * time.Microsecond}, Speed: 1}}
	r.restart()
	t.Cleanup(func() { r.w.Close() })
	return r
}

// restart replaces the worker by one that holds nothing; the wires lead to it.
func (r *rig) restart() {
	r.Helper()
	if r.w != nil {
		r.w.Close()
	}
	w, err := New(r.cfg)
	if err != nil {
		r.Fatal(err)
	}
	w.Start()
	r.w = w
	r.lead()
}

func (r *rig) lead() {
	for i, p := range r.wires {
		at := []string{r.w.EventsAddr(), r.w.ReplayAddr()}[i%2]
		at = strings.TrimPrefix(at, "tcp://")
		p.target.Store(&at)
	}
}

// path is a wire to each of the worker's two sockets.
func (r *rig) path() stream.ZMQ {
	events, replay := startProxy(r.T, r.rng.Uint64(), badEvents), startProxy(r.T, r.rng.Uint64(), badReplay)
	r.wires = append(r.wires, events, replay)
	r.lead()
	return stream.ZMQ{Endpoint: events.endpoint(), ReplayEndpoint: replay.endpoint()}
}

func (r *rig) decoder() stream.Decoder {
	switch r.cfg.Engine {
	case SGLang:
		return new(sglang.Decoder)
	case TRTLLMZMQ:
		return &trtllm.Decoder{BlockSize: r.cfg.BlockSize}
	}
	return new(vllm.Decoder)
}

// listen follows the worker itself.
func (r *rig) listen(z stream.ZMQ) (*stream.Feed, indexer.SlotID) {
	return r.feed(stream.Options{Source: z, Decoder: r.decoder(), Idle: 100 * time.Millisecond})
}

func (r *rig) feed(o stream.Options) (*stream.Feed, indexer.SlotID) {
	sink := stream.Join(r.index, r.cfg.Engine == VLLM)
	o.Sink, o.Held = sink, sink.Held
	f := stream.Start(o)
	r.Cleanup(f.Close)
	return f, sink.Slot()
}

// agent publishes what it hears of the worker, over wires of its own.
func (r *rig) agent(conn *nats.Conn) *stream.Feed {
	r.Helper()
	p, err := bus.NewPublisher(r.Context(), bus.PublisherOptions{NATS: conn, Worker: "w", Rank: -1, CountCopies: r.cfg.Engine == VLLM, Replays: true})
	if err != nil {
		r.Fatal(err)
	}
	o := stream.Options{Source: r.path(), Decoder: r.decoder(), Idle: 100 * time.Millisecond}
	p.Options(&o)
	f := stream.Start(o)
	r.Cleanup(f.Close)
	return f
}

// traffic sends conversations that share heads and push each other out, starts the worker anew twice, and in the end
// heals the wires. halfway is called between.
func (r *rig) traffic(halfway func()) {
	r.Helper()
	const requests = 240
	for i := range requests {
		switch {
		case i == requests/3 || i == requests*2/3:
			r.restart()
		case i == requests/2 && halfway != nil:
			halfway()
		case i%50 == 49:
			r.w.ResetPrefixCache()
		}
		if i%10 == 5 { // what nobody hears tries nothing
			r.heard()
		}
		head := words(5+r.rng.IntN(12), string(rune('a'+r.rng.IntN(4))))
		body := chat(head+words(r.rng.IntN(12), string(rune('p'+r.rng.IntN(6)))), fmt.Sprintf(`,"max_tokens":%d`, 1+r.rng.IntN(9)))
		if status, answer := call(r.T, r.w, "POST", "/v1/chat/completions", body); status != 200 {
			r.Fatalf("%d %s", status, answer)
		}
	}
	done := faults{}
	for _, p := range r.wires {
		p.healed.Store(true)
		p.mu.Lock()
		done.lose, done.double, done.swap, done.halve, done.cut = done.lose+p.done.lose, done.double+p.done.double, done.swap+p.done.swap, done.halve+p.done.halve, done.cut+p.done.cut
		p.mu.Unlock()
	}
	if min(done.lose, done.double, done.swap, done.halve, done.cut) == 0 {
		r.Errorf("the wires were too good: %+v", done)
	}
}

func (r *rig) heard() {
	r.Helper()
	for end := time.Now().Add(30 * time.Second); !r.w.Stats().Subscribed; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.Fatal("nobody has come back")
		}
	}
}

// same waits until the index says of a slot what the worker holds.
func (r *rig) same(h indexer.SlotID) {
	r.Helper()
	why := ""
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if why = r.unlike(h); why == "" {
			return
		}
	}
	r.Error(why)
}

// neverMore checks that the index has nothing of a slot that the worker does not hold, once all events have come.
func (r *rig) neverMore(h indexer.SlotID) {
	r.Helper()
	why := ""
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		held := map[string]bool{}
		for _, chain := range r.truth() {
			for n := range chain {
				held[fmt.Sprint(chain[:n+1])] = true
			}
		}
		list, err := r.index.Blocks(h)
		if err != nil {
			r.Fatal(err)
		}
		why = ""
		chains := make([][]uint64, len(list))
		for i, b := range list {
			if b.Parent >= 0 {
				chains[i] = slices.Clone(chains[b.Parent])
			}
			chains[i] = append(chains[i], b.Local)
			if b.Copies != [indexer.Tiers]uint8{} && !held[fmt.Sprint(chains[i])] {
				why = fmt.Sprintf("block %d of %d is not held: %d blocks into its prompt", i, len(list), len(chains[i]))
			}
		}
		if why == "" {
			return
		}
	}
	r.Error(why)
}

// unlike tells how the index differs from what the worker holds; "" where it does not.
func (r *rig) unlike(h indexer.SlotID) string {
	chains := r.truth()
	if held := r.index.HeldBlocks(h); held != len(chains) {
		return fmt.Sprintf("%d blocks in the index, the worker holds %d", held, len(chains))
	}
	if r.index.Partial(h) {
		return "the index takes what it has for a part"
	}
	var m indexer.Matches
	for _, chain := range chains {
		r.index.Match(chain, &m)
		if len(m.Slots) != 1 || int(m.Slots[0].Blocks) != len(chain) {
			return fmt.Sprintf("of a row of %d blocks %d are in the index", len(chain), m.Longest)
		}
	}
	return ""
}

// truth lists for each block that the worker holds the local hashes from its prompt's first block to it. What a block's event
// says goes through the engine's own form and decoder once more, on a good wire.
func (r *rig) truth() (chains [][]uint64) {
	r.Helper()
	e := r.w.engines[0]
	e.mu.Lock()
	defer e.mu.Unlock()
	local := map[string]uint64{}
	for hash, c := range e.pool.held {
		stored := event{kind: stored, hashes: []vllmid.Digest{hash}, parent: c.parent, tokens: c.tokens, keys: [][]vllmid.Key{c.keys}}
		batch, err := r.decoder().Decode(batchOf(r.w.form(), []event{stored}, 0, time.Now()))
		if err != nil || len(batch.Events) != 1 {
			r.Fatalf("a block's own event: %v, %d events", err, len(batch.Events))
		}
		local[string(hash)] = batch.Events[0].Locals[0]
	}
	for hash := range e.pool.held {
		var chain []uint64
		for at := hash; at != ""; at = e.pool.held[at].parent {
			if e.pool.held[at] == nil { // engines evict from the ends
				r.Fatal("a block is held and one before it is not")
			}
			chain = append(chain, local[string(at)])
		}
		slices.Reverse(chain)
		chains = append(chains, chain)
	}
	return chains
}

// startJetStream runs a NATS server and gives a connection to it.
func startJetStream(t testing.TB) *nats.Conn {
	t.Helper()
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		s.Shutdown()
		s.WaitForShutdown()
	})
	if !s.ReadyForConnections(20 * time.Second) {
		t.Fatal("the NATS server does not start")
	}
	conn, err := nats.Connect(s.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}
