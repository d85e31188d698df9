// Package e2e runs the whole through a real Envoy: clients, Envoy, Sightline, workers, all on loopback and free ports.
//
// Two kinds of Sightline take part: one in the test's own process, whose outcomes the test can see, and one in a
// process of its own, which can be killed. Both decide what the request's body tells them to (see script), so that a
// test says in one line what is decided and checks what Envoy makes of it.
package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/sightline-router/sightline/envoy"
	"github.com/sightline-router/sightline/extproc"
	"github.com/sightline-router/sightline/lab"
	"github.com/sightline-router/sightline/lab/envoytest"
	"github.com/sightline-router/sightline/router"
)

// childVar turns the test binary into a Sightline process that listens on its value.
const childVar = "SIGHTLINE_E2E_LISTEN"

func TestMain(m *testing.M) {
	if addr := os.Getenv(nothingVar); addr != "" {
		fmt.Fprintln(os.Stderr, serveNothing(addr))
		os.Exit(1)
	}
	if file := os.Getenv(natsVar); file != "" {
		fmt.Fprintln(os.Stderr, serveNATS(file))
		os.Exit(1)
	}
	if told := os.Getenv(clockVar); told != "" {
		fmt.Fprintln(os.Stderr, serveAhead(told))
		os.Exit(1)
	}
	if addr := os.Getenv(childVar); addr != "" {
		s, err := extproc.New(decideAsTold, func(router.Outcome) {}, extproc.Options{})
		if err == nil {
			var lis net.Listener
			lis, err = extproc.Listen(addr)
			if err == nil {
				err = s.Serve(context.Background(), lis)
			}
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if dir, err := binaries(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// script is what a test's request body may say under the key "script": the decision to take.
type script struct {
	Targets []string `json:"targets,omitempty"` // ip:port, best first
	Rank    *int     `json:"rank,omitempty"`    // of the first target
	Reason  string   `json:"reason,omitempty"`
	Blocks  int      `json:"blocks,omitempty"`
	Refuse  int      `json:"refuse,omitempty"`
	Edit    string   `json:"edit,omitempty"` // replaces the first EDITME
	Panic   bool     `json:"panic,omitempty"`
	Late    bool     `json:"late,omitempty"` // not before Envoy has given up
	Due     []string `json:"due,omitempty"`  // of each target
}

func decideAsTold(ctx context.Context, req *router.Request) router.Decision {
	d := router.Decision{ID: req.ID, Model: "e2e", Reason: router.Load}
	body := bytes.Join(req.Body, nil)
	var told struct{ Script script }
	if json.Unmarshal(body, &told) != nil {
		return d
	}
	s := told.Script
	if s.Panic {
		panic("told to")
	}
	if s.Late {
		<-ctx.Done()
	}
	for _, addr := range s.Targets {
		if req.Only != nil && !slices.Contains(req.Only, addr) {
			continue
		}
		target := router.Target{Worker: "w" + addr[strings.LastIndexByte(addr, ':')+1:], Addr: addr, Rank: -1}
		if n := len(d.Targets); n < len(s.Due) {
			target.Due = router.Due{Header: "x-vllm-priority", Value: s.Due[n], Ahead: true}
		}
		d.Targets = append(d.Targets, target)
	}
	if s.Rank != nil && len(d.Targets) > 0 {
		d.Targets[0].Rank = *s.Rank
	}
	if s.Reason != "" {
		d.Reason = router.Reason(s.Reason)
	}
	d.MatchedBlocks = s.Blocks
	if s.Refuse != 0 {
		d.Refuse = &router.Refusal{Status: s.Refuse, Message: "refused as told"}
	}
	if at := bytes.Index(body, []byte("EDITME")); s.Edit != "" && at >= 0 {
		d.Edits = []router.Edit{{From: at, To: at + len("EDITME"), Text: []byte(s.Edit)}}
	}
	return d
}

// world is one Envoy with its workers and the address where a Sightline may listen.
type world struct {
	t         testing.TB
	envoy     *envoytest.Process
	url       string // of Envoy's listener
	sightline string // address
	pid       int    // of the process forked last
	workers   []*worker
	patient   bool // Envoy waits long
	log       *lockedBuffer
	client    *http.Client // HTTP/1
	h2        *http.Client // HTTP/2, prior knowledge
}

// patient has Envoy wait for Sightline as long as a busy machine may take. Most tests ask what is decided, not how soon.
var patient = strings.NewReplacer("message_timeout: 2s", "message_timeout: 25s",
	"- timeout: 1s\n      interval: 1s\n      unhealthy_interval", "- timeout: 25s\n      interval: 1s\n      unhealthy_interval")

// start runs Envoy before n workers, with a unix socket for Sightline unless change says otherwise, and with patience.
func start(t testing.TB, n int, change func(*envoy.Options)) *world {
	t.Helper()
	w := startEdited(t, n, change, func(printed string) string { return withPatience(t, printed) })
	w.patient = true
	return w
}

func withPatience(t testing.TB, printed string) string {
	t.Helper()
	text := patient.Replace(printed)
	if strings.Count(text, ": 25s") < 2 {
		t.Fatalf("the printed configuration has other timeouts than these tests expect: got %d, want at least 2", strings.Count(text, ": 25s"))
	}
	return text
}

// startAsPrinted is start without patience.
func startAsPrinted(t testing.TB, n int, change func(*envoy.Options)) *world {
	t.Helper()
	return startEdited(t, n, change, func(printed string) string { return printed })
}

func startEdited(t testing.TB, n int, change func(*envoy.Options), edit func(string) string) *world {
	t.Helper()
	w := &world{t: t, log: &lockedBuffer{}}
	o := envoy.Default()
	o.Listen, o.Admin = freeAddr(t), freeAddr(t)
	o.Sightline = "unix:" + filepath.Join(t.TempDir(), "s")
	o.Workers = nil
	for range n {
		w.workers = append(w.workers, startWorker(t))
		o.Workers = append(o.Workers, w.workers[len(w.workers)-1].addr)
	}
	if change != nil {
		change(&o)
	}
	w.url, w.sightline = "http://"+o.Listen, o.Sightline
	text, err := envoy.Generate(o)
	if err != nil {
		t.Fatal(err)
	}
	w.envoy, err = envoytest.Run(t.Context(), binary(t), []byte(edit(string(text))), o.Admin, w.log, "--concurrency", "2")
	if err != nil {
		t.Fatalf("%v\n%s", err, w.log)
	}
	one, two := &http.Transport{MaxIdleConnsPerHost: 64}, &http.Transport{Protocols: new(http.Protocols)}
	two.Protocols.SetUnencryptedHTTP2(true)
	w.client, w.h2 = &http.Client{Transport: one, Timeout: 30 * time.Second}, &http.Client{Transport: two, Timeout: 30 * time.Second}
	t.Cleanup(func() {
		one.CloseIdleConnections()
		two.CloseIdleConnections()
		w.envoy.Stop()
		if t.Failed() {
			t.Logf("Envoy's log, its end:\n%s", w.log)
		}
	})
	return w
}

// sightline is a Sightline in this process.
type sightline struct {
	stop func() // gracefully, and waits

	mu       sync.Mutex
	outcomes []router.Outcome
}

// runSightline serves at the world's address until the test ends or stop is called.
func (w *world) runSightline(opt extproc.Options) *sightline {
	w.t.Helper()
	s, stop := w.serveSightline(opt)
	s.stop = stop
	w.waitDecided()
	return s
}

// serveSightline is runSightline that does not wait for decisions.
func (w *world) serveSightline(opt extproc.Options) (s *sightline, stop func()) {
	w.t.Helper()
	s = &sightline{}
	opt.Log = zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(zap.NewDevelopmentEncoderConfig()), zapcore.AddSync(w.log), zap.WarnLevel))
	server, err := extproc.New(decideAsTold, func(o router.Outcome) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if o.Phase != router.Gone && o.Phase != router.Done { // the one is no report of Envoy's, the other comes before or after an end
			s.outcomes = append(s.outcomes, o)
		}
	}, opt)
	if err != nil {
		w.t.Fatal(err)
	}
	lis, err := extproc.Listen(w.sightline)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	gone := make(chan error, 1)
	go func() { gone <- server.Serve(ctx, lis) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-gone; err != nil {
				w.t.Errorf("Sightline: %v", err)
			}
		})
	}
	w.t.Cleanup(stop)
	return s, stop
}

// of lists what was observed of one decision.
func (s *sightline) of(id string) []router.Outcome {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []router.Outcome
	for _, o := range s.outcomes {
		if o.ID == id {
			out = append(out, o)
		}
	}
	return out
}

// forkSightline serves at the world's address from a process of its own; the result kills it with SIGKILL.
func (w *world) forkSightline() (kill func()) {
	w.t.Helper()
	return w.fork(exec.Command(os.Args[0]), childVar+"="+w.sightline)
}

// waitDecided waits until Envoy's requests get decisions: the picked worker is the one that is told, ten times running.
func (w *world) waitDecided() {
	w.t.Helper()
	eventually(w.t, "requests are decided", func() bool {
		for i := range 10 {
			target := w.workers[i%len(w.workers)].addr
			r := w.post(chat(script{Targets: []string{target}}), nil)
			if r.err != nil || r.Headers == nil || len(r.Headers["X-Sightline-Id"]) == 0 {
				return false
			}
		}
		return true
	})
}

// chat is a chat request's body with a script and further members, such as `"stream":true`.
func chat(s script, more ...string) string {
	told, _ := json.Marshal(s)
	return `{"model":"m","messages":[{"role":"user","content":"hello"}],` + strings.Join(append(more, `"script":`+string(told)), ",") + `}`
}

// reply is what came back to a client.
type reply struct {
	err    error
	status int
	header http.Header
	body   []byte
	echo   // of the worker that answered, if it was one
}

func (r reply) id() string {
	if v := r.Headers["X-Sightline-Id"]; len(v) == 1 {
		return v[0]
	}
	return ""
}

// post sends a chat request over HTTP/1.
func (w *world) post(body string, header http.Header) reply {
	return w.send(w.client, http.MethodPost, "/v1/chat/completions", body, header)
}

func (w *world) send(c *http.Client, method, path, body string, header http.Header) reply {
	req, err := http.NewRequest(method, w.url+path, strings.NewReader(body))
	if err != nil {
		return reply{err: err}
	}
	req.Header.Set("content-type", "application/json")
	for k, v := range header {
		req.Header[k] = v
	}
	return do(c, req)
}

func do(c *http.Client, req *http.Request) reply {
	res, err := c.Do(req)
	if err != nil {
		return reply{err: err}
	}
	return read(res)
}

func read(res *http.Response) reply {
	defer res.Body.Close()
	out := reply{status: res.StatusCode, header: res.Header}
	out.body, out.err = io.ReadAll(res.Body)
	var said struct{ Echo echo }
	if json.Unmarshal(out.body, &said) == nil {
		out.echo = said.Echo
	}
	return out
}

// decided repeats a request until it had a decision, a few times: on a machine that is too busy Envoy may go on without
// one, as it should, and then the request says nothing about decisions.
func decided(send func() reply) (r reply) {
	for range 5 {
		r = send()
		if r.err != nil || r.status != http.StatusOK || r.id() != "" {
			break
		}
	}
	return r
}

// stat reads one of Envoy's counters; 0 if it is not there.
func (w *world) stat(name string) int {
	page, err := w.envoy.Get(w.t.Context(), "/stats")
	if err != nil {
		w.t.Fatal(err)
	}
	for line := range strings.Lines(page) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && k == name {
			n, _ := strconv.Atoi(v)
			return n
		}
	}
	return 0
}

func (w *world) addrs() []string {
	var out []string
	for _, x := range w.workers {
		out = append(out, x.addr)
	}
	return out
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never happened: %s", what)
		}
	}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return lis
}

var taken struct {
	sync.Mutex
	addrs []string
}

// freeAddr is an address that nobody listens on and that no other call has given out.
func freeAddr(t testing.TB) string {
	t.Helper()
	for {
		ports, err := lab.FreePorts(1)
		if err != nil {
			t.Fatal(err)
		}
		addr := fmt.Sprint("127.0.0.1:", ports[0])
		taken.Lock()
		fresh := !slices.Contains(taken.addrs, addr)
		taken.addrs = append(taken.addrs, addr)
		taken.Unlock()
		if fresh {
			return addr
		}
	}
}

var findBinary = sync.OnceValues(func() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	return envoy.Binary(context.Background(), filepath.Join(filepath.Dir(dir), ".cache"), func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, format+"\n", args...)
	})
})

// needs140 skips a test whose configuration older releases do not know, where $ENVOY names one.
func needs140(t testing.TB) {
	t.Helper()
	if out, err := exec.Command(binary(t), "--version").Output(); err == nil && !bytes.Contains(out, []byte("/1.4")) {
		t.Skipf("needs Envoy 1.40 or later, not %s", bytes.TrimSpace(out))
	}
}

func binary(t testing.TB) string {
	t.Helper()
	path, err := findBinary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// lockedBuffer collects logs of several writers.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String is the end of what was written.
func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	const shown = 4000
	return string(b.buf.Bytes()[max(0, b.buf.Len()-shown):])
}

// after is what was written after the first n bytes.
func (b *lockedBuffer) after(n int) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return string(b.buf.Bytes()[n:])
}

// runProduct runs `sightline serve` at the world's address, with further keys of its configuration, until the test ends or
// stop is called.
func (w *world) runProduct(keys map[string]any) (stop func()) {
	w.t.Helper()
	bin, err := product()
	if err != nil {
		w.t.Fatal(err)
	}
	for k, v := range map[string]any{"listen": w.sightline, "admin": "", "log_level": "error", "fixed": unprobed(), "drain": "0s"} {
		if keys[k] == nil {
			keys[k] = v
		}
	}
	if w.patient && keys["envoy"] == nil {
		keys["envoy"] = map[string]any{"message_timeout": "25s"}
	}
	text, err := yaml.Marshal(keys)
	if err != nil {
		w.t.Fatal(err)
	}
	file := filepath.Join(w.t.TempDir(), "sightline.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		w.t.Fatal(err)
	}
	stop = w.fork(exec.Command(bin, "serve", "-c", file))
	eventually(w.t, "Envoy finds Sightline", func() bool { return w.stat("cluster.sightline.membership_healthy") == 1 })
	return stop
}

// unprobed is the section "fixed" of a configuration (package config, Fixed): workers are asked nothing at the start. More of its keys
// and values may follow.
func unprobed(more ...any) map[string]any {
	keys := map[string]any{"probe": false}
	for i := 0; i < len(more); i += 2 {
		keys[more[i].(string)] = more[i+1]
	}
	return keys
}

// fork runs a process; the result kills it, as the end of the test does.
func (w *world) fork(cmd *exec.Cmd, env ...string) (kill func()) {
	w.t.Helper()
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = w.log, w.log
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.pid = cmd.Process.Pid
	var once sync.Once
	kill = func() { once.Do(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) }
	w.t.Cleanup(kill)
	return kill
}

func absolute(t testing.TB, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return path
}
