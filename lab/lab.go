// Package lab puts the whole product on one machine, for the demo and for tests: simulated workers, Sightline and its agents
// as processes, a real Envoy.
package lab

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/goccy/go-yaml"
	"github.com/tidwall/gjson"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/indexer/source/bus"
	"github.com/sightline-router/sightline/lab/envoytest"
	"github.com/sightline-router/sightline/lab/sim"
)

// Options say what stands in a Lab.
type Options struct {
	Self     string // path of the sightline binary
	Envoy    string // path of the Envoy binary
	ModelDir string
	Prompts  Prompts    // how the simulated workers read requests
	Workers  int        // how many; 0: three
	Engine   sim.Engine // of the workers; "": vLLM
	Ranks    int        // data-parallel ranks a worker; 0: none
	Debug    bool       // envoy.debug_headers
	Speed    float64    // of the simulated workers; 0: no delay
	Blocks   int        // of a worker's cache; 0: the simulator's default
	AnyAgent bool       // each agent may publish for every worker
	// Without leaves Sightline away: Envoy then spreads requests round robin.
	Without bool
	// Sim, if set, may change what the i-th simulated worker is.
	Sim func(i int, c *sim.Config)
	// Config, if set, may change Sightline's configuration, as the YAML file's keys, before it is written.
	Config func(keys map[string]any)
	// Front, if set, may change what Envoy's configuration is made of.
	Front func(o *envoy.Options)
	Log   io.Writer // Sightline's and the agents' own output; nil: standard error
}

// ModelName is what requests call the model, unless a test says otherwise.
const ModelName = "sim-vl"

// Lab is the whole on one machine: simulated workers in this process; Sightline, its agents and Envoy in processes of
// their own. The first worker's events go to Sightline by ZeroMQ, the others' through an agent and NATS.
type Lab struct {
	Sims       []*sim.Worker
	URL        string // of Envoy
	Admin      string // host:port of Sightline's admin page; "" without it
	ExtProc    string // host:port where Envoy finds Sightline
	EnvoyAdmin string
	NATS       string   // host:port of Sightline's embedded server
	AgentAdmin []string // host:port of each agent's page

	o      Options
	dir    string
	client *http.Client
	served sync.Map // a request's user → worker
	config string   // Sightline's file
	passed int      // Envoy's health checks of Sightlines before this one
	main   *exec.Cmd
	agents []*exec.Cmd
	envoy  *envoytest.Process
	once   sync.Once
}

// Start starts everything and waits until it is ready. Stop it, also after an error.
func Start(ctx context.Context, o Options) (*Lab, error) {
	l := &Lab{o: o, client: &http.Client{Timeout: readyWait}}
	var err error
	l.dir, err = os.MkdirTemp("", "sightline-lab-")
	if err != nil {
		return l, err
	}
	if l.o.Workers == 0 {
		l.o.Workers = 3
	}
	var addrs []string
	for i := range l.o.Workers {
		c := sim.Config{Engine: o.Engine, Model: ModelName, Speed: o.Speed, Blocks: o.Blocks, Ranks: max(1, o.Ranks),
			Prompt: func(ctx context.Context, path string, body []byte) ([]sim.Prompt, error) {
				l.served.Store(gjson.GetBytes(body, "user").Str, i)
				return o.Prompts(ctx, path, body)
			}}
		if o.Sim != nil {
			o.Sim(i, &c)
		}
		w, err := sim.New(c)
		if err != nil {
			return l, err
		}
		w.Start()
		l.Sims = append(l.Sims, w)
		addrs = append(addrs, w.Addr())
	}
	ports, err := FreePorts(5 + l.o.Workers)
	if err != nil {
		return l, err
	}
	at := func(i int) string { return fmt.Sprintf("127.0.0.1:%d", ports[i]) }
	l.URL, l.EnvoyAdmin, l.ExtProc = "http://"+at(0), at(1), at(2)
	if !o.Without {
		l.Admin, l.NATS = at(3), at(4)
		if err := l.configure(at(2)); err != nil {
			return l, err
		}
		if err := l.StartSightline(); err != nil {
			return l, err
		}
		for i, w := range l.Sims[1:] {
			if w.Engine() == sim.Standalone {
				break // all of them are heard directly
			}
			l.agents, l.AgentAdmin = append(l.agents, nil), append(l.AgentAdmin, at(5+i))
			if err := l.StartAgent(i + 1); err != nil {
				return l, err
			}
		}
	}
	eo := envoy.Default()
	eo.Listen, eo.Admin, eo.Sightline, eo.Workers, eo.TokenUsage = at(0), at(1), at(2), addrs, true
	eo.DebugHeaders = o.Debug
	if o.Front != nil {
		o.Front(&eo)
	}
	log, err := os.Create(filepath.Join(l.dir, "envoy.log"))
	if err != nil {
		return l, err
	}
	l.envoy, err = envoytest.Start(ctx, o.Envoy, eo, log, "--concurrency", "2")
	if err != nil {
		text, _ := os.ReadFile(log.Name())
		return l, fmt.Errorf("%w\n%s", err, text[max(0, len(text)-2000):])
	}
	if o.Without {
		return l, nil
	}
	return l, l.WaitReady(ctx)
}

func workerName(i int) string { return fmt.Sprint("worker-", i+1) }

// credentials is a file of those by which the NATS server knows Sightline and the agents.
func (l *Lab) credentials(name string) string { return filepath.Join(l.dir, "credentials", name) }

// configure writes Sightline's file, and the credentials.
func (l *Lab) configure(listen string) error {
	var list []any
	for i, w := range l.Sims {
		events := map[string]any{"nats": true}
		switch {
		case w.Engine() == sim.Standalone:
			events = map[string]any{"zmq": w.EventsAddr(), "load": w.LoadAddr()}
		case i > 0:
		case w.Engine() == sim.SGLang:
			events = map[string]any{"auto": true}
		case w.Engine() == sim.TRTLLM:
			events = map[string]any{"http": "http://" + w.Addr()}
		default:
			events = map[string]any{"zmq": w.EventsAddr(), "replay": w.ReplayAddr()}
		}
		list = append(list, map[string]any{"name": workerName(i), "addr": w.Addr(), "ranks": l.o.Ranks, "events": events})
	}
	names := []string{bus.AnyWorker}
	for i := range l.Sims {
		names = append(names, workerName(i))
	}
	if _, err := bus.WriteUsers(l.credentials(""), names); err != nil {
		return err
	}
	conf := fmt.Appendf(nil, "jetstream {store_dir: %q}\ninclude users.conf\n", filepath.Join(l.dir, "nats"))
	if err := os.WriteFile(l.credentials("nats.conf"), conf, 0o600); err != nil {
		return err
	}
	dir, err := filepath.Abs(l.o.ModelDir)
	if err != nil {
		return err
	}
	keys := map[string]any{
		"listen": listen, "admin": l.Admin, "log_level": "error", "drain": "0s",
		"nats":    map[string]any{"listen": l.NATS, "config": l.credentials("nats.conf"), "auth": l.credentials("router.nk")},
		"media":   map[string]any{"allow": []string{"127.0.0.0/8"}},
		"models":  []any{map[string]any{"name": ModelName, "dir": dir}},
		"workers": list,
		"envoy":   map[string]any{"listen": strings.TrimPrefix(l.URL, "http://"), "admin": l.EnvoyAdmin},
	}
	if l.o.Config != nil {
		l.o.Config(keys)
	}
	text, err := yaml.Marshal(keys)
	if err != nil {
		return err
	}
	l.config = filepath.Join(l.dir, "sightline.yaml")
	return os.WriteFile(l.config, text, 0o600)
}

// ConfigFile is Sightline's file, which may be written anew while it runs.
func (l *Lab) ConfigFile() string { return l.config }

// StartSightline runs `sightline serve`; after KillSightline, once more.
func (l *Lab) StartSightline() (err error) {
	l.passed = l.checks()
	l.main, err = l.run("serve", "--config", l.config)
	return err
}

// StartAgent runs the agent of the i-th worker (from 1: the first has none); after EndAgent, once more.
func (l *Lab) StartAgent(i int) (err error) {
	w, seed := l.Sims[i], "agent-"+workerName(i)+".nk"
	if l.o.AnyAgent {
		seed = "agents.nk"
	}
	args := []string{"agent", "--worker", workerName(i), "--nats", "nats://" + l.NATS, "--nats-auth", l.credentials(seed),
		"--admin", l.AgentAdmin[i-1], "--ranks", fmt.Sprint(l.o.Ranks)}
	switch w.Engine() {
	case sim.TRTLLM:
		args = append(args, "--http", "http://"+w.Addr())
	case sim.TRTLLMZMQ:
		args = append(args, "--engine", "trtllm", "--zmq", w.EventsAddr(), "--replay", w.ReplayAddr())
	default:
		args = append(args, "--engine", string(w.Engine()), "--zmq", w.EventsAddr(), "--replay", w.ReplayAddr())
	}
	l.agents[i-1], err = l.run(args...)
	return err
}

// EndAgent ends the agent of the i-th worker by a signal: SIGKILL leaves it no chance to say good-bye.
func (l *Lab) EndAgent(i int, by syscall.Signal) error {
	c := l.agents[i-1]
	l.agents[i-1] = nil
	_ = c.Process.Signal(by)
	return c.Wait()
}

// KillSightline ends it without a chance to say good-bye.
func (l *Lab) KillSightline() {
	_ = l.main.Process.Kill()
	_ = l.main.Wait()
	l.main = nil
}

// SignalSightline sends it a signal: SIGSTOP freezes it, SIGCONT lets it go on.
func (l *Lab) SignalSightline(by syscall.Signal) error { return l.main.Process.Signal(by) }

// WaitReady waits until Sightline hears all workers and Envoy has found it healthy.
func (l *Lab) WaitReady(ctx context.Context) error {
	// Envoy may not have noticed that the one before was killed, and will still find this one not ready.
	if err := WaitFor(ctx, "a health check of this Sightline", func() bool { return l.checks() > l.passed }); err != nil {
		return err
	}
	return WaitReady(ctx, l.Admin, l.EnvoyAdmin, len(l.Sims)*max(1, l.o.Ranks))
}

// checks is how many of its health checks Envoy has seen pass.
func (l *Lab) checks() (n int) {
	text, _ := Get("http://" + l.EnvoyAdmin + "/stats?filter=cluster.sightline.health_check.success")
	_, _ = fmt.Sscanf(string(text), "cluster.sightline.health_check.success: %d", &n)
	return n
}

// run starts a subcommand of the binary as a process of its own.
func (l *Lab) run(args ...string) (*exec.Cmd, error) {
	c := exec.Command(l.o.Self, args...)
	c.Env = append(os.Environ(), "SIGHTLINE_LOG_LEVEL=error") // an agent's; Sightline's is in its configuration
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	if l.o.Log != nil {
		c.Stdout, c.Stderr = l.o.Log, l.o.Log
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is ours to handle
	return c, c.Start()
}

// Stop ends everything.
func (l *Lab) Stop() {
	l.once.Do(func() {
		if l.envoy != nil {
			l.envoy.Stop()
		}
		procs := slices.DeleteFunc(slices.Clone(l.agents), func(c *exec.Cmd) bool { return c == nil }) // before the NATS server that they talk to
		if l.main != nil {
			procs = append(procs, l.main)
		}
		for _, c := range procs {
			_ = c.Process.Signal(syscall.SIGTERM)
			_ = c.Wait()
		}
		for _, w := range l.Sims {
			w.Close()
		}
		os.RemoveAll(l.dir)
	})
}

// Do sends a request with the time limit of all that is asked here.
func (l *Lab) Do(r *http.Request) (*http.Response, error) { return l.client.Do(r) }

// Config is the path of Sightline's configuration.
func (l *Lab) Config() string { return l.config }

// PID is the process of Sightline.
func (l *Lab) PID() int { return l.main.Process.Pid }

// Self is the path of the sightline binary that runs here.
func (l *Lab) Self() string { return l.o.Self }

// Served tells which worker took the request whose user field was given, -1 if none did.
func (l *Lab) Served(user string) int {
	if w, ok := l.served.Load(user); ok {
		return w.(int)
	}
	return -1
}

// Encoded counts the images that the workers' encoders saw.
func (l *Lab) Encoded() (n int) {
	for _, w := range l.Sims {
		n += w.Stats().ImagesEncoded
	}
	return n
}
