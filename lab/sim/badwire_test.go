package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/sightline-router/sightline/engine/sglang"
	"github.com/sightline-router/sightline/engine/trtllm"
	"github.com/sightline-router/sightline/engine/vllm"
	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/kvevent"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/lab/vllmid"
)

// What a worker really holds, through wires that lose, repeat, re-order and cut messages and connections, while it is
// started anew, its replays race what it publishes, and, over NATS, two agents hear it: at the end the index says
// exactly what the worker holds. SIGHTLINE_LONG tries many seeds (make soak-index).

var (
	badEvents = faults{lose: 12, double: 12, swap: 12, halve: 25, cut: 40, delay: 12}
	badReplay = faults{cut: 120, delay: 30} // what TCP carries comes whole and in order, or the connection ends
)

func TestBadWire(t *testing.T) {
	seeds := badSeeds(60)
	for _, engine := range []string{"vllm", "vllm 0.23.0", "sglang", "sglang 0.5.20", "trtllm-zmq"} {
		for seed := range seeds {
			t.Run(fmt.Sprint(engine, "/direct/", seed), func(t *testing.T) {
				t.Parallel()
				r := startRig(t, engine, seed, 1)
				f, h := r.listen(r.path())
				r.traffic(nil)
				r.same(0, h)
				if s := f.Stats(); s.Gaps+s.Duplicates == 0 || s.Restarts == 0 || s.DecodeErrors == 0 || s.Replays == 0 {
					t.Errorf("too little happened: %+v; got %d, want some, Restarts some, DecodeErrors some, Replays some", s, s.Gaps+s.Duplicates)
				}
			})
			t.Run(fmt.Sprint(engine, "/alone/", seed), func(t *testing.T) { // without a replay
				t.Parallel()
				r := startRig(t, engine, seed, 1)
				z := r.path()
				z.ReplayEndpoint = ""
				f, h := r.feed(stream.Options{Source: z, Decoder: r.decoder()})
				r.traffic(nil)
				f.Resync() // what is in doubt goes
				r.neverMore(0, h)
				if s := f.Stats(); s.Unfilled == 0 || s.Replays > 0 {
					t.Errorf("too little happened: got %+v, want Unfilled some, Replays 0", s)
				}
			})
			t.Run(fmt.Sprint(engine, "/agents/", seed), func(t *testing.T) {
				t.Parallel()
				r := startRig(t, engine, seed, 1)
				conn := startJetStream(t)
				l := &bus.Listener{NATS: conn} // makes the stream
				ctx, end := context.WithCancel(t.Context())
				defer end()
				go func() { _ = l.Run(ctx) }()
				o := bus.PublisherOptions{NATS: conn, Rank: -1, Replays: true}
				r.agent(o, r.path())
				_, younger := r.agent(o, r.path())
				_, h := r.hear(l, -1)
				r.traffic(func(i int) {
					if i == badRequests/2 { // the younger agent is started anew
						younger.Close()
						r.agent(o, r.path())
					}
				})
				r.same(0, h)
			})
		}
	}
}

// A dead publisher behind an open connection, whose transport still answers PINGs, is reported as mute by its agent when it does not
// answer a replay request. When it publishes again, the agent reports it as live.
func TestMutePublisher(t *testing.T) {
	for _, way := range []string{"direct", "agent"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			r := startRig(t, "vllm", 1, 2)
			z := r.wire(1, faults{lose: 1}, faults{})
			events, replay := r.wires[0], r.wires[1]
			events.healed.Store(true)
			var f *stream.Feed
			var h indexer.SlotID
			if way == "direct" {
				f, h = r.listen(z)
			} else {
				l := &bus.Listener{NATS: startJetStream(t)}
				ctx, end := context.WithCancel(t.Context())
				defer end()
				go func() { _ = l.Run(ctx) }()
				r.agent(bus.PublisherOptions{NATS: l.NATS, Rank: 1, Replays: true}, z)
				f, h = r.hear(l, 1)
			}
			until := func(what string, ok func() bool) {
				t.Helper()
				for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("%s: got %+v, want that to end within two minutes", what, f.Stats())
					}
				}
			}
			live := func() bool { return f.Age(time.Now()) == 0 }
			r.ask(1, words(20, "before"))
			until("it does not begin", live)
			r.same(1, h)
			events.healed.Store(false)
			nowhere := "127.0.0.1:1"
			replay.target.Store(&nowhere)
			r.ask(1, words(20, "lost"))
			until("a dead publisher is taken for an idle one", func() bool { return !live() })
			events.healed.Store(true)
			r.lead()
			until("it is not heard again", live)
			r.same(1, h)
			r.ask(1, words(20, "after"))
			r.same(1, h)
		})
	}
}

// A rank is a stream of its own: what its wires do says nothing of the rank beside it, whose wires are good.
func TestBadWireOfOneRank(t *testing.T) {
	for _, engine := range []string{"vllm", "sglang", "trtllm-zmq"} {
		for seed := range badSeeds(20) {
			for _, way := range []string{"direct", "agents"} {
				t.Run(fmt.Sprint(engine, "/", way, "/", seed), func(t *testing.T) {
					t.Parallel()
					r := startRig(t, engine, seed, 2)
					good, bad := r.wire(0, faults{}, faults{}), r.path()
					heard, good0 := r.listen(good)
					var h indexer.SlotID
					if way == "direct" {
						_, h = r.listen(bad)
					} else {
						l := &bus.Listener{NATS: startJetStream(t)}
						ctx, end := context.WithCancel(t.Context())
						defer end()
						go func() { _ = l.Run(ctx) }()
						o := bus.PublisherOptions{NATS: l.NATS, Rank: 0, Replays: true}
						heard.Close()
						_, heard = r.agent(o, good)
						_, good0 = r.hear(l, 0)
						o.Rank = 1
						r.agent(o, bad)
						_, h = r.hear(l, 1)
					}
					r.traffic(func(i int) {
						if i%20 == 10 { // while the other's wires are bad
							r.ask(0, words(7, fmt.Sprint("own", i))) // tells of a reset before
							r.same(0, good0)
						}
					})
					r.same(0, good0)
					r.same(1, h)
					if s := heard.Stats(); s.DecodeErrors+s.Unfilled+s.UnknownBlocks+s.UnknownParents > 0 {
						t.Errorf("the rank with good wires: %+v; got %d, want 0", s, s.DecodeErrors+s.Unfilled+s.UnknownBlocks+s.UnknownParents)
					}
				})
			}
		}
	}
}

// badSeeds is one seed, or many where many are asked for.
func badSeeds(many uint64) uint64 {
	if os.Getenv("SIGHTLINE_LONG") == "" {
		return 1
	}
	return many
}

// rig is a worker whose last rank is behind bad wires, and an index.
type rig struct {
	*testing.T
	cfg   Config
	w     *Worker
	rng   *rand.Rand
	wires []badPath
	index *indexer.Index

	births atomic.Int64 // workers so far
}

// badPath leads to a socket of a rank.
type badPath struct {
	*proxy
	rank   int
	replay bool
}

func startRig(t *testing.T, engine string, seed uint64, ranks int) *rig {
	name, version, _ := strings.Cut(engine, " ")
	r := &rig{T: t, rng: rand.New(rand.NewPCG(seed, 3)), index: indexer.New(indexer.Options{}),
		cfg: Config{Engine: Engine(name), Version: version, Ranks: ranks, Model: "test-vl", Prompt: wordPrompt, BlockSize: 4,
			Blocks: 48, Time: TimeModel{Decode: 100 * time.Microsecond}, Speed: 1}}
	r.restart()
	t.Cleanup(func() { r.w.Close() })
	return r
}

// restart replaces the worker by one that holds nothing; the wires lead to it.
func (r *rig) restart() {
	r.Helper()
	r.replace()
	r.lead()
}

// replace does, and leaves the wires.
func (r *rig) replace() {
	r.Helper()
	r.births.Add(1)
	if r.w != nil {
		r.w.Close()
	}
	w, err := New(r.cfg)
	if err != nil {
		r.Fatal(err)
	}
	w.Start()
	r.w = w
}

// cut takes the wires away until lead.
func (r *rig) cut() {
	nowhere := "127.0.0.1:1"
	for _, p := range r.wires {
		p.target.Store(&nowhere)
		p.mu.Lock()
		for c := range p.open {
			_ = c.Close()
		}
		p.mu.Unlock()
	}
}

func (r *rig) lead() {
	for _, p := range r.wires {
		sockets := r.w.engines[p.rank].pub.(*publisher)
		at := sockets.pub.Addr().String()
		if p.replay {
			at = sockets.back.Addr().String()
		}
		p.target.Store(&at)
	}
}

// path is a bad wire to each of the last rank's two sockets.
func (r *rig) path() stream.ZMQ { return r.wire(r.cfg.Ranks-1, badEvents, badReplay) }

func (r *rig) wire(rank int, onEvents, onReplay faults) stream.ZMQ {
	events, replay := startProxy(r.T, r.rng.Uint64(), onEvents), startProxy(r.T, r.rng.Uint64(), onReplay)
	r.wires = append(r.wires, badPath{events, rank, false}, badPath{replay, rank, true})
	r.lead()
	return stream.ZMQ{Endpoint: events.endpoint(), ReplayEndpoint: replay.endpoint()}
}

func (r *rig) decoder() kvevent.Decoder {
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
	sink := stream.Join(r.index, indexer.SlotOptions{CountCopies: r.cfg.Engine == VLLM})
	o.Sink = sink
	f := stream.Start(o)
	r.Cleanup(f.Close)
	return f, sink.Slot()
}

// agent publishes what it hears of a rank.
func (r *rig) agent(o bus.PublisherOptions, z stream.ZMQ) (*bus.Publisher, *stream.Feed) {
	r.Helper()
	o.Worker, o.CountCopies = "w", r.cfg.Engine == VLLM
	p, err := bus.NewPublisher(r.Context(), o)
	if err != nil {
		r.Fatal(err)
	}
	from := stream.Options{Source: z, Decoder: r.decoder(), Idle: 100 * time.Millisecond}
	p.Options(&from)
	f := stream.Start(from)
	r.Cleanup(f.Close)
	return p, f
}

// hear follows what agents publish.
func (r *rig) hear(l *bus.Listener, rank int) (*stream.Feed, indexer.SlotID) {
	return r.feed(stream.Options{Source: l.Source("w", rank), Decoder: new(bus.Decoder), Idle: time.Second})
}

const badRequests = 240

// traffic sends conversations that share heads and push each other out, starts the worker anew twice, and in the end
// heals the wires. Before each request between is called, where it is not nil.
func (r *rig) traffic(between func(request int)) {
	r.Helper()
	for i := range badRequests {
		if between != nil {
			between(i)
		}
		switch {
		case i == badRequests/3 || i == badRequests*2/3:
			r.restart()
		case i%50 == 49:
			r.w.ResetPrefixCache()
		}
		if i%10 == 5 { // what nobody hears tries nothing
			r.heard()
		}
		r.converse()
	}
	done := faults{}
	for _, p := range r.wires {
		p.healed.Store(true)
		p.mu.Lock()
		done.lose, done.double, done.swap, done.halve, done.cut = done.lose+p.done.lose, done.double+p.done.double,
			done.swap+p.done.swap, done.halve+p.done.halve, done.cut+p.done.cut
		p.mu.Unlock()
	}
	if min(done.lose, done.double, done.swap, done.halve, done.cut) == 0 {
		r.Errorf("the wires were too good: %+v", done)
	}
}

// converse sends a request of a few conversations.
func (r *rig) converse() {
	r.Helper()
	head := words(5+r.rng.IntN(12), string(rune('a'+r.rng.IntN(4))))
	r.ask(r.rng.IntN(r.cfg.Ranks), head+words(r.rng.IntN(12), string(rune('p'+r.rng.IntN(6)))))
}

func (r *rig) ask(rank int, text string) {
	r.Helper()
	body := chat(text, fmt.Sprintf(`,"max_tokens":%d`, 1+r.rng.IntN(9)))
	if status, answer := call(r.T, r.w, "POST", "/v1/chat/completions", body, "X-Data-Parallel-Rank", fmt.Sprint(rank)); status != 200 {
		r.Fatalf("%d %s", status, answer)
	}
}

func (r *rig) heard() {
	r.Helper()
	for end := time.Now().Add(2 * time.Minute); !r.w.Stats().Subscribed; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.Fatal("nobody has come back")
		}
	}
}

// same waits until the index says of a slot what the rank holds.
func (r *rig) same(rank int, h indexer.SlotID) {
	r.Helper()
	why := ""
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		why = r.unlike(rank, h)
		if why == "" {
			return
		}
	}
	r.Error(why)
}

// neverMore checks that the index has nothing of a slot that the rank does not hold, once all events have come.
func (r *rig) neverMore(rank int, h indexer.SlotID) {
	r.Helper()
	why := ""
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		held := map[string]bool{}
		chains, _ := r.truth(rank)
		for _, chain := range chains {
			for n := range chain {
				held[fmt.Sprint(chain[:n+1])] = true
			}
		}
		list, err := r.index.Blocks(h)
		if err != nil {
			r.Fatal(err)
		}
		why = ""
		chains = make([][]uint64, len(list))
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

// unlike tells how the index differs from what the rank holds; "" where it does not.
func (r *rig) unlike(rank int, h indexer.SlotID) string {
	chains, _ := r.truth(rank)
	if held := r.index.HeldBlocks(h); held != len(chains) {
		return fmt.Sprintf("%d blocks in the index, the worker holds %d", held, len(chains))
	}
	if r.index.Partial(h) {
		return "the index takes what it has for a part"
	}
	var m indexer.Matches
	for _, chain := range chains {
		r.index.Match(chain, &m)
		if !slices.Contains(m.Slots, indexer.Match{Slot: h, Blocks: uint32(len(chain))}) {
			return fmt.Sprintf("of a row of %d blocks %d are in the index", len(chain), m.Longest)
		}
	}
	return ""
}

// truth lists for each block that the rank holds the local hashes from its prompt's first block to it, and its engine
// hash. What a block's event says goes through the engine's own form and decoder once more, on a good wire.
func (r *rig) truth(rank int) (chains [][]uint64, ends []uint64) {
	r.Helper()
	e := r.w.engines[rank]
	e.mu.Lock()
	defer e.mu.Unlock()
	local, engineHash := map[string]uint64{}, map[string]uint64{}
	held := map[vllmid.Digest]*content{}
	for key, h := range e.pool.Held() {
		held[key.Hash] = h.Content
	}
	for hash, c := range held {
		stored := event{kind: stored, hashes: []vllmid.Digest{hash}, parent: c.parent, tokens: c.tokens, keys: [][]vllmid.Key{c.keys}}
		batch, err := r.decoder().Decode(batchOf(r.w.form(), []event{stored}, 0, time.Now()))
		if err != nil || len(batch.Events) != 1 {
			r.Fatalf("a block's own event: %v, %d events", err, len(batch.Events))
		}
		local[string(hash)], engineHash[string(hash)] = batch.Events[0].Locals[0], batch.Events[0].EngineHashes[0]
	}
	for hash := range held {
		var chain []uint64
		for at := hash; at != ""; at = held[at].parent {
			if held[at] == nil { // engines evict from the ends
				r.Fatal("a block is held and one before it is not")
			}
			chain = append(chain, local[string(at)])
		}
		slices.Reverse(chain)
		chains, ends = append(chains, chain), append(ends, engineHash[string(hash)])
	}
	return chains, ends
}

// startJetStream runs a NATS server and gives a connection to it.
func startJetStream(t testing.TB) *nats.Conn {
	t.Helper()
	conn, err := nats.Connect(startNATS(t).ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}
