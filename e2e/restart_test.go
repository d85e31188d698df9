package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// talk is a conversation: the same beginning as all others, and turns of its own.
type talk struct {
	messages []any
	rng      *rand.Rand
}

var systemPrompt = words(rand.New(rand.NewPCG(1, 1)), 400)

func words(rng *rand.Rand, n int) string {
	var b strings.Builder
	for range n {
		fmt.Fprintf(&b, "%c%c%c ", 'a'+rng.IntN(26), 'a'+rng.IntN(26), 'a'+rng.IntN(26))
	}
	return b.String()
}

func newTalk(seed uint64) *talk {
	return &talk{messages: []any{map[string]any{"role": "system", "content": systemPrompt}}, rng: rand.New(rand.NewPCG(seed, 2))}
}

// turn is the conversation's next request, with a message of some words.
func (c *talk) turn(n int) map[string]any {
	if len(c.messages) > 1 {
		c.messages = append(c.messages, map[string]any{"role": "assistant", "content": words(c.rng, 5)})
	}
	c.messages = append(c.messages, map[string]any{"role": "user", "content": words(c.rng, n)})
	return map[string]any{"messages": c.messages}
}

// direct has a worker answer a request that passes Sightline by, and gives the prompt's tokens.
func direct(t *testing.T, w *sim.Worker, body map[string]any) (prompt int) {
	body["model"], body["max_tokens"] = lab.ModelName, 1
	raw, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Post("http://"+w.Addr()+"/v1/chat/completions", "application/json", bytes.NewReader(raw))
	if err != nil {
		t.Error(err)
		return 0
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status %d: %s, want %d", resp.StatusCode, text, http.StatusOK)
	}
	return int(gjson.GetBytes(text, "usage.prompt_tokens").Int())
}

// A router that starts beside a worker which has told of its cache longer ago than it can tell again: what comes again is
// known after it has come once, and nothing is promised that is not held.
func TestStartBesideAFullWorker(t *testing.T) {
	t.Parallel()
	for _, named := range []bool{true, false} {
		t.Run(fmt.Sprint("sessions named ", named), func(t *testing.T) {
			chats, window := 4000, 1000
			if !named {
				chats, window = 1000, 250
			}
			l := startLab(t, func(o *lab.Options) {
				o.Workers, o.Blocks = 1, 1<<17
				o.Sim = func(_ int, c *sim.Config) { c.BufferSteps = window }
				o.Config = func(keys map[string]any) {
					keys["fixed"] = map[string]any{"no_sessions": !named, "predicted_ttl": "100ms"} // what counts is what the index knows
				}
			})
			l.KillSightline()
			all := make([]*talk, chats)
			var fill sync.WaitGroup
			for k := range 4 {
				fill.Go(func() {
					for i := k; i < chats; i += 4 {
						all[i] = newTalk(uint64(i))
						direct(t, l.Sims[0], all[i].turn(220))
					}
				})
			}
			fill.Wait()
			t.Logf("the worker holds %d blocks and has told of them in %d batches, of which it can tell %d again",
				l.Sims[0].Stats().Blocks, l.Sims[0].Stats().Batches, window)
			if err := l.StartSightline(); err != nil {
				t.Fatal(err)
			}
			if err := l.WaitReady(t.Context()); err != nil {
				t.Fatal(err)
			}
			eventually(t, "Envoy to ask Sightline again", func() bool {
				post(t, l, newTalk(1<<40).turn(5), nil)
				return metric(t, l, "sightline_decisions_total", "") > 0
			})
			some := rand.New(rand.NewPCG(9, 9)).Perm(chats)[:150]
			round := func() (held, known int) {
				for _, i := range some {
					r := post(t, l, all[i].turn(40), nil)
					d := lastDecision(t, l)
					predicted := int(d.Get("cached_tokens").Int())
					if r.status != http.StatusOK || predicted > r.cached {
						t.Fatalf("status %d: %d tokens predicted, the worker had %d\n%s", r.status, predicted, r.cached, d.Raw)
					}
					held, known = held+r.cached, known+predicted
				}
				return held, known
			}
			held, known := round()
			t.Logf("first time: %d of %d tokens known", known, held)
			eventually(t, "the last request's verdict", func() bool {
				return lastDecision(t, l).Get("audit").Exists() // not a count: a decision that a busy machine made late has none
			})
			held, known = round()
			t.Logf("second time: %d of %d tokens known", known, held)
			if known*100 < held*95 {
				t.Errorf("%d of %d tokens that the worker holds are known, want 95 %%", known, held)
			}
			rows, _ := lab.Get("http://" + l.Admin + "/workers")
			if n := gjson.GetBytes(rows, "0.blocks_held").Int(); int(n) > l.Sims[0].Stats().Blocks {
				t.Errorf("%d blocks known of a worker that holds %d: got %d, want at most %d",
					n, l.Sims[0].Stats().Blocks, int(n), l.Sims[0].Stats().Blocks)
			}
		})
	}
}

// A worker that was started anew and has nobody who could replay its events: what it held before is forgotten before it says anything,
// since its page tells that it is another.
func TestWorkerReborn(t *testing.T) {
	t.Parallel()
	var c sim.Config
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 1
		o.Sim = func(_ int, is *sim.Config) { c = *is }
		o.Config = func(keys map[string]any) {
			worker := keys["workers"].([]any)[0].(map[string]any)
			delete(worker["events"].(map[string]any), "replay")
		}
	})
	first := post(t, l, newTalk(1).turn(50), nil)
	awaitExact(t, l, first.worker, first.prompt)
	eventually(t, "its page to be read", func() bool {
		rows, err := lab.Get("http://" + l.Admin + "/workers")
		return err == nil && gjson.GetBytes(rows, "0.told").Exists()
	})
	old := l.Sims[0]
	c.Listen, c.Events = old.Addr(), strings.TrimPrefix(old.EventsAddr(), "tcp://")
	old.Close()
	var err error
	eventually(t, "the ports to be free", func() bool {
		l.Sims[0], err = sim.New(c)
		return err == nil
	})
	l.Sims[0].Start()
	eventually(t, "the old blocks to go", func() bool {
		rows, err := lab.Get("http://" + l.Admin + "/workers")
		return err == nil && gjson.GetBytes(rows, "0.blocks_held").Int() == 0
	})
	if n := metric(t, l, "sightline_events_total", `what="restarts"`); n != 1 {
		t.Errorf("%v restarts counted, want 1", n)
	}
	eventually(t, "the worker to be well", func() bool { return post(t, l, newTalk(1).turn(50), nil).status == http.StatusOK })
	again := post(t, l, newTalk(1).turn(50), nil)
	awaitExact(t, l, again.worker, again.prompt)
}

// sibling is a Sightline beside a lab's, with its configuration, that shares with it directly. Envoy does not ask it.
type sibling struct {
	t             *testing.T
	listen, admin string
	keys          map[string]any
	process       *process
}

// beside is lab.Options.Config.
func (s *sibling) beside(keys map[string]any) {
	s.listen, s.admin = freeAddr(s.t), freeAddr(s.t)
	delete(keys, "nats")
	keys["replicas"] = map[string]any{"addresses": []any{keys["listen"], s.listen}}
	s.keys = maps.Clone(keys)
	s.keys["listen"], s.keys["admin"] = s.listen, s.admin
}

// start starts it, and waits until it hears the worker, both hear each other, and it has the lab's secret, which is the older one: after
// that it would have to ask the lab's Sightline again for what the worker holds.
func (s *sibling) start(l *lab.Lab) {
	s.t.Helper()
	bin, err := product()
	if err != nil {
		s.t.Fatal(err)
	}
	text, err := yaml.Marshal(s.keys)
	file := filepath.Join(s.t.TempDir(), "sibling.yaml")
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.process = startProcess(s.t, "sibling", func() *exec.Cmd { return exec.Command(bin, "serve", "-c", file) })
	eventually(s.t, "one secret", func() bool {
		m, err := lab.Get("http://" + s.admin + "/metrics")
		return err == nil && bytes.Contains(m, []byte(`sightline_resyncs_total{why="rehash",worker="worker-1"} 1`))
	})
	for _, admin := range []string{s.admin, l.Admin} {
		eventually(s.t, "both are there", func() bool {
			rows, err := lab.Get("http://" + admin + "/workers")
			peers, err2 := lab.Get("http://" + admin + "/metrics")
			return err == nil && err2 == nil && gjson.GetBytes(rows, "0.events").Str == "live" &&
				bytes.Contains(peers, []byte("\nsightline_peers 1\n"))
		})
	}
}

// A Sightline that starts beside a worker without a complete replay gets the worker's blocks from the other Sightline: at once, or, if
// that one cannot be reached for long, as soon as it can be. What the worker stores and removes meanwhile is not lost.
func TestLateReplica(t *testing.T) {
	t.Parallel()
	for name, silent := range map[string]bool{"at once": false, "heard late": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lateReplica(t, silent)
		})
	}
}

func lateReplica(t *testing.T, silent bool) {
	another := sibling{t: t}
	l := startLab(t, func(o *lab.Options) {
		o.Workers, o.Config = 1, another.beside
		o.Sim = func(_ int, is *sim.Config) { is.BufferSteps = 10 }
	})
	another.start(l)
	var all []*talk
	for i := range 40 {
		all = append(all, newTalk(uint64(i)))
		direct(t, l.Sims[0], all[i].turn(200))
	}
	l.KillSightline()
	if silent {
		another.process.signal(syscall.SIGSTOP)
	}
	if err := l.StartSightline(); err != nil {
		t.Fatal(err)
	}
	if silent {
		eventually(t, "the worker's own replay", func() bool {
			rows, err := lab.Get("http://" + l.Admin + "/workers")
			return err == nil && gjson.GetBytes(rows, "0.events").Str == "live" && gjson.GetBytes(rows, "0.partial").Bool()
		})
		another.process.signal(syscall.SIGCONT)
	}
	held := direct(t, l.Sims[0], all[0].turn(200)) / 16 * 16
	eventually(t, "it holds all that the worker holds", func() bool { // it may be partial once more while it makes the hashes anew
		rows, err := lab.Get("http://" + l.Admin + "/workers")
		return err == nil && gjson.GetBytes(rows, "0.blocks_held").Int() == int64(l.Sims[0].Stats().Blocks) &&
			gjson.GetBytes(rows, "0.events").Str == "live" &&
			!gjson.GetBytes(rows, "0.partial").Bool()
	})
	if n := metricOf(t, l.Admin, "sightline_peer_handovers_total", `what="taken"`); n < 1 || n > 2 { // again when both have one secret
		t.Errorf("%v handed over here, want some, at most 2", n)
	}
	if n := metricOf(t, another.admin, "sightline_peer_handovers_total", `what="told"`); n < 1 || n > 2 {
		t.Errorf("%v told by the other, want some, at most 2", n)
	}
	for i := range 3 {
		eventually(t, "requests are decided", func() bool { return post(t, l, all[i].turn(40), nil).status == http.StatusOK && lastID(l) != "" })
		if d := lastDecision(t, l); i == 0 && int(d.Get("cached_tokens").Int()) < held || d.Get("reason").Str != "exact" {
			t.Errorf("conversation %d: %s", i, d.Raw)
		}
	}
}

// What a restart of Sightline, or of an agent, costs, by how events come (make bench-restart): conversations go on while it starts. A
// decision is blind that knows less than nine tenths of what a worker holds of its prompt.
func TestBenchRestart(t *testing.T) {
	if os.Getenv("SIGHTLINE_BENCH_RESTART") == "" {
		t.Skip("make bench-restart runs it")
	}
	const talks, pace, lasts = 200, 50 * time.Millisecond, 20 * time.Second
	for _, c := range []struct {
		name          string
		workers, home int // the worker that has all conversations
		window        int // batches that it can tell again
		others        int // of so many turns one passes Sightline by, as another replica's would; 0: none
		// it is killed in place of Sightline, half of what it told behind a snapshot: with "own" credentials, or those for "any" worker
		agent       string
		blindAfter5 int // at most; below 0: any number
	}{
		{"ZeroMQ with replay", 1, 0, 10000, 0, "", 0},
		{"ZeroMQ, a replay of a quarter", 1, 0, talks / 4, 0, "", -1},
		{"agents over NATS", 2, 1, 10000, 0, "", 0},
		{"two replicas, a replay of a quarter", 1, 0, talks / 4, 2, "", 0},
		{"the agent alone, a replay of a quarter", 2, 1, talks / 4, 0, "any", 0},
		{"the same, with its worker's credentials", 2, 1, talks / 4, 0, "own", -1},
	} {
		another := sibling{t: t}
		l := startLab(t, func(o *lab.Options) {
			o.Workers, o.Blocks, o.AnyAgent = c.workers, 1<<15, c.agent == "any"
			o.Sim = func(_ int, is *sim.Config) { is.BufferSteps = c.window }
			if c.others > 0 {
				o.Config = another.beside
			}
		})
		if c.others > 0 {
			another.start(l)
		}
		all, held := make([]*talk, talks), make([]int, talks)
		turn := func(i int) { held[i] = direct(t, l.Sims[c.home], all[i].turn(40)) / 16 * 16 }
		known := func() { // Sightline knows what the agent has heard, and that is all that its worker told
			eventually(t, "what the worker told to be known", func() bool {
				state, err := lab.Get("http://" + l.AgentAdmin[0] + "/state")
				rows, err2 := lab.Get("http://" + l.Admin + "/workers")
				agent := gjson.GetBytes(state, "ranks.0")
				return err == nil && err2 == nil && agent.Get("not_ready").Str == "" &&
					agent.Get("published.Blocks").Int() == int64(l.Sims[c.home].Stats().Blocks) &&
					gjson.GetBytes(rows, "1.blocks_held").Int() == int64(l.Sims[c.home].Stats().Blocks)
			})
		}
		for i := range all {
			if i == talks/2 && c.agent != "" { // it writes a snapshot
				known()
				if err := l.EndAgent(1, syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
				if err := l.StartAgent(1); err != nil {
					t.Fatal(err)
				}
				known()
			}
			all[i] = newTalk(uint64(i))
			held[i] = direct(t, l.Sims[c.home], all[i].turn(200)) / 16 * 16
		}
		rng := rand.New(rand.NewPCG(3, 3))
		kill, start := l.KillSightline, l.StartSightline
		if c.agent != "" {
			known()
			kill, start = func() { _ = l.EndAgent(1, syscall.SIGKILL) }, func() error { return l.StartAgent(1) }
		}
		kill()
		began := time.Now()
		if err := start(); err != nil {
			t.Fatal(err)
		}
		var ready, warm time.Duration
		decided, blind, late, undecided := 0, 0, 0, 0
		for next := began; time.Since(began) < lasts; next = next.Add(pace) {
			time.Sleep(time.Until(next))
			i := rng.IntN(talks)
			if c.others > 0 && rng.IntN(c.others) == 0 {
				turn(i)
				continue
			}
			at := time.Since(began)
			before := lastID(l)
			r := post(t, l, all[i].turn(40), nil)
			if now := lastID(l); now == "" || now == before {
				undecided++
			} else {
				d := lastDecision(t, l)
				decided++
				if ready == 0 {
					ready = at
				}
				if int(d.Get("cached_tokens").Int())*10 < held[i]*9 {
					blind, warm = blind+1, at
					if at > ready+5*time.Second {
						late++
					}
				}
			}
			held[i] = 0
			if r.worker == c.home {
				held[i] = r.prompt / 16 * 16
			}
		}
		t.Logf("%-36s %3d of %3d decisions blind, %3d later than 5 s after the first; the last %4.1f s after the start, the "+
			"first decision %.1f s; %d requests undecided",
			c.name+":", blind, decided, late, warm.Seconds(), ready.Seconds(), undecided)
		if c.blindAfter5 >= 0 && late > c.blindAfter5 || decided == 0 {
			t.Errorf("%s: %d blind decisions after 5 s, want %d", c.name, late, c.blindAfter5)
		}
		l.Stop()
	}
}

// lastID is the newest decision's; "" while Sightline does not answer.
func lastID(l *lab.Lab) string {
	d, _ := lab.Get("http://" + l.Admin + "/decisions?n=1")
	return gjson.GetBytes(d, "0.id").Str
}
