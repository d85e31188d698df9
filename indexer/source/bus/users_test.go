package bus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/sightline-router/sightline/indexer"
	"github.com/sightline-router/sightline/indexer/stream"

	"github.com/sightline-router/sightline/mmhash/block"
)

// guarded is a router on a server that knows the router, and the agents of workers a and b.
type guarded struct {
	dir, url string
	*Link
}

// withUsers returns one on an embedded server; asExample on a nats-server with the configuration of examples/nats.
func withUsers(t *testing.T) guarded { return guardedBy(t, nil) }
func asExample(t *testing.T) guarded {
	return guardedBy(t, func(dir string) string {
		text, err := os.ReadFile("../../../examples/nats/nats-server.conf")
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, "nats-server.conf"), string(text))
		o, err := server.ProcessConfigFile(filepath.Join(dir, "nats-server.conf"))
		if err != nil {
			t.Fatal(err)
		}
		o.Port, o.StoreDir, o.NoSigs, o.NoLog = server.RANDOM_PORT, filepath.Join(dir, "streams"), true, true
		s, err := server.NewServer(o)
		if err != nil {
			t.Fatal(err)
		}
		go s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		if !s.ReadyForConnections(2 * time.Minute) {
			t.Fatal("the server does not start")
		}
		return s.Addr().String()
	})
}

func guardedBy(t *testing.T, begin func(dir string) (addr string)) guarded {
	t.Helper()
	dir := t.TempDir()
	if _, err := WriteUsers(dir, []string{"a", "b", AnyWorker}); err != nil {
		t.Fatal(err)
	}
	o := LinkOptions{Access: Access{Auth: filepath.Join(dir, routerSeed)}, Log: zap.NewNop()}
	addr := ""
	if begin != nil {
		addr = begin(dir)
	} else {
		o.Server = Server{Listen: "0.0.0.0:0", Config: filepath.Join(dir, usersFile)}
	}
	at := func() string { return "nats://127.0.0.1" + addr[strings.LastIndexByte(addr, ':'):] }
	if addr != "" {
		o.Access.URL = at()
	}
	l, err := StartLink(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	if addr == "" {
		addr = l.server.Addr().String()
	}
	return guarded{dir, at(), l}
}

// as connects as one of the users and counts refusals.
func (g *guarded) as(t *testing.T, worker, seed string) (*nats.Conn, *atomic.Int64) {
	t.Helper()
	refused := new(atomic.Int64)
	inbox := AgentInbox(worker)
	if seed == routerSeed {
		inbox = RouterInbox
	}
	c, err := Access{URL: g.url, Auth: filepath.Join(g.dir, seed)}.Connect(ConnectOptions{Name: worker, Inbox: inbox, Log: zap.NewNop(),
		Refused: func() { refused.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c, refused
}

// follows returns a router's view of a worker.
func (g *guarded) follows(t *testing.T, worker string) *router {
	r := &router{t: t, index: indexer.New(indexer.Options{}), listener: &g.Listener, feeds: map[string]*stream.Feed{},
		slots: map[string]indexer.SlotID{}}
	r.follow(worker)
	t.Cleanup(r.feeds[worker].Close)
	return r
}

// TestPermissions checks that, with the users and permissions that WriteUsers writes, on a server that everybody can reach,
// everything works, from an agent's events to a late router's snapshot, and that what an open server lets everybody do is
// refused. There, one message of anybody claimed blocks for any worker, or took it out for half a minute, and one request deleted
// the stream.
func TestPermissions(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { testPermissions(t, withUsers(t)) })
	t.Run("examples/nats", func(t *testing.T) { testPermissions(t, asExample(t)) })
}

func testPermissions(t *testing.T, g guarded) {
	payloads, prompts := recording(t)
	agentA, refusedA := g.as(t, "a", "agent-a.nk")
	agentB, refusedB := g.as(t, "b", "agent-b.nk")
	a, _ := agent(t, agentA, "a")
	b, _ := agent(t, agentB, "b")
	a.give(payloads...)
	b.give(payloads[:10]...)
	ofB := g.follows(t, "b")
	g.follows(t, "a").same("a", payloads, prompts) // asks the agent for its snapshot
	ofB.same("b", payloads[:10], prompts)
	if n := refusedA.Load() + refusedB.Load(); n > 0 {
		t.Fatalf("%d refusals of what agents need, want 0", n)
	}

	asRouter, refusedRouter := g.as(t, "", routerSeed)
	before := ofB.feeds["b"].Stats()
	// it would end all that the router knows of b
	younger := (&head{key: block.Fixed().ID, epoch: uint64(time.Now().Add(time.Hour).UnixNano())}).append(nil)
	for _, who := range []struct {
		name    string
		conn    *nats.Conn
		refused *atomic.Int64
	}{{"agent a", agentA, refusedA}, {"a router", asRouter, refusedRouter}} {
		for what, subject := range map[string]string{"events of b": "sightline.kv.b.0", "a snapshot of b": "sightline.state.b.0.tag",
			"a heartbeat of b": "sightline.beat.b.0",
			"deleting":         "$JS.API.STREAM.DELETE.SIGHTLINE_KV",
			"changing":         "$JS.API.STREAM.UPDATE.SIGHTLINE_KV", "purging": "$JS.API.STREAM.PURGE.SIGHTLINE_KV",
			"deleting a message": "$JS.API.STREAM.MSG.DELETE.SIGHTLINE_KV", "another stream": "$JS.API.STREAM.CREATE.MINE",
			"an answer for b": "sightline.inbox.router.x", "answering for b": "< sightline.ask.b.0", "hearing answers": "< sightline.inbox.>",
			"hearing events": "< sightline.kv.>"} {
			before := who.refused.Load()
			var err error
			if heard, ok := strings.CutPrefix(subject, "< "); ok {
				_, err = who.conn.SubscribeSync(heard)
			} else {
				err = who.conn.Publish(subject, younger)
			}
			err = errors.Join(err, who.conn.Flush())
			if err != nil { // the server's refusals come before its answer to this
				t.Fatal(err)
			}
			until(t, who.name+": a refusal of "+what, func() bool { return who.refused.Load() > before })
		}
	}
	// A server delivers a push consumer's messages to whatever subject its creator names, regardless of his permissions.
	for _, to := range []string{"sightline.kv.b.0", "sightline.inbox.router.x", "sightline.ask.b.0"} {
		before := refusedA.Load()
		answers, answer := AgentInbox("a")+".made", make(chan *nats.Msg, 1)
		sub, err := agentA.ChanSubscribe(answers, answer)
		if err != nil {
			t.Fatal(err)
		}
		body := fmt.Sprintf(`{"stream_name":"SIGHTLINE_KV","config":{"name":"x","filter_subject":"sightline.kv.a.0","deliver_subject":%q,"ack_policy":"none"}}`, to)
		if err := agentA.PublishRequest("$JS.API.CONSUMER.CREATE.SIGHTLINE_KV.x.sightline.kv.a.0", answers, []byte(body)); err != nil {
			t.Fatal(err)
		}
		until(t, "an answer or a refusal", func() bool { return len(answer) > 0 || refusedA.Load() > before })
		select {
		case m := <-answer:
			if !strings.Contains(string(m.Data), `"error"`) {
				t.Errorf("agent a has its messages delivered to %s: %s", to, m.Data)
			}
		default:
		}
		_ = sub.Unsubscribe()
	}
	times := refusedA.Load()
	for _, subject := range []string{"$JS.API.CONSUMER.CREATE.SIGHTLINE_KV.mine.sightline.kv.>", "$JS.API.CONSUMER.CREATE.SIGHTLINE_KV.mine",
		"$JS.API.DIRECT.GET.SIGHTLINE_KV.sightline.kv.b.0", "$JS.API.DIRECT.GET.SIGHTLINE_KV"} {
		if err := errors.Join(agentA.Publish(subject, nil), agentA.Flush()); err != nil {
			t.Fatal(err)
		}
		times++
		until(t, "a refusal of reading b by "+subject, func() bool { return refusedA.Load() == times })
	}
	// An agent may have what it may read sent anywhere: its own message, as one of b's, or as b's snapshot.
	if _, err := agentA.Request("sightline.kv.a.0", younger, time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"sightline.kv.b.0", "sightline.state.b.0.tag"} {
		if err := errors.Join(agentA.PublishRequest("$JS.API.DIRECT.GET.SIGHTLINE_KV.sightline.kv.a.0", to, nil), agentA.Flush()); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the forged message", func() bool {
		js, _ := g.NATS.JetStream()
		m, err := js.GetLastMsg("SIGHTLINE_KV", "sightline.kv.b.0", nats.DirectGet())
		tag, err2 := js.GetLastMsg("SIGHTLINE_STATE", "sightline.state.b.0.tag", nats.DirectGet())
		return err == nil && err2 == nil && len(m.Header["Nats-Stream"]) > 1 && len(tag.Header["Nats-Stream"]) > 1
	})
	b.give(payloads[10:]...)
	ofB.same("b", payloads, prompts)
	if st := ofB.feeds["b"].Stats(); st.Epoch != before.Epoch || st.Restarts != before.Restarts {
		t.Errorf("another's message was heard: got %+v, before %+v, want Epoch %d, Restarts %d", st, before, before.Epoch, before.Restarts)
	}

	for name, stranger := range map[string]Access{"without credentials": {URL: g.url},
		"with a seed of its own": {URL: g.url, Auth: strangersSeed(t)}} {
		list, err := stranger.Options()
		if err != nil {
			t.Fatal(err)
		}
		if c, err := nats.Connect(g.url, append(list, nats.Timeout(time.Minute))...); !errors.Is(err, nats.ErrAuthorization) {
			t.Errorf("a stranger %s comes in: %v, %v, want %v", name, c, err, nats.ErrAuthorization)
		}
	}
}

// TestTakeOverByCredentials starts an agent after a killed one, with what that one published after its snapshot only in the
// stream. With the credentials for all workers it reads that, and routers keep what they know. With those of its own worker it
// fails at once: what was published after the snapshot is lost, and nothing is known that the engine does not have.
func TestTakeOverByCredentials(t *testing.T) {
	for name, begin := range map[string]func(*testing.T) guarded{"embedded": withUsers, "examples/nats": asExample} {
		for seed, may := range map[string]bool{anySeed: true, "agent-a.nk": false} {
			t.Run(name+"/"+seed, func(t *testing.T) {
				t.Parallel()
				payloads, prompts := recording(t)
				half := len(payloads) - 20
				g := begin(t)
				h := &hand{ready: make(chan *stream.Feed, 1), kept: 1}
				conn, _ := g.as(t, "a", seed)
				o := PublisherOptions{NATS: conn, Worker: "a", Replays: true, every: time.Hour}
				first := h.agent(t, o)
				h.give(payloads[:half]...)
				r := g.follows(t, "a")
				r.same("a", payloads[:half], prompts)
				l, err := newRankLine(g.NATS, first.rankLine.suffix)
				if err == nil {
					err = l.requestSnapshot(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
				h.give(payloads[half:]...)
				r.same("a", payloads, prompts)
				all := first.Stats().Blocks
				conn.Close()
				h.f.Close()

				core, seen := observer.New(zapcore.WarnLevel)
				conn, refused := g.as(t, "a", seed)
				o.NATS, o.Log = conn, zap.New(core)
				second := h.agent(t, o)
				st, said := second.Stats(), seen.FilterMessageSnippet("cannot read what the previous agent published").All()
				if may {
					if !st.Resumed || st.Blocks != all || len(said) > 0 || refused.Load() > 0 {
						t.Errorf("%d blocks, want %d; it says %v; %d refusals", st.Blocks, all, said, refused.Load())
					}
					r.same("a", payloads, prompts)
					return
				}
				until(t, "the refusal", func() bool { return refused.Load() == 1 })
				if len(said) != 1 || said[0].ContextMap()["error"] != errNoReadPermission.Error() || !st.Resumed || st.Blocks == 0 || st.Blocks >= all {
					t.Errorf("%d blocks, %d before; it says %v", st.Blocks, all, said)
				}
				until(t, "routers know as much as the agent", func() bool {
					return r.index.HeldBlocks(r.slots["a"]) == second.Stats().Blocks && r.index.Partial(r.slots["a"])
				})
				for i, p := range prompts {
					var is, engine indexer.Matches
					r.index.Match(p, &is)
					first.index.Match(p, &engine)
					if is.Longest > engine.Longest {
						t.Errorf("prompt %d: got %d blocks known, the engine has %d, want at most %d", i, is.Longest, engine.Longest, engine.Longest)
					}
				}
			})
		}
	}
}

func strangersSeed(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, err := WriteUsers(dir, nil); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, routerSeed)
}

// TestUsersChange checks that a user that is removed under a running agent is refused, logged once and counted, until its seed is
// known again, and then publishes on, and that a new worker's agent is admitted without a restart.
func TestUsersChange(t *testing.T) {
	t.Parallel() // it waits for the server's check
	payloads, prompts := recording(t)
	g := withUsers(t)
	core, seen := observer.New(zapcore.InfoLevel)
	var refused atomic.Int64
	seed := filepath.Join(g.dir, "agent-a.nk")
	text, err := os.ReadFile(seed)
	own := filepath.Join(t.TempDir(), "seed") // the agent's copy
	if err != nil || os.WriteFile(own, text, 0o600) != nil {
		t.Fatal(err)
	}
	c, err := Access{URL: g.url, Auth: own}.Connect(ConnectOptions{Inbox: AgentInbox("a"), Log: zap.New(core),
		Refused: func() { refused.Add(1) }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	a, _ := agent(t, c, "a")
	a.give(payloads[:20]...)
	r := g.follows(t, "a")
	r.same("a", payloads[:20], prompts)

	write := func(workers ...string) {
		t.Helper()
		if _, err := WriteUsers(g.dir, workers); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(seed); err != nil {
		t.Fatal(err)
	}
	write("c")
	until(t, "the refusals", func() bool { return refused.Load() > 2 })
	if n := seen.FilterMessageSnippet("NATS rejects").Len(); n != 1 {
		t.Errorf("the log says it %d times, want 1", n)
	}
	other, _ := g.as(t, "c", "agent-c.nk")
	h, _ := agent(t, other, "c")
	h.give(payloads...)
	g.follows(t, "c").same("c", payloads, prompts)
	a.give(payloads[20:]...)
	if err := os.WriteFile(seed, text, 0o600); err != nil {
		t.Fatal(err)
	}
	write()
	r.same("a", payloads, prompts)
}

// TestWriteUsers checks that each gets a user, whatever a worker's name is; that only we can read seeds; that existing ones stay;
// and that there is one key for all agents if requested.
func TestWriteUsers(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	made, err := WriteUsers(dir, []string{"10.0.0.5:8000", "any", AnyWorker})
	if want := []string{"router.nk", "agent-10=2E0=2E0=2E5=3A8000.nk", "agent-any.nk", "agents.nk", "users.conf"}; err != nil ||
		!slices.Equal(made, want) {
		t.Fatalf("got %v, %v, want no error, %q", made, err, want)
	}
	for _, name := range made[:4] {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: got %v, %v, want a file that only its owner reads", name, info, err)
		}
	}
	first, err := os.ReadFile(filepath.Join(dir, "users.conf"))
	if err != nil {
		t.Fatal(err)
	}
	made, err = WriteUsers(dir, []string{"any"})
	if err != nil || len(made) != 1 {
		t.Errorf("again: got %v, %v, want no error, 1 of them", made, err)
	}
	if again, _ := os.ReadFile(filepath.Join(dir, "users.conf")); string(again) != string(first) || aSeed.Match(first) {
		t.Errorf("users.conf is now\n%s\nit was\n%s", again, first)
	}
	o, err := server.ProcessConfigFile(filepath.Join(dir, "users.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"sightline.kv.10=2E0=2E0=2E5=3A8000.*", "sightline.kv.any.*", "sightline.kv.*.*", "sightline.ask.*.*"} {
		n := 0
		for _, u := range o.Nkeys {
			if slices.Contains(u.Permissions.Publish.Allow, want) {
				n++
			}
		}
		if n != 1 || len(o.Nkeys) != 4 {
			t.Errorf("%d of %d users may publish %s, want 1, 4", n, len(o.Nkeys), want)
		}
	}
	for _, wrong := range []func() error{
		func() error { _, err := WriteUsers(dir, []string{""}); return err },
		func() error {
			writeFile(t, filepath.Join(dir, "agent-x.nk"), "?")
			_, err := WriteUsers(dir, nil)
			return err
		},
	} {
		if wrong() == nil {
			t.Error("taken")
		}
	}
}

// TestForgedSubjects checks that with one agent's key nobody speaks for another agent or for a replica. A server sends the answer to a
// request for a message, or for the state of a stream, to whatever subject the requester names, regardless of permissions.
func TestForgedSubjects(t *testing.T) {
	t.Run("embedded", func(t *testing.T) { t.Parallel(); testForgedSubjects(t, withUsers(t)) })
	t.Run("examples/nats", func(t *testing.T) { t.Parallel(); testForgedSubjects(t, asExample(t)) })
}

func testForgedSubjects(t *testing.T, g guarded) {
	payloads, prompts := recording(t)
	g.silence = 500 * time.Millisecond
	agentA, refused := g.as(t, "a", "agent-a.nk")
	agentB, _ := g.as(t, "b", "agent-b.nk")
	hb := &hand{ready: make(chan *stream.Feed, 1)}
	b := hb.agent(t, PublisherOptions{NATS: agentB, Worker: "b", beat: 50 * time.Millisecond})
	b.onLink(nil, true)
	hb.give(payloads[:20]...)
	ofB := g.follows(t, "b")
	ofB.same("b", payloads[:20], prompts)
	live := func() bool { st := ofB.feeds["b"].Stats(); return st.Live() }
	until(t, "live", live)
	since := time.Now() // a machine that is busy for longer than the silence begins this anew
	until(t, "an agent that its own heartbeats keep live", func() bool {
		if !live() {
			since = time.Now()
		}
		return time.Since(since) > 2*g.silence
	})
	var asks atomic.Int64
	if _, err := agentB.Subscribe("sightline.ask.b.0", func(*nats.Msg) { asks.Add(1) }); err != nil || agentB.Flush() != nil {
		t.Fatal(err)
	}
	b.mu.Lock()
	snapshots, beat := b.stats.Snapshots, appendBeat(nil, b.agent^1, 1<<60)
	b.mu.Unlock()

	// What agent a stores as its own message: a heartbeat with a number that it guesses.
	if _, err := agentA.Request("sightline.kv.a.0", beat, time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, request := range []string{"$JS.API.STREAM.INFO.SIGHTLINE_KV", "$JS.API.STREAM.INFO.SIGHTLINE_KEY",
		"$JS.API.DIRECT.GET.SIGHTLINE_KV.sightline.kv.a.0"} {
		for _, to := range []string{"sightline.beat.b.0", "sightline.ask.b.0", "sightline.state.b.0.tag", "sightline.key"} {
			if err := agentA.PublishRequest(request, to, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := agentA.Flush(); err != nil || refused.Load() > 0 {
		t.Fatalf("%v, %d refusals: this test does not reach the server, want no error, 0", err, refused.Load())
	}
	until(t, "the forged messages", func() bool { return asks.Load() == 3 })
	b.mu.Lock()
	waiting, written := len(b.waitingRouters), b.stats.Snapshots
	b.mu.Unlock()
	if waiting > 0 || written > snapshots+1 { // one may have been due
		t.Errorf("agent b wrote %d snapshots, and %d wait: got %d, want 0, at most %d", written-snapshots, waiting, written, snapshots+1)
	}

	agentB.Close() // its machine is cut off; a goes on
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		for {
			for _, request := range []string{"$JS.API.STREAM.INFO.SIGHTLINE_KV", "$JS.API.DIRECT.GET.SIGHTLINE_KV.sightline.kv.a.0"} {
				_ = agentA.PublishRequest(request, "sightline.beat.b.0", nil)
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	until(t, "a killed agent noticed", func() bool { return !live() })
	for range 50 {
		time.Sleep(10 * time.Millisecond)
		if live() {
			t.Fatal("another agent's forged heartbeats show it as live")
		}
	}
}

// TestHeartbeat: a heartbeat counts once, with the line's agent's number, and without a header.
func TestHeartbeat(t *testing.T) {
	f := new(followedFeed)
	take := func(m *nats.Msg) bool {
		f.lastHeartbeat.Store(0)
		f.takeHeartbeat(m)
		return f.lastHeartbeat.Load() > 0
	}
	beat := func(agent, number uint64) *nats.Msg { return &nats.Msg{Data: appendBeat(nil, agent, number)} }
	if take(beat(0, 1)) {
		t.Error("of a line that is not known")
	}
	f.sawLine(&head{epoch: 5, seq: 7, agent: 42})
	f.sawLine(&head{epoch: 5, seq: 6, agent: 41})
	marked := beat(42, 1)
	marked.Header = nats.Header{"Nats-Stream": {"X"}}
	for i, c := range []struct {
		m    *nats.Msg
		want bool
	}{{beat(42, 1), true}, {beat(42, 1), false}, {beat(41, 9), false}, {beat(42, 3), true}, {beat(42, 2), false}, {marked, false},
		{&nats.Msg{}, false}, {&nats.Msg{Data: append(appendBeat(nil, 42, 9), 0)}, false}} {
		if got := take(c.m); got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
	f.sawLine(&head{epoch: 6, agent: 43})
	if !take(beat(43, 1)) || take(beat(42, 100)) {
		t.Error("after another agent took over")
	}
}

// TestSharedSecret: routers agree on the first one's secret, agents read it, no agent can replace it, and a router that comes with
// another takes it over.
func TestSharedSecret(t *testing.T) {
	t.Parallel()
	g := withUsers(t)
	js := func(c *nats.Conn) jetstream.JetStream {
		j, err := jetstream.New(c)
		if err != nil {
			t.Fatal(err)
		}
		return j
	}
	first, second := block.NewSecret(), block.NewSecret()
	if got, err := shareSecret(t.Context(), js(g.NATS), first); err != nil || got != first.Bytes() {
		t.Fatalf("got another secret, or %v, want the first router's", err)
	}
	if got, err := shareSecret(t.Context(), js(g.NATS), second); err != nil || got != first.Bytes() {
		t.Errorf("the second router: got another secret, or %v, want the first router's", err)
	}
	conn, refused := g.as(t, "a", "agent-a.nk")
	s, err := AwaitSecret(t.Context(), conn, zap.NewNop())
	if err != nil || s.Bytes() != first.Bytes() || refused.Load() > 0 {
		t.Fatalf("the agent: got another secret, %v, or %d refusals, want the first router's", err, refused.Load())
	}
	replaced := make(chan bool, 1)
	go func() { // an agent with a lost server's
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		(&SharedSecret{second, js(conn), zap.NewNop()}).Changed(ctx)
		replaced <- ctx.Err() == nil
	}()
	for _, subject := range []string{"$JS.API.STREAM.CREATE.SIGHTLINE_KEY", "$JS.API.STREAM.UPDATE.SIGHTLINE_KEY",
		"$JS.API.STREAM.DELETE.SIGHTLINE_KEY", "sightline.key"} {
		before := refused.Load()
		if err := errors.Join(conn.Publish(subject, nil), conn.Flush()); err != nil {
			t.Fatal(err)
		}
		until(t, "a refusal of "+subject, func() bool { return refused.Load() > before })
	}
	if !<-replaced {
		t.Error("an agent does not notice that the routers have another secret")
	}
}
