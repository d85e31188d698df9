package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/app/doctor"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/sim"
)

// TestSwappedEventSockets: the event sockets of two of four workers are configured the wrong way round. All streams are live; a few
// requests show it, and neither of the two healthy workers is named. Once the file is right and read again, nothing is.
func TestSwappedEventSockets(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(keys map[string]any){
		"sessions":       func(map[string]any) {},
		"no sessions":    func(keys map[string]any) { keys["fixed"] = map[string]any{"no_sessions": true} },
		"no model files": func(keys map[string]any) { delete(keys["models"].([]any)[0].(map[string]any), "dir") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var at [4][2]string // of each worker's events and replay
			l := startLab(t, func(o *lab.Options) {
				o.Workers = len(at)
				o.Sim = func(i int, c *sim.Config) {
					at[i] = [2]string{freeAddr(t), freeAddr(t)}
					c.Events, c.Replay = at[i][0], at[i][1]
				}
				o.Config = func(keys map[string]any) {
					change(keys)
					for i, w := range keys["workers"].([]any) {
						e := at[[]int{1, 0, 2, 3}[i]]
						w.(map[string]any)["events"] = map[string]any{"zmq": "tcp://" + e[0], "replay": "tcp://" + e[1]}
					}
				}
			})
			for i := range 32 {
				if got := ask(t, l, fmt.Sprintf("Question %d, which nobody has asked before: %s?", i, strings.Repeat("why ", 60))); got.status != 200 {
					t.Fatalf("got %+v, want status 200", got)
				}
			}
			page := ""
			if err := lab.WaitFor(t.Context(), "both workers among the problems", func() bool {
				text, err := lab.Get("http://" + l.Admin + "/problems")
				page = string(text)
				one := gjson.Get(page, `#(code=="SL0308")`)
				return err == nil && len(one.Get("workers").Array()) == 2
			}); err != nil {
				t.Fatalf("got %v %q, want no error", err, page)
			}
			one := gjson.Get(page, `#(code=="SL0308")`)
			if what := one.Get("what").Str; !strings.Contains(what, "worker-1, worker-2") || !strings.Contains(one.Get("fix").Str, "events.zmq") {
				t.Errorf(`got %q, want strings.Contains(what, "worker-1, worker-2"), strings.Contains(one.Get("fix").Str, "events.zmq")`, one.Raw)
			}
			if n := len(gjson.Parse(page).Array()); n != 1 {
				t.Errorf("something else is said to be wrong as well: %q; got %d, want 1", page, n)
			}
		})
	}
}

// TestSlowWorkerIsNamed: with four clients, a worker that takes twice as long as before is named by log, page and doctor, with how much
// slower it is. Before, nothing is.
func TestSlowWorkerIsNamed(t *testing.T) {
	t.Parallel()
	var log *lockedBuffer
	l := startLab(t, func(o *lab.Options) {
		o.Speed, log = 1, o.Log.(*lockedBuffer)
		o.Config = func(keys map[string]any) { keys["log_level"] = "warn" }
	})
	ctx, stop := context.WithCancel(t.Context())
	var clients sync.WaitGroup
	for c := range 4 {
		clients.Go(func() {
			for k := 0; ctx.Err() == nil; k++ {
				body := fmt.Sprintf(`{"model":%q,"max_tokens":2,"messages":[{"role":"user","content":"%s"}]}`, lab.ModelName,
					strings.Repeat(fmt.Sprintf("%d.%d ", c, k), 80+k%7*40))
				raws(t, l, []byte(body), nil)
			}
		})
	}
	defer clients.Wait()
	defer stop()
	problems := func() string {
		text, _ := lab.Get("http://" + l.Admin + "/problems")
		return string(text)
	}
	time.Sleep(5 * time.Second) // equal workers
	if page := problems(); page != "[]\n" {
		t.Errorf("before anything is wrong: got %q, want %q", page, "[]\n")
	}
	l.Sims[1].SetSlow(2)
	began, one := time.Now(), gjson.Result{}
	if err := lab.WaitFor(t.Context(), "the slow worker among the problems", func() bool {
		one = gjson.Get(problems(), `#(code=="SL0110")`)
		return one.Exists()
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("after %v: %s", time.Since(began), one.Get("what").Str)
	if !strings.Contains(one.Get("what").Str, "worker-2: computes prompts much slower") || len(one.Get("workers").Array()) != 1 {
		t.Error(one.Raw)
	}
	eventually(t, "the log names it", func() bool {
		return strings.Contains(log.String(), "SL0110: worker-2: computes prompts much slower")
	})
	checks, _ := doctored(t, l.Self(), l.Config(), "--no-canary")
	at := slices.IndexFunc(checks, func(c doctor.Result) bool { return c.Code == "SL0110" })
	if !strings.Contains(strings.Join(checks[at].Evidence, "\n"), "worker-2: computes prompts much slower") {
		t.Errorf(`got %+v, want strings.Contains(strings.Join(checks[at].Evidence, "\n"), "worker-2: computes prompts much slower")`, checks[at])
	}
}

// TestLateEventsAreNamed: what one of two workers publishes is on its way for four or six seconds. Within half a minute of traffic it is
// named with that, and at no time is anything else said, such as that its prefix cache is off.
func TestLateEventsAreNamed(t *testing.T) {
	t.Parallel()
	for _, late := range []int{4, 6} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			t.Parallel()
			l := startLab(t, func(o *lab.Options) {
				o.Workers = 2
				o.Sim = func(i int, c *sim.Config) { c.EventsLate = time.Duration(i*late) * time.Second }
			})
			one, first := firstTold(t, l, "SL0303", func(i int) {
				question(l.URL, i)
				page, _ := lab.Get("http://" + l.Admin + "/problems")
				if other := gjson.GetBytes(page, `#(code!="SL0303").code`); other.Exists() {
					t.Errorf("got %s, want SL0303 alone: %s", other.Str, page)
				}
			})
			what := one.Get("what").Str
			var by float64
			_, _ = fmt.Sscanf(what[strings.LastIndex(what, ": ")+1:], "%fs", &by)
			if !first || !strings.Contains(what, "worker-2: KV events come late") || by < float64(late)-0.5 || by > float64(late)+1 {
				t.Errorf("first of all: %t; got %s, want that worker-2's events come %d s late", first, one.Raw, late)
			}
		})
	}
}

// TestTinyCacheIsNamed: one of three workers has room for 23 blocks, so that what it computes is evicted at once.
func TestTinyCacheIsNamed(t *testing.T) {
	t.Parallel()
	l := startLab(t, func(o *lab.Options) {
		o.Workers = 3
		o.Sim = func(i int, c *sim.Config) {
			if i == 1 {
				c.Blocks = 24
			}
		}
	})
	one, _ := firstTold(t, l, "SL0503", func(i int) { question(l.URL, i) })
	if what := one.Get("what").Str; !strings.Contains(what, "worker-2: its KV cache is too small") || len(one.Get("workers").Array()) != 1 {
		t.Errorf("got %s, want the cache of worker-2 alone", one.Raw)
	}
}

// TestRotatedNATSKeyIsNamed: a NATS server has a new password, and Sightline's file the old one. /problems and doctor name the key, of the
// agents' server as of Dynamo's, until the file has the new one.
func TestRotatedNATSKeyIsNamed(t *testing.T) {
	t.Parallel()
	bin, err := product()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ key, text string }{
		"agents": {"nats", "models: [{name: m, engine_version: 0.32.0}]\nworkers: [{addr: %[1]q, events: {nats: true}}]\nnats: %[2]s\n"},
		"Dynamo": {"dynamo.nats", "models: [{name: m, block_hash: dynamo}]\n" +
			"dynamo: {discovery: %[3]q, frontends: [%[1]q], nats: %[2]s}\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, port := t.TempDir(), -1
			serve := func(password string) (end func()) {
				s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: port, Username: "u", Password: password, NoSigs: true,
					NoLog: true, JetStream: true, StoreDir: filepath.Join(dir, "nats")})
				if err != nil {
					t.Fatal(err)
				}
				s.Start()
				if !s.ReadyForConnections(10 * time.Second) {
					t.Fatal("NATS does not start")
				}
				port = server.RANDOM_PORT
				_, _ = fmt.Sscanf(s.Addr().String(), "127.0.0.1:%d", &port)
				return sync.OnceFunc(func() { s.Shutdown(); s.WaitForShutdown() })
			}
			password, file, admin := filepath.Join(dir, "password"), filepath.Join(dir, "sightline.yaml"), freeAddr(t)
			write := func(file, text string) {
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			end := serve("old")
			defer func() { end() }()
			write(password, "u:old")
			write(file, fmt.Sprintf("listen: %s\nadmin: %s\nlog_level: error\nfixed: {probe: false}\n", freeAddr(t), admin)+
				fmt.Sprintf(c.text, freeAddr(t), fmt.Sprintf("{url: \"nats://127.0.0.1:%d\", auth: %q}", port, password), dir))
			startProcess(t, "sightline", func() *exec.Cmd { return exec.Command(bin, "serve", "-c", file) })
			told := func() string {
				text, err := lab.Get("http://" + admin + "/problems")
				if err != nil {
					return err.Error()
				}
				return gjson.GetBytes(text, `#(code=="SL0601")#|#(severity=="error").what`).Str
			}
			eventually(t, "Sightline is connected", func() bool { return told() == "" })
			end()
			end = serve("new")
			says := c.key + ": the server rejects the credentials"
			eventually(t, "/problems says: "+says, func() bool { return strings.Contains(told(), says) })
			checks, _ := doctored(t, bin, file, "--no-canary", "--admin", "http://"+admin)
			at := slices.IndexFunc(checks, func(c doctor.Result) bool { return c.Code == "SL0601" })
			evidence := strings.Join(checks[at].Evidence, "\n")
			if checks[at].Verdict != doctor.Error || !strings.Contains(evidence, says) {
				t.Errorf("doctor: got %s, %s, want an error with %q", checks[at].Verdict, evidence, says)
			}
			write(password, "u:new")
			eventually(t, "nothing is said any more", func() bool { return told() == "" })
		})
	}
}
