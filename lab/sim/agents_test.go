package sim

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/indexer/stream"
	"github.com/sightline-router/sightline/lab/vllmid"
)

// What a worker really holds, through agents that are killed, engines that are replaced behind their agent, and a NATS that
// goes away, with what it kept or without, while the wires themselves are good. Engines differ in what lets an agent know
// what it missed: a replay socket, a time of birth, or neither.
func TestAgentsThatDie(t *testing.T) {
	const replay, birth, neither = "replay", "birth", "neither"
	all, forms := []string{replay, birth, neither}, []string{"vllm", "sglang", "trtllm-zmq"}
	for i, c := range []struct {
		name    string
		engines []string
		act     func(*agentRig)
	}{
		{"the agent ends and begins", all, func(r *agentRig) { r.stop(false); r.begin() }},
		{"the agent is killed", all, func(r *agentRig) { r.stop(true); r.talk(); r.begin() }},
		{"the agent is killed, and the engine replaced", all, func(r *agentRig) { r.stop(true); r.restart(); r.begin() }},
		{"the engine is replaced", all, func(r *agentRig) { r.restart() }},
		{"the engine is replaced, its numbers fit", []string{replay, birth}, func(r *agentRig) { r.replaceUnseen() }},
		{"NATS cannot be reached", all, func(r *agentRig) { r.natsAway(true, r.talk) }},
		{"NATS cannot be reached, and so is the engine for a while", all, func(r *agentRig) { r.natsAway(true, r.restart) }},
		{"NATS has lost all", all, func(r *agentRig) { r.natsAway(false, r.talk) }},
		{"NATS has lost all, and the agent is killed", all, func(r *agentRig) { r.natsAway(false, func() { r.stop(true) }); r.begin() }},
	} {
		for j, engine := range c.engines {
			for k, form := range forms {
				for ranks := 1; ranks <= 2; ranks++ {
					if badSeeds(2) == 1 && ((i+j)%len(forms) != k || (i+j/2)%2 != ranks-1) { // one of the six
						continue
					}
					t.Run(fmt.Sprint(c.name, "/", engine, "/", form, "/", ranks), func(t *testing.T) {
						t.Parallel()
						r := startAgentRig(t, form, uint64(i), ranks, engine)
						r.talk()
						if engine != replay { // SGLang's first message is told before anybody can hear it
							r.w.ResetPrefixCache()
							r.talk()
						}
						r.same(r.rank, r.slot)
						c.act(r)
						r.talk()
						if engine != replay {
							r.routers.Resync() // what is in doubt goes: nobody can tell what was missed, until the engine clears
							r.neverMore(r.rank, r.slot)
							r.w.ResetPrefixCache()
							r.talk()
						}
						r.same(r.rank, r.slot)
					})
				}
			}
		}
	}
}

// An agent that begins with its engine knows all from the first message on, and says so: vLLM's is the first that something
// was stored. SGLang's comes when its publisher begins: an agent that cannot ask for it knows only that something was told.
func TestWhetherAFirstAgentIsPartial(t *testing.T) {
	for form, partial := range map[string]bool{"vllm/replay": false, "vllm/neither": false, "sglang/replay": false, "sglang/neither": true} {
		engine, way, _ := strings.Cut(form, "/")
		r := startAgentRig(t, engine, 1, 1, way)
		r.talk()
		r.neverMore(r.rank, r.slot)
		if !partial {
			r.same(r.rank, r.slot)
		}
		if s := r.routers.Stats(); s.Partial != partial || s.Restarts+s.Unfilled > 0 {
			t.Errorf("%s: %+v; got %d, want Partial %v, 0", form, s, s.Restarts+s.Unfilled, partial)
		}
	}
}

// An agent that begins beside a full engine with a short replay window: routers hear of blocks behind those that nobody told of,
// requests show what these are, and what comes again is known, to a router that was there and to one that joins. The agent's next
// life knows as much, and after a gap routers doubt what the agent doubts.
func TestAgentBesideAFullEngine(t *testing.T) {
	for _, form := range []string{"vllm", "sglang", "trtllm-zmq"} {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			r := &agentRig{rig: startRig(t, form, 5, 1), engine: "replay", nats: startNATS(t)}
			r.cfg.BufferSteps, r.cfg.Blocks = 4, 4096
			r.restart()
			r.path = r.wire(0, faults{}, faults{})
			for range 120 {
				r.converse()
			}
			link, err := bus.StartLink(bus.LinkOptions{Access: bus.Access{URL: r.nats.ClientURL()}, Log: zap.NewNop()})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(link.Close)
			r.begin()
			r.routers, r.slot = r.hear(&link.Listener, -1)
			r.talk()
			r.shown()
			r.saved()
			r.stop(true)
			r.talk() // more than the window
			r.begin()
			r.talk()
			r.shown()
			r.stop(false)
			r.begin()
			r.talk()
			r.shown()
			r.index = indexer.New(indexer.Options{}) // another router: what waited for its parent when the agent missed something is not told to it
			r.known = 0
			r.routers.Close()
			r.routers, r.slot = r.hear(&link.Listener, -1)
			r.shown()
		})
	}
}

// saved waits until the agent's first snapshot is written: one that is killed before leaves nothing to go on from.
func (r *agentRig) saved() {
	for end := time.Now().Add(2 * time.Minute); r.agents.Stats().SnapshotBytes == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.Fatal("no snapshot is written")
		}
	}
}

// shown waits until what requests show of the blocks behind unknown ones makes the router know all that waits, as behind a stream of
// its own, and nothing that the worker does not hold.
func (r *agentRig) shown() {
	r.Helper()
	end := time.Now().Add(2 * time.Minute)
	for ; r.routers.Stats().Orphans == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.Fatalf("no block waits for its parent: %+v", r.routers.Stats())
		}
	}
	r.neverMore(0, r.slot)
	chains, ends := r.truth(0)
	// More may be on its way.
	for ; r.routers.Stats().Orphans > 0 || r.index.HeldBlocks(r.slot) < r.known; time.Sleep(10 * time.Millisecond) {
		for i, chain := range chains {
			r.routers.Learn(stream.Stem{Parent: ends[i], Locals: chain})
		}
		if time.Now().After(end) {
			r.Fatalf("%d blocks known of %d, %d were before: %+v", r.index.HeldBlocks(r.slot), len(chains), r.known, r.routers.Stats())
		}
	}
	r.neverMore(0, r.slot)
	r.known = r.index.HeldBlocks(r.slot)
}

// agentRig is a worker whose last rank is heard by an agent, and a router that hears the agent.
type agentRig struct {
	*rig
	rank   int
	engine string // replay, birth or neither
	path   stream.ZMQ
	nats   *natsServer
	conn   *nats.Conn   // the agent's
	feed   *stream.Feed // the agent's
	agents *bus.Publisher

	routers *stream.Feed
	slot    indexer.SlotID
	known   int // blocks, as shown saw it
}

func startAgentRig(t *testing.T, form string, seed uint64, ranks int, engine string) *agentRig {
	r := &agentRig{rig: startRig(t, form, seed, ranks), rank: ranks - 1, engine: engine, nats: startNATS(t)}
	r.path = r.wire(r.rank, faults{}, faults{})
	if engine != "replay" {
		r.path.ReplayEndpoint = ""
	}
	link, err := bus.StartLink(bus.LinkOptions{Access: bus.Access{URL: r.nats.url()}, Log: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(link.Close)
	r.begin()
	r.routers, r.slot = r.hear(&link.Listener, r.natsRank())
	return r
}

func (r *agentRig) natsRank() int {
	if r.cfg.Ranks == 1 {
		return -1
	}
	return r.rank
}

// begin starts an agent, with a connection of its own, and waits until it hears the engine.
func (r *agentRig) begin() {
	r.Helper()
	conn, err := nats.Connect(r.nats.url(), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1), nats.ReconnectWait(20*time.Millisecond))
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(conn.Close)
	o := bus.PublisherOptions{NATS: conn, Rank: r.natsRank(), Replays: r.engine == "replay"}
	if r.engine == "birth" {
		o.ProcessID = func(context.Context) string { return fmt.Sprint(r.births.Load()) }
	}
	r.conn = conn
	r.agents, r.feed = r.agent(o, r.path)
	r.heard()
}

// heard waits until the agent hears its rank.
func (r *agentRig) heard() {
	r.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		if _, subscribed := r.w.engines[r.rank].pub.(*publisher).told(); subscribed {
			return
		} else if time.Now().After(end) {
			r.Fatal("the agent has not come back")
		}
	}
}

// stop ends the agent, or kills it before it can say a word.
func (r *agentRig) stop(kill bool) {
	if kill {
		r.conn.Close()
	}
	r.feed.Close()
	r.conn.Close()
	r.feed = nil
}

// talk is traffic that pushes blocks out.
func (r *agentRig) talk() {
	r.Helper()
	for range 25 {
		r.converse()
	}
}

// restart replaces the worker while the agent hears it, and waits until it hears the new one.
func (r *agentRig) restart() {
	r.rig.restart()
	if r.feed != nil {
		r.heard()
	}
}

// replaceUnseen replaces the worker by one whose number is the next that the agent waits for when the agent hears it.
func (r *agentRig) replaceUnseen() {
	r.Helper()
	sockets := func() *publisher { return r.w.engines[r.rank].pub.(*publisher) }
	r.cut()
	told, _ := sockets().told()
	r.replace()
	for range 5 {
		r.converse()
	}
	for n, _ := sockets().told(); n < told; n++ { // with what changes nothing
		sockets().publish([]event{{kind: removed, hashes: []vllmid.Digest{vllmid.Digest(fmt.Sprintf("%032d", n))}}})
	}
	r.lead()
	r.heard()
}

// natsServer is a NATS server that can be stopped and started again at its address.
type natsServer struct {
	testing.TB
	*server.Server
	dir  string
	port int
}

func startNATS(t testing.TB) *natsServer {
	s := &natsServer{TB: t, dir: t.TempDir(), port: -1}
	s.start()
	t.Cleanup(s.stop)
	return s
}

func (s *natsServer) start() {
	s.TB.Helper()
	var err error
	s.Server, err = server.NewServer(&server.Options{Host: "127.0.0.1", Port: s.port, JetStream: true, StoreDir: s.dir,
		NoSigs: true, NoLog: true})
	if err != nil {
		s.TB.Fatal(err)
	}
	s.Server.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		s.TB.Fatal("the NATS server does not start")
	}
	s.port = s.Addr().(*net.TCPAddr).Port
}

func (s *natsServer) stop() {
	s.Shutdown()
	s.WaitForShutdown()
}

func (s *natsServer) url() string { return s.ClientURL() }

// natsAway does something while NATS cannot be reached, which comes back with its store, or without.
func (r *agentRig) natsAway(kept bool, while func()) {
	r.Helper()
	r.nats.stop()
	while()
	if !kept {
		r.nats.dir = r.TempDir()
	}
	r.nats.start()
}
